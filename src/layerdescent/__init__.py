"""Train any transformer so that every layer lowers the loss, measure that it does, and use what it buys.

This file is the whole public API. A name loads its module when it is first used, so `import layerdescent` stays light:

    >>> import layerdescent
    >>> constraints = layerdescent.DescentConstraints(num_layers=6, alpha=0.05)
    >>> constraints.nodes
    (0, 1, 2, 3, 4, 5, 6)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerdescent.data import load_text as load_text
    from layerdescent.descent import DescentConstraints as DescentConstraints
    from layerdescent.descent import feasibility_advice as feasibility_advice
    from layerdescent.descent import feasible as feasible
    from layerdescent.descent import monotone as monotone
    from layerdescent.descent import shown as shown
    from layerdescent.duals import DualStep as DualStep
    from layerdescent.duals import Multipliers as Multipliers
    from layerdescent.errors import InputError as InputError
    from layerdescent.errors import NonFiniteLossError as NonFiniteLossError
    from layerdescent.errors import RunError as RunError
    from layerdescent.evaluation import DescentProfile as DescentProfile
    from layerdescent.evaluation import SweepResult as SweepResult
    from layerdescent.evaluation import descent_profile as descent_profile
    from layerdescent.evaluation import robustness_sweep as robustness_sweep
    from layerdescent.experiment import compare_recipe as compare_recipe
    from layerdescent.experiment import train_recipe as train_recipe
    from layerdescent.models import MeanPooledForSequenceClassification as MeanPooledForSequenceClassification
    from layerdescent.perturbation import Perturbation as Perturbation
    from layerdescent.readout import Readout as Readout
    from layerdescent.readout import ReadoutSpec as ReadoutSpec
    from layerdescent.readout import register_readout as register_readout
    from layerdescent.recipes import Recipe as Recipe
    from layerdescent.recipes import load_recipe as load_recipe
    from layerdescent.search import search_recipe as search_recipe
    from layerdescent.suggest import suggest_recipe as suggest_recipe
    from layerdescent.training import DescentArguments as DescentArguments
    from layerdescent.training import DescentConfig as DescentConfig
    from layerdescent.training import DescentMixin as DescentMixin
    from layerdescent.training import DescentTrainer as DescentTrainer

    __version__: str

# Where each name lives; the imports above say the same to type checkers, and a test holds the two together.
_HOME = {
    # the constrained problem, on tensors of layer losses
    "DescentConstraints": "descent",
    "monotone": "descent",
    "feasible": "descent",
    "shown": "descent",
    "feasibility_advice": "descent",
    "Multipliers": "duals",
    "DualStep": "duals",
    # every layer read by the model's own head
    "Readout": "readout",
    "ReadoutSpec": "readout",
    "register_readout": "readout",
    "MeanPooledForSequenceClassification": "models",
    # training on the Hugging Face Trainer
    "DescentConfig": "training",
    "DescentTrainer": "training",
    "DescentMixin": "training",
    "DescentArguments": "training",
    # noise and evaluation, of any checkpoint
    "Perturbation": "perturbation",
    "descent_profile": "evaluation",
    "DescentProfile": "evaluation",
    "robustness_sweep": "evaluation",
    "SweepResult": "evaluation",
    # recipes: what the command line runs
    "load_text": "data",
    "Recipe": "recipes",
    "load_recipe": "recipes",
    "train_recipe": "experiment",
    "compare_recipe": "experiment",
    "search_recipe": "search",
    "suggest_recipe": "suggest",
    # what can go wrong
    "InputError": "errors",
    "RunError": "errors",
    "NonFiniteLossError": "errors",
}

__all__ = list(_HOME)


if not TYPE_CHECKING:  # a type checker that saw this would believe in any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("layerdescent")
        if name not in _HOME:
            raise AttributeError(f"module 'layerdescent' has no attribute {name!r}")
        return getattr(import_module(f"layerdescent.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

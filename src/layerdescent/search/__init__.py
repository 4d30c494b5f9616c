"""Fair selection of every arm's settings, on clean validation data only.

    recipe.search -> trials (runs with overrides) -> candidates (means over seeds) -> the rule -> chosen.yaml

`rule` is pure: tables in, a choice with its reason out. `trials` trains, in a folder that can be picked up at any time.
"""

from layerdescent.search.rule import Candidate, Choice, choose_best, choose_under_constraints
from layerdescent.search.trials import search_recipe

__all__ = ["Candidate", "Choice", "choose_best", "choose_under_constraints", "search_recipe"]

"""What differs between text and video in an experiment: the data, the untrained model, and what *in distribution* is.

Everything else (training, profiles, sweeps, statistics, pages) knows rows and models only.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from layerdescent.adapters import add_lora
from layerdescent.data import (
    InstructionCollator,
    InstructionColumns,
    PreparedInstructions,
    PreparedText,
    prepare,
    prepare_instructions,
    resolve_model,
)
from layerdescent.data.labels import bins
from layerdescent.data.splits import subsample
from layerdescent.data.video import (
    PreparedVideo,
    SyntheticClips,
    VideoWindows,
    background_windows,
    constant_mean,
    frame_patch_mean,
    patch_mean,
    prepare_video,
    temporal_mean,
)
from layerdescent.errors import InputError, no_such_field
from layerdescent.evaluation.batches import load_config, stored_tokenizer
from layerdescent.models import MEAN_POOLED_BACKBONES, MeanPooledForSequenceClassification
from layerdescent.perturbation import Perturbation
from layerdescent.recipes import InstructionsRecipe, Recipe, VideoRecipe
from layerdescent.whole_frames import Stretch, busiest_part, sampled_stretches

_STRONG_NOISE = 1.0  # of the second picture: where layers differ most


class Prepared(Protocol):
    """The parts of a data set, and a report of how they came about."""

    @property
    def train(self) -> Any:
        """Rows to train on."""

    @property
    def validation(self) -> Any:
        """Rows to choose on."""

    @property
    def test(self) -> Any:
        """Rows to measure on."""

    @property
    def report(self) -> Any:
        """An object with `source`, `summary()` and `to_dict()`."""


class Task(Protocol):
    """What an experiment asks of a kind of data."""

    def num_layers(self) -> int:
        """L of the recipe's model, known before anything is loaded."""

    def prepare(self, *, progress: bool) -> tuple[Prepared, Any]:
        """The recipe's data, and the tokenizer where there is one."""

    def rows_hash(self, rows: Any) -> str:
        """The content of a part, to know it again."""

    def new_model(self, data: Any) -> PreTrainedModel:
        """The model that every arm starts from; what is drawn at random comes from torch's global generator."""

    def collator(self, tokenizer: Any) -> Callable[[Any], Any] | None:
        """What makes a batch of rows in training; None for the trainer's own."""

    @property
    def base(self) -> Perturbation | None:
        """The noise that models meet in distribution; None where inputs are clean."""

    def units(self, rows: Any) -> NDArray[np.integer[Any]] | None:
        """The independent unit of every row; None where each row is one."""

    def sweep_options(self, data: Any) -> dict[str, Any]:
        """What `robustness_sweep` is told of the test part."""

    def whole_frames(self, data: Any) -> "WholeFrames | None":
        """The whole frames that final models denoise; None for text.

        Raises:
            InputError: no test clip is long enough.
        """


@dataclass(frozen=True, kw_only=True)
class WholeFrames:
    """Whole frames of test clips, the noise that they are measured and shown under, and the trivial denoisers.

    Attributes:
        stretches: what is measured; empty where the recipe asks for none.
        noises: under what.
        picture: what is shown.
        shown_under: under what; empty where the recipe asks for none.
        trivial: estimates of denoisers that have learned nothing.
    """

    stretches: Sequence[Stretch]
    noises: Sequence[Perturbation]
    picture: Stretch
    shown_under: Sequence[Perturbation]
    trivial: Callable[[Stretch, NDArray[np.float32]], dict[str, NDArray[np.float32]]]


def task_of(recipe: Recipe) -> Task:
    """The task that a recipe's data make."""
    if isinstance(recipe, InstructionsRecipe):
        return InstructionTask(recipe)
    return VideoTask(recipe) if isinstance(recipe, VideoRecipe) else TextTask(recipe)


@dataclass(frozen=True)
class TextTask:
    """Texts and their labels, read by a pretrained encoder with a new head."""

    recipe: Recipe

    def num_layers(self) -> int:
        """As its configuration says."""
        spec = self.recipe.model
        layers: int = load_config(resolve_model(spec.source), spec.revision).num_hidden_layers
        return layers

    def prepare(self, *, progress: bool) -> tuple[PreparedText, Any]:
        """Read, cut and tokenise."""
        spec = self.recipe.model
        tokenizer = stored_tokenizer(resolve_model(spec.source), spec.revision)
        return prepare(self.recipe.data, tokenizer, progress=progress), tokenizer

    def rows_hash(self, rows: Dataset) -> str:
        """Of every row."""
        return _hash_of_rows(rows)

    def collator(self, tokenizer: Any) -> None:
        """The trainer's own pads by the tokenizer."""
        return

    def new_model(self, data: PreparedText) -> PreTrainedModel:
        """The encoder as its checkpoint has it, the head drawn anew.

        Raises:
            InputError: the checkpoint cannot be loaded, does not fit its configuration, or has a head of its own.
        """
        spec, names = self.recipe.model, dict(enumerate(data.label_names or ["value"]))
        source, mean = resolve_model(spec.source), spec.pooling == "mean"
        labels: dict[str, Any] = {
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
            "problem_type": data.problem_type,
        }
        config = AutoConfig.from_pretrained(source, revision=spec.revision, **({} if mean else labels))
        name = f"model {spec.source}"
        if mean and config.model_type not in MEAN_POOLED_BACKBONES:
            raise InputError(
                f"{name} is of type {config.model_type}, and pooling=mean is for {', '.join(MEAN_POOLED_BACKBONES)}: "
                "set model.pooling=own"
            )
        try:
            model, info = (AutoModel if mean else AutoModelForSequenceClassification).from_pretrained(
                source,
                revision=spec.revision,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(f"{name} cannot be loaded: {error}") from None
        of_encoder = "" if mean else f"{model.base_model_prefix}."
        # The head may be new, and with it the pooler that only the head uses.
        wrong = [weight for weight in info["missing_keys"] if "pooler." not in weight]
        wrong += [weight for weight, *_ in info["mismatched_keys"]]
        wrong = sorted(weight for weight in wrong if weight.startswith(of_encoder))
        if wrong:
            raise InputError(
                f"{name} does not fit its config.json: {len(wrong)} of its weights are missing or of another shape "
                f"({wrong[0]}); give a whole checkpoint"
            )
        for weight, stored, wanted in info["mismatched_keys"]:
            raise InputError(
                f"{name} has a head of its own ({weight} is {tuple(stored)}), and these data have {len(names)} labels: "
                f"{', '.join(names.values())} (it would be {tuple(wanted)}); "
                "take a model without a head, or data that fit"
            )
        return MeanPooledForSequenceClassification.around(model, **labels) if mean else model

    @property
    def base(self) -> None:
        """Texts are read as they are."""
        return None

    def units(self, rows: Dataset) -> None:
        """Every text stands for itself."""
        return

    def sweep_options(self, data: PreparedText) -> dict[str, Any]:
        """The training labels, and which rows noise is measured on; a smaller sample is a part of a larger one."""
        count, test = self.recipe.evaluation.noise_rows, data.test
        units = None
        if count is not None and count < len(test):
            keys = [" ".join(map(str, ids)) for ids in test["input_ids"]]
            units = subsample(keys, bins(test["labels"], self.recipe.data.task), count, self.recipe.data.seed)
        return {"train_labels": data.train["labels"], "noisy_units": units}

    def whole_frames(self, data: PreparedText) -> None:
        """Texts have none."""
        return


def _hash_of_rows(rows: Dataset) -> str:
    digest = blake2b(digest_size=16)
    for batch in rows.iter(batch_size=1000):
        digest.update(json.dumps(batch, sort_keys=True).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class InstructionTask:
    """Prompts and responses, learned by a causal language model whole or by adapters."""

    recipe: InstructionsRecipe

    def num_layers(self) -> int:
        """As its configuration says."""
        spec = self.recipe.model
        layers: int = load_config(resolve_model(spec.source), spec.revision).num_hidden_layers
        return layers

    def prepare(self, *, progress: bool) -> tuple[PreparedInstructions, Any]:
        """Read, cut and tokenise."""
        spec, data = self.recipe.model, self.recipe.data
        tokenizer = stored_tokenizer(resolve_model(spec.source), spec.revision)
        asked: dict[str, Any] = data.model_dump(exclude={"kind", "source", "columns"})
        columns = InstructionColumns(**data.columns.model_dump())
        return prepare_instructions(data.source, tokenizer, columns=columns, **asked, progress=progress), tokenizer

    def rows_hash(self, rows: Dataset) -> str:
        """Of every row."""
        return _hash_of_rows(rows)

    def new_model(self, data: PreparedInstructions) -> PreTrainedModel:
        """The model as its checkpoint has it, with fresh adapters if the recipe asks for them.

        Raises:
            InputError: the checkpoint cannot be loaded, or has no language model's head, or no layer to be adapted.
        """
        spec = self.recipe.model
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                resolve_model(spec.source),
                revision=spec.revision,
                dtype=getattr(torch, spec.dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(f"model {spec.source} cannot be loaded: {error}") from None
        model, info = loaded
        wrong = sorted([*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])])
        if wrong:
            raise InputError(
                f"model {spec.source} is no whole language model: {len(wrong)} weights are missing or of another shape "
                f"({wrong[0]}); give a checkpoint with its head"
            )
        lora = spec.lora
        if lora is None:
            return model
        adapted: Any = add_lora(model, r=lora.r, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets)
        return adapted

    def collator(self, tokenizer: Any) -> InstructionCollator:
        """Labels are padded too."""
        return InstructionCollator(tokenizer)

    @property
    def base(self) -> None:
        """Prompts are read as they are."""
        return None

    def units(self, rows: Dataset) -> None:
        """Every text stands for itself."""
        return

    def sweep_options(self, data: PreparedInstructions) -> dict[str, Any]:
        """The training responses, and which rows noise is measured on; a smaller sample is a part of a larger one."""
        count, test = self.recipe.evaluation.noise_rows, data.test
        units = None
        if count is not None and count < len(test):
            keys = [" ".join(map(str, ids)) for ids in test["input_ids"]]
            units = subsample(keys, [None] * len(keys), count, self.recipe.data.seed)
        return {"train_labels": list(data.train["labels"]), "noisy_units": units}

    def whole_frames(self, data: PreparedInstructions) -> None:
        """Texts have none."""
        return


@dataclass(frozen=True)
class VideoTask:
    """Windows of patches over time under noise, and a network that takes the noise out."""

    recipe: VideoRecipe

    def num_layers(self) -> int:
        """As the recipe or the network's own default says; sizes that fit no network are told here."""
        model = AutoModel.from_config(self._config())
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise InputError(
                f"a {self.recipe.model.architecture} of this configuration has nothing to train: set "
                "model.config.learned=true"
            )
        layers: int = model.config.num_hidden_layers
        return layers

    def prepare(self, *, progress: bool) -> tuple[PreparedVideo, None]:
        """Decode what the cache lacks, and cut windows."""
        asked = self.recipe.data.model_dump(exclude={"kind", "windows", "synthetic"})
        windows, synthetic = self.recipe.data.windows, self.recipe.data.synthetic
        return (
            prepare_video(
                **asked,
                train_windows=windows.train,
                validation_windows=windows.validation,
                test_windows=windows.test,
                synthetic=None if synthetic is None else SyntheticClips(**synthetic.model_dump()),
                progress=progress,
            ),
            None,
        )

    def rows_hash(self, rows: VideoWindows) -> str:
        """Of the windows' places, and of every clip's pixels once."""
        digest = blake2b(json.dumps(rows.to_dict()).encode(), digest_size=16)
        for clip in rows.used_clips:
            digest.update(np.ascontiguousarray(clip.pixels).tobytes())
        return digest.hexdigest()

    def new_model(self, data: PreparedVideo) -> PreTrainedModel:
        """A network with fresh weights."""
        return AutoModel.from_config(self._config())

    def collator(self, tokenizer: None) -> None:
        """The trainer's own stacks windows."""
        return

    @property
    def base(self) -> Perturbation:
        """The gaussian noise of training, drawn once for every window."""
        gamma = self.recipe.arm_settings(self.recipe.baseline)["input_gamma"]
        return Perturbation("gaussian", gamma=float(gamma))

    def units(self, rows: VideoWindows) -> NDArray[np.integer[Any]]:
        """Windows of one clip are no independent units."""
        return rows.clip

    def sweep_options(self, data: PreparedVideo) -> dict[str, Any]:
        """Training noise as the first setting, clips as units, and the trivial denoisers."""
        count = self.recipe.evaluation.noise_rows
        units = None
        if count is not None and count < len(data.test):
            keys = [str(tuple(place)) for place in data.test.positions.tolist()]
            units = subsample(keys, data.test.clip.tolist(), count, self.recipe.data.seed)
        return {
            "base": self.base,
            "groups": data.test.clip,
            "noisy_units": units,
            "trivial": _TrivialDenoisers(data),
        }

    def whole_frames(self, data: PreparedVideo) -> WholeFrames:
        """A sample of test clips; the picture is the busiest part of one of them, as long as a window."""
        evaluation, seed = self.recipe.evaluation, self.recipe.data.seed
        whole, shown = evaluation.whole_frames, evaluation.pictures
        tested = data.test.used_clips
        stretches = sampled_stretches(tested, whole.clips, frames=whole.frames, seed=seed) if whole else []
        (picture,) = sampled_stretches(tested, 1, frames=data.test.frames, seed=seed)
        levels = [self.base.gamma, _STRONG_NOISE] if shown is None else shown
        return WholeFrames(
            stretches=stretches,
            noises=self._gaussian(whole.gammas if whole else ()),
            picture=busiest_part(picture),
            shown_under=self._gaussian(levels),
            trivial=_TrivialDenoisers(data).frames,
        )

    def _gaussian(self, levels: Sequence[float | None]) -> list[Perturbation]:
        seed = self.recipe.evaluation.noise_seeds[0]
        return [Perturbation("gaussian", gamma=level, seed=seed) for level in dict.fromkeys(levels)]

    def _config(self) -> Any:
        spec, data = self.recipe.model, self.recipe.data
        own = {"num_pixels": data.patch**2, "num_frames": data.frames}
        given = set(own) & spec.config.keys()
        if given:
            raise InputError(f"model.config: {', '.join(sorted(given))} follow from data.patch and data.frames")
        kind: Any = CONFIG_MAPPING[spec.architecture]
        known = {name for each in kind.__mro__ for name in getattr(each, "__annotations__", {})}
        for name in spec.config:
            if name not in known:
                raise no_such_field(f"model.config: a {spec.architecture}", name, known)
        return kind(**own, **spec.config)


class _TrivialDenoisers:
    """Denoisers that know next to nothing, under given noise.

    A call gives per-window squared errors, of estimates as they are and clipped; `frames` gives estimates.
    """

    def __init__(self, data: PreparedVideo) -> None:
        self.data = data

    def __call__(self, at: NDArray[np.int64], noise: Perturbation | None) -> dict[str, NDArray[np.float32]]:
        test = self.data.test
        clean = test.values(at)
        noisy = clean if noise is None else noise.on_pixels(clean)
        estimates = {
            "constant mean": constant_mean(noisy, self.data.training_mean),
            "temporal mean": temporal_mean(noisy),
            "patch mean": patch_mean(noisy),
        }
        if self.data.backgrounds is not None:
            estimates["training background"] = background_windows(test, self.data.backgrounds, at.tolist())
        return {
            name: np.stack([((values - clean) ** 2).mean(axis=(1, 2)) for values in (guess, guess.clip(0, 1))])
            for name, guess in estimates.items()
        }

    def frames(self, stretch: Stretch, noisy: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Estimates (F, H, W) of whole frames, the noisy frames themselves first."""
        windows, backgrounds = self.data.test, self.data.backgrounds
        parts = [noisy[first : first + windows.frames] for first in range(0, len(noisy), windows.frames)]
        means = [temporal_mean(part.reshape(len(part), -1)).reshape(part.shape) for part in parts]
        estimates = {
            "noisy input": noisy,
            "constant mean": constant_mean(noisy, self.data.training_mean),
            "temporal mean": np.concatenate(means),
            "patch mean": frame_patch_mean(noisy, windows.patch),
        }
        if backgrounds is not None:
            estimates["training background"] = np.broadcast_to(backgrounds[stretch.clip.camera], noisy.shape)
        return estimates

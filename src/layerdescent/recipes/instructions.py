"""The parts of a recipe that only instructions have: a language model, its adapters, and prompts with responses."""

from typing import Annotated, Literal

from pydantic import Field

from layerdescent.recipes.common import Count, Part, Section, Seed, Splits
from layerdescent.recipes.text import Format, HoldoutSpec, RowsSpec


class LoraSpec(Section):
    """Low-rank adapters, which learn while everything else stays as it is."""

    r: Count = 16
    """Their rank."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """They are scaled by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: list[str] | str = "all-linear"
    """Names of the layers that get one, such as `[q_proj, v_proj]`; `all-linear` is all but the head."""


class LanguageModelSpec(Section):
    """The pretrained language model that every arm starts from."""

    source: str
    """`package:NAME`, a folder that `save_pretrained` wrote, a hub name, or `builtin:tiny-llama`: random weights."""
    revision: str | None = None
    """Commit, branch or tag on the hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights."""
    lora: LoraSpec | None = None
    """null trains all weights."""


class InstructionColumnsSpec(Section):
    """Which columns hold what; by default the names that Alpaca, AlpacaEval and chat data use."""

    instruction: str | None = None
    input: str | None = None
    output: str | None = None
    messages: str | None = None


class InstructionsSpec(Section):
    """Prompts and responses, of which the responses are learned: `layerdescent.data.prepare_instructions`."""

    kind: Literal["instructions"]
    source: str | dict[Part, str]
    """A file of Alpaca's, AlpacaEval's or chat form (.json, .jsonl, each also .gz, .csv, .parquet), a folder,
    `hub:NAME`, one file for each part, or `builtin:instructions`, 300 made-up ones."""
    format: Format = "auto"
    subset: str | None = None
    columns: InstructionColumnsSpec = InstructionColumnsSpec()
    splits: Splits = Field(default_factory=dict)
    """Which part of the source serves as what, where the names differ."""
    rows: RowsSpec = RowsSpec()
    holdout: HoldoutSpec = HoldoutSpec()
    prompt_format: Literal["auto", "alpaca", "chat"] = "auto"
    """`auto` is the tokenizer's chat template where it has one, else Alpaca's prompt."""
    max_length: Annotated[int, Field(ge=8)] = 512
    """Tokens of prompt and response; longer responses are cut."""
    seed: Seed = 0
    """Of cuts and samples."""

    @property
    def task(self) -> Literal["next-token"]:
        """Each token is predicted from those before it."""
        return "next-token"

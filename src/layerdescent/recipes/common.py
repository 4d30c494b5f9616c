"""What the parts of a recipe are made of: the section, and the kinds of values that several of them hold."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Task = Literal["classification", "regression", "multi-label"]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Level = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

PARTS = ("train", "validation", "test")


class Section(BaseModel):
    """A part of a recipe: fields that it does not have are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def nearest(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """What was probably meant, as the middle of an error; "" where nothing is near.

    Example:
        >>> nearest("tets", PARTS), nearest("x", PARTS)
        ('did you mean test? ', '')
    """
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}? " if near else ""


def _known_part(name: str) -> str:
    if name not in PARTS:
        raise ValueError(f"no part is called {name}; {nearest(name, PARTS)}there are {', '.join(PARTS)}")
    return name


Part = Annotated[str, AfterValidator(_known_part)]


def _no_part_twice(splits: dict[str, str]) -> dict[str, str]:
    if len(set(splits.values())) < len(splits):
        raise ValueError(f"uses one part of the source twice: {splits}")
    return splits


Splits = Annotated[dict[Part, str], AfterValidator(_no_part_twice)]


def _no_seed_twice(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"holds a seed twice: {seeds}")
    return seeds


Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_no_seed_twice)]

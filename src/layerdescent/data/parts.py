"""Which part of a source serves as what, and how many of its rows are used."""

from collections.abc import Hashable, Mapping, Sequence

from layerdescent.data.sources import WHOLE, Parts, Source
from layerdescent.data.splits import subsample
from layerdescent.errors import InputError
from layerdescent.recipes.common import PARTS


def name_of(source: Source) -> str:
    """A source, for an error."""
    return source if isinstance(source, str) else ", ".join(source.values())


def origins(parts: Parts, splits: Mapping[str, str], source: Source) -> dict[str, str]:
    """Which part of the source each of train, validation and test comes from; what is left out is to be cut.

    Args:
        parts: what the source has.
        splits: what was asked for; the rest goes by name.
        source: for errors.

    Returns:
        At least the origin of `train`.

    Raises:
        InputError: a part that the source does not have, or none to train on.
    """
    for part, name in splits.items():
        if name not in parts:
            raise InputError(
                f"data.splits: {part} is to be the part {name!r} of {name_of(source)}; it has {', '.join(parts)}"
            )
    origin: dict[str, str] = dict(splits)
    for part in PARTS:
        if part not in origin and part in parts and part not in origin.values():
            origin[part] = part
    if "train" not in origin:
        if list(parts) != [WHOLE]:
            raise InputError(
                f"{name_of(source)} has no part train; it has {', '.join(parts)}: say by data.splits.train which it is"
            )
        origin["train"] = WHOLE
    return origin


def thin(
    part: str, kept: Sequence[int], keys: Sequence[str], strata: Sequence[Hashable], count: int | None, seed: int
) -> list[int]:
    """The rows of a part that are used, drawn in proportion to the strata.

    Args:
        part: its name, for errors.
        kept: the numbers of the rows to draw from.
        keys: the text of each row of the part.
        strata: the stratum of each row in `kept`.
        count: rows asked for; None for all.
        seed: of the draw.

    Returns:
        Sorted row numbers.

    Raises:
        InputError: more rows asked for than there are, or none left.
    """
    if not kept:
        raise InputError(
            f"no {part} rows are left after cuts and repeats (test rows stay, the others' repeats go); give more rows, "
            "or change data.holdout"
        )
    if count is None:
        count = len(kept)
    if count > len(kept):
        raise InputError(
            f"data.rows.{part} asks for {count:,} rows, and {len(kept):,} are there after cuts and repeats; "
            "ask for fewer, or change data.holdout"
        )
    return [kept[row] for row in subsample([keys[row] for row in kept], strata, count, seed)]

"""Texts that occur twice, inside a part or in two parts: found, counted, and kept from leaking into the test."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations


def normalise(text: str, pair: str | None = None) -> str:
    r"""The form in which two texts count as the same: lower case, runs of white space as one space.

    Example:
        >>> normalise("A fine\n  FILM ") == normalise("a fine film")
        True
    """
    whole = " ".join(text.lower().split())
    return whole if pair is None else f"{whole}\n{' '.join(pair.lower().split())}"


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """How many texts repeat, and what was done about it.

    Attributes:
        within: per part, rows that repeat an earlier row of the same part.
        between: per pair of parts ("train/test"), distinct texts that occur in both.
        conflicting: distinct texts that occur with different labels.
        dropped: per part, rows taken out: repeats inside training or validation, and whatever occurs in a later part
            (in the order training, validation, test). Test rows are counted and kept: the test stays what it is.
    """

    within: dict[str, int]
    between: dict[str, int]
    conflicting: int
    dropped: dict[str, int]

    def to_dict(self) -> dict[str, object]:
        """As plain values, for a results file."""
        return asdict(self)


def deduplicate(
    keys: Mapping[str, Sequence[str]], labels: Mapping[str, Sequence[object]]
) -> tuple[dict[str, list[int]], DuplicateReport]:
    """Which rows of each part to keep, so that no training or validation text is repeated or seen again later.

    Args:
        keys: per part, in the order training, validation, test: the normalised text of each row.
        labels: per part, the label of each row.

    Returns:
        Per part the sorted row numbers to keep, and the report.
    """
    distinct = {part: set(texts) for part, texts in keys.items()}
    within = {part: len(texts) - len(distinct[part]) for part, texts in keys.items()}
    between = {f"{one}/{two}": len(distinct[one] & distinct[two]) for one, two in combinations(keys, 2)}
    pairs = {(key, repr(label)) for part in keys for key, label in zip(keys[part], labels[part], strict=True)}
    conflicting = sum(count > 1 for count in Counter(key for key, _ in pairs).values())

    kept: dict[str, list[int]] = {}
    parts = list(keys)
    for number, part in enumerate(parts):
        if number == len(parts) - 1:
            kept[part] = list(range(len(keys[part])))
            continue
        seen: set[str] = set().union(*(distinct[later] for later in parts[number + 1 :]))
        kept[part] = []
        for row, key in enumerate(keys[part]):
            if key not in seen:
                seen.add(key)
                kept[part].append(row)
    dropped = {part: len(keys[part]) - len(rows) for part, rows in kept.items()}
    return kept, DuplicateReport(within=within, between=between, conflicting=conflicting, dropped=dropped)

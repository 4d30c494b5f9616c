"""Cutting and thinning rows: the same seed gives the same rows, whatever order they come in.

Every text gets a place in line from a hash of (seed, text). Taking rows in that order inside each stratum needs no
random state, does not depend on the order of files or rows, and makes a small sample a part of a larger one.
"""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence


def place(text: str, seed: int) -> bytes:
    """The place in line of a text: a keyed hash, equal for equal texts."""
    return hashlib.blake2b(text.encode(), key=seed.to_bytes(8, "big"), digest_size=8).digest()


def in_line(names: Iterable[str], seed: int) -> list[str]:
    """Names by their places in line: the first few of them are a random choice, and a part of any larger one.

    Example:
        >>> in_line("abcd", seed=0)[:2] == [name for name in in_line("zabcd", seed=0) if name != "z"][:2]
        True
    """
    return sorted(names, key=lambda name: (place(name, seed), name))


def quotas(sizes: Mapping[Hashable, int], total: int) -> dict[Hashable, int]:
    """Splits `total` over strata in proportion to their sizes, by largest remainder.

    Args:
        sizes: rows in each stratum.
        total: rows wanted, at most the sum of sizes.

    Returns:
        Rows for each stratum; they sum to `total` and never exceed the stratum.

    Example:
        >>> quotas({"negative": 30, "positive": 70}, 9)
        {'negative': 3, 'positive': 6}
    """
    available = max(1, sum(sizes.values()))
    shares = {stratum: total * size // available for stratum, size in sizes.items()}
    remainders = {stratum: total * size % available for stratum, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda stratum: (-remainders[stratum], repr(stratum)))
    for stratum in by_remainder[: total - sum(shares.values())]:
        shares[stratum] += 1
    return shares


def subsample(keys: Sequence[str], strata: Sequence[Hashable], count: int, seed: int) -> list[int]:
    """Row numbers of a stratified sample of exactly `count` rows, in their original order.

    Args:
        keys: the text of each row, which decides its place in line.
        strata: the stratum of each row: its label, or its bin for a number.
        count: rows wanted, 0 <= count <= len(keys).
        seed: of the order.

    Returns:
        Sorted row numbers.
    """
    members = _by_stratum(range(len(keys)), strata)
    wanted = quotas({stratum: len(rows) for stratum, rows in members.items()}, count)
    chosen: list[int] = []
    for stratum, rows in members.items():
        chosen += sorted(rows, key=lambda row: (place(keys[row], seed), row))[: wanted[stratum]]
    return sorted(chosen)


def cut(
    groups: Sequence[str], strata: Sequence[Hashable], shares: Mapping[str, float], seed: int
) -> tuple[list[int], dict[str, list[int]]]:
    """Cuts parts off a set of rows: disjoint, stratified, and no group on two sides.

    Args:
        groups: the group of each row, its text; rows of one group stay together.
        strata: the stratum of each row; a group counts where its first row does.
        shares: share of the rows for each part to cut off, in (0, 1), summing to less than 1.
        seed: of the order.

    Returns:
        The rows that remain, and the rows of each part; all sorted. Where groups have several rows a part may hold
        fewer rows than its share asks for, by less than one group a stratum.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        rows_of[group].append(row)
    members = _by_stratum([rows[0] for rows in rows_of.values()], strata)
    sizes = {stratum: sum(len(rows_of[groups[row]]) for row in firsts) for stratum, firsts in members.items()}
    wanted = {part: quotas(sizes, round(share * len(groups))) for part, share in shares.items()}
    rest: list[int] = []
    parts: dict[str, list[int]] = {part: [] for part in shares}
    for stratum, firsts in members.items():
        room = {part: wanted[part][stratum] for part in shares}
        for first in sorted(firsts, key=lambda row: (place(groups[row], seed), row)):
            rows = rows_of[groups[first]]
            part = next((part for part in shares if room[part] >= len(rows)), None)
            if part is None:
                rest += rows
            else:
                parts[part] += rows
                room[part] -= len(rows)
    return sorted(rest), {part: sorted(rows) for part, rows in parts.items()}


def _by_stratum(rows: Sequence[int] | range, strata: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        members[strata[row]].append(row)
    # By name, not by first appearance, so that ties in the quotas fall the same way whatever the order of rows.
    return dict(sorted(members.items(), key=lambda item: repr(item[0])))

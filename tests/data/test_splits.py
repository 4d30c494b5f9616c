import random
from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.data.splits import cut, place, quotas, subsample

texts = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=80)
distinct_texts = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=80, unique=True)
seeds = st.integers(0, 2**32 - 1)


def classes(keys: list[str]) -> list[int]:
    """A label that follows from the text, so that equal texts have equal labels."""
    return [sum(map(ord, key)) % 3 for key in keys]


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1), st.data())
def test_quotas_sum_and_stay_proportional(sizes: dict[Hashable, int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(sizes.values())))
    shares = quotas(sizes, total)
    assert sum(shares.values()) == total
    for stratum, size in sizes.items():
        exact = total * size / max(1, sum(sizes.values()))
        assert abs(shares[stratum] - exact) < 1
        assert shares[stratum] <= size


@given(texts, seeds, st.data())
def test_subsample_is_exact_sorted_and_stratified(keys: list[str], seed: int, data: st.DataObject) -> None:
    labels = classes(keys)
    count = data.draw(st.integers(0, len(keys)))
    rows = subsample(keys, labels, count, seed)
    assert len(rows) == count
    assert rows == sorted(set(rows))
    assert rows == subsample(keys, labels, count, seed)
    taken = Counter(labels[row] for row in rows)
    for label, size in Counter(labels).items():
        assert abs(taken[label] - count * size / len(keys)) < 1


@given(distinct_texts, seeds, st.data(), st.randoms(use_true_random=False))
def test_subsample_does_not_depend_on_the_order_of_rows(
    keys: list[str], seed: int, data: st.DataObject, shuffler: random.Random
) -> None:
    count = data.draw(st.integers(0, len(keys)))
    chosen = {keys[row] for row in subsample(keys, classes(keys), count, seed)}
    shuffled = shuffler.sample(keys, len(keys))
    assert {shuffled[row] for row in subsample(shuffled, classes(shuffled), count, seed)} == chosen


@given(texts, seeds, st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_cut_is_disjoint_complete_and_keeps_groups_together(
    keys: list[str], seed: int, validation: float, test: float
) -> None:
    labels = classes(keys)
    shares = {"test": test, "validation": validation}
    rest, parts = cut(keys, labels, shares, seed)
    assert sorted([*rest, *parts["test"], *parts["validation"]]) == list(range(len(keys)))
    sides = [{keys[row] for row in rows} for rows in (rest, parts["test"], parts["validation"])]
    assert sum(len(side) for side in sides) == len(set(keys))
    assert (rest, parts) == cut(keys, labels, shares, seed)


@given(distinct_texts, seeds, st.floats(0.05, 0.4))
def test_cut_of_different_texts_is_exact_and_stratified(keys: list[str], seed: int, share: float) -> None:
    labels = classes(keys)
    _, parts = cut(keys, labels, {"test": share}, seed)
    wanted = round(share * len(keys))
    assert len(parts["test"]) == wanted
    taken = Counter(labels[row] for row in parts["test"])
    for label, size in Counter(labels).items():
        assert abs(taken[label] - wanted * size / len(keys)) < 1


def test_another_seed_chooses_other_rows() -> None:
    keys = [f"text {number}" for number in range(200)]
    assert subsample(keys, [0] * 200, 100, seed=0) != subsample(keys, [0] * 200, 100, seed=1)
    assert cut(keys, [0] * 200, {"test": 0.5}, seed=0) != cut(keys, [0] * 200, {"test": 0.5}, seed=1)


def test_a_small_sample_is_part_of_a_large_one() -> None:
    keys = [f"text {number}" for number in range(100)]
    assert set(subsample(keys, [0] * 100, 10, seed=3)) < set(subsample(keys, [0] * 100, 50, seed=3))


def test_places_are_the_same_on_every_machine() -> None:
    assert place("a film", 0).hex() == "2134b5e3f94fd0d7"


def test_a_large_group_goes_where_it_fits() -> None:
    keys = ["same"] * 9 + ["other"]
    rest, parts = cut(keys, [0] * 10, {"test": 0.2}, seed=0)
    assert parts["test"] == [9]
    assert rest == list(range(9))
    with pytest.raises(KeyError):
        parts["validation"]

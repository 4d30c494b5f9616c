import json

from hypothesis import given
from hypothesis import strategies as st

from layerdescent.data.duplicates import deduplicate, normalise

part = st.lists(st.sampled_from("abcdefgh"), max_size=12)


def test_report_counts_each_kind_of_repeat() -> None:
    keys = {"train": ["a", "b", "b", "c", "d"], "validation": ["c", "e", "e"], "test": ["d", "f", "f", "a"]}
    labels = {"train": [0, 0, 1, 0, 0], "validation": [0, 0, 0], "test": [0, 0, 0, 1]}
    kept, report = deduplicate(keys, labels)
    assert kept == {"train": [1], "validation": [0, 1], "test": [0, 1, 2, 3]}
    assert report.within == {"train": 1, "validation": 1, "test": 1}
    assert report.between == {"train/validation": 1, "train/test": 2, "validation/test": 0}
    assert report.dropped == {"train": 4, "validation": 1, "test": 0}
    assert report.conflicting == 2  # b inside train, a across train and test
    assert json.loads(json.dumps(report.to_dict()))["between"]["train/test"] == 2


@given(part, part, part)
def test_nothing_kept_for_training_or_validation_is_seen_again(
    train: list[str], validation: list[str], test: list[str]
) -> None:
    keys = {"train": train, "validation": validation, "test": test}
    kept, report = deduplicate(keys, {name: [0] * len(rows) for name, rows in keys.items()})
    left = {name: [keys[name][row] for row in rows] for name, rows in kept.items()}
    assert left["test"] == test
    assert len(left["train"]) == len(set(left["train"]))
    assert len(left["validation"]) == len(set(left["validation"]))
    assert not set(left["train"]) & (set(left["validation"]) | set(test))
    assert not set(left["validation"]) & set(test)
    assert set(left["train"]) | set(left["validation"]) | set(test) == set(train) | set(validation) | set(test)
    assert all(len(keys[name]) - len(kept[name]) == count for name, count in report.dropped.items())


def test_normalising_keeps_the_two_texts_of_a_pair_apart() -> None:
    assert normalise("A  b\tC") == "a b c"
    assert normalise("a", "b c") != normalise("a b", "c")

from typing import Any

import pytest

from layerdescent.data.labels import bins, encode_labels
from layerdescent.errors import InputError

COLUMN = "the label column 'stars' of reviews.csv"


def encode(values: list[Any], **options: Any) -> tuple[list[Any], list[str] | None]:
    return encode_labels(values, where=COLUMN, **options)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([0, 2, 1], {}, ([0, 2, 1], ["0", "1", "2"])),
        (["0", "1"], {}, ([0, 1], ["0", "1"])),
        (["0.0", "1.0"], {}, ([0, 1], ["0", "1"])),
        ([1.0, 0.0], {}, ([1, 0], ["0", "1"])),
        ([True, False], {}, ([1, 0], ["0", "1"])),
        (["pos", "neg"], {}, ([1, 0], ["neg", "pos"])),
        (["pos", "neg"], {"names": ["pos", "neg"]}, ([0, 1], ["pos", "neg"])),
        ([1, 0], {"names": ["bad", "good"]}, ([1, 0], ["bad", "good"])),
        (["5", "1"], {"names": ["1", "5"]}, ([1, 0], ["1", "5"])),
        ([1, 1], {"num_labels": 3}, ([1, 1], ["0", "1", "2"])),
        (["2.5", 4], {"task": "regression"}, ([2.5, 4.0], None)),
        ([[0, 1], [1, 1]], {"task": "multi-label"}, ([[0.0, 1.0], [1.0, 1.0]], ["0", "1"])),
    ],
)
def test_labels_become_what_models_take(values: list[Any], options: dict[str, Any], expected: Any) -> None:
    labels, names = encode(values, **options)
    assert (labels, names) == expected
    assert [type(label) for label in labels] == [type(label) for label in expected[0]]


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([0, 1, 2], {"num_labels": 2}, "holds 2, outside the classes (ids 0 to 1)"),
        ([0, -1], {}, "holds -1, outside the classes (ids from 0)"),
        ([0, 5], {"names": ["a", "b"]}, "holds 5, outside the classes"),
        ([1, 2, 5], {}, "holds 1, 2, 5 but never 0, 3, 4"),
        ([0, 1, 10**15], {}, "holds 0, 1, 1000000000000000 but never 2, 3, 4"),
        (["0", "1", "9" * 5000], {}, "which names no class"),
        (["0", "1", "²"], {"names": ["a", "b"]}, "holds 0, 1, ², not among the classes a, b"),
        (["pos", "neg", "so-so"], {"names": ["neg", "pos"]}, "holds so-so, not among the classes neg, pos"),
        (["a", "b", "c"], {"num_labels": 2}, "holds 3 classes (a, b, c), but the model has 2"),
        ([0.5, 1.0], {}, "holds 0.5, which names no class; set task to regression"),
        (["0.5", "1"], {}, "holds '0.5', which names no class"),
        ([[0, 1]], {}, "holds [0, 1], which names no class"),
        (["good"], {"task": "regression"}, "holds 'good', which is no number"),
        (["nan"], {"task": "regression"}, "regression needs finite numbers"),
        ([0.5], {"task": "regression", "num_labels": 2}, "regression has one number a row, but num_labels is 2"),
        ([[0, 1], [1]], {"task": "multi-label"}, "holds [1]; multi-label needs a list of 2 0s and 1s"),
        ([[0, 2]], {"task": "multi-label"}, "holds [0, 2]; multi-label needs"),
        ([3], {"task": "multi-label"}, "holds 3; multi-label needs a list of equally many 0s and 1s"),
        ([0], {"names": ["a", "b"], "num_labels": 3}, "2 label names are given (a, b) for 3 labels"),
    ],
)
def test_what_is_no_label_is_named(values: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        encode(values, **options)
    assert message in str(caught.value)
    assert COLUMN in str(caught.value)


def test_bins_are_classes_sets_or_tenths() -> None:
    assert bins([0, 1, 0], "classification") == [0, 1, 0]
    assert bins([[0.0, 1.0]], "multi-label") == [(0.0, 1.0)]
    tenths = bins([float(number) for number in range(100)], "regression")
    assert tenths == [number // 10 for number in range(100)]
    assert len(set(bins([3.0] * 100, "regression"))) == 1  # ties stay together

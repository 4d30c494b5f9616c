from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.errors import InputError
from layerdescent.recipes.yaml_text import read_yaml, write_yaml

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["C"]))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5E5", 5e5),
        ("-1.5e+3", -1500.0),
        (".5e-1", 0.05),
        ("1e-4x", "1e-4x"),
        ("0.1", 0.1),
        ("[0, 1e-2]", [0, 0.01]),
        ("-12", -12),
        ("[01_0014, 007, 12:30, 0x10]", ["01_0014", "007", "12:30", "0x10"]),  # the names of clips, not numbers
    ],
)
def test_numbers_as_people_write_them(text: str, value: Any) -> None:
    read = read_yaml(text, where="here")
    assert read == value
    assert type(read) is type(value)


@given(values)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert read_yaml(write_yaml(value), where="here") == value


@pytest.mark.parametrize("word", ["1e-4", "01_0014", "12", "1.5", "12:30", "yes", "0x10"])
def test_a_word_that_looks_like_a_number_stays_a_word(word: str) -> None:
    assert read_yaml(write_yaml(word), where="here") == word


def test_a_key_given_twice_is_a_mistake() -> None:
    with pytest.raises(InputError, match=r"a\.yaml, line 3 is not valid YAML: the key 'lr' is given twice"):
        read_yaml("train:\n  lr: 1\n  lr: 2\n", where="a.yaml")


def test_bad_yaml_is_named_by_its_line() -> None:
    with pytest.raises(InputError, match=r"a\.yaml, line 3 is not valid YAML"):
        read_yaml("a: 1\nb: [\n", where="a.yaml")
    with pytest.raises(InputError, match="is not valid YAML"):
        read_yaml("!!python/object/apply:os.system ['true']", where="a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("? [a, b]\n: 1", "line 1 is not valid YAML: a key must be a word"),
        ("a: &a {b: *a}", "line 1 is not valid YAML: found unconstructable recursive node"),
        ("day: 2020-13-45", "month must be in 1..12"),
        ("!!int abc", "invalid literal for int"),
        ("!!bool x", "holds a value that YAML cannot read"),
        ("!!timestamp x", "holds a value that YAML cannot read"),
        ("[" * 3000, "recursion"),
    ],
)
def test_odd_values_are_named_too(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_yaml(text, where="a.yaml")

"""YAML as people write it: `1e-4` is a number, the clip `01_0014` is none, and a key given twice is a mistake."""

import re
from typing import Any

import yaml

from layerdescent.errors import InputError


class _Loader(yaml.SafeLoader):
    """SafeLoader without silent repeats of a key, and with the numbers that people mean.

    PyYAML reads `1e-4` as a word, and `01_0014` and `12:30` as numbers of base 8 and 60.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True  # so that an alias inside what it stands for is refused

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INTEGER]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?(0|[1-9]\d*)$"), list("-+0123456789"))
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Dumper(yaml.SafeDumper):
    """SafeDumper that puts the word `1e-4` in quotes, which the loader reads as a number without them."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_yaml(text: str, *, where: str) -> Any:
    """The value a YAML text stands for.

    Raises:
        InputError: the text is no YAML; names the place.

    Example:
        >>> read_yaml("lr: 1e-4", where="a line")
        {'lr': 0.0001}
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{where}{place} is not valid YAML: {problem}") from None
    # PyYAML lets these out of values that do not fit their tag or look like a date; and of nesting without end.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{where} holds a value that YAML cannot read: {error}") from None


def write_yaml(value: Any) -> str:
    """The value as YAML in the order given; `read_yaml` gives it back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)

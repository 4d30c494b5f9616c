"""For mkdocstrings: what our docstrings and dataclass fields say that Griffe does not see by itself."""

import ast
import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object


class OurDocstrings(Extension):
    """Reads `Example:` as `Examples:`, and the help in a dataclass field's metadata as the field's docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Griffe's hook for everything it has loaded."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
        elif isinstance(obj, Attribute) and (text := _field_help(str(obj.value))):
            obj.docstring = Docstring(text, parent=obj)


def _field_help(value: str) -> str | None:
    """The help of `field(default=…, metadata={"help": "…"})`, as transformers' configurations write it."""
    if not value.startswith("field(") or "metadata" not in value:
        return None
    for node in ast.walk(ast.parse(value)):
        for key, entry in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value == "help":
                return ast.literal_eval(entry)
    return None

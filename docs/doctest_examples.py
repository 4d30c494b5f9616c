"""For mkdocstrings: show the doctests under `Example:` as code.

Griffe knows the section by its plural name alone, and takes the singular one for prose.
"""

import re
from typing import Any

from griffe import Extension, Object


class DoctestExamples(Extension):
    """Reads `Example:` as `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Griffe's hook for everything it has loaded."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

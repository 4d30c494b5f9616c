"""The errors that layerdescent raises on purpose.

The command line turns an `InputError` into exit code 2 and a `RunError` into exit code 1, each with the one line it
carries: what was asked, what was given, what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """What the caller gave cannot be used: a wrong field, an unknown name, data that is not there."""


class RunError(RuntimeError):
    """Something failed while the work was under way: no space left, a corrupt file, a loss that is not a number."""


class NonFiniteLossError(RunError):
    """A layer loss is NaN or infinite; the state of whoever raises this is what it was before."""


def no_such_field(owner: str, name: str, known: Iterable[str]) -> InputError:
    """The error of a field that its owner does not have, with the nearest that it has.

    Example:
        >>> no_such_field("DescentConfig", "alhpa", ["alpha", "form"])
        InputError("DescentConfig has no field 'alhpa'; did you mean alpha?")
    """
    near = get_close_matches(name, list(known), n=1)
    return InputError(f"{owner} has no field {name!r}{f'; did you mean {near[0]}?' if near else ''}")

"""The errors that layerdescent raises on purpose.

The command line turns an `InputError` into exit code 2 and a `RunError` into exit code 1, each with the one line it
carries: what was asked, what was given, what to do.
"""


class InputError(ValueError):
    """What the caller gave cannot be used: a wrong field, an unknown name, data that is not there."""


class RunError(RuntimeError):
    """Something failed while the work was under way: no space left, a corrupt file, a loss that is not a number."""


class NonFiniteLossError(RunError):
    """A layer loss is NaN or infinite; the state of whoever raises this is what it was before."""

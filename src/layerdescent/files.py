"""Reading and writing of what must survive a kill: a file is either whole or not there."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from layerdescent.errors import RunError


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` in one step when the block ends without an error.

    Whoever reads `path` sees the old content or the new, never a part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):  # what went wrong above is the news
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; a NaN or an infinity becomes null, which every reader understands."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RunError: the file is missing or damaged; the line names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is not there: give the folder of a finished comparison, or run it first") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it, and the same command makes it again") from None


def finite(value: Any) -> Any:
    """The same value with NaN and infinities as None: a number that could not be computed is a missing one."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

"""Reading and writing of what must survive a kill: JSON that is either whole or not there."""

import json
import math
import os
from pathlib import Path
from typing import Any

from layerdescent.errors import RunError


def write_text(path: Path, text: str) -> None:
    """Write a file in one atomic step: whoever reads it sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; a NaN or an infinity becomes null, which every reader understands."""
    write_text(path, json.dumps(_finite(value), indent=1, allow_nan=False) + "\n")


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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

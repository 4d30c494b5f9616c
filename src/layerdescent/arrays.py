"""Arrays with a JSON header in one safetensors file that is either whole or not there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from layerdescent.errors import RunError
from layerdescent.files import replaced

_HEADER = "layerdescent"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> None:
    """Write arrays and a JSON-able header, atomically.

    Raises:
        RunError: The file cannot be written (no space left, no permission).
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        with replaced(path) as temporary:
            save_file(contiguous, temporary, metadata={_HEADER: json.dumps(header)})
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} could not be written ({error}): free some space or choose another folder") from None


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `write_arrays` wrote: the arrays and the header.

    Raises:
        RunError: The file is missing, damaged, or not one of ours.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise RunError(f"{path} is not there: evaluate first, or give another path") from None
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and evaluate again") from None

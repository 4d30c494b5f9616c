"""A folder of finished pieces, so that an interrupted evaluation goes on where it was."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from layerdescent.arrays import read_arrays, write_arrays
from layerdescent.errors import RunError
from layerdescent.evaluation.batches import MODEL_INPUTS


@dataclass(frozen=True)
class Shelf:
    """Finished pieces in a folder, each named by the hash of all it depends on; without a folder nothing is kept.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shelf = Shelf(Path(folder))
        ...     identity = shelf.identity(data=[{"input_ids": [1, 2], "labels": 0}])
        ...     shelf.put(identity, {"values": np.ones(2)}, {"kind": "regression"})
        ...     arrays, header = shelf.get(identity)
        >>> arrays["values"], header, shelf.get(identity)
        (array([1., 1.]), {'kind': 'regression'}, None)
    """

    folder: Path | None

    def identity(self, **depends_on: Any) -> dict[str, Any]:
        """What a piece depends on, by content: models and rows become hashes (nothing is hashed without a folder)."""
        return {} if self.folder is None else {name: content_hash(value) for name, value in depends_on.items()}

    def get(self, identity: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """What was kept, arrays and header; None where nothing was, or where it is damaged."""
        if self.folder is None or not self.path(identity).is_file():
            return None
        try:
            return read_arrays(self.path(identity))
        except RunError:  # damaged: measured again, and overwritten
            return None

    def put(self, identity: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> None:
        """Keep a piece, atomically.

        Raises:
            RunError: It cannot be written, as on a full disk.
        """
        if self.folder is not None:
            write_arrays(self.path(identity), arrays, header)

    def path(self, identity: Mapping[str, Any]) -> Path:
        """The file of a piece."""
        assert self.folder is not None
        name = blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()
        return self.folder / f"{name}.safetensors"


def content_hash(value: Any) -> str:
    """Hash a model's weights, a checkpoint's files, an array, or rows; a hub name stands for itself."""
    digest = blake2b(digest_size=16)
    if isinstance(value, nn.Module):
        for name, tensor in value.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | Path):
        files = sorted(path for path in Path(value).glob("*") if path.suffix in (".safetensors", ".json"))
        for path in files:
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
        if not files:
            digest.update(str(value).encode())
    else:
        for row in value:
            for name in (*MODEL_INPUTS, "labels"):
                if name in row:
                    digest.update(name.encode() + np.asarray(row[name]).tobytes())
    return digest.hexdigest()

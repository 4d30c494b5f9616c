"""Small files of reviews, and data sections of recipes to read them with."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerdescent.recipes.text import DataSpec


def reviews(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Different texts, the two classes in turn."""
    return [{"text": f"film number {number} was seen", "label": number % 2} for number in range(start, start + count)]


def write_text(path: Path, text: str) -> str:
    """A file, zipped when its name says so; gives the path back as a source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return str(path)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as JSON lines."""
    return write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def data_spec(source: str | Mapping[str, str], **fields: Any) -> DataSpec:
    """A recipe's data section from plain values."""
    return DataSpec.model_validate({"source": source, "max_length": 16, **fields})

"""Small files of answers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_answers(path: Path, outputs: Mapping[str, str], generator: str = "", **fields: Any) -> Path:
    """A file in AlpacaEval's format, with further fields in every row."""
    named = {"generator": generator} if generator else {}
    rows = [{"instruction": prompt, "output": output, **named, **fields} for prompt, output in outputs.items()]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path

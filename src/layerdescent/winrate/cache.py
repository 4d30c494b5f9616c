"""Verdicts on disk, one JSON object a line, so that nothing is judged twice and a stopped run goes on."""

import json
from hashlib import blake2b
from pathlib import Path

from layerdescent.errors import RunError
from layerdescent.winrate.judge import Judge, Question


class VerdictCache:
    """The verdicts of any judges, each under the hash of all it depends on; kept the moment it is put in.

    Only hashes, the judge's name and numbers are stored, no texts. A line that a kill cut short is skipped.

    Args:
        path: The file; made when the first verdict comes.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> longer = SimpleNamespace(name="longer", basis="characters")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     VerdictCache(Path(folder) / "verdicts.jsonl").put(longer, Question("Why?", "So.", "Ask me."), 0.0)
        ...     again = VerdictCache(Path(folder) / "verdicts.jsonl")
        >>> again.get(longer, Question("Why?", "So.", "Ask me.")), again.get(longer, Question("Why?", "Ask me.", "So."))
        (0.0, None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, float] = {}
        self._whole = True  # whether the file ends with a line that is whole
        try:
            content = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"the verdicts in {path} cannot be read: {error.strerror or error}") from None
        self._whole = content.endswith("\n") or not content
        for line in content.splitlines():
            try:
                row = json.loads(line)
                self._known[str(row["key"])] = float(row["preference"])
            except (ValueError, TypeError, KeyError):
                continue

    def get(self, judge: Judge, question: Question) -> float | None:
        """The preference for the first answer, where it is known."""
        return self._known.get(_key(judge, question))

    def put(self, judge: Judge, question: Question, preference: float) -> None:
        """Keep a verdict."""
        key = _key(judge, question)
        self._known[key] = preference
        line = json.dumps({"key": key, "judge": judge.name, "preference": preference}) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line if self._whole else "\n" + line)
        self._whole = True


def _key(judge: Judge, question: Question) -> str:
    depends_on = json.dumps([judge.name, judge.basis, *question])
    return blake2b(depends_on.encode(), digest_size=16).hexdigest()

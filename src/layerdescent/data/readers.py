"""One file in, one table of columns out, and one clear line when the file is bad."""

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from layerdescent.errors import InputError


@dataclass(frozen=True)
class Layout:
    """Which columns of a table hold what, as a known data set names them."""

    text: str
    text_pair: str | None
    label: str

    @property
    def columns(self) -> set[str]:
        """Every column it needs."""
        return {self.text, self.label} | ({self.text_pair} if self.text_pair else set())


MULTINLI = Layout("sentence1", "sentence2", "gold_label")

# The first whose columns are all there is meant; named columns override it.
KNOWN_LAYOUTS = (
    MULTINLI,
    Layout("text", None, "label"),
    Layout("premise", "hypothesis", "label"),
    Layout("sentence1", "sentence2", "label"),  # RTE, WNLI
    Layout("sentence1", "sentence2", "score"),  # STS-B
    Layout("question", "sentence", "label"),  # QNLI; holds the columns of SST-2 too, so it comes before
    Layout("sentence", None, "label"),  # SST-2
    Layout("question1", "question2", "is_duplicate"),  # QQP
    Layout("#1 String", "#2 String", "Quality"),  # MRPC
)
KNOWN_LABELS = tuple(dict.fromkeys(layout.label for layout in KNOWN_LAYOUTS))
COLA_COLUMNS = ("source", "label", "mark", "sentence")  # CoLA's files have no header
NLI_NAMES = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class Table:
    """Columns of equal length, where they come from, and what the source says about its labels."""

    columns: dict[str, list[Any]]
    where: str
    class_names: Mapping[str, Sequence[str]] = field(default_factory=lambda: {MULTINLI.label: NLI_NAMES})  # by column
    unlabelled: Sequence[Any] = (None, "")  # values that stand for no label

    def layout(self, label: str | None = None) -> Layout | None:
        """The first known layout that the columns follow, with `label` in place of its own label column where given."""
        for known in KNOWN_LAYOUTS:
            layout = replace(known, label=label or known.label)
            if layout.columns <= self.columns.keys():
                return layout
        return None

    def column(self, name: str) -> list[Any]:
        """The column of that name.

        Raises:
            InputError: there is none; names those there are.
        """
        if name not in self.columns:
            raise InputError(f"{self.where} has no column {name!r}; it has {listed(self.columns)}")
        return self.columns[name]


def read_csv(path: Path) -> Table:
    """A CSV file with a header line."""
    with _opened(path) as file, _long_fields_allowed():
        reader = csv.DictReader(file, strict=True)
        header = _different(reader.fieldnames or (), path)
        columns: dict[str, list[Any]] = {name: [] for name in header}
        try:
            for row in reader:
                if None in row:
                    raise InputError(f"{path}:{reader.line_num} has more fields than the header ({listed(header)})")
                for name in header:
                    columns[name].append(row[name])
        except csv.Error as error:
            raise InputError(f"{path}:{reader.line_num} is no valid CSV: {error}") from None
    return Table(columns, str(path))


def read_tsv(path: Path) -> Table:
    """A tab-separated file as GLUE has them: a header line, no quoting; CoLA's four columns without a header too."""
    with _opened(path) as file:
        lines = [line.rstrip("\r\n").split("\t") for line in file if line.strip()]
    headerless = bool(lines) and len(lines[0]) == len(COLA_COLUMNS) and lines[0][1] in ("0", "1")
    header = list(COLA_COLUMNS) if headerless else _different(lines.pop(0) if lines else (), path)
    # GLUE has a few short lines (QQP): what they lack is missing, and the row is dropped and counted later.
    columns = {
        name: [line[place] if place < len(line) else None for line in lines] for place, name in enumerate(header)
    }
    return Table(columns, str(path))


def read_jsonl(path: Path) -> Table:
    """A file with one JSON object a line, MultiNLI's among them; a field that a line lacks is missing there."""
    rows: list[dict[str, Any]] = []
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                _refuse_half_surrogates(row, line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}:{number} is not valid JSON: {error.msg} at column {error.colno}") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}:{number} cannot be read: {error}") from None
            if not isinstance(row, dict):
                raise InputError(
                    f"{path}:{number} holds {type(row).__name__}, and a JSON object is expected on each line"
                )
            rows.append(row)
    return _of_objects(rows, path)


def read_json(path: Path) -> Table:
    """A file that is one JSON array of objects, as Alpaca's is; a field that an object lacks is missing there."""
    with _opened(path) as file:
        text = file.read()
    try:
        rows = json.loads(text)
        _refuse_half_surrogates(rows, text)
    except json.JSONDecodeError as error:
        lines = "; a file with one object a line is called .jsonl" if error.msg == "Extra data" else ""
        raise InputError(
            f"{path}:{error.lineno} is not valid JSON: {error.msg} at column {error.colno}{lines}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if not isinstance(rows, list):
        raise InputError(f"{path} holds {type(rows).__name__}, and a JSON array of objects is expected")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"row {number} of {path} is {type(row).__name__}, and a JSON object is expected")
    return _of_objects(rows, path)


def _refuse_half_surrogates(content: Any, text: str) -> None:
    """Half a surrogate pair is no text; encoding it raises ValueError."""
    if "\\ud" in text.lower():
        json.dumps(content, ensure_ascii=False).encode()


def _of_objects(rows: Sequence[Mapping[str, Any]], path: Path) -> Table:
    names = dict.fromkeys(name for row in rows for name in row)
    table = Table({name: [row.get(name) for row in rows] for name in names}, str(path))
    # In MultiNLI and SNLI the gold label "-" says that the annotators did not agree.
    return replace(table, unlabelled=(*table.unlabelled, "-")) if MULTINLI.columns <= names.keys() else table


def read_parquet(path: Path) -> Table:
    """A Parquet file."""
    import pyarrow
    import pyarrow.parquet

    try:
        return Table(pyarrow.parquet.read_table(path).to_pydict(), str(path))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is no readable Parquet file: {str(error).splitlines()[0]}") from None


READERS: dict[str, Callable[[Path], Table]] = {
    "csv": read_csv,
    "glue": read_tsv,
    "json": read_json,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
}
SUFFIXES = {".csv": "csv", ".tsv": "glue", ".json": "json", ".jsonl": "jsonl", ".parquet": "parquet"}


def suffix_format(path: Path) -> str | None:
    """The format that a file's suffix stands for, `.gz` left aside."""
    return SUFFIXES.get(Path(path.name.removesuffix(".gz")).suffix)


def _different(header: Sequence[str], path: Path) -> list[str]:
    """The names of a header line, none of them twice."""
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns called {twice[0]!r}; rename one")
    return list(header)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file as text, unzipped when its name ends in .gz; whatever goes wrong while reading is one InputError."""
    try:
        opener = gzip.open if path.name.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a broken gzip file ({error}); fetch it again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def _long_fields_allowed() -> Iterator[None]:
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def listed(names: Iterable[Any]) -> str:
    """Names for an error."""
    return ", ".join(map(str, names)) or "no columns"

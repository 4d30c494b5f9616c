"""Two files of answers, matched by prompt."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from layerdescent.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of one model: what a file in AlpacaEval's format holds."""

    path: Path
    generator: str
    outputs: Mapping[str, str]  # by instruction, in the file's order
    references: Mapping[str, str]  # by instruction, of the rows that have one


class Pair(NamedTuple):
    """A prompt and the two answers to it."""

    instruction: str
    a: str
    b: str


def read_answers(path: Path) -> Answers:
    """Read a JSON list of `{"instruction": …, "output": …, "generator": …}`; other fields but `reference` are left.

    Args:
        path: The file. Without `generator` in its rows, its name stands for the model.

    Raises:
        InputError: It cannot be read, a row lacks a field or has another type in it, two rows have one instruction,
            or the rows come from several generators.
    """
    rows = _rows(path)
    outputs: dict[str, str] = {}
    references: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        instruction = _text(row, "instruction", where)
        if instruction in outputs:
            raise InputError(
                f"{where} has the same instruction as a row before: {_short(instruction)}; keep one of them"
            )
        outputs[instruction] = _text(row, "output", where)
        if row.get("reference") is not None:
            references[instruction] = _text(row, "reference", where)
    generators = Counter(str(row.get("generator") or path.stem) for row in rows)
    if len(generators) > 1:
        raise InputError(f"{path} holds answers of several generators ({', '.join(generators)}); give a file for each")
    return Answers(path=path, generator=next(iter(generators)), outputs=outputs, references=references)


def match(a: Answers, b: Answers) -> list[Pair]:
    """The answers of both models to each prompt, in the order of the first file.

    Raises:
        InputError: A prompt is in one file only, or there are fewer than two.

    Example:
        >>> one = Answers(path=Path("a.json"), generator="a", outputs={"2 + 2?": "4", "Why?": "So."}, references={})
        >>> two = Answers(path=Path("b.json"), generator="b", outputs={"Why?": "Ask.", "2 + 2?": "5"}, references={})
        >>> match(one, two)[0]
        Pair(instruction='2 + 2?', a='4', b='5')
    """
    for ours, theirs in ((a, b), (b, a)):
        alone = [instruction for instruction in ours.outputs if instruction not in theirs.outputs]
        if alone:
            raise InputError(
                f"{len(alone)} of the {len(ours.outputs)} prompts in {ours.path} are not in {theirs.path}, such as "
                f"{_short(alone[0])}; both files must answer the same prompts"
            )
    if len(a.outputs) < 2:
        raise InputError(f"{a.path} holds {len(a.outputs)} prompts; an interval needs at least 2")
    return [Pair(instruction, output, b.outputs[instruction]) for instruction, output in a.outputs.items()]


def references_for(a: Answers, b: Answers, reference: Answers | None) -> dict[str, str]:
    """A reference answer to every prompt: the third file's `output`, else the field `reference` of either file.

    Raises:
        InputError: A prompt has none, or the two files have different ones.
    """
    if reference is not None:
        found: Mapping[str, str] = reference.outputs
    else:
        for instruction, text in a.references.items():
            if b.references.get(instruction, text) != text:
                raise InputError(
                    f"{a.path} and {b.path} have different references for {_short(instruction)}; give --reference FILE"
                )
        found = {**a.references, **b.references}
    missing = [instruction for instruction in a.outputs if instruction not in found]
    if missing:
        where = f"in {reference.path}" if reference is not None else "in the field reference of either file"
        raise InputError(
            f"{len(missing)} of {len(a.outputs)} prompts have no reference answer {where}, such as "
            f"{_short(missing[0])}; give --reference FILE with an output for every prompt"
        )
    return {instruction: found[instruction] for instruction in a.outputs}


def _rows(path: Path) -> list[dict[str, Any]]:
    expected = 'expected is a JSON list of {"instruction": …, "output": …, "generator": …}'
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); {expected}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); {expected}") from None
    if not isinstance(rows, list) or not rows:
        given = "an empty list" if rows == [] else f"a {type(rows).__name__}"
        raise InputError(f"{path} holds {given}; {expected}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number} is a {type(row).__name__}; {expected}")
    return rows


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    if name not in row:
        raise InputError(f"{where} has no field {name!r}; it has {', '.join(map(str, row)) or 'none'}")
    if not isinstance(row[name], str):
        raise InputError(f"{where}: {name!r} must be a text, but it is a {type(row[name]).__name__}")
    return str(row[name])


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

"""Prompts from files: AlpacaEval's and Alpaca's formats, or one prompt a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerdescent.data.duplicates import normalise
from layerdescent.data.prompts import Instruction
from layerdescent.data.readers import READERS, Table, listed, suffix_format
from layerdescent.data.splits import subsample
from layerdescent.errors import InputError

_REFERENCES = ("reference", "output")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What is asked, and what is known of it.

    Attributes:
        row: the prompt itself; its response is not used.
        dataset: where it comes from; samples are stratified by it.
        reference: a reference answer, where the file has one.
    """

    row: Instruction
    dataset: str
    reference: str | None = None

    @property
    def instruction(self) -> str:
        r"""The whole question as one text, by which answers are matched later; an input follows after an empty line.

        Example:
            >>> Prompt(row=Instruction(instruction="Add them.", input="1, 2", output=""), dataset="sums").instruction
            'Add them.\n\n1, 2'
        """
        return self.row.turns[-1].content


def read_prompts(path: str | Path, *, reference: str | None = None) -> list[Prompt]:
    r"""Read prompts from a file.

    Args:
        path: AlpacaEval's or Alpaca's format, as .json (a list), .jsonl, .csv or .parquet (also .gz), with the columns
            `instruction` and perhaps `input` and `dataset`; any other file is text, one prompt a line.
        reference: the column with reference answers; by default `reference`, else `output`, where there is one.

    Returns:
        The prompts in the file's order. `dataset` is the file's name where there is no such column.

    Raises:
        InputError: the file cannot be read, has no prompts or no such column, holds something that is no text, or one
            prompt twice.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "questions.txt")
        ...     _ = file.write_text("Why is the sky blue?\n\nName a prime.\n")
        ...     [(prompt.instruction, prompt.dataset) for prompt in read_prompts(file)]
        [('Why is the sky blue?', 'questions'), ('Name a prime.', 'questions')]
    """
    path = Path(path)
    name = path.name.removesuffix(".gz").partition(".")[0]
    kind = suffix_format(path)
    prompts = _lines(path, name) if kind is None else _rows(READERS[kind](path), name, reference)
    if not prompts:
        raise InputError(f"{path} holds no prompts; give one a line, or rows with an instruction")
    first: dict[str, int] = {}
    for number, prompt in enumerate(prompts, start=1):
        if prompt.instruction in first:
            raise InputError(
                f"{path} holds a prompt twice, as number {first[prompt.instruction]} and {number}: "
                f"{short(prompt.instruction)}; answers are matched by their prompts, so keep one of them"
            )
        first[prompt.instruction] = number
    return prompts


def sample_prompts(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Choose prompts in proportion to their data sets; the same ones whatever the order, and no seed.

    Args:
        prompts: what to choose from.
        count: how many.

    Returns:
        So many, in the order given.

    Raises:
        InputError: fewer than 1 or more than there are.
    """
    if not 1 <= count <= len(prompts):
        raise InputError(f"a sample of {count} prompts is asked for, and there are {len(prompts)}")
    keys = [normalise(prompt.instruction) for prompt in prompts]
    return [prompts[row] for row in subsample(keys, [prompt.dataset for prompt in prompts], count, seed=0)]


def short(text: str) -> str:
    """A prompt in an error."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _lines(path: Path, name: str) -> list[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    asked = [line.strip() for line in lines if line.strip()]
    return [Prompt(row=Instruction(instruction=line, output=""), dataset=name) for line in asked]


def _rows(table: Table, name: str, reference: str | None) -> list[Prompt]:
    if "instruction" not in table.columns:
        raise InputError(f"{table.where} has no column 'instruction'; it has {listed(table.columns)}")
    if reference is not None:
        table.column(reference)  # an error where it is missing
    answers = reference or next((column for column in _REFERENCES if column in table.columns), None)
    prompts = []
    for at, instruction in enumerate(table.columns["instruction"]):

        def cell(column: str | None, at: int = at) -> Any:
            return table.columns[column][at] if column in table.columns else None

        values = {"instruction": instruction, "input": cell("input") or "", "dataset": cell("dataset") or name}
        for column, value in values.items():
            if not isinstance(value, str) or (column == "instruction" and not value.strip()):
                raise InputError(f"row {at + 1} of {table.where} has {value!r} as its {column}; give it a text")
        answer = cell(answers)
        prompts.append(
            Prompt(
                row=Instruction(instruction=values["instruction"], input=values["input"], output=""),
                dataset=values["dataset"],
                reference=answer if isinstance(answer, str) and answer else None,
            )
        )
    return prompts

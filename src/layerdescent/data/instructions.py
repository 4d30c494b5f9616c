"""Instructions and responses: one data set from any known source, and the three encoded parts of a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from layerdescent.data.duplicates import DuplicateReport, deduplicate, normalise
from layerdescent.data.parts import name_of, origins, thin
from layerdescent.data.prompts import (
    IGNORED,
    EncodedInstructions,
    Instruction,
    PromptFormat,
    Turn,
    chosen_format,
    encode_instructions,
)
from layerdescent.data.readers import Table, listed
from layerdescent.data.sources import Parts, Source, open_source
from layerdescent.data.splits import cut
from layerdescent.data.tokens import check_length
from layerdescent.errors import InputError
from layerdescent.recipes.common import PARTS

_ROLES = ("system", "user", "assistant")
_HOLDOUT = {"validation": 0.1, "test": 0.2}


@dataclass(frozen=True, kw_only=True)
class InstructionColumns:
    """Which columns hold what; None stands for the names that Alpaca, AlpacaEval and chat data have.

    Attributes:
        instruction: what is asked ("instruction").
        input: what it is asked about ("input"); there need be none.
        output: the response ("output").
        messages: whole conversations ("messages", where there are no instruction and output): lists of `role` and
            `content`, the last of them the response.
    """

    instruction: str | None = None
    input: str | None = None
    output: str | None = None
    messages: str | None = None


def load_instructions(
    source: Source,
    split: str | None = None,
    *,
    columns: InstructionColumns = InstructionColumns(),
    format: str = "auto",  # noqa: A002
    subset: str | None = None,
) -> list[Instruction]:
    r"""One part of a data set of instructions, as its source has it.

    Args:
        source: `hub:NAME`, a file (.json, .jsonl, .csv, .tsv, each also .gz, or .parquet), a folder with a file
            for each part, or a mapping from part to file.
        split: the part; may be left out where there is only one.
        columns: the columns, where they have other names than usual.
        format: how files are read; "auto" goes by suffix.
        subset: a configuration of a hub data set.

    Returns:
        The rows. Those whose instruction or response is empty text are left out.

    Raises:
        InputError: no such source, part or column; a damaged file; a row without a response, or with something that is
            no text.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "alpaca.json")
        ...     _ = file.write_text('[{"instruction": "Add them.", "input": "1, 2", "output": "3"}]')
        ...     load_instructions(str(file))
        [Instruction(instruction='Add them.', input='1, 2', output='3', earlier=())]
    """
    parts = open_source(source, format=format, subset=subset)
    if split is None and len(parts) == 1:
        split = next(iter(parts))
    return _read_part(parts, split, source, columns).rows


@dataclass(frozen=True, kw_only=True)
class InstructionReport:
    """What was done to the rows on their way to the model; every count is per part.

    Attributes:
        source: where the rows come from.
        rows: rows used.
        available: rows there were to draw them from, after cleaning.
        origin: the part of the source each part comes from; "cut from train" where it was cut off.
        empty: rows left out because the instruction or the response is empty.
        truncated: rows used that were cut to `max_length` tokens.
        unanswered: rows left out because the prompt alone has `max_length` tokens.
        response_tokens: tokens that the loss counts.
        prompt_format: "alpaca" or "chat".
        max_length: in tokens.
        duplicates: repeated prompts, and what was done about them; "conflicting" have different responses.
    """

    source: str
    rows: dict[str, int]
    available: dict[str, int]
    origin: dict[str, str]
    empty: dict[str, int]
    truncated: dict[str, int]
    unanswered: dict[str, int]
    response_tokens: dict[str, int]
    prompt_format: Literal["alpaca", "chat"]
    max_length: int
    duplicates: DuplicateReport

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a results file."""
        return asdict(self)

    def summary(self) -> str:
        """One line for the terminal."""
        rows = ", ".join(f"{count:,} {part}" for part, count in self.rows.items())
        left_out = {
            "repeated prompts": sum(self.duplicates.dropped.values()),
            "rows without text": sum(self.empty.values()),
            f"prompts of {self.max_length} or more tokens": sum(self.unanswered.values()),
        }
        notes = [f"{count:,} {what} left out" for what, count in left_out.items() if count]
        notes.append(f"{self.truncated['train']:,} of the training rows cut to {self.max_length} tokens")
        return f"{self.source}: {rows} rows, {self.prompt_format} prompts; {'; '.join(notes)}"


@dataclass(frozen=True, kw_only=True)
class PreparedInstructions:
    """Three encoded parts, as `encode_instructions` gives them."""

    train: Dataset
    validation: Dataset
    test: Dataset
    report: InstructionReport


def prepare_instructions(
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    *,
    format: str = "auto",  # noqa: A002
    subset: str | None = None,
    columns: InstructionColumns = InstructionColumns(),
    splits: Mapping[str, str] | None = None,
    rows: Mapping[str, int | None] | None = None,
    holdout: Mapping[str, float] | None = None,
    prompt_format: PromptFormat = "auto",
    max_length: int = 512,
    seed: int = 0,
    progress: bool = False,
) -> PreparedInstructions:
    """Reads, cuts, cleans, thins and encodes instructions; the same settings give the same rows everywhere.

    In this order: empty rows go; parts that the source lacks are cut off the training rows, equal prompts on one side;
    repeated prompts go from training and validation, never from the test; each part is thinned to the rows asked for;
    rows are cut to `max_length` tokens, and those without a token of their response left go.

    Args:
        source: as for `load_instructions`.
        tokenizer: the model's.
        format: how files are read.
        subset: a configuration of a hub data set.
        columns: the columns, where they have other names than usual.
        splits: which part of the source serves as `train`, `validation`, `test`, where the names differ.
        rows: how many rows of each part are used; a part that is missing, or None, uses all.
        holdout: the share of the training rows cut off for a part that the source lacks; by default 0.1 for validation
            and 0.2 for the test.
        prompt_format: "chat" is the tokenizer's chat template, "alpaca" the prompt of the Alpaca data, "auto" the
            template where there is one.
        max_length: tokens a row.
        seed: of cuts and samples.
        progress: show a bar while encoding.

    Raises:
        InputError: as for `load_instructions` and `encode_instructions`; also an unknown part in `splits`, more rows
            asked than there are, or a part of which nothing is left.
    """
    check_length(max_length, tokenizer)
    used_format = chosen_format(prompt_format, tokenizer)
    parts = open_source(source, format=format, subset=subset)
    origin = origins(parts, splits or {}, source)
    read = {part: _read_part(parts, name, source, columns) for part, name in origin.items()}
    found = _cut_missing(
        {part: part_rows.rows for part, part_rows in read.items()}, {**_HOLDOUT, **(holdout or {})}, seed
    )
    origin |= {part: f"cut from {origin['train']}" for part in PARTS if part not in origin}

    keys = {part: [_key(row) for row in found[part]] for part in PARTS}
    kept, duplicates = deduplicate(keys, {part: [row.output for row in found[part]] for part in PARTS})
    encoded: dict[str, EncodedInstructions] = {}
    for part in PARTS:
        strata = [None] * len(kept[part])
        chosen = thin(part, kept[part], keys[part], strata, (rows or {}).get(part), seed)
        encoded[part] = encode_instructions(
            [found[part][row] for row in chosen],
            tokenizer,
            max_length,
            used_format,
            title=f"tokenise {part}",
            progress=progress,
        )
        if not len(encoded[part].rows):
            raise InputError(
                f"every {part} prompt of {name_of(source)} has {max_length} or more tokens, so that no response is "
                "left: raise data.max_length"
            )
    report = InstructionReport(
        source=str(source),
        rows={part: len(content.rows) for part, content in encoded.items()},
        available={part: len(numbers) for part, numbers in kept.items()},
        origin={part: origin[part] for part in PARTS},
        empty={part: part_rows.empty for part, part_rows in read.items()},
        truncated={part: content.truncated for part, content in encoded.items()},
        unanswered={part: content.unanswered for part, content in encoded.items()},
        response_tokens={part: _counted(content.rows) for part, content in encoded.items()},
        prompt_format=used_format,
        max_length=max_length,
        duplicates=duplicates,
    )
    return PreparedInstructions(
        train=encoded["train"].rows, validation=encoded["validation"].rows, test=encoded["test"].rows, report=report
    )


def _counted(rows: Dataset) -> int:
    return sum(label != IGNORED for labels in rows["labels"] for label in labels)


def _key(row: Instruction) -> str:
    """The normalised prompt."""
    return normalise("\n".join(turn.content for turn in row.turns))


def _cut_missing(
    rows: Mapping[str, list[Instruction]], holdout: Mapping[str, float], seed: int
) -> dict[str, list[Instruction]]:
    """Cuts the parts that are missing off the training rows."""
    shares = {part: holdout[part] for part in ("test", "validation") if part not in rows}
    train = rows["train"]
    rest, parts = cut([_key(row) for row in train], [None] * len(train), shares, seed)
    numbers = {**parts, "train": rest}
    return {**rows, **{part: [train[row] for row in chosen] for part, chosen in numbers.items()}}


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The rows of one part that have text, and how many had none."""

    rows: list[Instruction]
    empty: int


def _read_part(parts: Parts, split: str | None, source: Source, columns: InstructionColumns) -> _Rows:
    if split is None or split not in parts:
        asked = "no part is chosen" if split is None else f"there is no part {split!r}"
        raise InputError(f"{asked} of {name_of(source)}; it has {', '.join(parts)}")
    table = parts[split]()
    rows = _conversations(table, columns) if _has_messages(table, columns) else _instructions(table, columns)
    complete = [row for row in rows if row.turns[-1].content.strip() and row.output.strip()]
    if not complete:
        raise InputError(f"{table.where} has no {'row with text' if rows else 'rows'}; give another file or part")
    return _Rows(complete, len(rows) - len(complete))


def _has_messages(table: Table, columns: InstructionColumns) -> bool:
    if columns.messages is not None:
        return True
    named = columns.instruction or columns.output
    return not named and "messages" in table.columns and not {"instruction", "output"} <= table.columns.keys()


def _instructions(table: Table, columns: InstructionColumns) -> list[Instruction]:
    asked, response = columns.instruction or "instruction", columns.output or "output"
    about = columns.input or ("input" if "input" in table.columns else None)
    for name in (asked, response, about):
        if name is not None and name not in table.columns:
            raise InputError(
                f"{table.where} has no column {name!r}; it has {listed(table.columns)}: name the columns of "
                "instruction, input and output, or of messages (data.columns in a recipe)"
            )
    inputs = [None] * len(table.columns[asked]) if about is None else table.columns[about]
    return [
        Instruction(
            instruction=_text(row[0], asked, number, table.where),
            input="" if row[1] is None else _text(row[1], str(about), number, table.where),
            output=_text(row[2], response, number, table.where),
        )
        for number, row in enumerate(zip(table.columns[asked], inputs, table.columns[response], strict=True), start=1)
    ]


def _text(value: Any, column: str, number: int, where: str) -> str:
    if value is None:
        raise InputError(f"row {number} of {where} has no {column}; give it one, or take the row out")
    if not isinstance(value, str):
        raise InputError(f"row {number} of {where} has {value!r} as its {column}, which is no text")
    return value


def _conversations(table: Table, columns: InstructionColumns) -> list[Instruction]:
    conversations = table.column(columns.messages or "messages")
    return [
        _conversation(messages, f"row {number} of {table.where}")
        for number, messages in enumerate(conversations, start=1)
    ]


def _conversation(messages: Any, row: str) -> Instruction:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InputError(f"{row} has {messages!r} as its messages, where a list of role and content is expected")
    turns: list[Turn] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in _ROLES or not isinstance(content, str):
            raise InputError(
                f"{row} has the message {message!r}; expected are a role ({', '.join(_ROLES)}) and a text as content"
            )
        turns.append(Turn(role, content))
    if [turn.role for turn in turns[-2:]] != ["user", "assistant"]:
        roles = ", ".join(turn.role for turn in turns) or "none"
        raise InputError(f"{row} has messages of {roles}; the last two must be the user's and the assistant's response")
    *earlier, asked, response = turns
    return Instruction(instruction=asked.content, output=response.content, earlier=tuple(earlier))

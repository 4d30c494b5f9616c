"""Data and models by name: texts and instructions from any known source, tokenised; models and data inside packages."""

from layerdescent.data.duplicates import DuplicateReport
from layerdescent.data.instructions import (
    InstructionColumns,
    InstructionReport,
    PreparedInstructions,
    load_instructions,
    prepare_instructions,
)
from layerdescent.data.packages import resolve_model
from layerdescent.data.prompts import (
    EncodedInstructions,
    Instruction,
    InstructionCollator,
    encode_instructions,
    prompt_ids,
    prompt_text,
)
from layerdescent.data.shift import ShiftReport, prepare_shift
from layerdescent.data.text import DataReport, PreparedText, load_text, prepare
from layerdescent.data.tokens import renumbered, tokenise

__all__ = [
    "DataReport",
    "DuplicateReport",
    "EncodedInstructions",
    "Instruction",
    "InstructionCollator",
    "InstructionColumns",
    "InstructionReport",
    "PreparedInstructions",
    "PreparedText",
    "ShiftReport",
    "encode_instructions",
    "load_instructions",
    "load_text",
    "prepare",
    "prepare_instructions",
    "prepare_shift",
    "prompt_ids",
    "prompt_text",
    "renumbered",
    "resolve_model",
    "tokenise",
]

"""Answers in AlpacaEval's format, by way of a journal that survives a kill."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tqdm import tqdm

from layerdescent.adapters import adapter_base, load_adapter
from layerdescent.data.packages import resolve_model
from layerdescent.data.prompts import PromptFormat, chosen_format
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation.batches import load_model, reads_tokens, stored_tokenizer
from layerdescent.evaluation.shelf import content_hash
from layerdescent.files import write_json
from layerdescent.generation.decoding import Answer, generate_answers
from layerdescent.generation.prompts import Prompt
from layerdescent.perturbation import NoiseOn, Perturbation


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was done.

    Attributes:
        path: the file of answers.
        answers: how many it holds.
        made: how many of them this call made; the others were there.
        unfinished: how many the limit of new tokens cut off.
        notes: what a reader should know, one sentence each.
    """

    path: Path
    answers: int
    made: int
    unfinished: int
    notes: tuple[str, ...]


def write_answers(
    model: str,
    prompts: Sequence[Prompt],
    out: Path,
    *,
    adapter: str | Path | None = None,
    perturbation: Perturbation | None = None,
    noise_on: NoiseOn = "prompt",
    max_new_tokens: int = 64,
    batch_size: int = 8,
    prompt_format: PromptFormat = "auto",
    name: str | None = None,
    progress: bool = False,
) -> Written:
    """Answer prompts and write them as a JSON list, which `winrate` and AlpacaEval read.

    A row has `instruction`, `output`, `generator`, `dataset`, `reference` where the prompt has one, the number of
    `tokens`, whether the model `finished`, and under `asked` the settings. Answers are kept batch by batch in
    `OUT.partial.jsonl`, so a call that was stopped goes on where it was, and loses one batch at most; OUT appears when
    all are there.

    Args:
        model: a folder (an adapter's too), `package:NAME` or a hub name.
        prompts: see `read_prompts`.
        out: the file to write.
        adapter: a folder with an adapter for that model.
        perturbation: noise on the word embeddings; none by default.
        noise_on: the prompt's tokens or all.
        max_new_tokens: most tokens of an answer.
        batch_size: prompts at a time.
        prompt_format: as for `prompt_text`.
        name: `generator` in the file; by default the model, the adapter and the noise.
        progress: show a bar.

    Raises:
        InputError: no such model, an adapter for another base, answers at `out` of other settings, and as for
            `generate_answers`.
        RunError: a damaged checkpoint or journal.
    """
    out = Path(out)
    where = resolve_model(model)
    if not reads_tokens(where):
        raise InputError(f"{model} is no causal language model of a known architecture, and only those write answers")
    tokenizer = _tokenizer(where)
    used_format = chosen_format(prompt_format, tokenizer)
    asked = {
        "model": model,
        "adapter": None if adapter is None else str(adapter),
        "weights": content_hash(where) + ("" if adapter is None else f" {content_hash(adapter)}"),
        "noise": None if perturbation is None else perturbation.to_dict(),
        "noise_on": None if perturbation is None else noise_on,
        "max_new_tokens": max_new_tokens,
        "prompt_format": used_format,
        "prompts": _hash([prompt.instruction for prompt in prompts]),
    }
    notes = []
    if prompt_format == "auto" and used_format == "alpaca":
        notes.append("this tokenizer has no chat template, so prompts have the Alpaca format")
    base = None if adapter is None else adapter_base(adapter)
    if adapter is not None and base is None:
        raise InputError(f"there is no adapter at {adapter}: give the folder that has its adapter_config.json")
    if base is not None and base[0] not in (model, where):
        notes.append(
            f"the adapter says that it is for {base[0]}; it fits {model} in shape, which is all that can be seen"
        )

    journal = _Journal(out, asked, len(prompts))
    done = journal.answers
    missing = [index for index in range(len(prompts)) if index not in done]
    if missing:
        loaded = load_model(where)
        if adapter is not None:
            loaded = load_adapter(loaded, adapter)
        batches = generate_answers(
            loaded,
            tokenizer,
            [prompts[index].row for index in missing],
            perturbation=perturbation,
            noise_on=noise_on,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            prompt_format=used_format,
        )
        with tqdm(total=len(prompts), initial=len(done), desc="answer", unit="prompt", disable=not progress) as bar:
            for batch in batches:
                journal.add([replace(answer, index=missing[answer.index]) for answer in batch])
                bar.update(len(batch))
    answers = [done[index] for index in range(len(prompts))]
    if missing or not out.is_file():
        write_json(out, _rows(prompts, answers, name or _generator(model, adapter, perturbation), asked))
    journal.close()
    unfinished = sum(not answer.finished for answer in answers)
    return Written(path=out, answers=len(answers), made=len(missing), unfinished=unfinished, notes=tuple(notes))


class _Journal:
    """The answers so far, one JSON object a line; the first line says what was asked."""

    def __init__(self, out: Path, asked: dict[str, Any], count: int) -> None:
        self.path = out.with_name(out.name + ".partial.jsonl")
        self.answers: dict[int, Answer] = {}
        if out.is_file():
            self._finished(out, asked, count)
        elif self.path.is_file():
            self._begun(asked)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append([{"asked": asked}])

    def _finished(self, out: Path, asked: dict[str, Any], count: int) -> None:
        try:
            rows = json.loads(out.read_text(encoding="utf-8"))
            before = [row["asked"] for row in rows]
            found = [Answer(at, row["output"], row["tokens"], row["finished"]) for at, row in enumerate(rows)]
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(f"{out} is there and was not written by this command: give another file") from None
        _same(before[0] if before else {}, asked, out)
        if len(found) != count:
            raise InputError(f"{out} holds {len(found)} answers where {count} were asked for: give another file")
        self.answers = {answer.index: answer for answer in found}

    def _begun(self, asked: dict[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # a kill may have cut the last line short
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            before = first["asked"]
            answers = [Answer(**line) for line in lines]
        except (ValueError, KeyError, TypeError):
            if whole:
                raise RunError(f"{self.path} is damaged: delete it, and the same command starts again") from None
            before, answers = {}, []  # killed before its first line was whole
        if not answers:  # as after prompts that turned out too long: there is nothing that other settings could spoil
            self.path.unlink()
            self._append([{"asked": asked}])
            return
        _same(before, asked, self.path)
        if whole != content:
            os.truncate(self.path, len(whole))
        self.answers = {answer.index: answer for answer in answers}

    def add(self, answers: Sequence[Answer]) -> None:
        """Keep a batch: when this returns it is on the disk."""
        self._append([asdict(answer) for answer in answers])
        self.answers |= {answer.index: answer for answer in answers}

    def close(self) -> None:
        """The answers are in their file."""
        self.path.unlink(missing_ok=True)

    def _append(self, rows: Sequence[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())


def _same(before: dict[str, Any], asked: dict[str, Any], where: Path) -> None:
    changed = [key for key in asked if before.get(key) != asked[key]]
    if changed:
        key = changed[0]
        raise InputError(
            f"{where} holds answers for {key}={before.get(key)!r}, and {key}={asked[key]!r} is asked for: "
            "give another file, or delete this one"
        )


def _rows(
    prompts: Sequence[Prompt], answers: Sequence[Answer], generator: str, asked: dict[str, Any]
) -> list[dict[str, Any]]:
    return [
        {
            "instruction": prompt.instruction,
            "output": answer.text,
            "generator": generator,
            "dataset": prompt.dataset,
            **({} if prompt.reference is None else {"reference": prompt.reference}),
            "tokens": answer.tokens,
            "finished": answer.finished,
            "asked": asked,
        }
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _tokenizer(where: str) -> Any:
    """The tokenizer of a checkpoint; an adapter without one has that of the model it is for."""
    base = adapter_base(where)
    if base is None or (Path(where) / "tokenizer_config.json").is_file():
        return stored_tokenizer(where)
    return stored_tokenizer(*base)


def _generator(model: str, adapter: str | Path | None, perturbation: Perturbation | None) -> str:
    parts = [str(model), *([] if adapter is None else [str(adapter)])]
    return " + ".join(parts) + ("" if perturbation is None else f", {perturbation.label}")


def _hash(texts: Sequence[str]) -> str:
    return blake2b(json.dumps(list(texts)).encode(), digest_size=8).hexdigest()

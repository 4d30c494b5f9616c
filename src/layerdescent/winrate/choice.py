"""From what the command line says to a judge; each kind is imported when it is chosen."""

import re
from collections.abc import Callable, Mapping

from layerdescent.errors import InputError
from layerdescent.winrate.judge import Judge

KINDS = "openai:MODEL@BASE_URL, alpaca_eval:ANNOTATOR, hf:MODEL or proxy:embedding"


def choose_judge(
    judge: str, references: Callable[[], Mapping[str, str]], *, jobs: int = 4, batch_size: int = 4
) -> Judge:
    """The judge of that name.

    Args:
        judge: `openai:MODEL@BASE_URL`, `alpaca_eval:ANNOTATOR`, `hf:MODEL` or `proxy:embedding`.
        references: Gives a reference answer to every instruction; called where the judge needs them.
        jobs: Requests at a time, of an endpoint.
        batch_size: Questions in one forward pass, of a local model.

    Raises:
        InputError: There is no such judge, or what it needs is missing.
    """
    kind, _, rest = judge.partition(":")
    if kind == "openai" and (found := re.fullmatch(r"(.+)@(https?://.*)", rest)):
        from layerdescent.winrate.endpoint import EndpointJudge

        return EndpointJudge(model=found[1], base_url=found[2], jobs=jobs)
    if kind == "alpaca_eval" and rest:
        from layerdescent.winrate.annotator import AnnotatorJudge

        return AnnotatorJudge(rest)
    if kind == "hf" and rest:
        from layerdescent.winrate.local import LocalJudge

        return LocalJudge(rest, batch_size=batch_size)
    if judge == "proxy:embedding":
        from layerdescent.winrate.embedding import EmbeddingProxy

        return EmbeddingProxy(references())
    raise InputError(f"no judge is called {judge!r}; give {KINDS}")

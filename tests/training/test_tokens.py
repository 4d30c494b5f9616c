"""Causal language models under constraints, against the plain computation: every layer's logits, ordinary autograd."""

from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError
from layerdescent.readout import Readout, next_token_labels
from layerdescent.readout.fused import fused_layer_losses
from layerdescent.training import DescentTrainer
from layerdescent.training import tokens as tokens_of_training
from layerdescent.training.tokens import sampled_labels, token_layer_losses
from tests.training.tiny import make_trainer, plain_trainer, same, weights

# peft asks for a name that transformers 5.24 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

ALPHA, DUAL_LR, LR, L = 0.1, 0.8, 0.05, 3
SGD: dict[str, Any] = {
    "optim": "sgd",
    "max_grad_norm": 0,
    "learning_rate": LR,
    "lr_scheduler_type": "constant",
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "alpha": ALPHA,
    "dual_lr": DUAL_LR,
}


def llama(tied: bool = True, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=L,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).double()


def with_adapters(model: LlamaForCausalLM, targets: tuple[str, ...] = ("q_proj", "down_proj")) -> Any:
    torch.manual_seed(1)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=list(targets), init_lora_weights=False)
    return peft.get_peft_model(model, config).double()


MODELS: dict[str, Any] = {
    "tied": llama,
    "untied": lambda: llama(tied=False),
    "lora": lambda: with_adapters(llama()),
    "lora on the head": lambda: with_adapters(llama(tied=False), ("q_proj", "lm_head")),
}


def texts(count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Prompts of 1 to 4 tokens, which nothing is paid for, and responses of 1 to 6."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        prompt, response = (int(torch.randint(1, high, (), generator=generator)) for high in (5, 7))
        ids = torch.randint(1, 40, (prompt + response,), generator=generator).tolist()
        made.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return made


def pad(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)

    def filled(name: str, value: int) -> Tensor:
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    return {"input_ids": filled("input_ids", 0), "attention_mask": torch.tensor(mask), "labels": filled("labels", -100)}


def trainer_of(
    folder: Path, model: Any, data: Any = None, cls: Any = DescentTrainer, **settings: Any
) -> DescentTrainer:
    given = {"data_collator": pad, "eval_dataset": texts(10, seed=9), **settings.pop("given", {})}
    return make_trainer(folder, model, data or texts(12), cls, given, **(SGD | settings))


def plain_losses(model: Any, batch: dict[str, Tensor], label_smoothing: float = 0.0) -> Tensor:
    """F_0 … F_L with all logits at once."""
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
    ).hidden_states
    normed = [*(bare.model.norm(state) for state in found[:-1]), found[-1]]
    logits = [bare.lm_head(state)[:, :-1].flatten(0, 1) for state in normed]
    logits[-1] = logits[-1].float()  # as transformers computes a model's own loss
    targets = batch["labels"][:, 1:].flatten()
    losses = [functional.cross_entropy(each, targets, label_smoothing=label_smoothing) for each in logits]
    return torch.stack([loss.double() for loss in losses])


def plain_training(
    model: Any, batches: list[dict[str, Tensor]], label_smoothing: float = 0.0
) -> tuple[Tensor, list[list[float]]]:
    """Three steps of stochastic gradient descent on the Lagrangian; the multipliers, and the losses along the way."""
    values, reference, history = torch.zeros(L), torch.zeros(L), []
    for batch in batches:
        F = plain_losses(model, batch, label_smoothing)
        history.append(F.tolist())
        previous = [F[0].detach(), *F[1:-1]]
        violations = torch.stack([F[i + 1] - (1 - ALPHA) * previous[i] for i in range(L)])
        model.zero_grad()
        (F[-1] + (values.double() * violations).sum()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= LR * parameter.grad
        seen = F.detach().float()
        reference = torch.where(reference > 0, 0.9 * reference + 0.1 * seen[:-1], seen[:-1])
        relative = (violations.detach().float() / reference).clamp(max=1)
        values = (values + DUAL_LR * relative).clamp(min=0)
    return values, history


@pytest.mark.parametrize("pieces", [1, 2], ids=["whole", "accumulated"])
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_equal_the_plain_computation(tmp_path: Path, name: str, pieces: int) -> None:
    reference = MODELS[name]()
    data = texts(12)
    batches = [pad(data[start : start + 4]) for start in (0, 4, 8)]
    expected, history = plain_training(reference, batches)
    assert (expected > 0).any()

    class InOrder(DescentTrainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

    settings = {"per_device_train_batch_size": 4 // pieces, "gradient_accumulation_steps": pieces}
    trainer = trainer_of(tmp_path, MODELS[name](), data, InOrder, **settings)
    trainer.train()
    found = [record["layer_losses"] for record in trainer.descent_history]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(history), rtol=1e-5, atol=1e-6)
    assert trainer.multipliers is not None
    torch.testing.assert_close(trainer.multipliers.values, expected, rtol=1e-4, atol=1e-6)
    trained: Any = trainer.model
    for (key, value), own in zip(reference.state_dict().items(), trained.state_dict().values(), strict=True):
        torch.testing.assert_close(own, value, rtol=1e-6, atol=1e-8, msg=key)


@pytest.mark.parametrize("form", ["difference", "ratio", "cumulative"])
@pytest.mark.parametrize(
    "more", [{}, {"clip_weights": True}, {"label_smoothing_factor": 0.2}, {"grid": [1, 2, 3]}], ids=str
)
def test_one_gradient_in_float64(tmp_path: Path, form: Any, more: dict[str, Any]) -> None:
    model, reference = llama(), llama()
    trainer = trainer_of(tmp_path, model, form=form, **more)
    assert trainer.multipliers is not None
    names = ("clip_weights", "grid")
    constraints = DescentConstraints(
        num_layers=L, alpha=ALPHA, form=form, **{name: more[name] for name in names if name in more}
    )
    trainer.multipliers.values = values = torch.tensor([0.5, 2.0, 1.0])[: len(constraints.steps)]
    batch = pad(texts(4))
    loss = trainer.compute_loss(model.train(), batch)
    loss.backward()
    F = plain_losses(reference, batch, more.get("label_smoothing_factor", 0.0))
    expected = constraints.lagrangian(F, values)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    for own, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_erm_is_the_plain_trainer_and_reads_no_other_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = {"data_collator": pad, "eval_dataset": texts(4)}
    plain = plain_trainer(tmp_path / "a", llama(), texts(12), given, max_steps=3)
    plain.train()
    for settings in ({"objective": "erm"}, {"dual_lr": 0.0}, {"dual_lr": 0.0, "token_share": 0.3}):
        ours = make_trainer(tmp_path / "b", llama(), texts(12), given=given, max_steps=3, **settings)
        ours.train()
        assert same(weights(ours.model), weights(plain.model))  # type: ignore[arg-type]
    monkeypatch.setattr("layerdescent.training.mixin.token_layer_losses", lambda *_: pytest.fail("a layer was read"))
    erm = make_trainer(tmp_path / "c", llama(), texts(12), given=given, max_steps=1, objective="erm")
    erm.train()
    assert erm.descent_history[0]["layer_losses"][:-1] == [None] * L


def test_the_logits_of_all_layers_are_never_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is called on one chunk of response tokens at a time, and on prompts never."""
    seen: list[int] = []
    model = llama()
    monkeypatch.setattr(tokens_of_training, "fused_layer_losses", partial(fused_layer_losses, max_logits=2 * 40))
    trainer = trainer_of(tmp_path, model)
    assert trainer.multipliers is not None
    trainer.multipliers.values = torch.ones(L)
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.numel() // 40))
    batch = pad(texts(4))
    counted = int((batch["labels"][:, 1:] != -100).sum())
    trainer.compute_loss(model.train(), batch).backward()
    assert seen[0] == batch["input_ids"].numel()  # the model's own forward
    assert max(seen[1:]) == 2
    assert sum(seen[1:]) == L * counted + 1  # and one row to learn how large the vocabulary is


@pytest.mark.parametrize("name", ["tied", "lora"])
def test_gradient_checkpointing_changes_nothing(tmp_path: Path, name: str) -> None:
    plain = trainer_of(tmp_path / "a", MODELS[name]())
    plain.train()
    thrifty = trainer_of(tmp_path / "b", MODELS[name](), activation_checkpointing=True)
    thrifty.train()
    assert plain.multipliers is not None
    assert thrifty.multipliers is not None
    assert torch.equal(thrifty.multipliers.values, plain.multipliers.values)
    for own, other in zip(weights(thrifty.model).values(), weights(plain.model).values(), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-14)


def test_bf16_autocast_stays_near(tmp_path: Path) -> None:
    full = trainer_of(tmp_path / "a", llama().float())
    low = trainer_of(tmp_path / "b", llama().float(), bf16=True)
    for trainer in (full, low):
        trainer.train()
    for ours, other in zip(low.descent_history, full.descent_history, strict=True):
        assert ours["layer_losses"] == pytest.approx(other["layer_losses"], rel=2e-2)


def test_noise_reaches_objective_and_constraints_as_in_other_models(tmp_path: Path) -> None:
    class Tokenizer:
        all_special_ids = (0,)

        def save_pretrained(self, folder: str) -> None: ...

    def run(**settings: Any) -> DescentTrainer:
        trainer = trainer_of(tmp_path, llama(), given={"processing_class": Tokenizer()}, **settings)
        trainer.train()
        return trainer

    plain, faint = run(), run(constraint_gamma=1e-6)
    for own, other in zip(weights(faint.model).values(), weights(plain.model).values(), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
    noisy = run(constraint_gamma=1.0)
    assert noisy.descent_history[0]["layer_losses"][0] != plain.descent_history[0]["layer_losses"][0]
    assert run(input_gamma=0.5).descent_history[0]["layer_losses"][L] != plain.descent_history[0]["layer_losses"][L]


def test_deep_supervision_reads_what_it_weighs(tmp_path: Path) -> None:
    model, reference = llama(), llama()
    trainer = trainer_of(tmp_path, model, objective="deep-supervision", layer_weights=[0.0, 0.5, 1.5])
    batch = pad(texts(4))
    trainer.compute_loss(model.train(), batch).backward()
    F = plain_losses(reference, batch)
    (0.5 * F[2] + 1.5 * F[3]).backward()
    for own, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_evaluation_is_a_mean_over_tokens(tmp_path: Path) -> None:
    model = llama()
    metrics = trainer_of(tmp_path, model, grid=[1, 3], per_device_eval_batch_size=3).evaluate()
    with torch.no_grad():
        F = plain_losses(model.eval(), pad(texts(10, seed=9)))
    assert metrics["eval_loss"] == pytest.approx(F[-1].item(), rel=1e-6)
    assert metrics["eval_perplexity"] == pytest.approx(F[-1].exp().item(), rel=1e-5)
    assert metrics["eval_layer_loss/1"] == pytest.approx(F[1].item(), rel=1e-6)
    assert "eval_layer_loss/2" not in metrics


# A part of the tokens ------------------------------------------------------------------------------------------------


def test_a_part_of_the_tokens_is_right_on_average(tmp_path: Path) -> None:
    """Over many draws the gradient is that of all tokens; the objective's own part has no noise at all."""
    model, batch = llama(), pad(texts(6))
    trainer = trainer_of(tmp_path, model, token_share=0.5)
    assert trainer.multipliers is not None
    trainer.multipliers.values = values = torch.tensor([0.5, 2.0, 1.0])
    model.train()
    draws = []
    for step in range(120):
        trainer.state.global_step = step
        model.zero_grad()
        trainer.compute_loss(model, batch).backward()
        draws.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    reference = llama()
    DescentConstraints(num_layers=L, alpha=ALPHA).lagrangian(plain_losses(reference, batch), values).backward()
    exact = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])
    stacked = torch.stack(draws)
    error = (stacked.mean(0) - exact).norm() / (stacked.std(0) / 120**0.5).norm()
    assert error < 1.6  # 1 is what independent draws without bias give
    assert stacked.std(0).norm() > 0.1 * exact.norm()


def test_the_draw_is_one_for_all_layers_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    read = tokens_of_training.token_layer_losses

    def spy(readout: Readout, states: Any, labels: Tensor, chosen: Any, **given: Any) -> Any:
        drawn.append(labels)
        assert list(chosen) == list(range(L + 1))
        return read(readout, states, labels, chosen, **given)

    monkeypatch.setattr("layerdescent.training.mixin.token_layer_losses", spy)
    for _ in range(2):
        trainer_of(
            tmp_path, llama(), token_share=0.5, per_device_train_batch_size=2, gradient_accumulation_steps=2
        ).train()
    half = len(drawn) // 2
    assert half == 6
    for first, second in zip(drawn[:half], drawn[half:], strict=True):
        assert torch.equal(first, second)
    assert any(not torch.equal(drawn[0], other) for other in drawn[1:half])


def test_sampled_labels_keep_at_least_one() -> None:
    labels = torch.tensor([[-100, 4, 5, -100]])
    assert int(sampled_labels(labels, 0.01, "a").ne(-100).sum()) == 1
    assert torch.equal(sampled_labels(labels, 1.0, "a"), labels)
    nothing = torch.full((1, 3), -100)
    assert torch.equal(sampled_labels(nothing, 0.5, "a"), nothing)


def test_a_share_of_tokens_is_for_language_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"token_share is 0.5, and BertForSequenceClassification"):
        make_trainer(tmp_path, token_share=0.5)


def test_a_loss_function_of_the_users_gets_its_logits(tmp_path: Path) -> None:
    def function(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"][..., :-1, :].flatten(0, -2)
        return 2 * functional.cross_entropy(logits, labels[..., 1:].flatten())

    trainer = trainer_of(tmp_path, llama(), given={"compute_loss_func": function}, max_steps=1)
    trainer.train()
    assert len([loss for loss in trainer.descent_history[0]["layer_losses"] if loss is not None]) == L + 1


def test_below_the_last_layer_everything_is_exact_in_float64() -> None:
    chosen = {0: 1.0, 1: 0.0, 2: -2.0}

    def gradients(model: LlamaForCausalLM, total: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(total, list(model.parameters()), materialize_grads=True))

    model, batch = llama(), pad(texts(5))
    states = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
    ).hidden_states
    found, total = token_layer_losses(Readout.for_model(model), states, next_token_labels(batch["labels"]), chosen)
    F = plain_losses(model, batch)
    torch.testing.assert_close(found, F[:3].detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(total, F[0] - 2 * F[2], rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(model, total), gradients(model, F[0] - 2 * F[2]), rtol=1e-10, atol=1e-13)

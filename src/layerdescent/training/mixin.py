"""Descent-constrained training as a mixin for transformers' Trainer and whatever derives from it.

How one optimiser step runs:

1. `get_batch_samples` counts the samples of the whole step: all micro-batches, all ranks.
2. For each micro-batch `compute_loss` lets the trainer compute the loss of the last layer as it always does, takes the
   hidden states on the way, reads the other layers through the model's head, and returns the objective times the
   micro-batch's share of the step.
3. Before the optimiser steps, the layer losses are averaged over micro-batches and ranks; a NaN or infinity stops here.
4. After it stepped (and only if it did), the multipliers take their dual step on these means.

So accumulation is exact: micro-batches of any size give the gradient and the multipliers of one large batch. (Of the
three forms only the ratio is not linear in the losses: its weights are taken at each micro-batch's own.)
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from layerdescent.descent import DescentConstraints, weighted_sum
from layerdescent.duals import Multipliers
from layerdescent.errors import InputError, NonFiniteLossError
from layerdescent.perturbation import Perturbation
from layerdescent.perturbation.pixels import training_pixel_noise
from layerdescent.readout import Readout
from layerdescent.training.capture import (
    Captured,
    capture_hidden_states,
    clean_positions,
    embedding_noise,
    plain_model,
)
from layerdescent.training.card import write_trainer_card
from layerdescent.training.checkpoints import (
    checkpoint_to_resume,
    failed_saves_named,
    load_multipliers,
    save_multipliers,
)
from layerdescent.training.config import BEST_METRIC, DescentArguments
from layerdescent.training.losses import LossFunction, count_items, losses_of_logits
from layerdescent.training.meters import LossMeter
from layerdescent.training.objectives import layers_with_gradient
from layerdescent.training.progress import SHORT_LINES, GrowthWatch
from layerdescent.training.records import LogWindow, descent_history, evaluation_entries
from layerdescent.training.selection import is_feasible_score
from layerdescent.training.tokens import sampled_labels, shifted_labels, token_layer_losses

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

logger = logging.getLogger(__name__)


class DescentMixin(_Trainer):
    """Gives a Trainer subclass descent constraints; `DescentTrainer` is this on the plain Trainer.

    Its `args` must have the fields of `DescentArguments`. The trainer's own loss stays the loss of the last layer;
    class weights (`compute_loss_func`) and label smoothing act on every layer alike.

    Attributes:
        constraints: the constraints, for the model's number of layers.
        multipliers: the multipliers, or None when the objective has none. A `train()` that does not resume starts
            them at 0.
        readout: reads a layer's loss through the model's own head.
        best_is_loaded: whether the weights are those of the best checkpoint, loaded when training ended.

    Example:
        >>> from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
        >>> class MyTrainer(DescentMixin, Seq2SeqTrainer):
        ...     pass
    """

    # compute_loss weights every micro-batch by its share of the whole step.
    loss_is_scaled_for_ga: bool | None = True

    constraints: DescentConstraints
    multipliers: Multipliers | None
    readout: Readout
    best_is_loaded: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, DescentArguments):
            raise InputError(
                f"args is a {type(self.args).__name__}: give {type(self).__name__} a DescentConfig, "
                "or a class that mixes in DescentArguments"
            )
        if self.args.n_gpu > 1:
            raise InputError(
                f"{self.args.n_gpu} GPUs in one process: start one process for each GPU (torchrun, accelerate launch), "
                "or let it see only one (CUDA_VISIBLE_DEVICES=0)"
            )
        # The mean over all devices is taken here, once and for every layer.
        self.args.average_tokens_across_devices = False
        self._shifts_labels = type(plain_model(self.model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        self.best_is_loaded = False
        self._set_up_descent()
        for usual, short in SHORT_LINES.items():
            if any(type(callback) is usual for callback in self.callback_handler.callbacks):
                self.remove_callback(usual)
                self.add_callback(short)
        self.add_callback(_StepCallback(self))

    @property
    def _descent_args(self) -> DescentArguments:
        assert isinstance(self.args, DescentArguments)
        return self.args

    def _set_up_descent(self) -> None:
        args = self._descent_args
        self.readout = Readout.for_model(self.accelerator.unwrap_model(self.model))
        L = self.readout.num_layers
        self.constraints = args.constraints(L)
        self.multipliers = args.multipliers(self.constraints) if args.objective == "descent" else None
        # What the objective weighs the layers with, and None where the multipliers decide.
        self._fixed_weights = None if self.multipliers is not None else args.fixed_weights(L)
        # A loss function of the user's wants logits, and gets them.
        self._reads_tokens = self.readout.reads_tokens and self.compute_loss_func is None
        if args.token_share < 1 and not self._reads_tokens:
            raise InputError(
                f"token_share is {args.token_share:g}, and {type(self.readout.model).__name__} with this loss is not "
                "read token by token: it is for causal language models with their own loss; leave it out"
            )
        self._step_meter = LossMeter(L + 1, self.args.device)
        self._evaluation_meter = LossMeter(L + 1, self.args.device)
        self._step_items = self._micro_batch = 0
        self._step_losses: Tensor | None = None
        self._log_window = LogWindow(self.constraints)
        self._growth_watch: GrowthWatch | None = None

    # ---- the primal side ----

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Trainer's method; also counts the samples (tokens, for a language model) of the whole optimiser step."""
        batches, num_items_in_batch = super().get_batch_samples(*args, **kwargs)
        items = torch.tensor([int(self._count(batch)) for batch in batches], device=self.args.device).sum()
        self._step_items = int(self._sum_over_ranks(items))
        self._step_meter.clear()
        self._micro_batch = 0
        return batches, num_items_in_batch

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective on one micro-batch, times its share of the step; in evaluation, the loss of the last layer.

        Args:
            model: the model, wrapped or not.
            inputs: the batch, with `labels`.
            return_outputs: return the model's outputs too. They hold no hidden states, unless the model's config asks
                for them.
            num_items_in_batch: not used: given the micro-batch's own count, every loss function returns its mean.

        Returns:
            The loss, or the loss and the outputs.
        """
        batch = dict(inputs)  # the trainer below may take the labels out of its own
        count = self._count(batch)
        items = int(count)
        args, bare = self._descent_args, self.accelerator.unwrap_model(model)
        forward = partial(self._forward, model, inputs, count)
        level = self._noise_level() if model.training else 0.0
        result, captured = forward(self._noise(bare, batch, level), return_outputs=return_outputs)
        final, objective = result[0] if return_outputs else result, None
        if model.training and args.constraint_gamma is not None:
            # From here on `final` is a loss under noise like those of the layers below it.
            level = _between(args.input_gamma, args.constraint_gamma)
            objective = final
            final, captured = forward(self._noise(bare, batch, level))
        read = self._token_losses if self._reads_tokens else self._layer_losses
        losses, logits, lower = read(captured, batch, final, count)
        if not model.training:
            self._evaluation_meter.add(losses, items)
            return result
        self._step_meter.add(losses, items)
        self._micro_batch += 1
        if items:
            # Called outside a training step, the batch is the whole step.
            share = items * self.accelerator.num_processes / (self._step_items or items)
            if lower is not None and objective is None and self._samples_tokens:
                objective = final  # on every token, where the constraints are measured on some
            loss = self._objective(losses, objective)
            if lower is not None and lower.requires_grad:
                loss = loss + (lower - lower.detach())  # whose value is in the losses already
            loss = loss * share
        else:
            # Nothing to learn from, but the other ranks wait for this one's gradients.
            loss = 0.0 * (sum(part.sum() for part in logits) + captured.hidden_states[-1].sum())
        return (loss, result[1]) if return_outputs else loss

    def _forward(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        count: Tensor,
        noise: AbstractContextManager[None],
        return_outputs: bool = False,
    ) -> tuple[Any, Captured]:
        """The trainer's own loss on one micro-batch, and what the forward pass left behind."""
        with capture_hidden_states(self.accelerator.unwrap_model(model)) as captured, noise:
            given = {**inputs, **self.readout.needs_hidden_states}
            result = super().compute_loss(model, given, return_outputs=return_outputs, num_items_in_batch=count)
        return result, captured

    def _objective(self, losses: Tensor, objective: Tensor | None) -> Tensor:
        if self._fixed_weights is None:
            assert self.multipliers is not None
            return self.multipliers.lagrangian(losses, objective)
        return weighted_sum(losses, self._fixed_weights)

    def _layers_that_matter(self) -> set[int]:
        """The layers whose losses the objective or the dual step uses."""
        if self._fixed_weights is None:
            return set(self.constraints.nodes)
        return {layer for layer, weight in enumerate(self._fixed_weights) if weight != 0}

    def _layers_to_read(self) -> list[int]:
        """The layers below L whose losses are computed.

        All, unless a grid says which ones matter in training. Where every reading costs a pass through a large head,
        those that the constraints tie, and in training under another objective those that it weighs.
        """
        layers = set(range(self.readout.num_layers + 1))
        training = torch.is_grad_enabled()
        if self._reads_tokens:
            layers = self._layers_that_matter() if training else set(self.constraints.nodes)
        elif training and self._descent_args.grid is not None:
            layers = self._layers_that_matter().union(self.constraints.nodes)
        return sorted(layers - {self.readout.num_layers})

    def _layers_that_learn(self) -> set[int]:
        """The layers below L whose losses have a gradient."""
        if not torch.is_grad_enabled():
            return set()
        if self.multipliers is not None:
            return layers_with_gradient(self.constraints, self.multipliers.values)
        return self._layers_that_matter() - {self.readout.num_layers}

    def _layer_losses(
        self, captured: Captured, batch: dict[str, Any], final: Tensor, count: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """F_0 … F_L of a micro-batch, NaN where a layer is not read, and the logits of the layers below L that are."""
        layers, learning = self._layers_to_read(), self._layers_that_learn()
        losses_of = partial(losses_of_logits, self.readout, self._loss_function, labels=batch["labels"], count=count)
        # A layer without gradient costs no backward pass.
        states = tuple(h if layer in learning else h.detach() for layer, h in enumerate(captured.hidden_states))
        with nullcontext() if learning else torch.no_grad():
            with self.accelerator.autocast():
                logits = self.readout.layer_logits(BaseModelOutput(hidden_states=states), batch, layers)
            read = losses_of(logits)
        last = final.to(read.dtype)
        if final.dtype != read.dtype and captured.logits is not None:
            # A bf16 model rounds its loss by as much as an alpha: its gradient is kept, the value is the fp32 one.
            last = last + (losses_of(captured.logits.detach()[None])[0] - last).detach()
        losses = read.new_full((self.readout.num_layers + 1,), torch.nan)
        losses[[*layers, -1]] = torch.cat([read, last.reshape(1)])
        return losses, [logits], None

    def _token_losses(
        self, captured: Captured, batch: dict[str, Any], final: Tensor, count: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """As `_layer_losses`, of a language model; the losses read here are detached.

        Their gradient is that of the last thing returned: their sum, each weighed as in the objective.
        """
        L, layers, labels = self.readout.num_layers, self._layers_to_read(), shifted_labels(batch)
        sampled = self._samples_tokens
        if sampled:
            args: Any = self.args
            key = f"{args.seed} {self.state.global_step} {self._micro_batch} {self.accelerator.process_index}"
            labels = sampled_labels(labels, args.token_share, key)
            layers = [*layers, L]  # so that a violation compares two layers on the same tokens
        states = captured.hidden_states
        losses = final.new_full((L + 1,), torch.nan, dtype=torch.promote_types(final.dtype, torch.float32))
        losses[-1] = final.detach()

        def read(weights: Sequence[float]) -> Tensor:
            smoothing = 0.0 if self.label_smoother is None else self.label_smoother.epsilon
            chosen = {layer: weights[layer] for layer in layers}
            with self.accelerator.autocast():
                values, total = token_layer_losses(self.readout, states, labels, chosen, label_smoothing=smoothing)
            losses[layers] = values.to(losses.dtype)
            return total

        total = None
        if layers:
            weights = [0.0] * (L + 1)
            if torch.is_grad_enabled() and self._layers_that_learn():
                if self.multipliers is not None and self.constraints.form == "ratio":
                    read(weights)  # on which the weights of this form depend
                weights = self._gradient_weights(losses)
                weights[-1] -= 1  # the objective's own, on every token
            total = read(weights)
        if not sampled:
            losses = torch.cat([losses[:-1], final.to(losses.dtype).reshape(1)])
        return losses, [] if captured.logits is None else [captured.logits], total

    @property
    def _samples_tokens(self) -> bool:
        """Whether the constraints are measured on a part of the tokens now."""
        return torch.is_grad_enabled() and self.multipliers is not None and self._descent_args.token_share < 1

    def _gradient_weights(self, losses: Tensor) -> list[float]:
        """What the gradient of each layer's loss weighs in the objective, (L+1,)."""
        if self._fixed_weights is not None:
            return list(self._fixed_weights)
        assert self.multipliers is not None
        return self.constraints.gradient_weights(self.multipliers.values, losses.cpu()).tolist()

    @property
    def _loss_function(self) -> LossFunction | None:
        """What Trainer computes its loss with; None for the model's own."""
        if self.compute_loss_func is None and self.label_smoother is not None:
            return partial(self.label_smoother, shift_labels=self._shifts_labels)
        return self.compute_loss_func

    def _count(self, batch: dict[str, Any]) -> Tensor:
        if batch.get("labels") is None:
            raise InputError(
                f"a batch of {', '.join(batch)} without labels: no layer has a loss; add a column 'labels'"
            )
        return count_items(batch, self._shifts_labels)

    def _noise_level(self) -> float:
        """The level of the noise that the objective is trained under."""
        args = self._descent_args
        if args.objective != "noise":
            return args.input_gamma
        return _between(args.input_gamma, args.noise_gamma) if args.noise_level == "uniform" else args.noise_gamma

    def _noise(self, model: nn.Module, batch: dict[str, Any], gamma: float) -> AbstractContextManager[None]:
        """Fresh gaussian noise of one level on what the model reads."""
        if gamma == 0:
            return nullcontext()
        if "pixel_values" in batch:
            return training_pixel_noise(model, gamma)
        if "input_ids" not in batch:
            raise InputError(f"training under noise on a batch of {', '.join(batch)}: give input_ids or pixel_values")
        special = tuple(getattr(self.processing_class, "all_special_ids", ()))
        clean = clean_positions(batch["input_ids"], batch.get("attention_mask"), special)
        return embedding_noise(model, gamma, clean)

    # ---- the dual side ----

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        return self.accelerator.reduce(value, reduction="sum")

    def _begin_training(self) -> None:
        if self.state.global_step == 0:
            self._set_up_descent()
        self.best_is_loaded = False
        # Long enough that noise does not look like growth, short enough to be told in time.
        self._growth_watch = GrowthWatch(self.constraints, window=max(50, self.state.max_steps // 4))

    def _before_optimizer_step(self) -> None:
        """Average the step's layer losses, and stop before anything is learnt from a NaN."""
        self._step_losses = losses = self._step_meter.mean(self._sum_over_ranks)
        for layer in sorted(self._layers_that_matter()):
            if losses is not None and not losses[layer].isfinite():
                raise NonFiniteLossError(
                    f"the loss of layer {layer} is {losses[layer].item()} at optimiser step "
                    f"{self.state.global_step + 1}: the step was not taken and saved checkpoints are whole; "
                    "lower learning_rate or dual_lr, or look at the batch"
                )

    def _after_optimizer_step(self) -> None:
        losses = self._step_losses
        if losses is None:  # not one label in the whole step
            return
        if self.multipliers is None:
            self._log_window.add(losses)
            return
        skipped = self.accelerator.optimizer_step_was_skipped
        self._log_window.add(losses, self.multipliers, None if skipped else self.multipliers.ascend(losses))
        explanation = self._growth_watch.see(self.multipliers.values, losses) if self._growth_watch else None
        if explanation and self.is_world_process_zero():
            logger.warning(explanation)

    def _end_step(self) -> None:
        self._step_items = 0
        epoch = self.state.epoch
        # Not in on_epoch_end: a checkpoint of the epoch's last step is written before, and must hold its dual step.
        if self.multipliers is not None and epoch is not None and float(epoch).is_integer():
            self._log_window.add_dual_step(self.multipliers.end_epoch())

    def _end_training(self) -> None:
        args: Any = self.args
        self.best_is_loaded = args.load_best_model_at_end and self.state.best_model_checkpoint is not None
        by_feasibility = self.best_is_loaded and args.metric_for_best_model.endswith(BEST_METRIC)
        if by_feasibility and not is_feasible_score(self.state.best_metric or 0.0):
            logger.warning(
                "no checkpoint was feasible: the least infeasible one, of step %s, is kept; a smaller alpha, more "
                "steps or a larger dual_lr may help",
                self.state.best_global_step,
            )

    # ---- saving and resuming ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trainer's `train`; `resume_from_checkpoint=True` means the newest checkpoint that is whole.

        Raises:
            RunError: there is no whole checkpoint, or the one named is not whole.
        """
        if resume_from_checkpoint:
            folder = checkpoint_to_resume(resume_from_checkpoint, str(self.args.output_dir), self.args.world_size)
            resume_from_checkpoint = str(folder)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with failed_saves_named(f"the checkpoint of step {self.state.global_step}"):
            super()._save_checkpoint(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.multipliers is not None and self.args.should_save:
            save_multipliers(output_dir, self.multipliers)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self._set_up_descent()
        if self.multipliers is not None and checkpoint is not None:
            load_multipliers(checkpoint, self.multipliers)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Trainer's `save_model`, with a model card that says how it was trained and what its layers do."""
        folder = output_dir or self.args.output_dir
        with failed_saves_named(f"the model for {folder}"):
            super().save_model(output_dir, _internal_call)
            if self.args.should_save:
                write_trainer_card(self, folder)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Trainer's model card, with the section that `save_model` writes."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            write_trainer_card(self, self.args.output_dir)

    # ---- evaluation and logs ----

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Trainer's loop; its metrics also hold the mean layer losses, the violations and `descent_score`.

        Of a language model they hold the perplexity too, and every mean is one over tokens; the layers are those that
        the constraints tie.

        Inputs have their noise of `input_gamma`, the same whenever it is run. In distributed evaluation the rows that
        fill the last batch count twice, at most one batch of them.
        """
        self._evaluation_meter.clear()
        noise: AbstractContextManager[Any] = nullcontext()
        if self._descent_args.input_gamma:
            level = Perturbation("gaussian", gamma=self._descent_args.input_gamma)
            noise = level.on(self.accelerator.unwrap_model(self.model), self.processing_class)
        with noise:
            output = super().evaluation_loop(*args, **kwargs)
        losses = self._evaluation_meter.mean(self._sum_over_ranks)
        if losses is not None and output.metrics is not None:
            prefix = kwargs.get("metric_key_prefix", "eval")
            output.metrics.update(evaluation_entries(losses, self.constraints, f"{prefix}_"))
            if self._reads_tokens:
                # Trainer's own mean is one over batches, whatever their numbers of tokens.
                output.metrics[f"{prefix}_loss"] = losses[-1].item()
                output.metrics[f"{prefix}_perplexity"] = losses[-1].exp().item()
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's `log`; the entry of training steps also holds what the layers did since the last one."""
        if self.is_in_train and "loss" in logs:
            logs |= self._log_window.drain(self.multipliers)
        super().log(logs, start_time)

    @property
    def descent_history(self) -> list[dict[str, Any]]:
        """The layer-wise record of training, a dictionary for each log entry; see `descent_history` of this package."""
        return descent_history(self.state.log_history)


def _between(low: float, high: float) -> float:
    """A level drawn uniformly, from the global generator on the CPU, whose state a checkpoint holds."""
    return low + (high - low) * float(torch.rand(()))


class _StepCallback(TrainerCallback):
    """Calls the mixin where Trainer's loop offers it."""

    def __init__(self, trainer: DescentMixin) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer._begin_training()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer._before_optimizer_step()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer._after_optimizer_step()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer._end_step()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer._end_training()

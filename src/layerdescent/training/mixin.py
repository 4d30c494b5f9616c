"""Descent-constrained training as a mixin for transformers' Trainer and whatever derives from it.

How one optimiser step runs:

1. `get_batch_samples` counts the samples of the whole step: all micro-batches, all ranks.
2. For each micro-batch `compute_loss` lets the trainer compute the loss of the last layer as it always does, takes the hidden states on
   the way, reads the other layers through the model's head, and returns the objective times the micro-batch's share of the step.
3. Before the optimiser steps, the layer losses of all micro-batches and ranks are averaged; a NaN or an infinity stops here.
4. After it stepped (not when it was skipped), the multipliers take their dual step on these means.

So accumulation is exact: micro-batches of any size give the gradient and the multipliers of one large batch.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from layerdescent.descent import DescentConstraints
from layerdescent.duals import Multipliers
from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.readout import Readout, mean_loss
from layerdescent.training.capture import capture_hidden_states, clean_positions, embedding_noise, plain_model
from layerdescent.training.card import card_section, write_card
from layerdescent.training.checkpoints import last_complete_checkpoint, load_multipliers, problem_with, save_multipliers
from layerdescent.training.config import BEST_METRIC, DescentArguments
from layerdescent.training.meters import LossMeter
from layerdescent.training.objectives import layers_with_gradient, weighted_sum
from layerdescent.training.progress import SHORT_LINES, GrowthWatch
from layerdescent.training.records import LogWindow, descent_history, evaluation_entries
from layerdescent.training.selection import is_feasible_score

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

logger = logging.getLogger(__name__)


class DescentMixin(_Trainer):
    """Gives a Trainer subclass descent constraints; `DescentTrainer` is this on the plain Trainer.

    Its `args` must have the fields of `DescentArguments`. A trainer's own loss stays the loss of the last layer; class weights
    (`compute_loss_func`) and label smoothing act on every layer alike.

    Attributes:
        constraints: the constraints, for the model's number of layers.
        multipliers: the multipliers, or None when the objective has none. Each `train()` that does not resume starts them at 0.
        readout: reads a layer's loss through the model's own head.

    Example:
        >>> from trl import SFTTrainer  # doctest: +SKIP
        >>> class DescentSFTTrainer(DescentMixin, SFTTrainer):  # doctest: +SKIP
        ...     pass
    """

    # compute_loss weights every micro-batch by its share of the whole step.
    loss_is_scaled_for_ga = True

    constraints: DescentConstraints
    multipliers: Multipliers | None
    readout: Readout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, DescentArguments):
            raise InputError(
                f"args is a {type(self.args).__name__}: give {type(self).__name__} a DescentConfig, or a class that mixes in DescentArguments"
            )
        if self.args.n_gpu > 1:
            raise InputError(
                f"{self.args.n_gpu} GPUs in one process: start one process a GPU (torchrun or accelerate launch), or show it one GPU"
            )
        # The mean over all devices is taken here, once and for every layer.
        self.args.average_tokens_across_devices = False
        self._step_meter, self._evaluation_meter = LossMeter(), LossMeter()
        self._step_items = 0
        self._step_losses: Tensor | None = None
        self._shifts_labels = type(plain_model(self.model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
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
        self.constraints = args.constraints(self.readout.num_layers)
        self.multipliers = args.multipliers(self.constraints) if args.objective == "descent" else None
        self._supervision = args.supervision_weights(self.readout.num_layers)
        self._log_window = LogWindow(self.constraints)

    # ---- the primal side ----

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Trainer's method; also counts the samples (tokens, for a language model) of the whole optimiser step."""
        batches, num_items_in_batch = super().get_batch_samples(*args, **kwargs)
        items = sum(
            (self._count_items(batch).to(self.args.device) for batch in batches),
            torch.tensor(0, device=self.args.device),
        )
        self._step_items = int(self._sum_over_ranks(items))
        self._step_meter.clear()
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
            inputs: the batch; needs `labels`.
            return_outputs: return the model's outputs too. They hold no hidden states, unless the model's config asks for them.
            num_items_in_batch: ignored: the micro-batch's own count makes every loss function return the micro-batch's mean.

        Returns:
            The loss, or the loss and the outputs.
        """
        if inputs.get("labels") is None:
            raise InputError(
                f"a batch without labels, only {', '.join(inputs)}: every layer's loss needs them; add a column named labels"
            )
        # A trainer below may take the labels out of its inputs.
        batch = dict(inputs)
        count = self._count_items(batch)
        items = int(count)
        bare = self.accelerator.unwrap_model(model)
        with capture_hidden_states(bare) as captured, self._training_noise(bare, batch):
            result = super().compute_loss(
                model,
                {**inputs, **self.readout.needs_hidden_states},
                return_outputs=return_outputs,
                num_items_in_batch=count,
            )
        final = result[0] if return_outputs else result
        if not captured.hidden_states:
            raise RunError(f"{type(bare).__name__} returned no hidden states, so its layers cannot be read")
        if not model.training:
            losses, _ = self._layer_losses(captured.hidden_states, batch, final, count, range(self.readout.num_layers))
            if items:
                self._evaluation_meter.add(losses, items)
            return result
        losses, logits = self._layer_losses(captured.hidden_states, batch, final, count, self._layers_to_read())
        if items:
            self._step_meter.add(losses, items)
            share = items * self.accelerator.num_processes / self._step_items
            loss = self._objective(final, losses) * share
        else:
            # Nothing to learn here, but other ranks wait for this one's gradients.
            loss = 0.0 * (logits.sum() + captured.hidden_states[-1].sum())
        return (loss, result[1]) if return_outputs else loss

    def _objective(self, final: Tensor, losses: Tensor) -> Tensor:
        if self.multipliers is not None:
            return self.multipliers.lagrangian(losses)
        if self._descent_args.objective == "deep-supervision":
            return weighted_sum(losses, self._supervision)
        return final

    def _layers_to_read(self) -> list[int]:
        """The layers below L whose loss is read in training: all, unless a grid says which ones matter."""
        grid = self._descent_args.grid
        layers = (
            range(self.readout.num_layers) if grid is None or self.multipliers is None else self.constraints.nodes[:-1]
        )
        return list(layers)

    def _layers_with_gradient(self) -> set[int]:
        if self.multipliers is not None:
            return layers_with_gradient(self.constraints, self.multipliers.values)
        if self._descent_args.objective == "deep-supervision":
            return {layer for layer, weight in enumerate(self._supervision[:-1]) if weight != 0}
        return set()

    def _layer_losses(
        self, hidden_states: tuple[Tensor, ...], batch: Mapping[str, Any], final: Tensor, count: Tensor, layers: Any
    ) -> tuple[Tensor, Tensor]:
        """F_0 … F_L of a micro-batch (NaN for layers not asked for), and the logits of the layers asked for."""
        layers = list(layers)
        learning = self._layers_with_gradient() if torch.is_grad_enabled() else set()
        # A layer without gradient costs no backward pass.
        states = tuple(state if layer in learning else state.detach() for layer, state in enumerate(hidden_states))
        grad: AbstractContextManager[Any] = nullcontext() if learning else torch.no_grad()
        with grad:
            with self.accelerator.autocast():
                logits = self.readout.layer_logits(BaseModelOutput(hidden_states=states), batch, layers)
            read = self._losses_of(logits.float(), batch["labels"], count)
        losses = read.new_full((self.readout.num_layers + 1,), torch.nan)
        losses[layers] = read
        return torch.cat([losses[:-1], final.to(losses.dtype).reshape(1)]), logits

    def _losses_of(self, logits: Tensor, labels: Tensor, count: Tensor) -> Tensor:
        """The losses (n,) of logits (n, B, …), by the same function that gave the last layer's."""
        if self.compute_loss_func is not None:
            function: Callable[..., Tensor] = self.compute_loss_func
        elif self.label_smoother is not None:
            function = self._smoothed_loss
        else:
            return mean_loss(self.readout.model.config, self.readout.per_sample_losses(logits, labels), labels)
        return torch.stack(
            [function(SequenceClassifierOutput(logits=layer), labels, num_items_in_batch=count) for layer in logits]
        ).float()

    def _smoothed_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
        return self.label_smoother(
            outputs, labels, shift_labels=self._shifts_labels, num_items_in_batch=num_items_in_batch
        )

    def _count_items(self, batch: Mapping[str, Any]) -> Tensor:
        """The samples of a batch that have a label; for language models the tokens that are predicted. As Trainer counts them."""
        labels = batch.get("shift_labels", batch.get("labels"))
        if labels is None:
            return torch.tensor(0, device=self.args.device)
        if self._shifts_labels and "shift_labels" not in batch:
            labels = labels[..., 1:]
        return labels.ne(-100).sum()

    def _training_noise(self, model: nn.Module, batch: Mapping[str, Any]) -> AbstractContextManager[None]:
        args = self._descent_args
        if args.objective != "noise" or not model.training:
            return nullcontext()
        input_ids = batch.get("input_ids")
        if input_ids is None:
            raise InputError(
                f"objective 'noise' needs input_ids, the batch has {', '.join(batch)}: use it with a text model"
            )
        special = tuple(getattr(self.processing_class, "all_special_ids", ()))
        clean = clean_positions(input_ids, batch.get("attention_mask"), special)
        return embedding_noise(model, args.noise_gamma, clean)

    # ---- the dual side ----

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        return self.accelerator.reduce(value, reduction="sum")

    def _before_optimizer_step(self) -> None:
        """Average the step's layer losses over micro-batches and ranks, and stop before anything is learnt from a NaN."""
        losses = self._step_meter.mean(self._sum_over_ranks)
        if losses is None:
            raise RunError(f"optimiser step {self.state.global_step + 1} had no sample with a label: look at the data")
        matter = self.constraints.nodes if self.multipliers is not None else [self.constraints.num_layers]
        if self._descent_args.objective == "deep-supervision":
            matter = [layer for layer, weight in enumerate(self._supervision) if weight != 0]
        broken = [layer for layer in matter if not losses[layer].isfinite()]
        if broken:
            raise NonFiniteLossError(
                f"the loss of layer {broken[0]} is {losses[broken[0]].item()} at optimiser step {self.state.global_step + 1}: nothing was "
                "changed by this step and every saved checkpoint is whole; lower the learning rate or dual_lr, clip gradients, or look at the batch"
            )
        self._step_losses = losses

    def _after_optimizer_step(self) -> None:
        losses = self._step_losses
        assert losses is not None
        step = None
        if self.multipliers is not None and not self.accelerator.optimizer_step_was_skipped:
            step = self.multipliers.ascend(losses)
        self._log_window.add(losses, self.multipliers, step)
        if self.multipliers is not None and self._growth_watch is not None:
            explanation = self._growth_watch.see(self.multipliers.values, losses)
            if explanation and self.is_world_process_zero():
                logger.warning(explanation)

    _growth_watch: GrowthWatch | None = None

    def _begin_training(self) -> None:
        if self.state.global_step == 0:
            self._set_up_descent()
        self._step_meter.clear()
        self._log_window = LogWindow(self.constraints)
        self._growth_watch = GrowthWatch(self.constraints, window=max(50, self.state.max_steps // 4))

    # ---- saving and resuming ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trainer's `train`; `resume_from_checkpoint=True` means the newest checkpoint that is whole.

        Raises:
            RunError: there is no whole checkpoint, or the one named is not whole.
        """
        if resume_from_checkpoint is True:
            found = last_complete_checkpoint(self.args.output_dir, self.args.world_size)
            if found is None:
                raise RunError(
                    f"{self.args.output_dir} has no whole checkpoint to resume from: train without resume_from_checkpoint"
                )
            resume_from_checkpoint = str(found)
        elif isinstance(resume_from_checkpoint, str) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            problem = problem_with(resume_from_checkpoint, self.args.world_size)
            if problem is not None:
                raise RunError(f"cannot resume from {resume_from_checkpoint}: {problem}")
        return super().train(resume_from_checkpoint, *args, **kwargs)

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
        """Trainer's `save_model`, with a model card that says how the model was trained and what its layers do."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self._write_card(output_dir or self.args.output_dir)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Trainer's model card, with the section on layers."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            self._write_card(self.args.output_dir)

    def _write_card(self, folder: str | None) -> None:
        assert folder is not None
        name_or_path = getattr(plain_model(self.model).config, "_name_or_path", "")
        section = card_section(
            self.args,
            steps=self.state.global_step,
            batch_size=self.get_total_train_batch_size(self.args),
            profile=self._profile_of_weights(),
            nodes=self.constraints.nodes,
            alphas=self.constraints.alphas,
        )
        write_card(
            Path(folder),
            section,
            model_name=Path(folder).resolve().name,
            base_model=name_or_path if name_or_path and not Path(name_or_path).exists() else None,
            library="peft" if plain_model(self.model) is not self.model else "transformers",
        )

    def _profile_of_weights(self) -> dict[str, Any] | None:
        """The record that belongs to the present weights: those of the best checkpoint after it was loaded, else the newest."""
        evaluations, steps = descent_history(self.state.log_history, "eval_"), self.descent_history
        if self._best_is_loaded:
            evaluations = [record for record in evaluations if record["step"] == self.state.best_global_step]
        newest = evaluations or steps
        return newest[-1] if newest else None

    _best_is_loaded = False

    def _end_training(self) -> None:
        args: Any = self.args
        self._best_is_loaded = args.load_best_model_at_end and self.state.best_model_checkpoint is not None
        metric = args.metric_for_best_model or ""
        best = self.state.best_metric
        if self._best_is_loaded and metric.endswith(BEST_METRIC) and best is not None and not is_feasible_score(best):
            logger.warning(
                "no checkpoint was feasible: the least infeasible one, of step %s, was kept; a smaller alpha, more steps, a larger "
                "dual_lr or resilience may help",
                self.state.best_global_step,
            )

    # ---- evaluation and logs ----

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Trainer's loop; its metrics also hold the mean layer losses, the violations and `descent_score`.

        In distributed evaluation the few rows that fill the last batch are counted twice.
        """
        self._evaluation_meter.clear()
        output = super().evaluation_loop(*args, **kwargs)
        losses = self._evaluation_meter.mean(self._sum_over_ranks)
        self._evaluation_meter.clear()
        if losses is not None and output.metrics is not None:
            prefix = kwargs.get("metric_key_prefix", "eval")
            output.metrics.update(evaluation_entries(losses, self.constraints, f"{prefix}_"))
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's `log`; the entry of training steps also holds what the layers did since the last one."""
        if self.is_in_train and "loss" in logs:
            logs |= self._log_window.drain(self.multipliers)
        super().log(logs, start_time)

    @property
    def descent_history(self) -> list[dict[str, Any]]:
        """The layer-wise record of training, one dictionary a log entry; see `layerdescent.training.descent_history`."""
        return descent_history(self.state.log_history)


class _StepCallback(TrainerCallback):
    """Calls the mixin where Trainer's loop offers it."""

    def __init__(self, trainer: DescentMixin) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._begin_training()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._before_optimizer_step()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._after_optimizer_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Here rather than in on_epoch_end: a checkpoint of the epoch's last step is written before that, and must hold the dual step.
        if self.trainer.multipliers is not None and float(state.epoch).is_integer():
            self.trainer.multipliers.end_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._end_training()

"""Phi_l -> logits -> loss, through the model's own head: one readout, shared by all layers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from layerdescent.errors import InputError
from layerdescent.readout.losses import mean_loss, next_token_losses
from layerdescent.readout.spec import Model, ReadoutSpec
from layerdescent.readout.table import readout_spec


class Readout:
    """Read every layer of a model by the model's own head.

    In plain code, for one layer of a BERT:

        pooled = model.bert.pooler(hidden_states[l])
        logits = model.classifier(model.dropout(pooled))
        F_l = cross_entropy(logits, labels)

    and of a Llama, whose last hidden state is normed already (labels[t + 1] is what position t predicts):

        logits = model.lm_head(model.model.norm(hidden_states[l]))
        F_l = cross_entropy(logits[:, :-1], labels[:, 1:])

    All layers are read in one call of the head, on the rows it needs only. A classifier needs one token's or one mean,
    so its readouts cost next to nothing; a language model needs every token's, and a large vocabulary makes the head
    the cost. Nothing is added to the model and nothing in it changes.

    A head that reads only the first token (text or image) sees the same vector for every input at layer 0, where no
    positions have mixed yet: F_0 is then the loss of a constant predictor.

    Args:
        model: the bare transformers model; `for_model` unwraps one.
        spec: how its head reads a hidden state.

    Source: all layers by the model's own head, F_L by its own forward, the others under one dropout mask [C].

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(
        ...     vocab_size=10, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
        ... )
        >>> model = BertForSequenceClassification(config)
        >>> readout = Readout.for_model(model)
        >>> batch = {"input_ids": torch.tensor([[1, 2], [3, 4]]), "labels": torch.tensor([0, 1])}
        >>> outputs = model(**batch, **readout.needs_hidden_states)
        >>> losses = readout.layer_losses(outputs, batch["labels"])
        >>> losses.shape, losses[-1] == outputs.loss
        (torch.Size([3]), tensor(True))
    """

    def __init__(self, model: Model, spec: ReadoutSpec) -> None:
        self.model = model
        self.spec = spec

    @classmethod
    def for_model(cls, model: nn.Module) -> "Readout":
        """Find the readout of a model in the table of architectures.

        Args:
            model: a transformers model, bare or wrapped by PEFT, accelerate, DDP or torch.compile.

        Returns:
            Its readout, which shares the model's modules.

        Raises:
            InputError: the architecture isn't in the table; the message shows how to register it.
        """
        bare = extract_model_from_parallel(model, keep_torch_compile=False)
        if hasattr(bare, "get_base_model"):  # a PeftModel; peft is an extra, so its class cannot be asked for
            bare = bare.get_base_model()
        spec = readout_spec(type(bare).__name__)
        if getattr(bare.config, "tie_last_hidden_states", None) is not None:
            raise InputError(
                f"{type(bare).__name__} has config.tie_last_hidden_states set, which changes whether hidden_states[-1] "
                "is normed: leave it unset"
            )
        return cls(bare, spec)

    @property
    def num_layers(self) -> int:
        """L: the model returns L + 1 hidden states, the first of them its embeddings."""
        return self.spec.num_layers(self.model)

    @property
    def reads_tokens(self) -> bool:
        """Whether the model predicts a token at every position, so that its head is what costs: a language model."""
        return self.spec.losses is next_token_losses

    @property
    def needs_hidden_states(self) -> dict[str, bool]:
        """What the model's forward must be given besides the batch: `model(**batch, **readout.needs_hidden_states)`."""
        # Hidden states are the model's own outputs: forward hooks of ours would run again under gradient checkpointing.
        return {"output_hidden_states": True}

    def rows(
        self,
        hidden_states: Sequence[Tensor],
        batch: Mapping[str, Any] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Pick or pool what the head is given of each layer, before any of its own modules.

        Args:
            hidden_states: the L + 1 hidden states of a forward, each (B, S, d).
            batch: what went into the model; needed by heads that average over positions (attention_mask) or read the
                last token (input_ids).
            layers: which layers, rising, from 0 to L; all by default.

        Returns:
            (n, B, d'), or (n, B, S, d') for a language model, one slice for each layer asked for, in the model's own
            precision unless autocast decides.

        Raises:
            InputError: a layer that isn't there, or another number of hidden states than L + 1.
        """
        L, layers = self.num_layers, self._checked(layers)
        if len(hidden_states) != L + 1:
            raise InputError(
                f"{type(self.model).__name__} of {L} layers returned {len(hidden_states)} hidden states, not {L + 1}: "
                "check num_layers of its registered readout"
            )
        states = [hidden_states[layer] for layer in layers]
        if not torch.is_autocast_enabled(states[0].device.type):
            # A forward under autocast hands out bf16 states of an fp32 model, or fp32 ones of a bf16 model.
            states = [state.to(self.model.dtype) for state in states]
        readers = [self.spec.last_rows or self.spec.rows if layer == L else self.spec.rows for layer in layers]
        return torch.stack([read(self.model, state, batch) for read, state in zip(readers, states, strict=True)])

    def logits(
        self,
        hidden_states: Sequence[Tensor],
        batch: Mapping[str, Any] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Read layers through the head, as the model would read its last one.

        In eval mode all layers go through the head in one stacked call. In training mode the head draws one dropout
        mask, shared by all layers, from a fork of the random state: layers are compared under the same mask, each step
        has another one, and whatever is drawn later is what would have been drawn without the readout.

        Args:
            hidden_states: the L + 1 hidden states of a forward, each (B, S, d).
            batch: what went into the model; needed by heads that average over positions (attention_mask) or read the
                last token (input_ids).
            layers: which layers, rising, from 0 (embeddings) to L; all by default.

        Returns:
            (n, B, K), or (n, B, S, V) for a language model, one slice for each layer asked for.

        Raises:
            InputError: a layer that isn't there, or another number of hidden states than L + 1.
        """
        rows = self.rows(hidden_states, batch, layers)
        head = partial(self.spec.head, self.model)
        if not self.model.training:
            return head(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        devices = [] if rows.device.type == "cpu" else [rows.device]  # the CPU's stream is always forked
        with torch.random.fork_rng(devices, device_type=rows.device.type):
            # "same" draws each mask once for all layers, whatever module draws it. A loop over layers that resets the
            # random state gives the same numbers at 1.4 times the time (CPU) and L times the kernel launches (GPU).
            return torch.vmap(head, randomness="same")(rows)

    def layer_logits(
        self, outputs: Any, batch: Mapping[str, Any] | None = None, layers: Sequence[int] | None = None
    ) -> Tensor:
        """Read layers through the head, the last one as the model itself just did.

        As `logits`, but the slice of layer L is `outputs.logits` (with the forward's dropout mask), so that any loss of
        it is the loss that plain training would have had.

        Args:
            outputs: the model's outputs, with hidden states.
            batch: what went into the model; needed by heads that average over positions or read the last token.
            layers: which layers, rising, from 0 to L; all by default.

        Returns:
            (n, B, K) or (n, B, S, V), in the dtype of `outputs.logits` or a wider one.

        Raises:
            InputError: outputs without hidden states, or a layer that isn't there.
        """
        layers = self._checked(layers)
        inner = [layer for layer in layers if layer < self.num_layers]
        parts = [self.logits(_hidden_states(outputs), batch, inner)] if inner else []
        if len(inner) < len(layers):
            parts.append(outputs.logits[None])
        return torch.cat(parts)

    def per_sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the head's own loss, sample by sample.

        Args:
            logits: (..., B, K), or (..., B, S, V) of a language model.
            labels: (B,) classes or values, (B, K) values or zeros and ones, or (B, S) tokens.

        Returns:
            (..., B), fp32 (fp64 for fp64 logits); 0 where a class is -100, which counts nothing. Of a language model,
            means over the tokens that count.
        """
        return self.spec.losses(self.model.config, logits, labels)

    def counts(self, labels: Tensor) -> Tensor:
        """Tell how much each sample's loss counts in the mean over a batch, and so in one over a data set.

        Args:
            labels: as for `per_sample_losses`.

        Returns:
            (B,), whole numbers: of a language model, the tokens that it is asked to predict; else 1, and 0 where a
            class is -100.
        """
        return self.spec.counts(self.model.config, labels)

    def mean_loss(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Average per-sample losses as the model's own loss does: each as often as it counts.

        Args:
            losses: (..., B), as `per_sample_losses` gives them.
            labels: of the batch.

        Returns:
            (...), NaN when no sample counts.
        """
        return mean_loss(losses, self.counts(labels))

    def layer_losses(
        self,
        outputs: Any,
        labels: Tensor,
        batch: Mapping[str, Any] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Compute the mean loss of layers: F_0 … F_L, differentiable.

        The last one is `outputs.loss`, the model's own, when the forward was given labels: weights (0, …, 0, 1) are
        plain fine-tuning, bit for bit and dropout included.

        Args:
            outputs: the model's outputs, with hidden states.
            labels: (B,), (B, K) or, of a language model, (B, S).
            batch: what went into the model; needed by heads that average over positions or read the last token.
            layers: which layers, rising, from 0 to L; all by default.

        Returns:
            (n,), one loss for each layer asked for, fp32 (fp64 for an fp64 model).

        Raises:
            InputError: outputs without hidden states, or a layer that isn't there.
        """
        layers = self._checked(layers)
        per_sample = self.per_sample_losses(self.layer_logits(outputs, batch, layers), labels)
        losses = self.mean_loss(per_sample, labels)
        own = outputs.loss
        if own is None or layers[-1] != self.num_layers:
            return losses
        last = own.to(losses.dtype)
        if own.dtype != losses.dtype:
            # A bf16 model rounds its loss by as much as an alpha: its gradient is kept, the value is the fp32 one.
            last = last + (losses[-1] - last).detach()
        return torch.cat([losses[:-1], last[None]])

    def _checked(self, layers: Sequence[int] | None) -> Sequence[int]:
        L = self.num_layers
        if layers is None:
            return range(L + 1)
        for layer in layers:
            if not 0 <= layer <= L:
                raise InputError(f"layer {layer} was asked for, but {type(self.model).__name__} has layers 0 … {L}")
        if not layers or list(layers) != sorted(set(layers)):
            raise InputError(f"layers {list(layers)} were asked for: name at least one, each once, in rising order")
        return layers


def _hidden_states(outputs: Any) -> Sequence[Tensor]:
    if outputs.hidden_states is None:
        raise InputError("the outputs hold no hidden states: call model(**batch, **readout.needs_hidden_states)")
    return outputs.hidden_states

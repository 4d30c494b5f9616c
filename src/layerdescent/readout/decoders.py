"""How decoders are read: causal language models, and classifiers that read the last token.

A decoder returns its last hidden state as its head takes it, normed and, in some, projected. So what the backbone does
after its last layer is done to the other layers here, and not again to the last one.
"""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerdescent.errors import InputError
from layerdescent.readout.losses import next_token_counts, next_token_losses
from layerdescent.readout.spec import Head, Model, ReadoutSpec


@dataclass(frozen=True)
class _Backbone:
    """Where a decoder has its layers, and what it does to the output of the last one: hidden (…, d) -> (…, d')."""

    layers: Callable[[Model], Sized]
    finish: Callable[[Model, Tensor], Tensor]


def _opt_finish(model: Model, hidden: Tensor) -> Tensor:
    decoder = model.model.decoder
    if decoder.final_layer_norm is not None:
        hidden = decoder.final_layer_norm(hidden)
    return hidden if decoder.project_out is None else decoder.project_out(hidden)


_LLAMA = _Backbone(lambda model: model.model.layers, lambda model, hidden: model.model.norm(hidden))
_GPT2 = _Backbone(lambda model: model.transformer.h, lambda model, hidden: model.transformer.ln_f(hidden))
_NEOX = _Backbone(lambda model: model.gpt_neox.layers, lambda model, hidden: model.gpt_neox.final_layer_norm(hidden))
_OPT = _Backbone(lambda model: model.model.decoder.layers, _opt_finish)


def _lm_head(model: Model, rows: Tensor) -> Tensor:
    return model.lm_head(rows)


def _capped_lm_head(model: Model, rows: Tensor) -> Tensor:
    logits, cap = model.lm_head(rows), model.config.final_logit_softcapping
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _score(model: Model, rows: Tensor) -> Tensor:
    return model.score(rows)


def _every_token(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    return hidden


def _last_token(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    """The token that these classifiers read: the rightmost whose id is not the padding's, whatever the mask says."""
    padding = model.config.pad_token_id
    if batch is None and padding is not None:
        raise InputError(
            f"the head of {type(model).__name__} reads the last token before padding: give the readout the batch too"
        )
    if batch is None or padding is None or batch.get("input_ids") is None:
        return hidden[:, -1]
    is_text = (batch["input_ids"] != padding).to(hidden.device, torch.int32)
    last = (is_text * torch.arange(is_text.shape[1], device=hidden.device, dtype=torch.int32)).argmax(-1)
    return hidden[torch.arange(len(last), device=hidden.device), last]


def _language_model(backbone: _Backbone, head: Head = _lm_head) -> ReadoutSpec:
    return ReadoutSpec(
        num_layers=lambda model: len(backbone.layers(model)),
        rows=lambda model, hidden, batch: backbone.finish(model, hidden),
        last_rows=_every_token,
        head=head,
        losses=next_token_losses,
        counts=next_token_counts,
    )


def _classifier(backbone: _Backbone) -> ReadoutSpec:
    return ReadoutSpec(
        num_layers=lambda model: len(backbone.layers(model)),
        # Norms act on each token alone, so they come after the picking, at 1/S of the work.
        rows=lambda model, hidden, batch: backbone.finish(model, _last_token(model, hidden, batch)),
        last_rows=_last_token,
        head=_score,
    )


DECODERS: dict[str, ReadoutSpec] = {
    "GPT2ForSequenceClassification": _classifier(_GPT2),
    "GPT2LMHeadModel": _language_model(_GPT2),
    "GPTNeoXForCausalLM": _language_model(_NEOX),  # Pythia too
    "GPTNeoXForSequenceClassification": _classifier(_NEOX),
    "Gemma2ForCausalLM": _language_model(_LLAMA, _capped_lm_head),
    "Gemma2ForSequenceClassification": _classifier(_LLAMA),
    "Gemma3ForCausalLM": _language_model(_LLAMA, _capped_lm_head),
    "Gemma3TextForSequenceClassification": _classifier(_LLAMA),
    "LlamaForCausalLM": _language_model(_LLAMA),  # SmolLM and SmolLM2 too
    "LlamaForSequenceClassification": _classifier(_LLAMA),
    "MistralForCausalLM": _language_model(_LLAMA),
    "MistralForSequenceClassification": _classifier(_LLAMA),
    "OPTForCausalLM": _language_model(_OPT),
    "OPTForSequenceClassification": _classifier(_OPT),
    "Phi3ForCausalLM": _language_model(_LLAMA),
    "Phi3ForSequenceClassification": _classifier(_LLAMA),
    "Qwen2ForCausalLM": _language_model(_LLAMA),
    "Qwen2ForSequenceClassification": _classifier(_LLAMA),
    "Qwen3ForCausalLM": _language_model(_LLAMA),
    "Qwen3ForSequenceClassification": _classifier(_LLAMA),
}

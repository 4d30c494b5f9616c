"""Which architectures can be read at every layer, and how: an explicit table, nothing is guessed.

A family stands here only with its contract test (tests/readout): the readout of h_L equals the model's own logits bit
for bit, and the readout of h_l equals a model cut off after layer l.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from layerdescent.errors import InputError
from layerdescent.readout.decoders import DECODERS
from layerdescent.readout.losses import deberta_losses, reconstruction_losses
from layerdescent.readout.spec import Model, ReadoutSpec


def _first_token(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    return hidden[:, 0]


# The poolers and heads below pick token 0 themselves, so they are given sequences of length one.


def _bert_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(rows[:, None])))


def _distilbert_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.dropout(functional.relu(model.pre_classifier(rows))))


def _albert_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.albert.pooler_activation(model.albert.pooler(rows))))


def _albert_num_layers(model: Model) -> int:
    # One group of inner layers is applied many times; every inner layer leaves a hidden state.
    return model.config.num_hidden_layers * model.config.inner_group_num


def _classification_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(rows[:, None])


def _deberta_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.pooler(rows[:, None])))


def _mean_rows(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    if batch is None:
        raise InputError(f"the head of {type(model).__name__} reads all positions: give the readout the batch too")
    from layerdescent.models.pooled import mean_over_positions  # brings transformers, as does whoever has such a model

    return mean_over_positions(hidden, batch.get("attention_mask"))


def _modernbert_rows(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    if model.config.classifier_pooling == "cls":
        return model.model.final_norm(hidden[:, 0])
    return _modernbert_last_rows(model, model.model.final_norm(hidden), batch)


def _modernbert_last_rows(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    if model.config.classifier_pooling == "cls":
        return hidden[:, 0]
    return _mean_rows(model, hidden, batch)


def _modernbert_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.drop(model.head(rows)))


def _vit_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.vit.layernorm(rows))


def _deit_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(model.deit.layernorm(rows))


def _dinov2_rows(model: Model, hidden: Tensor, batch: Mapping[str, Any] | None) -> Tensor:
    hidden = model.dinov2.layernorm(hidden)
    return torch.cat([hidden[:, 0], hidden[:, 1:].mean(dim=1)], dim=1)


def _dinov2_head(model: Model, rows: Tensor) -> Tensor:
    return model.classifier(rows)


# Denoisers return every layer read by their shared decoder already (layerdescent.models).
_DENOISER = ReadoutSpec(
    num_layers=lambda model: model.config.num_hidden_layers,
    rows=lambda model, hidden, batch: hidden,
    head=lambda model, rows: rows,
    losses=reconstruction_losses,
)

READOUTS: dict[str, ReadoutSpec] = DECODERS | {
    "AlbertForSequenceClassification": ReadoutSpec(num_layers=_albert_num_layers, rows=_first_token, head=_albert_head),
    "BertForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.bert.encoder.layer), rows=_first_token, head=_bert_head
    ),
    "DebertaV2ForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.deberta.encoder.layer),
        rows=_first_token,
        head=_deberta_head,
        losses=deberta_losses,
    ),
    "DeiTForImageClassification": ReadoutSpec(
        num_layers=lambda model: len(model.deit.layers), rows=_first_token, head=_deit_head
    ),
    "Dinov2ForImageClassification": ReadoutSpec(
        num_layers=lambda model: len(model.dinov2.encoder.layer), rows=_dinov2_rows, head=_dinov2_head
    ),
    "DistilBertForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.distilbert.transformer.layer), rows=_first_token, head=_distilbert_head
    ),
    "DustForDenoising": _DENOISER,
    "ElectraForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.electra.encoder.layer), rows=_first_token, head=_classification_head
    ),
    "IstaForDenoising": _DENOISER,
    "MPNetForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.mpnet.encoder.layer), rows=_first_token, head=_classification_head
    ),
    "MeanPooledForSequenceClassification": ReadoutSpec(  # of layerdescent.models
        num_layers=lambda model: model.config.num_hidden_layers,
        rows=_mean_rows,
        head=lambda model, rows: model.head(rows),
    ),
    "ModernBertForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.model.layers),
        rows=_modernbert_rows,
        last_rows=_modernbert_last_rows,
        head=_modernbert_head,
    ),
    "RobertaForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.roberta.encoder.layer), rows=_first_token, head=_classification_head
    ),
    "TransformerForDenoising": _DENOISER,
    "UtForDenoising": _DENOISER,
    "ViTForImageClassification": ReadoutSpec(
        num_layers=lambda model: len(model.vit.layers), rows=_first_token, head=_vit_head
    ),
    "XLMRobertaForSequenceClassification": ReadoutSpec(
        num_layers=lambda model: len(model.roberta.encoder.layer), rows=_first_token, head=_classification_head
    ),
}


def register_readout(architecture: str, spec: ReadoutSpec) -> None:
    """Tell layerdescent how to read a further architecture; an entry that is there already is replaced.

    Args:
        architecture: the name of the model's class, as `type(model).__name__` gives it.
        spec: how its head reads a hidden state.

    Example:
        >>> register_readout(
        ...     "MyModelForSequenceClassification",
        ...     ReadoutSpec(
        ...         num_layers=lambda model: len(model.encoder.layers),
        ...         rows=lambda model, hidden, batch: hidden[:, 0],
        ...         head=lambda model, rows: model.classifier(model.norm(rows)),
        ...     ),
        ... )
        >>> del READOUTS["MyModelForSequenceClassification"]
    """
    READOUTS[architecture] = spec


def readout_spec(architecture: str) -> ReadoutSpec:
    """Look an architecture up.

    Args:
        architecture: the name of a model's class.

    Returns:
        Its spec.

    Raises:
        InputError: it isn't in the table; the message shows how to register it.

    Example:
        >>> readout_spec("BertForSequenceClassification").num_layers
        <function ...>
    """
    if architecture not in READOUTS:
        raise InputError(
            f"no readout for {architecture}: use one of {', '.join(sorted(READOUTS))}, or register it: "
            f'layerdescent.register_readout("{architecture}", ReadoutSpec('
            "num_layers=lambda model: len(model.encoder.layer), "
            "rows=lambda model, hidden, batch: hidden[:, 0], "
            "head=lambda model, rows: model.classifier(rows)))"
        )
    return READOUTS[architecture]

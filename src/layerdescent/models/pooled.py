"""A text classifier whose head reads the mean over all positions, around any encoder.

This file is copied into every checkpoint of such a model, so that transformers loads it on machines without
layerdescent (`trust_remote_code=True`); it must not import anything of layerdescent.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class MeanPooledConfig(PreTrainedConfig):
    """The configuration of a `MeanPooledForSequenceClassification`: that of its encoder, and the labels.

    Besides what every configuration takes, `num_labels` and `problem_type` among it:

    Attributes:
        backbone_config: the encoder's configuration, or its dict.
        classifier_dropout: dropout before and inside the head.
    """

    model_type = "mean-pooled-classifier"
    sub_configs: ClassVar = {"backbone_config": AutoConfig}

    backbone_config: Any = None
    classifier_dropout: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        if self.backbone_config is None:
            self.backbone_config = {"model_type": "bert"}
        if isinstance(self.backbone_config, dict):
            settings = dict(self.backbone_config)
            self.backbone_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        super().__post_init__(**kwargs)

    # What tools ask a text model's configuration for.

    @property
    def hidden_size(self) -> int:
        """Width of the encoder."""
        size: int = self.backbone_config.hidden_size
        return size

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the encoder."""
        layers: int = self.backbone_config.num_hidden_layers
        return layers

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding matrix."""
        size: int = self.backbone_config.vocab_size
        return size

    @property
    def max_position_embeddings(self) -> int | None:
        """Positions that the encoder knows, where it says so."""
        return getattr(self.backbone_config, "max_position_embeddings", None)


def mean_over_positions(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The mean of hidden states over the positions that are not padding.

        mean_t h_t = sum_t mask_t h_t / sum_t mask_t

    Args:
        hidden: (B, T, d).
        attention_mask: (B, T), 1 for tokens and 0 for padding; None where there is no padding.

    Returns:
        (B, d).

    Example:
        >>> mean_over_positions(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
        tensor([[2.]])
    """
    if attention_mask is None:
        return hidden.mean(dim=1)
    mask = attention_mask.unsqueeze(-1)  # whole numbers: bf16 cannot count above 256
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1)


class MeanPooledHead(nn.Module):
    """Pooled states to logits: dropout, a tanh layer, dropout, and a linear layer."""

    def __init__(self, config: MeanPooledConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels or 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """Pooled states (..., d) to logits (..., K)."""
        hidden = torch.tanh(self.dense(self.dropout(pooled)))
        return self.out_proj(self.dropout(hidden))


class MeanPooledForSequenceClassification(PreTrainedModel):
    """Any encoder, its last hidden states averaged over all positions, and a head of two layers.

        logits = head(mean_t h_L,t)

    In many encoders the first token's state hardly differs between inputs below the top layers, so a head that reads it
    cannot be shared by all layers; the mean over positions varies as much at the bottom as at the top.

    Args:
        config: see `MeanPooledConfig`.
        encoder: one that is there already, see `around`; a new one by default.

    Source: our choice [C]; sentence encoders such as MiniLM were pretrained with this pooling.

    Example:
        >>> from transformers import BertConfig
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=50)
        >>> model = MeanPooledForSequenceClassification(MeanPooledConfig(backbone_config=BertConfig(**sizes)))
        >>> model(input_ids=torch.tensor([[2, 7, 3]])).logits.shape
        torch.Size([1, 2])
    """

    config_class = MeanPooledConfig
    base_model_prefix = "encoder"
    # Whatever the encoder supports; it checks that itself.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: MeanPooledConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.encoder = AutoModel.from_config(config.backbone_config) if encoder is None else encoder
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # reads the first token, and nobody here reads it
        self.head = MeanPooledHead(config)
        self.supports_gradient_checkpointing = self.encoder.supports_gradient_checkpointing
        self.post_init()

    @classmethod
    def around(cls, encoder: PreTrainedModel, **config: Any) -> "MeanPooledForSequenceClassification":
        """Put a new head on an encoder, which is taken as it is and not copied.

        Args:
            encoder: what `AutoModel.from_pretrained` gives.
            config: further fields of the configuration, such as `num_labels` or `id2label`.

        Returns:
            The model, in eval mode as `from_pretrained` gives it.
        """
        model = cls(MeanPooledConfig(backbone_config=encoder.config, **config), encoder=encoder)
        return model.eval()

    def get_input_embeddings(self) -> nn.Module:
        """The encoder's word embeddings."""
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the encoder's word embeddings."""
        self.encoder.set_input_embeddings(value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple[Any, ...]:
        """Logits, and the loss where labels are given, as in any transformers classifier.

        Args:
            input_ids: (B, T); or give `inputs_embeds`.
            attention_mask: (B, T), 0 at padding.
            token_type_ids: (B, T), for encoders that have them.
            inputs_embeds: (B, T, d) instead of `input_ids`.
            labels: (B,) classes or values, or (B, K) values or zeros and ones.
            output_hidden_states: whether to return the L + 1 hidden states.
            output_attentions: whether to return attention weights.
            return_dict: False for a tuple.

        Returns:
            `SequenceClassifierOutput`, or a tuple of its fields.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        inputs |= {"inputs_embeds": inputs_embeds}
        outputs = self.encoder(
            **{name: value for name, value in inputs.items() if value is not None},
            attention_mask=attention_mask,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits = self.head(mean_over_positions(outputs.last_hidden_state, attention_mask))
        result = SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        wants_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return result.to_tuple() if wants_tuple else result

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss that transformers' classifiers choose by labels and `problem_type`."""
        K, problem = self.config.num_labels or 1, self.config.problem_type
        if problem is None:
            classes = labels.dtype in (torch.long, torch.int)
            problem = (
                "regression" if K == 1 else "single_label_classification" if classes else "multi_label_classification"
            )
            self.config.problem_type = problem
        if problem == "regression":
            return functional.mse_loss(logits.squeeze(), labels.squeeze())
        if problem == "multi_label_classification":
            return functional.binary_cross_entropy_with_logits(logits, labels)
        return functional.cross_entropy(logits.view(-1, K), labels.view(-1))


MeanPooledForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
MeanPooledConfig.register_for_auto_class("AutoConfig")

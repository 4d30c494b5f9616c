"""Models of ours, as transformers' `PreTrainedModel`s: importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModelForSequenceClassification

from layerdescent.models.pooled import MeanPooledConfig as MeanPooledConfig
from layerdescent.models.pooled import MeanPooledForSequenceClassification as MeanPooledForSequenceClassification

MEAN_POOLED_BACKBONES = ("bert", "deberta-v2", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Encoders whose every hidden state is read as the last one is, with no norm after the last layer; each is tested."""

AutoConfig.register(MeanPooledConfig.model_type, MeanPooledConfig)
AutoModelForSequenceClassification.register(MeanPooledConfig, MeanPooledForSequenceClassification)

"""Models of ours, as transformers' `PreTrainedModel`s: importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from layerdescent.models.pooled import MeanPooledConfig as MeanPooledConfig
from layerdescent.models.pooled import MeanPooledForSequenceClassification as MeanPooledForSequenceClassification
from layerdescent.models.unrolled import DustConfig as DustConfig
from layerdescent.models.unrolled import DustForDenoising as DustForDenoising
from layerdescent.models.unrolled import IstaConfig as IstaConfig
from layerdescent.models.unrolled import IstaForDenoising as IstaForDenoising
from layerdescent.models.unrolled import TransformerDenoiserConfig as TransformerDenoiserConfig
from layerdescent.models.unrolled import TransformerForDenoising as TransformerForDenoising
from layerdescent.models.unrolled import UtConfig as UtConfig
from layerdescent.models.unrolled import UtForDenoising as UtForDenoising
from layerdescent.models.video_denoiser import VideoDenoiser as VideoDenoiser

MEAN_POOLED_BACKBONES = ("bert", "deberta-v2", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Encoders whose every hidden state is read as the last one is, with no norm after the last layer; each is tested."""

AutoConfig.register(MeanPooledConfig.model_type, MeanPooledConfig)
AutoModelForSequenceClassification.register(MeanPooledConfig, MeanPooledForSequenceClassification)

DENOISERS = (DustForDenoising, IstaForDenoising, TransformerForDenoising, UtForDenoising)
"""Models of video; `AutoModel` loads them."""

for _denoiser in DENOISERS:
    AutoConfig.register(_denoiser.config_class.model_type, _denoiser.config_class)
    AutoModel.register(_denoiser.config_class, _denoiser)

"""One tiny random model of every family in the table, with a batch, and a way to cut it off after layer l."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from layerdescent import models

TEXT = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
DEBERTA = TEXT | {
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "pooler_hidden_size": 16,
    "pooler_dropout": 0.1,
}
MODERNBERT = TEXT | {
    "global_attn_every_n_layers": 2,
    "local_attention": 4,
    "classifier_dropout": 0.1,
    "mlp_dropout": 0.1,
    "embedding_dropout": 0.1,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}
DECODER = TEXT | {"num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3, "sliding_window": 5}
GEMMA2 = DECODER | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0, "attention_dropout": 0.1}
GEMMA3 = DECODER | {
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GPT2 = TEXT | {"n_inner": 24, "bos_token_id": 2, "eos_token_id": 3}
OPT = TEXT | {"ffn_dim": 24, "word_embed_proj_dim": 16, "bos_token_id": 2, "eos_token_id": 3}
OPT_PROJECTED = OPT | {"word_embed_proj_dim": 8}
ALBERT = TEXT | {"embedding_size": 8, "classifier_dropout_prob": 0.1, "hidden_dropout_prob": 0.1}


@dataclass(frozen=True)
class Family:
    """A model class at toy size; `layers` is the path of its list of layers."""

    architecture: str
    settings: dict[str, Any]
    layers: str
    image: bool = False
    clip: bool = False
    decoder: bool = False
    cut_model: Callable[[Any, int], Any] | None = None
    cuts: Sequence[int] = field(default=range(4))

    def model(self, **settings: Any) -> Any:
        model_class = getattr(transformers, self.architecture, None) or getattr(models, self.architecture)
        config = model_class.config_class(**self.settings | {"num_labels": 3} | settings)
        torch.manual_seed(0)
        model = model_class(config)
        with torch.no_grad():  # layers that matter, and norms that are no identity on what is normed already
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        return model.eval()

    def batch(self, size: int = 4) -> dict[str, Tensor]:
        if self.image:
            return {"pixel_values": torch.randn(size, 3, 8, 8)}
        if self.clip:
            return {"pixel_values": torch.rand(size, 5, 16)}
        ids = torch.randint(4, 32, (size, 7))
        ids[:, 0] = 2
        mask = torch.ones_like(ids)
        for row, length in enumerate([7, 4, 5, 3][:size]):
            mask[row, length:] = 0
        return {"input_ids": ids.where(mask == 1, 1), "attention_mask": mask}

    @property
    def language_model(self) -> bool:
        return self.decoder and "Classification" not in self.architecture

    @property
    def drops_in_head(self) -> bool:
        return not (self.image or self.clip or self.decoder)

    def labels(self) -> Tensor:
        """Labels for a batch of four, other than 0 anywhere but in one class."""
        generator = torch.Generator().manual_seed(0)
        if self.clip:
            return torch.rand(4, 5, 16, generator=generator)
        if not self.language_model:
            return torch.tensor([0, 1, 2, 1])
        labels = torch.randint(4, 32, (4, 7), generator=generator)
        # Every sample starts with a prompt: behind padding on the left, the padding would predict a first label.
        for row, (prompt, length) in enumerate([(3, 7), (1, 4), (2, 5), (1, 3)]):
            labels[row, :prompt] = labels[row, length:] = -100
        return labels

    def cut(self, model: Any, layer: int) -> Any:
        """A copy of the model that ends after `layer` layers: what reading that layer must equal."""
        shortened = copy.deepcopy(model)
        if self.cut_model is not None:
            return self.cut_model(shortened, layer)
        parent, _, name = self.layers.rpartition(".")
        module = shortened.get_submodule(parent)
        setattr(module, name, getattr(module, name)[:layer])
        return shortened


class _Identity(nn.Module):
    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return hidden, None


def _cut_deberta(model: Any, layer: int) -> Any:
    encoder = model.base_model.encoder
    if layer == 0:  # its encoder cannot run without a layer
        encoder.layer, encoder.conv = nn.ModuleList([_Identity()]), None
    else:
        encoder.layer = encoder.layer[:layer]
    return model


def _cut_albert(model: Any, layer: int) -> Any:
    model.config.num_hidden_layers = layer // model.config.inner_group_num
    return model


def _cut_denoiser(model: Any, layer: int) -> Any:
    model.config.num_hidden_layers = layer
    return model


def _denoiser(architecture: str, **settings: Any) -> Family:
    sizes = {"num_pixels": 16, "hidden_size": 24, "num_hidden_layers": 3}
    return Family(architecture, sizes | settings, "", clip=True, cut_model=_cut_denoiser)


def _mean_pooled(model_type: str, settings: dict[str, Any], layers: str, **more: Any) -> Family:
    backbone = settings | {"model_type": model_type}
    return Family("MeanPooledForSequenceClassification", {"backbone_config": backbone}, layers, **more)


def _decoders(name: str, prefix: str, settings: dict[str, Any], layers: str, **heads: str) -> dict[str, Family]:
    """The language model and the classifier of a family."""
    language_model = heads.get("language_model", f"{prefix}ForCausalLM")
    classifier = heads.get("classifier", f"{prefix}ForSequenceClassification")
    return {
        name: Family(language_model, settings, layers, decoder=True),
        f"{name}-classifier": Family(classifier, settings, layers, decoder=True),
    }


DISTILBERT = {
    "vocab_size": 32,
    "dim": 16,
    "n_layers": 3,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
FAMILIES = {
    "bert": Family("BertForSequenceClassification", TEXT, "bert.encoder.layer"),
    "distilbert": Family(
        "DistilBertForSequenceClassification",
        DISTILBERT,
        "distilbert.transformer.layer",
    ),
    "roberta": Family("RobertaForSequenceClassification", TEXT, "roberta.encoder.layer"),
    "xlm-roberta": Family("XLMRobertaForSequenceClassification", TEXT, "roberta.encoder.layer"),
    "albert": Family("AlbertForSequenceClassification", ALBERT, "", cut_model=_cut_albert),
    "albert-inner": Family(
        "AlbertForSequenceClassification",
        ALBERT | {"num_hidden_layers": 2, "inner_group_num": 2},
        "",
        cut_model=_cut_albert,
        cuts=(0, 2, 4),  # its inner layers come in pairs
    ),
    "electra": Family("ElectraForSequenceClassification", TEXT | {"embedding_size": 8}, "electra.encoder.layer"),
    "mpnet": Family("MPNetForSequenceClassification", TEXT, "mpnet.encoder.layer"),
    "deberta-v2": Family(
        "DebertaV2ForSequenceClassification",
        DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"},
        "deberta.encoder.layer",
        cut_model=_cut_deberta,
    ),
    "deberta-v3": Family(
        "DebertaV2ForSequenceClassification", DEBERTA, "deberta.encoder.layer", cut_model=_cut_deberta
    ),
    "modernbert-cls": Family(
        "ModernBertForSequenceClassification", MODERNBERT | {"classifier_pooling": "cls"}, "model.layers"
    ),
    "modernbert-mean": Family(
        "ModernBertForSequenceClassification", MODERNBERT | {"classifier_pooling": "mean"}, "model.layers"
    ),
    "mean-bert": _mean_pooled("bert", TEXT, "encoder.encoder.layer"),
    "mean-roberta": _mean_pooled("roberta", TEXT, "encoder.encoder.layer"),
    "mean-xlm-roberta": _mean_pooled("xlm-roberta", TEXT, "encoder.encoder.layer"),
    "mean-distilbert": _mean_pooled("distilbert", DISTILBERT, "encoder.transformer.layer"),
    "mean-mpnet": _mean_pooled("mpnet", TEXT, "encoder.encoder.layer"),
    "mean-electra": _mean_pooled("electra", TEXT | {"embedding_size": 8}, "encoder.encoder.layer"),
    "mean-deberta-v2": _mean_pooled("deberta-v2", DEBERTA, "", cut_model=_cut_deberta),
    "vit": Family("ViTForImageClassification", IMAGE, "vit.layers", image=True),
    "deit": Family("DeiTForImageClassification", IMAGE, "deit.layers", image=True),
    "dinov2": Family("Dinov2ForImageClassification", IMAGE | {"mlp_ratio": 2}, "dinov2.encoder.layer", image=True),
    **_decoders("llama", "Llama", DECODER | {"attention_dropout": 0.1}, "model.layers"),
    "llama-tied": Family("LlamaForCausalLM", DECODER | {"tie_word_embeddings": True}, "model.layers", decoder=True),
    **_decoders("mistral", "Mistral", DECODER, "model.layers"),
    **_decoders("qwen2", "Qwen2", DECODER, "model.layers"),
    **_decoders("qwen3", "Qwen3", DECODER, "model.layers"),
    **_decoders("gemma2", "Gemma2", GEMMA2, "model.layers"),
    **_decoders("gemma3", "Gemma3", GEMMA3, "model.layers", classifier="Gemma3TextForSequenceClassification"),
    "gemma3-capped": Family(
        "Gemma3ForCausalLM", GEMMA3 | {"final_logit_softcapping": 2.0}, "model.layers", decoder=True
    ),
    **_decoders("phi3", "Phi3", DECODER | {"resid_pdrop": 0.1}, "model.layers"),
    **_decoders("gpt2", "GPT2", GPT2, "transformer.h", language_model="GPT2LMHeadModel"),
    **_decoders("gpt-neox", "GPTNeoX", DECODER | {"hidden_dropout": 0.1}, "gpt_neox.layers"),
    **_decoders("opt", "OPT", OPT, "model.decoder.layers"),
    **_decoders("opt-projected", "OPT", OPT_PROJECTED, "model.decoder.layers"),
    "opt-norm-after": Family(
        "OPTForCausalLM", OPT_PROJECTED | {"do_layer_norm_before": False}, "model.decoder.layers", decoder=True
    ),
    "dust": _denoiser("DustForDenoising", num_attention_heads=2),
    "dust-joint": _denoiser("DustForDenoising", free=False, joint=True),
    "lista": _denoiser("IstaForDenoising", learned=True),
    "ut": _denoiser("UtForDenoising"),
    "ut-tied": _denoiser("UtForDenoising", tied=True),
    "transformer-denoiser": _denoiser("TransformerForDenoising", dropout=0.1),
}


@pytest.fixture
def families() -> dict[str, Family]:
    return FAMILIES


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(params=[name for name, family in FAMILIES.items() if family.decoder])
def decoder(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(params=[name for name, family in FAMILIES.items() if family.language_model])
def language_model(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(params=[name for name, family in FAMILIES.items() if family.decoder and not family.language_model])
def decoder_classifier(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(params=[name for name, family in FAMILIES.items() if not (family.clip or family.language_model)])
def classifier(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(params=[name for name, family in FAMILIES.items() if family.clip])
def denoiser(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def bert() -> Family:
    return FAMILIES["bert"]

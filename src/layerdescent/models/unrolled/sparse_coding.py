"""Unrolled sparse coding: ISTA, its learned form (LISTA), and DUST, which lets the codes of all frames attend."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from layerdescent.models.unrolled.denoiser import DenoiserConfig, DenoiserModel, inverse_softplus
from layerdescent.models.unrolled.matrices import gaussian_measurements, overcomplete_dct, random_dictionary
from layerdescent.models.unrolled.steps import (
    attention_step,
    ista_step,
    joint_step,
    lipschitz,
    merge_heads,
    soft_threshold,
    split_heads,
)

# Names of learnt numbers end in "bias", because transformers' Trainer decays no parameter of such a name: a threshold
# decayed would drift to softplus(0), not to 0.


class SparseCoderConfig(DenoiserConfig):
    """What ISTA's and DUST's configurations share.

    Besides what `DenoiserConfig` has:

    Attributes:
        dictionary: where D starts: "dct", an overcomplete two-dimensional DCT, or "random", unit random columns.
        learn_dictionary: whether D, which is the decoder of every layer, is trained.
        l1: weight of sparsity that thresholds start from, above 0.
        dictionary_seed: of a random dictionary.
        measurement_seed: of the measurement matrix A, where there is one: models of one seed have one A.
    """

    dictionary: Literal["dct", "random"] = "dct"
    learn_dictionary: bool = True
    l1: float = 0.1
    dictionary_seed: int = 0
    measurement_seed: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._require(self.dictionary in ("dct", "random"), "dictionary", "'dct' or 'random'")
        self._require(0 < self.l1 < math.inf, "l1", "a number above 0")
        self._initial_dictionary()  # so that one that cannot be is refused here

    def _initial_dictionary(self) -> Tensor:
        n, h = self.num_pixels, self.hidden_size
        return overcomplete_dct(n, h) if self.dictionary == "dct" else random_dictionary(n, h, self.dictionary_seed)


class SparseCoderModel(DenoiserModel):
    """Codes H over a dictionary D, decoded as S = H D^T; its steps are `IstaStep`s or `JointStep`s.

    Attributes:
        dictionary: D (n, h).
        measurement: A (m, n), or None for pixels.
        first: makes H_0 from the input.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        m, n, h = config.num_measurements, config.num_pixels, config.hidden_size
        self.dictionary = nn.Parameter(torch.empty(n, h))
        self.measurement = None if m is None else nn.Parameter(torch.empty(m, n))

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As every model's; transformers makes all it loads trainable, so what is fixed is fixed again."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model._freeze()
        return loaded

    def _freeze(self) -> None:
        """Take what is not learnt out of training; it stays a parameter, so that a model always has a dtype."""
        self.dictionary.requires_grad_(self.config.learn_dictionary)
        if self.measurement is not None:
            self.measurement.requires_grad_(False)

    def measured_dictionary(self) -> Tensor:
        """A D (m, h), or D where pixels are given."""
        return self.dictionary if self.measurement is None else self.measurement @ self.dictionary

    def measure(self, frames: Tensor) -> Tensor:
        """Take the measurements that the model is to recover frames from.

            X = S A^T

        Args:
            frames: S (..., T, n).

        Returns:
            (..., T, m); the frames themselves where the model takes pixels.
        """
        return frames if self.measurement is None else frames @ self.measurement.mT

    def _decode(self, state: Tensor) -> Tensor:
        return state @ self.dictionary.mT

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is not self:
            return
        config = self.config
        init.copy_(self.dictionary, config._initial_dictionary())
        if self.measurement is not None:
            A = gaussian_measurements(config.num_measurements, config.num_pixels, config.measurement_seed)
            init.copy_(self.measurement, A)
        AD = self.measured_dictionary()
        for step in self.modules():
            if isinstance(step, IstaStep | JointStep | FrameAttention):
                step.start(AD, config)


class IstaStep(nn.Module):
    """H+ = soft_theta(Z V + X U), with matrices of its own or those of ISTA.

        free    U (m, h) and V (h, h) are learnt, starting at ISTA's
        tied    U = step A D, V = I - step D^T A^T A D, and only the step size is learnt, as softplus of a number

    theta is a softplus of a number; both start at ISTA, c = 1.05 |A D|_2^2: step = 1 / c, theta = l1 / c.

    Args:
        config: of the model.
        free: whether U and V are the step's own.
        first: whether this one makes H_0, from the input alone.
    """

    def __init__(self, config: Any, *, free: bool, first: bool = False) -> None:
        super().__init__()
        h = config.hidden_size
        self.U = nn.Parameter(torch.empty(config.num_inputs, h)) if free else None
        self.V = nn.Parameter(torch.empty(h, h)) if free and not first else None
        self.step_bias = None if free else nn.Parameter(torch.empty(()))
        self.threshold_bias = nn.Parameter(torch.empty(()))

    def forward(self, Z: Tensor | None, X: Tensor, AD: Tensor) -> Tensor:
        """The next codes; Z is None for the first."""
        theta = functional.softplus(self.threshold_bias)
        if self.step_bias is not None:
            step = functional.softplus(self.step_bias)
            return soft_threshold(step * (X @ AD), theta) if Z is None else ista_step(Z, X, AD, step, theta)
        assert self.U is not None
        v = X @ self.U
        if Z is not None:
            assert self.V is not None
            v = Z @ self.V + v
        return soft_threshold(v, theta)

    def start(self, AD: Tensor, config: Any) -> None:
        """Set the step to what ISTA does with this dictionary."""
        c = lipschitz(AD)
        init.copy_(self.threshold_bias, inverse_softplus(config.l1 / c))
        if self.step_bias is not None:
            init.copy_(self.step_bias, inverse_softplus(1 / c))
        if self.U is not None:
            init.copy_(self.U, AD / c)
        if self.V is not None:
            init.copy_(self.V, torch.eye(len(AD.mT), dtype=AD.dtype, device=AD.device) - AD.mT @ AD / c)


class FrameAttention(nn.Module):
    """Attention of a sequence's frames to each other, on their codes; see `attention_step`.

    W (k, h / k, h / k), one matrix for each of k heads; the step a is the sigmoid of a number, so never 0 or 1.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        k = config.num_attention_heads
        width = config.hidden_size // k
        self.normalize_tokens = config.normalize_tokens
        self.W = nn.Parameter(torch.empty(k, width, width))
        self.attention_bias = nn.Parameter(torch.empty(()))

    def forward(self, H: Tensor) -> Tensor:
        """Codes (B, T, h) after attention."""
        a = self.attention_bias.sigmoid()
        heads = split_heads(H, len(self.W))
        return merge_heads(attention_step(heads, self.W, a, normalize_tokens=self.normalize_tokens))

    def start(self, AD: Tensor, config: Any) -> None:
        """Draw W, and set the step to the configuration's."""
        init.normal_(self.W, std=self.W.shape[-1] ** -0.5)
        init.constant_(self.attention_bias, math.log(config.initial_attention / (1 - config.initial_attention)))


class JointStep(nn.Module):
    """A proximal gradient step on the joint objective, see `joint_step`; l1 and l2 are softplus of numbers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        k = config.num_attention_heads
        width = config.hidden_size // k
        self.W = nn.Parameter(torch.empty(k, width, width))
        self.l1_bias = nn.Parameter(torch.empty(()))
        self.l2_bias = nn.Parameter(torch.empty(()))

    def weights(self) -> tuple[Tensor, Tensor]:
        """l1 and l2 as they stand."""
        return functional.softplus(self.l1_bias), functional.softplus(self.l2_bias)

    def forward(self, H: Tensor, X: Tensor, AD: Tensor) -> Tensor:
        """The next codes."""
        return joint_step(H, X, AD, self.W, *self.weights())

    def start(self, AD: Tensor, config: Any) -> None:
        """Draw W, and set the weights to the configuration's."""
        init.normal_(self.W, std=self.W.shape[-1] ** -0.5)
        init.copy_(self.l1_bias, inverse_softplus(torch.tensor(config.l1, dtype=torch.float64)))
        init.copy_(self.l2_bias, inverse_softplus(torch.tensor(config.l2, dtype=torch.float64)))


class IstaConfig(SparseCoderConfig):
    """The configuration of an `IstaForDenoising`.

    Besides what `SparseCoderConfig` has:

    Attributes:
        learned: False for classical ISTA, of which nothing is trained; True for LISTA.
    """

    model_type = "ista"

    learned: bool = False


class IstaForDenoising(SparseCoderModel):
    """Sparse coding by ISTA, classical or learned, every frame by itself.

        H_0 = soft_{l1/c}(X A D / c)
        H+  = soft_theta(H V + X U)            classical: U = A D / c, V = I - D^T A^T A D / c, theta = l1 / c
        S   = H D^T

    Learned (LISTA), every layer has U, V and theta of its own, which start at ISTA's.

    Args:
        config: see `IstaConfig`.

    Source: ISTA, Daubechies et al. 2004; LISTA, Gregor, LeCun 2010. As rivals of DUST they are our choice [C].

    Example:
        >>> model = IstaForDenoising(IstaConfig(num_pixels=16, hidden_size=32, num_hidden_layers=3))
        >>> outputs = model(torch.rand(2, 5, 16), output_hidden_states=True)
        >>> outputs.logits.shape, len(outputs.hidden_states)
        (torch.Size([2, 5, 16]), 4)
        >>> sum(parameter.requires_grad for parameter in model.parameters())
        0
    """

    config_class = IstaConfig

    def __init__(self, config: IstaConfig) -> None:
        super().__init__(config)
        self.first = IstaStep(config, free=config.learned, first=True)
        self.layers = nn.ModuleList(IstaStep(config, free=config.learned) for _ in range(config.num_hidden_layers))
        self.post_init()
        self._freeze()

    def _freeze(self) -> None:
        super()._freeze()
        if not self.config.learned:
            self.requires_grad_(False)

    def _start(self, x: Tensor) -> Tensor:
        return self.first(None, x, self.measured_dictionary())

    def _layer(self, layer: int, state: Tensor, x: Tensor) -> Tensor:
        return self.layers[layer](state, x, self.measured_dictionary())


class DustConfig(SparseCoderConfig):
    """The configuration of a `DustForDenoising`.

    Besides what `SparseCoderConfig` has:

    Attributes:
        free: whether every layer has matrices U and V of its own, starting at ISTA's; False for those of the
            dictionary, with one learnt step size a layer.
        attention: False switches attention off, a = 0 exactly: a learned ISTA.
        num_attention_heads: k, which must divide `hidden_size`.
        normalize_tokens: whether attention weights are taken from unit rows.
        initial_attention: the step a that training starts from, in (0, 1).
        joint: whether a layer is a proximal gradient step on the joint objective, instead of attention followed by a
            step of ISTA. It is tied to the dictionary (`free=False`).
        l2: weight of the pair energy in the joint objective that training starts from, above 0.
    """

    model_type = "dust"

    free: bool = True
    attention: bool = True
    num_attention_heads: int = 1
    normalize_tokens: bool = False
    initial_attention: float = 0.5
    joint: bool = False
    l2: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        k = self.num_attention_heads
        asked = f"at least 1 and divide hidden_size={self.hidden_size}"
        self._require(k >= 1 and self.hidden_size % k == 0, "num_attention_heads", asked)
        self._require(0 < self.initial_attention < 1, "initial_attention", "between 0 and 1; attention=False is 0")
        self._require(0 < self.l2 < math.inf, "l2", "a number above 0")
        if self.joint:
            self._require(not self.free, "free", "False for the joint step, whose matrices are the dictionary's")
            self._require(self.attention, "attention", "True for the joint step: without it take joint=False")
            self._require(
                not self.normalize_tokens, "normalize_tokens", "False for the joint step: its energy has none"
            )


class DustForDenoising(SparseCoderModel):
    """DUST, a deep unfolded sequential transformer: sparse codes of all frames, which attend to each other.

    **The equations are a reconstruction [D].** Of the published model (De Weerdt, Eldar, Deligiannis, ICASSP 2023 and
    IEEE TSP 2024) we know abstracts only: signals sparse in a dictionary and correlated over time, the whole sequence
    used, unfolding into a transformer encoder, variants with normalised tokens and several heads, any length. Here

        min_H  |X - H D^T A^T|_F^2 / 2 + l1 |H|_1 + l2 E1(H)

        H_0 = soft_theta0(X U_0)
        Z   = (1 - a) H + a softmax_beta(H W W^T H^T) H         attention over the T frames, see `attention_step`
        H+  = soft_theta(Z V + X U)
        S   = H D^T

    starting at ISTA: c = 1.05 |A D|_2^2, U = A D / c, V = I - D^T A^T A D / c, theta = l1 / c. With attention off, or
    for a single frame, a layer is then exactly a step of ISTA. For a > 0 a layer need not lower the objective above;
    with `joint=True` a layer is a proximal gradient step on it, `joint_step`, which never raises it.

    Args:
        config: see `DustConfig`.

    Source: [D], as said; the name and the objective's ingredients are the publications'.

    Example:
        >>> model = DustForDenoising(DustConfig(num_pixels=16, hidden_size=32, num_hidden_layers=2))
        >>> noisy = torch.rand(2, 5, 16)
        >>> outputs = model(noisy, labels=noisy, output_hidden_states=True)
        >>> outputs.logits.shape, len(outputs.hidden_states), outputs.loss.shape
        (torch.Size([2, 5, 16]), 3, torch.Size([]))
    """

    config_class = DustConfig

    def __init__(self, config: DustConfig) -> None:
        super().__init__(config)
        L = range(config.num_hidden_layers)
        self.first = IstaStep(config, free=config.free, first=True)
        with_attention = config.attention and not config.joint
        self.attention = nn.ModuleList(FrameAttention(config) for _ in L) if with_attention else None
        self.layers = nn.ModuleList(
            JointStep(config) if config.joint else IstaStep(config, free=config.free) for _ in L
        )
        self.post_init()
        self._freeze()

    def _start(self, x: Tensor) -> Tensor:
        return self.first(None, x, self.measured_dictionary())

    def _layer(self, layer: int, state: Tensor, x: Tensor) -> Tensor:
        attended = state if self.attention is None else self.attention[layer](state)
        return self.layers[layer](attended, x, self.measured_dictionary())

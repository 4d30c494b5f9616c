"""`Perturbation`: noise of one kind and strength, put on any model's word embeddings, or on the pixels it reads."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerdescent.errors import InputError
from layerdescent.noise_kinds import KINDS, PIXEL_KINDS, SHARE_KINDS, Kind
from layerdescent.perturbation.calibration import replacing_scale
from layerdescent.perturbation.lookups import Tokens, rewritten_lookups
from layerdescent.perturbation.noise import NoiseStream
from layerdescent.perturbation.pixels import noisy_sample, reads_pixels, rewritten_pixels
from layerdescent.perturbation.vocabulary import (
    embedding_scale,
    embedding_table,
    nearest_rows,
    pad_id,
    special_ids,
    word_embedding,
    word_rows,
)
from layerdescent.tables import condition

NoiseOn = Literal["prompt", "all"]


@dataclass
class _Tally:
    eligible: int = 0
    replaced: int = 0


@dataclass(frozen=True)
class Perturbation:
    """Noise on word embeddings, before positions are added to them, or on the pixels of a model that reads pixels.

        gaussian, uniform   e~ = e + gamma * s * n                     n of unit variance, N(0, 1) or U(-sqrt 3, sqrt 3)
        discrete            e~ = the row of the vocabulary nearest to e + gamma * s * n, n metric-privacy noise of unit
        variance

    s is the RMS of the entries of the model's own embedding matrix. A token's n is fixed by (seed, the ids of its
    sample, its position in it): it depends neither on batch, order, padding or device, nor on the model, as long as the
    width is the same. In `generate` with a cache the ids are the prompt's, and the tokens that follow get the next rows
    of the same noise.

    Padding never gets noise, and special tokens only when asked to. No token is replaced by a special one, nor by a row
    beyond the tokenizer's last; it keeps its own row when that is as near as any other. Below a threshold discrete
    noise does nothing at all, so it is better indexed by the expected share of replaced tokens: see `calibrate`.

    Pixels: gaussian and uniform noise of standard deviation gamma in the pixels' own unit, poisson (variance gamma^2 x
    at a pixel of brightness x), and salt-and-pepper (a share of the pixels becomes black or white). A sample's noise is
    fixed by (seed, its own pixels without noise).

    Args:
        kind: "gaussian" or "uniform"; "discrete" for tokens; "poisson" or "salt-and-pepper" for pixels.
        gamma: noise strength in units of s, or of the pixels, at least 0.
        share: discrete noise: expected share of the tokens that are replaced, in (0, 1); salt-and-pepper: of the
            pixels.
        seed: noise seed.
        special_tokens: put noise on [CLS], [SEP], <s> … too.

    Raises:
        InputError: an unknown kind, gamma below 0, a share outside (0, 1) or for another kind, neither of the two.

    Source: gaussian, uniform and discrete noise of strength gamma on token embeddings [P]; unit, keys, the nearest row
        under metric-privacy noise (Feyisetan et al. 2020) and the share as an index are ours [C].

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
        >>> model = BertModel(config).eval()
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> perturbation = Perturbation("gaussian", gamma=1.5, special_tokens=True)
        >>> perturbation.label
        'gaussian 1.5'
        >>> with perturbation.on(model), torch.no_grad():
        ...     noisy = model(ids).last_hidden_state
        >>> bool((noisy == model(ids).last_hidden_state).all())
        False
    """

    kind: Kind
    gamma: float | None = None
    share: float | None = None
    seed: int = 0
    special_tokens: bool = False
    _tally: _Tally = field(default_factory=_Tally, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field."""
        if self.kind not in (known := dict.fromkeys((*KINDS, *PIXEL_KINDS))):
            raise InputError(f"kind={self.kind!r} is no noise: choose one of {', '.join(known)}")
        if self.kind == "salt-and-pepper" and (self.share is None or self.gamma is not None):
            raise InputError("salt-and-pepper noise has a share of pixels for its strength: give share, not gamma")
        if self.share is not None and self.kind not in SHARE_KINDS:
            raise InputError(
                f"share={self.share} is for discrete noise; {self.kind} noise replaces no tokens: give gamma"
            )
        if self.gamma is None and self.share is None:
            given = "gamma or share" if self.kind == "discrete" else "gamma"
            raise InputError(f"{self.kind} noise needs a strength: give {given}")
        if self.gamma is not None and not (_is_number(self.gamma) and 0 <= self.gamma < math.inf):
            raise InputError(f"gamma={self.gamma!r} must be a finite number of at least 0")
        if self.share is not None and not (_is_number(self.share) and 0 < self.share < 1):
            raise InputError(f"share={self.share!r} must be a number between 0 and 1, both excluded")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed={self.seed!r} must be an integer")

    @property
    def label(self) -> str:
        """What a table or an axis calls it: "gaussian 1.5", "discrete 25 %"."""
        return condition(self.to_dict())

    @property
    def realised_share(self) -> float | None:
        """Replaced tokens / eligible tokens over the forward passes of the last `on` context; None before any."""
        return self._tally.replaced / self._tally.eligible if self._tally.eligible else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them; `from_dict` is the way back."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a perturbation from what `to_dict` gave.

        Raises:
            InputError: a field that does not exist, no kind, or a value that the constructor refuses.
        """
        known = [f.name for f in fields(cls) if f.init]
        unknown = sorted(set(values) - set(known))
        if unknown or "kind" not in values:
            asked = f"unknown field {', '.join(unknown)}" if unknown else "no kind"
            raise InputError(f"{asked} in a perturbation: its fields are {', '.join(known)}")
        return cls(**values)

    @contextmanager
    def on(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        prompt_width: int | None = None,
        noise_on: NoiseOn = "all",
    ) -> Iterator[Self]:
        """Put the noise on every forward pass of the model inside the `with` block.

        A forward hook on `model.get_input_embeddings()` adds it (for a model whose main input is `pixel_values`, a hook
        before its forward), so gradients flow as usual, and the hook is gone when the block ends, however it ends. The
        scale s is taken on entry.

        Args:
            model: any Hugging Face model with a word embedding, PEFT wrapper included, or one that reads pixels.
            tokenizer: names the special tokens; without it the model's config has to.
            prompt_width: of a batch that is being continued, how many places of a row are the prompt, padding included.
                A token's noise is then fixed by (seed, the ids of its prompt, its position), with a cache or without.
                Enter the block anew for every batch.
            noise_on: "prompt" leaves the tokens that follow the prompt as they are; needs `prompt_width`.

        Yields:
            This perturbation, whose `realised_share` counts from here.

        Raises:
            InputError: no gamma yet, a kind that is not for this model, no word embedding, special tokens unknown,
                another perturbation on the model, an unknown `noise_on` or "prompt" without its width; and in a forward
                pass inputs_embeds instead of input_ids or a mask that does not fit.
        """
        if noise_on not in ("prompt", "all") or (noise_on == "prompt" and prompt_width is None):
            raise InputError(f"noise_on={noise_on!r}: choose prompt, with prompt_width, or all")
        self._tally.eligible = self._tally.replaced = 0
        if reads_pixels(model):
            self._check_kind(model, PIXEL_KINDS)
            with rewritten_pixels(model, self._rewrite):
                yield self
            return
        self._check_kind(model, KINDS)
        if self.gamma is None:
            raise InputError(
                f"share={self.share:g} has no gamma yet: "
                "use what `perturbation.calibrate(model, samples, tokenizer)` returns, with samples of validation text"
            )
        embedding = word_embedding(model)
        scale = self.gamma * embedding_scale(model)
        untouched, allowed = self._vocabulary(model, embedding, tokenizer)
        noisy = _NoisyLookup(self, embedding, scale, untouched, allowed, prompt_width, noise_on)
        with rewritten_lookups(model, embedding, noisy, pad_id(model, tokenizer)):
            yield self

    def _check_kind(self, model: nn.Module, kinds: Sequence[Kind]) -> None:
        if self.kind not in kinds:
            raise InputError(
                f"{self.kind} noise is not for {type(model).__name__}, which reads "
                f"{'pixels' if reads_pixels(model) else 'tokens'}: choose one of {', '.join(kinds)}"
            )

    def on_pixels(self, clean: NDArray[np.float32]) -> NDArray[np.float32]:
        """Disturb samples of pixels as the noise on a model that reads them would.

        Args:
            clean: (B, …), one sample each.

        Returns:
            The same shape.

        Raises:
            InputError: the kind is not for pixels.

        Example:
            >>> Perturbation("salt-and-pepper", share=0.999).on_pixels(np.full((1, 2, 2), 0.5, dtype=np.float32)).shape
            (1, 2, 2)
        """
        if self.kind not in PIXEL_KINDS:
            raise InputError(f"{self.kind} noise is not for pixels: choose one of {', '.join(PIXEL_KINDS)}")
        level = self.gamma if self.share is None else self.share
        assert level is not None
        return np.stack([noisy_sample(self.kind, level, self.seed, sample) for sample in clean])

    def _rewrite(self, pixels: Tensor) -> Tensor:
        clean = pixels.detach().float().cpu().numpy()
        noisy = self.on_pixels(clean)
        if self.share is not None:
            self._tally.eligible += noisy.size
            self._tally.replaced += int((noisy != clean).sum())
        return pixels + torch.from_numpy(noisy - clean).to(pixels)

    def calibrate(self, model: nn.Module, samples: Sequence[Sequence[int]], tokenizer: Any = None) -> Self:
        """Find the gamma at which the asked share of tokens is replaced.

        Args:
            model: the model whose vocabulary is used; another model with other embeddings needs its own gamma.
            samples: token ids of validation samples; padding is left out. At most 8,192 tokens are used, so the cost is
                bounded.
            tokenizer: as in `on`.

        Returns:
            The same perturbation with gamma set, so that `on` can use it.

        Raises:
            InputError: not discrete, no share given, no tokens, or a share that no noise reaches.

        Example:
            >>> from transformers import BertConfig, BertModel
            >>> config = BertConfig(vocab_size=99, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
            >>> config.eos_token_id = 1
            >>> model = BertModel(config)
            >>> samples = [[i, j, 1] for i in range(2, 22) for j in range(2, 12)]
            >>> half = Perturbation("discrete", share=0.5).calibrate(model, samples)
            >>> with half.on(model), torch.no_grad():
            ...     _ = model(torch.tensor(samples))
            >>> half.realised_share
            0.5
        """
        if self.share is None or self.kind != "discrete":
            raise InputError(
                f"calibrate finds the gamma for a share, and {self.label} needs none: use it as it is, or give "
                "discrete noise a share"
            )
        padding = pad_id(model, tokenizer)
        embedding = word_embedding(model)
        untouched, allowed = self._vocabulary(model, embedding, tokenizer)
        scale = replacing_scale(
            [[i for i in sample if i != padding] for sample in samples],
            self.share,
            seed=self.seed,
            table=embedding_table(embedding),
            allowed=allowed,
            untouched=untouched,
        )
        return replace(self, gamma=scale / embedding_scale(model))

    def _vocabulary(self, model: nn.Module, embedding: nn.Module, tokenizer: Any) -> tuple[list[int], Tensor]:
        """Return the ids that get no noise, and a (V,) mask of the rows that may replace a token."""
        if self.special_tokens and self.kind != "discrete":
            return [], torch.empty(0, dtype=torch.bool)
        special = special_ids(model, tokenizer)
        return ([] if self.special_tokens else special), word_rows(embedding, special, tokenizer)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _NoisyLookup:
    """What a perturbation does to one lookup; remembers the noise streams of the prompts in the key-value cache."""

    def __init__(
        self,
        perturbation: Perturbation,
        embedding: nn.Module,
        scale: float,
        untouched: list[int],
        allowed: Tensor,
        prompt_width: int | None,
        noise_on: NoiseOn,
    ) -> None:
        self.perturbation, self.embedding, self.scale = perturbation, embedding, scale
        self.untouched, self.allowed = untouched, allowed
        self.prompt_width, self.noise_on = prompt_width, noise_on
        self.streams: list[NoiseStream] = []

    def __call__(self, tokens: Tokens, embeddings: Tensor) -> Tensor | None:
        chosen = tokens.real & ~np.isin(tokens.ids, self.untouched)
        if self.noise_on == "prompt":
            # What the cache does not hold yet is the prompt, and whatever followed it where there is no cache.
            chosen[:, self.prompt_width if tokens.before is None else 0 :] = False
        self.perturbation._tally.eligible += int(chosen.sum())
        if self.scale == 0:
            return None
        noise = torch.from_numpy(self._noise(tokens, chosen, embeddings.shape[-1]))
        if self.perturbation.kind == "discrete":
            return self._replace(tokens.ids, chosen, noise, embeddings)
        return (embeddings.float() + noise.to(embeddings.device)).to(embeddings.dtype)

    def _noise(self, tokens: Tokens, chosen: NDArray[np.bool_], dim: int) -> NDArray[np.float32]:
        """Return gamma * s * n of shape (B, T, d), zero where no noise belongs."""
        if tokens.before is None:
            self.streams = [
                NoiseStream(self.perturbation.kind, self.perturbation.seed, ids[real], dim)
                for ids, real in zip(
                    tokens.ids[:, : self.prompt_width], tokens.real[:, : self.prompt_width], strict=True
                )
            ]
        elif len(tokens.before) != len(self.streams):
            raise InputError(
                f"the key-value cache holds {len(tokens.before)} prompts that this perturbation has not seen: "
                "run the prompt inside the `with` block too"
            )
        starts = np.zeros(len(tokens.ids), dtype=np.int64) if tokens.before is None else tokens.before
        noise = np.zeros((*tokens.ids.shape, dim), dtype=np.float32)
        for row, real, stream, start in zip(noise, tokens.real, self.streams, starts, strict=True):
            row[real] = stream.rows(int(real.sum()), int(start)) * np.float32(self.scale)
        noise[~chosen] = 0
        return noise

    @torch.no_grad()
    def _nearest(self, own: Tensor, noise: Tensor, table: Tensor) -> Tensor:
        points = table[own].float() + noise
        rows, squared = nearest_rows(points, table, self.allowed)
        own_squared = (points.double() - table[own].double()).square().sum(dim=1)
        return torch.where(squared < own_squared, rows, own)

    def _replace(self, ids: NDArray[np.int64], chosen: NDArray[np.bool_], noise: Tensor, embeddings: Tensor) -> Tensor:
        table = embedding_table(self.embedding)
        at = torch.from_numpy(chosen).to(table.device)
        own = torch.from_numpy(ids).to(table.device)
        new = own.clone()
        new[at] = self._nearest(own[at], noise.to(table.device)[at], table)
        replaced = new != own
        self.perturbation._tally.replaced += int(replaced.sum())
        # forward(), not a call: the row as the lookup gives it, without coming back to this hook.
        return torch.where(replaced.unsqueeze(-1), self.embedding.forward(new), embeddings)

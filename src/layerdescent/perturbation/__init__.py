"""Noise on the word embeddings of any Hugging Face model, or on pixels, the same for every model, batch and device.

noise.py        unit noise as a pure function of (seed, kind, token ids, position)
vocabulary.py   the embedding matrix: its scale, its special rows, its nearest row
lookups.py      the hooks that see which tokens a forward pass looks up, and change what comes out
calibration.py  the gamma at which discrete noise replaces a given share of the tokens
pixels.py       noise on what a model of images or frames reads
perturbation.py the object that puts these together
"""

from layerdescent.noise_kinds import KINDS, SHARE_KINDS
from layerdescent.perturbation.noise import epsilon
from layerdescent.perturbation.perturbation import NoiseOn, Perturbation
from layerdescent.perturbation.vocabulary import embedding_scale

__all__ = ["KINDS", "SHARE_KINDS", "NoiseOn", "Perturbation", "embedding_scale", "epsilon"]

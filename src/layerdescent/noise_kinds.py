"""The kinds of noise there are: what each is put on, and what its strength is."""

from typing import Literal

Kind = Literal["gaussian", "uniform", "discrete", "poisson", "salt-and-pepper"]

KINDS: tuple[Kind, ...] = ("gaussian", "uniform", "discrete")
"""Of noise on word embeddings."""
PIXEL_KINDS: tuple[Kind, ...] = ("gaussian", "uniform", "poisson", "salt-and-pepper")
"""Of noise on pixels."""
SHARE_KINDS: tuple[Kind, ...] = ("discrete", "salt-and-pepper")
"""Those whose strength is, or may be, the share of what they replace."""


def replaced_units(kind: str) -> str:
    """What a kind of noise replaces whose strength is a share.

    Example:
        >>> [replaced_units(kind) for kind in SHARE_KINDS]
        ['tokens', 'pixels']
    """
    return "tokens" if kind in KINDS else "pixels"

"""What evaluation and report ask alike about losses by layer: where they do not fall, and how layers are named."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

CALIBRATED_FALL = 1e-4
"""A calibrated loss that falls by less than this share of itself does not fall: rounding is no descent. [C]"""


def rises(
    losses: Mapping[int, float] | Sequence[float] | NDArray[Any], nodes: Sequence[int], least_fall: float = 0.0
) -> tuple[int, ...]:
    """The nodes whose loss is not below the previous node's, or not by more than a share `least_fall` of it.

    Example:
        >>> rises([0.7, 0.6, 0.65, 0.3], nodes=(0, 1, 2, 3))
        (2,)
    """
    return tuple(node for before, node in pairwise(nodes) if not losses[node] < (1 - least_fall) * losses[before])


def join(words: Sequence[object]) -> str:
    """Words as a list in a sentence.

    Example:
        >>> join(["a", "b", "c"])
        'a, b and c'
    """
    *head, last = [str(word) for word in words]
    return f"{', '.join(head)} and {last}" if head else last


def layers_in_words(layers: Sequence[int]) -> str:
    """Layers as they stand in a sentence.

    Example:
        >>> layers_in_words([3]), layers_in_words([1, 2, 5])
        ('layer 3', 'layers 1, 2 and 5')
    """
    return f"layer{'s' if len(layers) > 1 else ''} {join(layers)}"


def every_layer(nodes: Sequence[int], num_layers: int) -> str:
    """Who descends when the loss falls from node to node.

    Example:
        >>> every_layer((0, 1, 2), num_layers=2), every_layer((2, 3), num_layers=3), every_layer((0, 2), num_layers=2)
        ('every layer', 'every layer from 3 on', 'every layer of the grid (0 and 2)')
    """
    if len(nodes) == num_layers + 1:
        return "every layer"
    if list(nodes) == list(range(nodes[0], num_layers + 1)):
        return f"every layer from {nodes[1]} on"
    return f"every layer of the grid ({join(nodes)})"

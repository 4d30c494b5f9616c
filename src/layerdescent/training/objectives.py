"""What is minimised, as functions of the layer losses: the Lagrangian, the last loss alone, or a fixed weighted sum."""

from collections.abc import Sequence

from torch import Tensor

from layerdescent.descent import DescentConstraints


def weighted_sum(losses: Tensor, weights: Sequence[float]) -> Tensor:
    """sum_l w_l F_l; terms of weight 0 are left out, so an infinite loss of an unused layer does no harm.

    Args:
        losses: layer losses F_0 … F_L, shape (L+1,).
        weights: one for each.

    Example:
        >>> import torch
        >>> weighted_sum(torch.tensor([float("inf"), 2.0, 4.0]), (0.0, 0.5, 0.5))
        tensor(3.)
    """
    return sum((w * losses[layer] for layer, w in enumerate(weights) if w != 0), start=losses.new_zeros(()))


def layers_with_gradient(constraints: DescentConstraints, multipliers: Tensor) -> set[int]:
    """The layers below L whose loss may have a gradient in the Lagrangian; at lambda = 0 there is none.

    A layer is in when an active constraint names it. (Its two terms may still cancel; that costs a little memory and
    no more.)

    Example:
        >>> import torch
        >>> constraints = DescentConstraints(num_layers=4, alpha=0.1)
        >>> layers_with_gradient(constraints, torch.tensor([0.0, 0.0, 2.0, 0.0]))
        {2, 3}
    """
    nodes = constraints.nodes
    active = multipliers.nonzero().flatten().tolist()
    layers = {nodes[j + 1] for j in active}
    if constraints.form == "cumulative":
        layers |= {nodes[0]} if active else set()
    elif not constraints.detach_previous:
        layers |= {nodes[j] for j in active}
    if constraints.detach_initial:
        layers.discard(nodes[0])
    return layers - {constraints.num_layers}

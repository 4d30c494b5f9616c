"""Which layers a step learns from, so that the others cost no backward pass."""

from torch import Tensor

from layerdescent.descent import DescentConstraints


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

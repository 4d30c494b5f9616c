"""The objectives, against what the losses' own gradients say."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.descent import DescentConstraints, weighted_sum
from layerdescent.training.objectives import layers_with_gradient


@given(st.lists(st.sampled_from([0.0, 0.3, 2.0]), min_size=4, max_size=4))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"detach_initial": False},
        {"detach_previous": True},
        {"clip_weights": True},
        {"form": "cumulative"},
        {"form": "cumulative", "detach_initial": False},
        {"form": "ratio"},
    ],
)
def test_no_layer_with_a_gradient_is_left_out(settings: dict[str, Any], values: list[float]) -> None:
    constraints = DescentConstraints(num_layers=4, alpha=0.1, **settings)
    losses = torch.tensor([1.0, 0.9, 0.7, 0.8, 0.5], requires_grad=True)
    constraints.lagrangian(losses, torch.tensor(values)).backward()
    assert losses.grad is not None
    moved = set(losses.grad[:-1].nonzero().flatten().tolist())
    learning = layers_with_gradient(constraints, torch.tensor(values))
    assert moved <= learning
    assert learning <= set(range(4))
    if not any(values):
        assert learning == set()


def test_a_detached_first_loss_never_has_a_gradient() -> None:
    constraints = DescentConstraints(num_layers=3, alpha=0.1, first_layer=2)
    assert layers_with_gradient(constraints, torch.tensor([1.0, 1.0])) == {2}
    free = DescentConstraints(num_layers=3, alpha=0.1, first_layer=2, detach_initial=False)
    assert layers_with_gradient(free, torch.tensor([1.0, 1.0])) == {1, 2}


def test_a_layer_of_weight_zero_does_no_harm() -> None:
    losses = torch.tensor([torch.nan, 2.0, 4.0], requires_grad=True)
    value = weighted_sum(losses, (0.0, 0.25, 1.0))
    value.backward()
    assert value.item() == 4.5
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.0, 0.25, 1.0]

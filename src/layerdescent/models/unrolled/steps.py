"""The half-steps of unrolled networks and the energies that they lower: pure functions on tensors.

Tokens are rows: Y (..., T, d), codes H (..., T, h), measurements X (..., T, m). Every leading axis is a sequence (or a
head) of its own.
"""

import torch
from torch import Tensor

TINY = 1e-6
"""Added to a squared row norm before its root is taken, because a sparse code can be all zero."""
MARGIN = 1.05
"""How far the step size of ISTA stays below 1 / |A D|^2."""


def soft_threshold(v: Tensor, theta: Tensor | float) -> Tensor:
    """Shrink every entry towards 0 by theta: the proximal step of theta |v|_1.

        soft_theta(v) = sign(v) max(|v| - theta, 0)

    Args:
        v: any shape.
        theta: at least 0, broadcast against v.

    Returns:
        As v; exactly 0 where |v| <= theta.

    Source: ISTA (Daubechies et al. 2004).

    Example:
        >>> soft_threshold(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
        tensor([-2., 0., 1.])
    """
    return torch.relu(v - theta) - torch.relu(-v - theta)


def unit_rows(Y: Tensor) -> Tensor:
    """Token normalisation: y / sqrt(|y|^2 + tiny), which leaves a row of zeros at zero.

    Args:
        Y: (..., T, d).

    Returns:
        As Y.

    Source: [C]; DUST is known to have a variant with normalised tokens, not how it does it.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return Y * (Y.square().sum(-1, keepdim=True) + TINY).rsqrt()


def attention_step(
    Y: Tensor, W: Tensor, a: Tensor | float, *, beta: bool = True, normalize_tokens: bool = False
) -> Tensor:
    """Move every token a part of the way to the average of all tokens, weighted by how near they are.

        Z = (1 - a) Y + a softmax_beta(Y W W^T Y^T) Y,    weights proportional to beta_j exp(S_ij),
        S = Y W W^T Y^T,    beta_j = exp(-|y_j W|^2 / 2)

    Row i's weights are proportional to exp(-|(y_i - y_j) W|^2 / 2), so the step is a mean shift. It never raises
    `pair_energy(Y, W)` for a in (0, 2] [D]; with plain softmax this holds only where all |y_j W| are equal [D].

    Args:
        Y: (..., T, d).
        W: (d, r), or (k, d, r) with one for each of k heads, and then Y is (..., k, T, d).
        a: the step, in (0, 1].
        beta: whether the weights have beta; without it they are a plain softmax.
        normalize_tokens: whether the weights are taken from unit rows; what is averaged is Y itself.

    Returns:
        As Y.

    Source: Yang, Huang, Wipf 2022, equations as written here [D].

    Example:
        >>> attention_step(torch.tensor([[0.0], [2.0]]), torch.zeros(1, 1), 0.5)
        tensor([[0.5000],
                [1.5000]])
    """
    q = _times(unit_rows(Y) if normalize_tokens else Y, W)
    scores = q @ q.mT
    if beta:
        scores = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None, :] / 2
    # The step is put into the weights (T, T), which are much smaller than Y.
    stay = (1 - a) * torch.eye(Y.shape[-2], dtype=Y.dtype, device=Y.device)
    return (stay + a * scores.softmax(-1)) @ Y


def pair_weights(Y: Tensor, W: Tensor) -> Tensor:
    """How near tokens are to each other: w_ij = exp(-|(y_i - y_j) W|^2 / 2).

    Args:
        Y: (..., T, d).
        W: (d, r), or (k, d, r) as in `attention_step`.

    Returns:
        (..., T, T), symmetric, ones on the diagonal, in (0, 1].

    Example:
        >>> pair_weights(torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
        tensor([[1.0000, 0.1353],
                [0.1353, 1.0000]])
    """
    q = _times(Y, W)
    squares = q.square().sum(-1)
    distances = squares[..., :, None] + squares[..., None, :] - 2 * (q @ q.mT)
    return torch.exp(-distances.clamp(min=0) / 2)


def pair_energy(Y: Tensor, W: Tensor) -> Tensor:
    """E1, what the beta-weighted attention step lowers.

        E1(Y) = - sum_{i<j} exp(-|(y_i - y_j) W|^2 / 2)

    Args:
        Y: (..., T, d).
        W: (d, r), or (..., d, r).

    Returns:
        (...), between -T (T - 1) / 2 (all tokens equal) and 0.

    Source: [D]. The literature adds + |Y W|_F^2 / 2; with that term the step can raise the energy.

    Example:
        >>> pair_energy(torch.tensor([[1.0], [1.0], [1.0]]), torch.ones(1, 1))
        tensor(-3.)
    """
    return -pair_weights(Y, W).triu(1).sum((-2, -1))


def mlp_step(Z: Tensor, W: Tensor, b: Tensor, a: Tensor | float, *, relu: bool = True) -> Tensor:
    """A projected gradient step on `mlp_energy`.

        Y = ReLU( Z [(1 - a) I - (a / 2)(W + W^T)] + a b )

    It does not raise E2 for a <= 2 / (1 + lambda_max((W + W^T) / 2)), given Z >= 0 [D].

    Args:
        Z: (..., T, d).
        W: (d, d).
        b: (d,) or (1, d).
        a: the step, in (0, 1].
        relu: whether to project onto Y >= 0.

    Returns:
        As Z.

    Source: Yang, Huang, Wipf 2022, equations as written here [D].

    Example:
        >>> mlp_step(torch.tensor([[1.0, 3.0]]), torch.zeros(2, 2), torch.tensor([-5.0, 5.0]), 0.5)
        tensor([[0., 4.]])
    """
    # One matrix (d, d), which is mostly much smaller than Z.
    Y = Z @ ((1 - a) * torch.eye(len(W), dtype=W.dtype, device=W.device) - (a / 2) * (W + W.mT)) + a * b
    return torch.relu(Y) if relu else Y


def mlp_energy(Y: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """E2, what the MLP step lowers over Y >= 0.

        E2(Y) = tr(Y W Y^T) / 2 + |Y - b|_F^2 / 2

    Args:
        Y: (..., T, d).
        W: (d, d).
        b: (d,) or (1, d).

    Returns:
        (...).

    Source: Yang, Huang, Wipf 2022, form as written here [D].

    Example:
        >>> mlp_energy(torch.tensor([[1.0, 3.0]]), torch.eye(2), torch.zeros(2))
        tensor(10.)
    """
    return (((Y @ W) * Y).sum((-2, -1)) + (Y - b).square().sum((-2, -1))) / 2


def lasso_objective(X: Tensor, H: Tensor, AD: Tensor, l1: Tensor | float) -> Tensor:
    """What ISTA lowers.

        |X - H (A D)^T|_F^2 / 2 + l1 |H|_1

    Args:
        X: measurements (..., T, m).
        H: codes (..., T, h).
        AD: the dictionary as it is measured (m, h), the dictionary itself for denoising.
        l1: weight of sparsity.

    Returns:
        (...).

    Source: the lasso in Lagrangian form; as DUST's first two terms [D].

    Example:
        >>> lasso_objective(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]]), torch.eye(2), 0.5)
        tensor(2.5000)
    """
    return (X - H @ AD.mT).square().sum((-2, -1)) / 2 + l1 * H.abs().sum((-2, -1))


def ista_step(H: Tensor, X: Tensor, AD: Tensor, step: Tensor | float, theta: Tensor | float) -> Tensor:
    """A proximal gradient step on the lasso, or any step of that form.

        H+ = soft_theta( H + step (X - H (A D)^T) A D )

    With step <= 1 / |A D|_2^2 and theta = l1 step it never raises `lasso_objective`.

    Args:
        H: codes (..., T, h).
        X: measurements (..., T, m).
        AD: (m, h).
        step: the step size.
        theta: the threshold.

    Returns:
        As H.

    Source: ISTA (Daubechies et al. 2004).

    Example:
        >>> ista_step(torch.zeros(1, 2), torch.tensor([[1.0, 0.1]]), torch.eye(2), step=1.0, theta=0.25)
        tensor([[0.7500, 0.0000]])
    """
    return soft_threshold(H + step * ((X - H @ AD.mT) @ AD), theta)


def lipschitz(AD: Tensor) -> Tensor:
    """The c of ISTA, whose step size is 1 / c: a little more than |A D|_2^2.

        c = 1.05 |A D|_2^2

    Args:
        AD: (m, h).

    Returns:
        A scalar, in fp32 or better.

    Source: [D].

    Example:
        >>> lipschitz(2 * torch.eye(3))
        tensor(4.2000)
    """
    return MARGIN * _spectral_norm(AD).square()


def joint_objective(X: Tensor, H: Tensor, AD: Tensor, W: Tensor, l1: Tensor | float, l2: Tensor | float) -> Tensor:
    """The lasso and the pair energy of the codes over time, summed over heads.

        |X - H (A D)^T|_F^2 / 2 + l1 |H|_1 + l2 sum_k E1(H_k)

    Args:
        X: measurements (..., T, m).
        H: codes (..., T, h).
        AD: (m, h).
        W: (k, h / k, r), one matrix for each of k heads.
        l1: weight of sparsity.
        l2: weight of the pair energy.

    Returns:
        (...).

    Source: [D]: a reconstruction of DUST's objective, see `DustForDenoising`.

    Example:
        >>> X, H = torch.zeros(2, 1), torch.zeros(2, 1)
        >>> joint_objective(X, H, torch.eye(1), torch.ones(1, 1, 1), l1=1.0, l2=0.5)
        tensor(-0.5000)
    """
    return lasso_objective(X, H, AD, l1) + l2 * pair_energy(split_heads(H, len(W)), W).sum(-1)


def joint_step(H: Tensor, X: Tensor, AD: Tensor, W: Tensor, l1: Tensor | float, l2: Tensor | float) -> Tensor:
    """A proximal gradient step on `joint_objective`, which it never raises.

        H+ = soft_{eta l1}( H - eta [ (H (A D)^T - X) A D + l2 grad E1(H) ] ),     eta = 1 / (c + l2 T |W|_2^2),
        grad E1(H)_i = sum_j w_ij (h_i - h_j) W W^T,                               c = 1.05 |A D|_2^2

    head by head, with the largest |W|_2 of all heads.

    Args:
        H: codes (..., T, h).
        X: measurements (..., T, m).
        AD: (m, h).
        W: (k, h / k, r).
        l1: weight of sparsity.
        l2: weight of the pair energy.

    Returns:
        As H.

    Source: [D].

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> joint_step(torch.zeros(2, 1), torch.tensor([[1.05], [2.1]]), torch.eye(1), one, l1=0.0, l2=0.0)
        tensor([[1.],
                [2.]])
    """
    c = lipschitz(AD)
    eta = (1 / (c + l2 * H.shape[-2] * _spectral_norm(W).square().max())).to(H.dtype)
    heads = split_heads(H, len(W))
    w = pair_weights(heads, W)
    pull = _times(w.sum(-1, keepdim=True) * heads - w @ heads, W @ W.mT)
    gradient = (H @ AD.mT - X) @ AD + l2 * merge_heads(pull)
    return soft_threshold(H - eta * gradient, eta * l1)


def split_heads(H: Tensor, count: int) -> Tensor:
    """(..., T, h) -> (..., k, T, h / k): every head is a sequence of its own.

    Example:
        >>> split_heads(torch.zeros(2, 5, 6), 3).shape
        torch.Size([2, 3, 5, 2])
    """
    return H.unflatten(-1, (count, -1)).transpose(-3, -2)


def merge_heads(heads: Tensor) -> Tensor:
    """(..., k, T, h / k) -> (..., T, h), the way back from `split_heads`.

    Example:
        >>> merge_heads(torch.zeros(2, 3, 5, 2)).shape
        torch.Size([2, 5, 6])
    """
    return heads.transpose(-3, -2).flatten(-2)


def _times(Y: Tensor, W: Tensor) -> Tensor:
    """Y W, of every head (..., k, T, d) with its own of (k, d, r).

    The sequences of a head are put into one product: as many products as sequences would make a gradient (d, r) of
    each, only to sum them.
    """
    if W.ndim == 2 or Y.ndim == W.ndim:
        return Y @ W
    heads = Y.movedim(-3, 0)
    return (heads.flatten(1, -2) @ W).unflatten(1, heads.shape[1:-1]).movedim(0, -3)


def _spectral_norm(M: Tensor) -> Tensor:
    """|M|_2 of every matrix (..., a, b), in fp32 or better: there is no singular value decomposition in bf16."""
    return torch.linalg.matrix_norm(M.to(torch.promote_types(M.dtype, torch.float32)), 2)

r"""Planar and masked flows, which transform a normal distribution into a more flexible one.

The planar map $z \mapsto z + \hat u \tanh(w^\top z + b)$ is invertible if and only if $\hat u^\top w > -1$, which this
transformation of free parameters u ensures (Rezende & Mohamed, *Variational inference with normalizing flows*, 2015, appendix A.1):

$$\hat u = u + \bigl(\mathrm{softplus}(u^\top w) - 1 - u^\top w\bigr) \frac{w}{\lVert w \rVert^2}.$$

Shapes: ... leading dimensions, n the dimension of the variable.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["masked_flow", "planar_flow", "planar_flow_inverse", "planar_identity"]


def planar_flow(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Apply a planar flow, and compute the logarithm of its Jacobian determinant.

    $$z' = z + \hat u \tanh(w^\top z + b), \qquad
      \log\left|\det \frac{\partial z'}{\partial z}\right| = \log\bigl(1 + \hat u^\top w \,(1 - \tanh^2(w^\top z + b))\bigr)$$

    Args:
        z: (..., n).
        u, w: (..., n), broadcastable to z; invertibility is enforced.
        b: (...), broadcastable to z without its last dimension.

    Returns:
        z' (..., n) and the log-determinant (...), in nats.

    Source: Rezende & Mohamed (2015), equations (10) to (12) and appendix A.1.

    Example:
        >>> z, log_det = planar_flow(torch.zeros(2), torch.ones(2), torch.ones(2), torch.zeros(()))
        >>> z, log_det  # log softplus(2)
        (tensor([0., 0.]), tensor(0.7547))
    """
    u, stretch = _invertible(u, w)
    bend = torch.tanh((z * w).sum(-1) + b)
    square = bend.square()
    # 1 + u.w (1 - tanh^2) as a sum of positive terms, as u.w may round to -1
    return torch.addcmul(z, u, bend.unsqueeze(-1)), torch.log(square + stretch * (1 - square))


def planar_flow_inverse(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> Tensor:
    r"""Invert `planar_flow`.

    Along w, $a = w^\top z$ solves $a + \hat u^\top w\tanh(a + b) = w^\top z'$, whose left-hand side increases with a;
    it is solved by bisection. The result is not differentiable.

    Args:
        z: z' (..., n).
        u, w, b: as for `planar_flow`.

    Returns:
        z (..., n), to the precision of the dtype.

    Example:
        >>> u, w, b = torch.tensor([-3.0, 1.0]), torch.tensor([2.0, 0.5]), torch.tensor(0.1)
        >>> z, _ = planar_flow(torch.tensor([0.3, -0.2]), u, w, b)
        >>> planar_flow_inverse(z, u, w, b)
        tensor([ 0.3000, -0.2000])
    """
    u, stretch = _invertible(u, w)
    slope = stretch - 1
    target = (z * w).sum(-1)
    width = slope.abs().expand_as(target)
    low, high = target - width, target + width
    for _ in range(64 if z.dtype == torch.float64 else 32):
        middle = (low + high) / 2
        below = middle + slope * torch.tanh(middle + b) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return z - u * torch.tanh((low + high) / 2 + b).unsqueeze(-1)


def planar_identity(w: Tensor) -> Tensor:
    """The u for which the planar flow with w is the identity, for initialization.

    Args:
        w: (..., n).

    Returns:
        u (..., n).

    Example:
        >>> w = torch.tensor([1.0, 2.0])
        >>> planar_flow(torch.tensor([3.0, 4.0]), planar_identity(w), w, torch.zeros(()))[0]
        tensor([3., 4.])
    """
    return w * (_SOFTPLUS_ONE / w.square().sum(-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny))


def masked_flow(
    z: Tensor, mask: Tensor, hidden: tuple[Tensor, Tensor], shift: tuple[Tensor, Tensor], gate: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    r"""Apply a masked flow with a gate, and compute the logarithm of its Jacobian determinant.

    $$z' = m \circ z + (1 - m) \circ \bigl(\sigma\circ z + (1 - \sigma)\circ\mu\bigr), \qquad
      \log\left|\det \frac{\partial z'}{\partial z}\right| = (1 - m)^\top \log\sigma,$$

    with $h = \tanh(A (m\circ z) + a)$, $\mu = B h + b$, $\sigma = \mathrm{sigmoid}(C h + c)$: the masked elements of z pass, and
    determine how the others are scaled and shifted.

    Args:
        z: (..., n).
        mask: m (n,), 1 for elements that pass and 0 for the others.
        hidden: A (h, n) and a (h,).
        shift: B (n, h) and b (n,).
        gate: C (n, h) and c (n,).

    Returns:
        z' (..., n) and the log-determinant (...), in nats.

    Source: Dinh, Sohl-Dickstein & Bengio, *Density estimation using Real NVP* (arXiv:1605.08803), with the gate of Kingma et al.,
    *Improving variational inference with inverse autoregressive flow* (arXiv:1606.04934), as in Louizos & Welling (2017).

    Example:
        >>> no_hidden = torch.zeros(2, 1), torch.zeros(2)
        >>> masked_flow(torch.ones(2), torch.tensor([1.0, 0.0]), (torch.zeros(1, 2), torch.zeros(1)), no_hidden, no_hidden)
        (tensor([1.0000, 0.5000]), tensor(-0.6931))
    """
    h = torch.tanh(F.linear(mask * z, *hidden))
    logits = F.linear(h, *gate)
    step = F.linear(h, *shift) - z
    # z + (1 - sigma) (mu - z) where the mask is 0
    moved = torch.addcmul(z, (1 - mask) * torch.sigmoid(-logits), step)
    return moved, ((1 - mask) * F.logsigmoid(logits)).sum(-1)


_SOFTPLUS_ONE = 0.541324854612918  # softplus(log(e - 1)) = 1


def _invertible(u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """u-hat (..., n), and 1 plus its product with w (...), which is positive."""
    product, square = (u * w).sum(-1), w.square().sum(-1)
    # softplus, which in PyTorch drops exp(-20); (softplus(x) - 1) - x = softplus(-x) - 1
    share = (-F.logsigmoid(product) - 1) / square.clamp_min(torch.finfo(w.dtype).tiny)
    return u + w * share.unsqueeze(-1), torch.where(square > 0, -F.logsigmoid(-product), 1.0)  # w = 0 gives a shift

"""Random noise for layers: normal and Bernoulli draws, the local reparameterisation, and a bound that does not trap a parameter.

Noise is drawn inside the forward pass and never kept in a buffer that is refilled in place: autograd would then see the last
draw in every backward pass.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["at_most", "bernoulli_mask", "local_reparameterization", "normal_like"]


def normal_like(x: Tensor, draws: int = 1) -> Tensor:
    r"""Standard normal noise with the dtype, device and memory format of `x`, for every one of so many draws.

    `torch.randn_like` fills a channels-last tensor element by element, about nine times slower than a contiguous one; here the
    noise is drawn contiguously in the layout's own order.

    Args:
        x: (R, ...), any shape where `draws` is 1.
        draws: S.

    Returns:
        (S*R, ...), independent $N(0, 1)$ draws.

    Example:
        >>> normal_like(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        b, c, h, w = x.shape
        return torch.randn(draws * b, h, w, c, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
    shape = x.shape if draws == 1 else (draws * x.shape[0], *x.shape[1:])
    return torch.randn(shape, dtype=x.dtype, device=x.device)


def bernoulli_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    r"""Inverted dropout masks: $1 / (1 - p)$ with probability $1 - p$, else 0.

    Args:
        shape: the shape of the mask.
        p: the probability of a zero, in [0, 1).
        like: gives dtype and device.

    Returns:
        Masks with mean 1 and variance $p / (1 - p)$.

    Example:
        >>> bernoulli_mask((2,), 0.0, torch.zeros(1))
        tensor([1., 1.])
    """
    # A comparison with uniform noise takes a quarter of the time of Tensor.bernoulli_ on a CPU.
    return (torch.rand(shape, device=like.device) >= p).to(like.dtype) / (1 - p)


def local_reparameterization(mean: Tensor, variance: Tensor, draws: int = 1) -> Tensor:
    r"""Draws from independent normals, differentiable in both moments.

    $$y = \mu + \sqrt{v}\,\zeta, \qquad \zeta \sim N(0, I)$$

    Args:
        mean: $\mu$, (R, ...), any shape where `draws` is 1.
        variance: $v \ge 0$, same shape. Where it is zero (an input of zeros, or rounding) the draw is the mean and its gradient
            stays finite: $\sqrt{0}$ has an infinite slope, which would turn 0 * inf into NaN in the backward pass.
        draws: S.

    Returns:
        (S*R, ...), S draws of every element, all of the first draw first.

    Source: Kingma, Salimans & Welling (2015), section 2.3, equation (6).

    Example:
        >>> local_reparameterization(torch.ones(2), torch.zeros(2))
        tensor([1., 1.])
    """
    wide = variance.float() if variance.dtype == torch.float16 else variance  # half precision has no small variances
    std = wide.clamp_min(torch.finfo(wide.dtype).tiny).sqrt().to(mean.dtype)
    noise = normal_like(mean, draws)
    if draws == 1:
        return torch.addcmul(mean, std, noise)
    return torch.addcmul(mean, std, noise.unflatten(0, (draws, -1))).flatten(0, 1)


def at_most(x: Tensor, bound: float) -> Tensor:
    r"""$\min(x, b)$ whose gradient still pulls a value from beyond the bound back inside.

    `Tensor.clamp` has no gradient beyond the bound, so a parameter that an optimiser pushed over it could never return. Here the
    gradient is dropped only where a descent step would push further out: projected gradient descent.

    Args:
        x: any shape.
        bound: the largest value.

    Returns:
        `x` clamped from above.

    Example:
        >>> x = torch.tensor([2.0], requires_grad=True)
        >>> at_most(x, 1.0).backward(torch.ones(1))  # descent decreases x: the gradient passes
        >>> x.grad
        tensor([1.])
    """
    return _AtMost.apply(x, bound)


class _AtMost(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bound: float) -> Tensor:
        return x.clamp(max=bound)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, bound = inputs
        ctx.save_for_backward(x > bound)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (outside,) = ctx.saved_tensors
        return torch.where(outside, grad.clamp_min(0), grad), None

"""Random noise for layers: normal and Bernoulli draws, local reparameterization, and an upper bound for parameters.

Noise is drawn inside the forward pass and not in a buffer that is overwritten, or backward passes would use the last draw.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bayesify.functional.drawing import bernoulli, standard_normal, standard_uniform
from bayesify.functional.kl import at_least_float32
from bayesify.functional.log_uniform import LOG_UNIFORM_TABLE, log_uniform_kl
from bayesify.functional.nodes import Node
from bayesify.native.dropout import draws_factors_natively, factors_and_kl
from bayesify.native.gaussians import local_draw, runs_in_one_pass

__all__ = [
    "at_most",
    "bernoulli_mask",
    "concrete_mask",
    "gaussian_factors",
    "gaussian_factors_and_kl",
    "local_reparameterization",
    "normal_draws",
    "normal_like",
]


def normal_draws(mean: Tensor, log_std: Tensor, draws: int) -> Tensor:
    """Independent normal draws (S, *shape of mean), with gradients by mean and log standard deviation."""
    return torch.addcmul(mean, log_std.exp(), standard_normal(draws, *mean.shape, like=mean))


def normal_like(x: Tensor, draws: int = 1) -> Tensor:
    r"""Standard normal noise with the dtype, device and memory format of `x`, for S draws.

    `torch.randn_like` is about nine times slower for a channels-last tensor than for a contiguous one; this function is not.

    Args:
        x: (R, ...), any shape if `draws` is 1.
        draws: S.

    Returns:
        (S*R, ...), independent $N(0, 1)$ draws.

    Example:
        >>> normal_like(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        b, c, h, w = x.shape
        return standard_normal(draws * b, h, w, c, like=x).permute(0, 3, 1, 2)
    return standard_normal(*(x.shape if draws == 1 else (draws * x.shape[0], *x.shape[1:])), like=x)


def bernoulli_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    r"""Inverted dropout masks: $1 / (1 - p)$ with probability $1 - p$, else 0.

    Args:
        shape: the shape of the mask.
        p: the probability of a zero, in [0, 1).
        like: a tensor with the dtype and device of the mask.

    Returns:
        Masks with mean 1 and variance $p / (1 - p)$.

    Example:
        >>> bernoulli_mask((2,), 0.0, torch.zeros(1))
        tensor([1., 1.])
    """
    return bernoulli(*shape, p=1 - p, like=like) / (1 - p)


def concrete_mask(shape: tuple[int, ...], logit: Tensor, temperature: float) -> Tensor:
    r"""Relaxed inverted dropout masks, differentiable in the dropout probability.

    $$d = \frac{1}{1 - p}\,\mathrm{sigmoid}\Bigl(-\frac1t\Bigl(\log\frac{p}{1 - p} + \log\frac{u}{1 - u}\Bigr)\Bigr), \qquad
      u \sim U(0, 1)$$

    Args:
        shape: the shape of the mask.
        logit: log(p / (1 - p)), a scalar.
        temperature: t; `bernoulli_mask` is the limit for 0.

    Returns:
        Masks in [0, 1 / (1 - p)], of at least float32, with a mean of $1 + O(t^2)$.

    Source: Gal, Hron & Kendall, *Concrete dropout* (2017), equation (5).

    Example:
        >>> concrete_mask((3,), torch.tensor(-40.0), 0.1)
        tensor([1., 1., 1.])
    """
    logit = at_least_float32(logit)
    u = standard_uniform(*shape, like=logit)
    return torch.sigmoid(-(logit + torch.logit(u)) / temperature) / torch.sigmoid(-logit)


def local_reparameterization(mean: Tensor, variance: Tensor, draws: int = 1) -> Tensor:
    r"""Draws from independent normals, differentiable in both moments.

    $$y = \mu + \sqrt{v}\,\zeta, \qquad \zeta \sim N(0, I)$$

    Args:
        mean: $\mu$, (R, ...), any shape if `draws` is 1.
        variance: $v \ge 0$, same shape. Where it is zero, the draw is the mean, and its gradient is finite although $\sqrt{0}$ has
            an infinite slope.
        draws: S.

    Returns:
        (S*R, ...), S draws of every element, all rows of draw 0 first.

    Source: Kingma, Salimans & Welling (2015), section 2.3, equation (6).

    Example:
        >>> local_reparameterization(torch.ones(2), torch.zeros(2))
        tensor([1., 1.])
    """
    least = torch.finfo(variance.dtype).tiny
    if variance.dtype == torch.float16:  # has no small variances and no large gradients
        least, variance = least * torch.finfo(torch.float16).eps, variance.float()
    noise = normal_like(mean, draws)
    if draws == 1 and runs_in_one_pass(mean, variance, noise):
        return local_draw(mean, variance, noise, least)
    if draws == 1:
        return _Reparameterized.call(mean, variance, noise, least)[0]
    return torch.addcmul(mean, _root(variance, least).to(mean.dtype), noise.unflatten(0, (draws, -1))).flatten(0, 1)


def _root(variance: Tensor, least: float) -> Tensor:
    return variance.clamp_min(least).sqrt()


class _Reparameterized(Node):
    """One node of the graph instead of three, to save memory accesses. The slope is constant below the least variance."""

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, noise: Tensor, least: float) -> tuple[Tensor, Tensor]:
        std = _root(variance, least)
        return torch.addcmul(mean, std.to(mean.dtype), noise), std

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        _, variance, noise, ctx.least = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(variance, noise, output[1])

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        variance, noise, std = ctx.saved_tensors
        if torch.is_grad_enabled():
            std = _root(variance, ctx.least)
        return grad, torch.addcdiv(std.new_zeros(()), grad * noise, std, value=0.5), None, None


def at_most(x: Tensor, bound: float) -> Tensor:
    r"""$\min(x, b)$, elementwise, with a gradient that returns values above the bound.

    `Tensor.clamp` has no gradient above the bound, so a parameter that exceeds it would never return. Here the gradient is zero
    only where a descent step would increase x further, as in projected gradient descent.

    Args:
        x: any shape.
        bound: the largest value.

    Example:
        >>> x = torch.tensor([2.0], requires_grad=True)
        >>> at_most(x, 1.0).backward(torch.ones(1))  # a descent step decreases x: the gradient is not zero
        >>> x.grad
        tensor([1.])
    """
    return _AtMost.call(x, bound)


def gaussian_factors(log_alpha: Tensor, rows: int, size: int, bound: float | None = None) -> Tensor:
    r"""Factors of Gaussian dropout: $\xi = 1 + \sqrt{\min(\alpha, e^b)}\,\epsilon$ with $\epsilon \sim N(0, 1)$.

    Args:
        log_alpha: $\log\alpha$, (K,) or a scalar.
        rows, size: R and K.
        bound: b, with the gradient of `at_most`; None for no bound.

    Returns:
        (R, K).

    Source: Kingma, Salimans & Welling (2015), section 3.2.

    Example:
        >>> gaussian_factors(torch.tensor(-80.0), 1, 3)
        tensor([[1., 1., 1.]])
    """
    return _Factors.call(log_alpha, standard_normal(rows, size, like=log_alpha), math.inf if bound is None else bound)[0]


def gaussian_factors_and_kl(log_alpha: Tensor, rows: int, bound: float | None = None) -> tuple[Tensor, Tensor]:
    r"""`gaussian_factors` of K variables and the sum of their KLs from the log-uniform prior, with fewer native operators.

    Args:
        log_alpha, rows, bound: as in `gaussian_factors`, with K of `log_alpha` as the size.

    Returns:
        (R, K), and nats, a scalar of at least float32: the sum over k of `log_uniform_kl` at $\min(\log\alpha_k, b)$.

    Source: Kingma, Salimans & Welling (2015), sections 3.2 and 3.3.

    Example:
        >>> factors, kl = gaussian_factors_and_kl(torch.zeros(3), rows=2)
        >>> factors.shape, kl
        (torch.Size([2, 3]), tensor(1.2801))
    """
    eps, bound = standard_normal(rows, len(log_alpha), like=log_alpha), math.inf if bound is None else bound
    if draws_factors_natively(log_alpha, eps):
        return factors_and_kl(log_alpha, eps, bound, LOG_UNIFORM_TABLE, _factors_and_kl)
    return _factors_and_kl(log_alpha, eps, bound)


def _factors_and_kl(log_alpha: Tensor, eps: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    # beyond the bound the gradient of the KL points outwards, so `clamp` equals `at_most` and is cheaper
    bounded = log_alpha if bound == math.inf else log_alpha.clamp(max=bound)
    return _Factors.call(log_alpha, eps, bound)[0], log_uniform_kl(at_least_float32(bounded)).sum()


class _Factors(Node):
    """One node of the graph instead of four, because layers have few noise variables."""

    @staticmethod
    def forward(log_alpha: Tensor, noise: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        std = torch.exp(0.5 * log_alpha.clamp(max=bound))
        return torch.addcmul(noise.new_ones(()), std, noise), std

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        log_alpha, noise, ctx.bound = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(log_alpha, noise, output[1])

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _: Tensor
    ) -> tuple[Tensor, None, None]:
        log_alpha, noise, std = ctx.saved_tensors
        if torch.is_grad_enabled():
            std = torch.exp(0.5 * log_alpha.clamp(max=ctx.bound))
        slope = 0.5 * std * (grad * noise).sum_to_size(std.shape)
        return torch.where(log_alpha > ctx.bound, slope.clamp_min(0), slope), None, None


class _AtMost(Node):
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

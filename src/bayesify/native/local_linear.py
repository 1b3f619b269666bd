"""A linear layer with local reparameterization as one node of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.native.gaussian_calls import composed_kl, parts_of_gradient, run_kernel, shifted, variances_with_kl
from bayesify.native.gaussians import runs_in_one_pass

__all__ = ["local_linear", "runs_as_one_node"]


def runs_as_one_node(x: Tensor, means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> bool:
    """Whether `local_linear` can be used: tensors that kernels can compute with, of which all or no parameters get gradients."""
    parameters = (*means, *log_stds)
    trained = sum(p.requires_grad for p in parameters)
    if trained not in (0, len(parameters)) or torch.is_autocast_enabled(x.device.type) or x.dim() < 2:
        return False
    return x.is_contiguous() and all(p.is_contiguous() for p in parameters) and runs_in_one_pass(x, *parameters)


def local_linear(
    x: Tensor,
    eps: Tensor,
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    centers: Sequence[Tensor | None],
    prior_std: float,
) -> tuple[Tensor, Tensor]:
    r"""Outputs $y = x\mu^\top + \sqrt{x^2 (\sigma^2)^\top}\,\epsilon$ of a linear layer with normal weights, and the KL.

    The gradients of the weights are computed in the memory of the products, where composed operators need other memory.

    Args:
        x: (..., I).
        eps: $\epsilon$, (..., O), which is overwritten.
        means, log_stds: of the weight (O, I), and of the bias (O,) if there is one.
        centers: the prior's means, None for zero.
        prior_std: the prior's standard deviation.

    Returns:
        (..., O) and the KL in nats, differentiable any number of times in x, means and log_stds.
    """
    return _LocalLinear.apply(x, eps, prior_std, tuple(centers), *means, *log_stds)


class _LocalLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, eps: Tensor, prior_std: float, centers: tuple[Tensor | None, ...], *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        means, log_stds = parameters[: len(centers)], parameters[len(centers) :]
        variances, kl = variances_with_kl(list(zip(means, log_stds, centers, strict=True)), prior_std)
        mean, variance = F.linear(x, *means), F.linear(x * x, *variances)
        y = torch.empty_like(mean)
        run_kernel("reparameterize", [(mean, variance, eps, y)], torch.finfo(y.dtype).tiny, 0.5, dtype=y.dtype)
        ctx.prior_std, ctx.centers = prior_std, centers
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, eps, *parameters, *variances)  # eps is now the slope, eps / (2 std)
        return y, kl

    @staticmethod
    def backward(ctx: Any, by_y: Tensor | None, by_kl: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, slope, *others = ctx.saved_tensors
        count = len(ctx.centers)
        means, log_stds, variances = others[:count], others[count : 2 * count], others[2 * count :]
        if torch.is_grad_enabled():  # gradients of the gradient
            return _composed_gradients(ctx, x, slope, means, log_stds, (by_y, by_kl))
        by_mean = torch.zeros_like(slope) if by_y is None else by_y
        by_mean, slope, inputs = (t.reshape(-1, t.shape[-1]) for t in (by_mean, slope, x))
        by_variance, by_x = by_mean * slope, None
        if ctx.needs_input_grad[0]:
            by_x = torch.addcmul(by_mean @ means[0], inputs, by_variance @ variances[0], value=2).view_as(x)
        if not ctx.needs_input_grad[4]:
            return by_x, *[None] * (3 + 2 * count)
        by_means = [by_mean.mT @ inputs, by_mean.sum(0)][:count]
        by_log_stds = [by_variance.mT @ (inputs * inputs), by_variance.sum(0)][:count]
        numbers = parts_of_gradient(by_kl, ctx.prior_std, x)
        shifts = map(shifted, means, ctx.centers)
        run_kernel("add_kl_gradient", list(zip(by_means, by_log_stds, variances, shifts, strict=True)), *numbers, dtype=x.dtype)
        return by_x, None, None, None, *by_means, *by_log_stds


def _composed_gradients(
    ctx: Any, x: Tensor, slope: Tensor, means: Sequence[Tensor], log_stds: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """Gradients with a graph of their own."""
    variance = F.linear(x * x, *(torch.exp(2 * log_std) for log_std in log_stds))
    std = variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt()
    y = F.linear(x, *means) + std * (2 * slope * std.detach())
    kl = composed_kl([(mean, log_std) for mean, log_std in zip(means, log_stds, strict=True)], ctx.centers, ctx.prior_std)
    pairs = [(out, by) for out, by in zip((y, kl), grads, strict=True) if by is not None and out.requires_grad]
    inputs = (x, *means, *log_stds)
    used = [t for t in inputs if t.requires_grad]
    found = iter(
        torch.autograd.grad([out for out, _ in pairs], used, [by for _, by in pairs], create_graph=True, allow_unused=True)
    )
    by_x, *others = [next(found) if t.requires_grad else None for t in inputs]
    return by_x, None, None, None, *others

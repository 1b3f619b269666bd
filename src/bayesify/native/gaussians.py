"""Normal weights and their KL in one pass forward and one backward, and local reparameterization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesify.native.gaussian_calls import KLSum, composed_kl, parts_of_gradient, run_kernel, shifted, variances_with_kl
from bayesify.native.operators import kernels_for
from bayesify.native.switch import load_kernels

__all__ = ["draws_and_kl", "local_draw", "runs_in_one_pass", "variances_and_kl", "with_square"]


def runs_in_one_pass(*tensors: Tensor) -> bool:
    """Whether the functions here can be used: tensors that kernels can compute with, those of one shape in one order in memory."""
    library = kernels_for(*tensors)
    if library is None:
        return False
    if not all(t.is_contiguous() for t in tensors):
        strides = {t.shape: t.stride() for t in tensors}
        if any(t.stride() != strides[t.shape] or not _is_dense(t) for t in tensors):
            return False
    return all(t.numel() for t in tensors) and load_kernels("gaussian_kernels", library) is not None


def _is_dense(t: Tensor) -> bool:
    return t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))


def draws_and_kl(
    means: Sequence[Tensor], log_stds: Sequence[Tensor], centers: Sequence[Tensor | None], prior_std: float, eps: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    r"""Draws $\mu + \sigma\epsilon$ of tensors of weights, and their KL from $N(m, s^2)$ in nats.

    Args:
        means, log_stds, eps: $\mu$, $\log\sigma$ and $\epsilon$ of every tensor.
        centers: m, None for zero.
        prior_std: s.

    Returns:
        The draws (1, *) and the KL, differentiable any number of times in means and log_stds.
    """
    *drawn, kl = _Draws.apply(prior_std, *_interleaved(means, log_stds, centers, eps))
    return drawn, kl


def variances_and_kl(
    means: Sequence[Tensor], log_stds: Sequence[Tensor], centers: Sequence[Tensor | None], prior_std: float
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    r"""Variances $\sigma^2$ of tensors of weights, and their KL as in `draws_and_kl`.

    Returns:
        The means, through which other gradients of the means should flow to be added in the same pass; the variances; the KL.
    """
    *moments, kl = _Variances.apply(prior_std, *_interleaved(means, log_stds, centers))
    return [out if mean.requires_grad else mean for out, mean in zip(moments[::2], means, strict=True)], moments[1::2], kl


def local_draw(mean: Tensor, variance: Tensor, eps: Tensor, least: float) -> Tensor:
    r"""$\mu + \sqrt{v}\,\epsilon$, differentiable as `bayesify.functional.local_reparameterization`.

    Args:
        mean, variance: $\mu$ and v, in one order in memory.
        eps: $\epsilon$, which is overwritten.
        least: the smallest v whose root is taken.
    """
    return _LocalDraw.apply(mean, variance, eps, least)


def _interleaved(*columns: Sequence[Any]) -> list[Any]:
    return [value for row in zip(*columns, strict=True) for value in row]


def _rows(values: Sequence[Any], width: int) -> list[tuple[Any, ...]]:
    return list(zip(*[iter(values)] * width, strict=True))


class _Draws(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prior_std: float, *tensors: Any) -> tuple[Tensor, ...]:
        rows = _rows(tensors, 4)
        kl, drawn = KLSum([row[0] for row in rows], prior_std), [torch.empty_like(row[0]).unsqueeze_(0) for row in rows]
        ctx.prior_std, ctx.centers = prior_std, tensors[2::4]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(t for row in rows for t in (row[0], row[1], row[3])))
        arguments = [
            (mean, log_std, shifted(mean, center), eps, out, kl.place(mean.numel()))
            for (mean, log_std, center, eps), out in zip(rows, drawn, strict=True)
        ]
        run_kernel("draw", arguments, *kl.constants, dtype=drawn[0].dtype)
        return *drawn, kl.total(drawn[0].dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        rows = _rows(ctx.saved_tensors, 3)
        if torch.is_grad_enabled():
            by = iter(_gradients(_composed_draws, ctx, rows, grads))
            return None, *(g for _ in rows for g in (next(by), next(by), None, None))
        share, by_kl = parts_of_gradient(grads[-1], ctx.prior_std, rows[0][0])
        found, arguments = list[Tensor | None](), list[tuple[Tensor, ...]]()
        for (mean, log_std, eps), center, by_out in zip(rows, ctx.centers, grads[:-1], strict=True):
            by_mean, by_log = torch.empty_like(mean), torch.empty_like(mean)
            by_drawn = _like(mean, None if by_out is None else by_out.squeeze(0))
            arguments.append((by_drawn, log_std, shifted(mean, center), eps, by_mean, by_log))
            found += [by_mean, by_log, None, None]
        run_kernel("draw_gradient", arguments, share, by_kl, dtype=rows[0][0].dtype)
        return None, *found


class _Variances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prior_std: float, *tensors: Any) -> tuple[Tensor, ...]:
        rows = _rows(tensors, 3)
        variances, kl = variances_with_kl(rows, prior_std)
        ctx.prior_std, ctx.centers = prior_std, tensors[2::3]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(t for row, variance in zip(rows, variances, strict=True) for t in (row[0], row[1], variance)))
        return *(t for row, variance in zip(rows, variances, strict=True) for t in (row[0], variance)), kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        rows = _rows(ctx.saved_tensors, 3)
        if torch.is_grad_enabled():
            by = iter(_gradients(_composed_variances, ctx, rows, grads))
            return None, *(g for _ in rows for g in (next(by), next(by), None))
        share, by_kl = parts_of_gradient(grads[-1], ctx.prior_std, rows[0][0])
        found, arguments = list[Tensor | None](), list[tuple[Tensor, ...]]()
        for (mean, _, variance), center, by in zip(rows, ctx.centers, _rows(grads[:-1], 2), strict=True):
            by_out, by_variance = (_like(mean, g) for g in by)
            by_mean, by_log = torch.empty_like(mean), torch.empty_like(mean)
            arguments.append((by_out, by_variance, variance, shifted(mean, center), by_mean, by_log))
            found += [by_mean, by_log, None]
        run_kernel("variance_gradient", arguments, share, by_kl, dtype=rows[0][0].dtype)
        return None, *found


def _like(mean: Tensor, grad: Tensor | None) -> Tensor:
    """A gradient in the mean's order in memory."""
    if grad is None:
        return torch.zeros_like(mean)
    return grad if grad.stride() == mean.stride() else torch.empty_like(mean).copy_(grad)


def _gradients(
    composed: Callable[..., list[Tensor]], ctx: Any, rows: Sequence[Sequence[Tensor]], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients in means and log_stds with a graph of their own."""
    inputs = [t for row in rows for t in row[:2]]
    outputs = composed(rows, ctx.centers, ctx.prior_std)
    pairs = [(out, by) for out, by in zip(outputs, grads, strict=True) if by is not None and out.requires_grad]
    used = [t for t in inputs if t.requires_grad]
    found = iter(
        torch.autograd.grad([out for out, _ in pairs], used, [by for _, by in pairs], create_graph=True, allow_unused=True)
    )
    return [next(found) if t.requires_grad else None for t in inputs]


def _composed_draws(rows: Sequence[Sequence[Tensor]], *prior: Any) -> list[Tensor]:
    return [*((mean + log_std.exp() * eps).unsqueeze(0) for mean, log_std, eps in rows), composed_kl(rows, *prior)]


def _composed_variances(rows: Sequence[Sequence[Tensor]], *prior: Any) -> list[Tensor]:
    moments = [t for mean, log_std, _ in rows for t in (mean.view_as(mean), torch.exp(2 * log_std))]
    return [*moments, composed_kl(rows, *prior)]


def with_square(x: Tensor) -> tuple[Tensor, Tensor]:
    """x and x * x, whose gradients are added in one pass."""
    return _WithSquare.apply(x) if x.requires_grad and kernels_for(x) else (x, x * x)


class _WithSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x, x * x

    @staticmethod
    def backward(ctx: Any, by_x: Tensor | None, by_square: Tensor | None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        if by_square is None:
            return by_x
        return 2 * x * by_square if by_x is None else torch.addcmul(by_x, x, by_square, value=2)


class _LocalDraw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, eps: Tensor, least: float) -> Tensor:
        out = torch.empty_like(mean)
        run_kernel("reparameterize", [(mean, variance, eps, out)], least, 0.5, dtype=mean.dtype)
        ctx.least = least
        ctx.save_for_backward(variance, eps)  # now the slope, eps / (2 std)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        variance, slope = ctx.saved_tensors
        if torch.is_grad_enabled():
            std = variance.clamp_min(ctx.least).sqrt()
            slope = slope * std.detach() / std
        return grad, grad * slope, None, None

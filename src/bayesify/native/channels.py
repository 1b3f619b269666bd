"""Factors of channels in one pass forward and one backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesify.native.gpu import channels as gpu_channels
from bayesify.native.operators import kernels_for
from bayesify.native.switch import kernel_for, load_kernels, runs_triton
from bayesify.native.threads import THREAD, over_rows

__all__ = ["scale_channels", "scales_in_one_pass"]

_LEAST = 2**13  # elements, below which the operators take less time than a call


def scales_in_one_pass(x: Tensor, factors: Tensor, shift: Tensor | None) -> bool:
    """Whether `scale_channels` can be used, and is faster than the operators: for positions to sum over in the gradient."""
    if x.dim() < 3 or not x.requires_grad or x.numel() < _LEAST or factors.shape != x.shape[:2]:
        return False
    library = kernels_for(x, factors, *([] if shift is None else [shift]))
    if library is None or torch.is_autocast_enabled(x.device.type):
        return False
    return (x.is_contiguous() or _is_channels_last(x)) and load_kernels("channel_kernels", library) is not None


def scale_channels(x: Tensor, factors: Tensor, shift: Tensor | None) -> Tensor:
    r"""$y_{rc} = x_{rc} f_{rc} + b_c$ at every position.

    Args:
        x: (R, C, ...), contiguous or channels-last.
        factors: f, (R, C).
        shift: b, (C,), None for zero.

    Returns:
        (R, C, ...), differentiable any number of times.
    """
    return _Scale.apply(x, factors, shift)


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _run(name: str, tensors: Sequence[Tensor], x: Tensor) -> None:
    rows, channels = x.shape[:2]
    positions = x.numel() // (rows * channels)
    if runs_triton(x):
        return gpu_channels.run(name, tensors, channels, positions, not x.is_contiguous())
    integers = (*(t.data_ptr() for t in tensors), channels, positions, not x.is_contiguous())
    over_rows(kernel_for(x.dtype, "channel_kernels", name), integers, rows, THREAD // (channels * positions))
    return None


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, shift: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, factors)
        ctx.has_shift = shift is not None
        out = torch.empty_like(x)
        shift = x.new_zeros(x.shape[1]) if shift is None else shift.contiguous()
        _run("scale", (x, factors.contiguous(), shift, out), x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, factors = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            positions = range(2, x.dim())
            by_factors = (grad * x).flatten(2).sum(-1)
            by_shift = grad.sum((0, *positions)) if ctx.has_shift else None
            return grad * factors.reshape(*factors.shape, *[1 for _ in positions]), by_factors, by_shift
        if grad.stride() != x.stride():
            grad = torch.empty_like(x).copy_(grad)
        by_x, sums = torch.empty_like(x), x.new_empty(2, *factors.shape)
        _run("scale_gradient", (grad, x, factors.contiguous(), by_x, *sums), x)
        return by_x, sums[0], sums[1].sum(0) if ctx.has_shift else None

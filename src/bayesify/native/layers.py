"""A layer of Walsh-Hadamard variational inference in one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesify.native.gpu import hadamard as gpu_hadamard
from bayesify.native.operators import LEAST_SIZE, kernels_for, native_fwht
from bayesify.native.switch import load_kernels, runs_triton
from bayesify.native.threads import THREAD, over_rows

__all__ = ["hadamard_layer", "runs_fused"]

_CHUNK = 32  # rows whose parameter gradients are summed together
_THREAD = THREAD // 4  # two transforms and more take longer than a pass


def runs_fused(*tensors: Tensor) -> bool:
    """Whether `hadamard_layer` can be used: plain tensors of one dtype and device that nothing traces or transforms.

    Example:
        >>> x = torch.ones(4, 16)
        >>> runs_fused(x, x.double()), runs_fused(x.to("meta"))  # two dtypes; a device without kernels
        (False, False)
    """
    library, n = kernels_for(*tensors), tensors[0].shape[-1]
    if library is None or n < LEAST_SIZE or torch.is_autocast_enabled(tensors[0].device.type):
        return False
    if library == "triton" and n > gpu_hadamard.LARGEST_LAYER:
        return False
    return tensors[0].numel() > 0 and load_kernels("hadamard_kernels", library) is not None


def hadamard_layer(
    x: Tensor, s1: Tensor, s2: Tensor, mean: Tensor, log_std: Tensor, eps: Tensor, shift: Tensor | None = None, unit: float = 1.0
) -> Tensor:
    r"""Multiply x by K random blocks: $y_k = u S_{1,k} H (g_k \circ H S_{2,k} x) + b_k$, $g_k = \mu_k + \sigma_k \circ \epsilon_k$.

    Nothing is saved for the backward pass but the arguments; it repeats two transforms, which takes less time than reading them.

    Args:
        x: (R, n), n a power of two of at least 16.
        s1, s2, mean, log_std: (K, n).
        eps: (R, K, n), standard normal noise.
        shift: b, (K, n), None for zero.
        unit: u.

    Returns:
        (R, K, n), differentiable any number of times except in eps.

    Example:
        >>> x, ones, eps = torch.randn(4, 16), torch.ones(1, 16), torch.zeros(4, 1, 16)
        >>> y = hadamard_layer(x, ones, ones, ones, ones, eps)  # mu = 1 without noise: H H x = 16 x
        >>> torch.allclose(y[:, 0], 16 * x, atol=1e-4)
        True
    """
    return _Layer.apply(x, s1, s2, mean, log_std, eps, shift, unit)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, shift, ctx.unit = arguments
        ctx.has_shift = shift is not None
        ctx.save_for_backward(*tensors, *([shift] if ctx.has_shift else []))
        x, s1, s2, mean, log_std, eps = (t.contiguous() for t in tensors)
        y, shift = torch.empty_like(eps), torch.zeros_like(mean) if shift is None else shift.contiguous()
        dense = x, s1 * ctx.unit, s2, mean, log_std.exp(), eps, shift, y
        if runs_triton(x):
            gpu_hadamard.layer(dense)
            return y
        rows, blocks, n = eps.shape
        over_rows(_kernel("layer", x), (*(t.data_ptr() for t in dense), n, blocks), rows, _THREAD // (blocks * n))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            used = [t for t in tensors if t.requires_grad]
            found = iter(torch.autograd.grad(_composed(ctx.unit, *tensors), used, grad, create_graph=True))
            return *(next(found) if t.requires_grad else None for t in tensors), *[None] * (2 - ctx.has_shift)
        grad, x, s1, s2, mean, log_std, eps = (t.contiguous() for t in (grad, *tensors[:6]))
        std = log_std.exp()
        given = grad, x, s1 * ctx.unit, s2, mean, std, eps
        grad_x, sums = gpu_hadamard.layer_gradient(given) if runs_triton(x) else _layer_gradient(given)
        by_s1, by_s2, by_mean, by_std, by_shift = sums.unbind()
        return grad_x, by_s1 * ctx.unit, by_s2, by_mean, by_std * std, None, by_shift if ctx.has_shift else None, None


def _layer_gradient(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of s1, s2, mean, std and the shift (5, K, n), on the CPU."""
    _, x, *_, eps = tensors
    rows, blocks, n = eps.shape
    chunks = -(-rows // _CHUNK)
    grad_x, sums, work = torch.empty_like(x), x.new_empty(chunks, 5, blocks, n), x.new_empty(chunks, 3, n)
    integers = *(t.data_ptr() for t in (*tensors, grad_x, sums, work)), n, blocks, rows, _CHUNK
    over_rows(_kernel("layer_gradient", x), integers, chunks, _THREAD // (_CHUNK * blocks * n))
    return grad_x, sums[0] if chunks == 1 else sums.sum(0)


def _kernel(name: str, x: Tensor) -> Any:
    return getattr(load_kernels("hadamard_kernels"), f"{name}{'32' if x.dtype == torch.float32 else '64'}")


def _composed(unit: float, x: Tensor, s1: Tensor, s2: Tensor, mean: Tensor, log_std: Tensor, eps: Tensor, *shift: Tensor) -> Tensor:
    g = torch.addcmul(mean, log_std.exp(), eps)
    y = unit * s1 * native_fwht(g * native_fwht(s2 * x.unsqueeze(-2)))
    return y + shift[0] if shift else y

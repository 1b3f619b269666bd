"""A layer of Walsh-Hadamard variational inference in one pass forward and one backward, for the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesify.native.operators import LEAST_SIZE, THREAD, is_plain, native_fwht
from bayesify.native.switch import load_kernels
from bayesify.native.threads import over_rows

__all__ = ["hadamard_layer", "runs_fused"]

_CHUNK = 32  # rows whose parameter gradients are summed together


def runs_fused(*tensors: Tensor) -> bool:
    """Whether `hadamard_layer` can be used: plain tensors of one dtype on the CPU that nothing traces or transforms.

    Example:
        >>> x = torch.ones(4, 16)
        >>> runs_fused(x, x.double()), runs_fused(x.to("meta"))  # two dtypes; not on the CPU
        (False, False)
    """
    if tensors[0].shape[-1] < LEAST_SIZE or not is_plain(*tensors) or torch.is_autocast_enabled("cpu"):
        return False
    return tensors[0].numel() > 0 and load_kernels("hadamard_kernels") is not None


def hadamard_layer(x: Tensor, s1: Tensor, s2: Tensor, mean: Tensor, std: Tensor, eps: Tensor) -> Tensor:
    r"""Multiply x by K random blocks: $y_k = S_{1,k} H (g_k \circ H S_{2,k} x)$ with $g_k = \mu_k + \sigma_k \circ \epsilon_k$.

    Nothing is saved for the backward pass but the arguments; it repeats two transforms, which takes less time than reading them.

    Args:
        x: (R, n), n a power of two of at least 16.
        s1, s2, mean, std: (K, n).
        eps: (R, K, n), standard normal noise.

    Returns:
        (R, K, n), differentiable any number of times except in eps.

    Example:
        >>> x, ones, eps = torch.randn(4, 16), torch.ones(1, 16), torch.randn(4, 1, 16)
        >>> y = hadamard_layer(x, ones, ones, ones, 0 * ones, eps)  # mu = 1 without noise: H H x = 16 x
        >>> torch.allclose(y[:, 0], 16 * x, atol=1e-4)
        True
    """
    return _Layer.apply(x, s1, s2, mean, std, eps)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        ctx.save_for_backward(*arguments)
        dense = [t.contiguous() for t in arguments]
        x, eps = dense[0], dense[-1]
        y = torch.empty_like(eps)
        kernels, (rows, blocks, n) = load_kernels("hadamard_kernels"), eps.shape
        assert kernels is not None
        kernel = kernels.layer32 if x.dtype == torch.float32 else kernels.layer64
        over_rows(partial(kernel, *(t.data_ptr() for t in (*dense, y)), n, blocks), rows, THREAD // (blocks * n))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        arguments = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            used = [t for t in arguments[:5] if t.requires_grad]
            found = iter(torch.autograd.grad(_composed(*arguments), used, grad, create_graph=True))
            return *(next(found) if t.requires_grad else None for t in arguments[:5]), None
        dense = [t.contiguous() for t in (grad, *arguments)]
        x, eps = dense[1], dense[-1]
        rows, blocks, n = eps.shape
        chunks = -(-rows // _CHUNK)
        grad_x, sums, work = torch.empty_like(x), x.new_empty(chunks, 4, blocks, n), x.new_empty(chunks, 3, n)
        kernels = load_kernels("hadamard_kernels")
        assert kernels is not None
        kernel = kernels.layer_gradient32 if x.dtype == torch.float32 else kernels.layer_gradient64
        run = partial(kernel, *(t.data_ptr() for t in (*dense, grad_x, sums, work)), n, blocks, rows, _CHUNK)
        over_rows(run, chunks, THREAD // (_CHUNK * blocks * n))
        return grad_x, *(sums[0] if chunks == 1 else sums.sum(0)).unbind(), None


def _composed(x: Tensor, s1: Tensor, s2: Tensor, mean: Tensor, std: Tensor, eps: Tensor) -> Tensor:
    return s1 * native_fwht(torch.addcmul(mean, std, eps) * native_fwht(s2 * x.unsqueeze(-2)))

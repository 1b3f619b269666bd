"""A layer of Walsh-Hadamard variational inference in one pass forward and one backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.native import hadamard_calls
from bayesify.native.gpu import hadamard as gpu_hadamard
from bayesify.native.operators import LEAST_SIZE, kernels_for, native_fwht
from bayesify.native.switch import load_kernels, runs_triton

__all__ = ["hadamard_layer", "runs_fused"]

_KERNELS = {"numba": "hadamard_layer_kernels", "triton": "hadamard_kernels"}


def runs_fused(x: Tensor, s1: Tensor, *others: Tensor) -> bool:
    """Whether `hadamard_layer` can be used: plain tensors of one dtype and device that nothing traces or transforms.

    Example:
        >>> s1, x = torch.ones(1, 16), torch.ones(4, 16)
        >>> runs_fused(x.double(), s1), runs_fused(x.to("meta"), s1.to("meta"))  # two dtypes; a device without kernels
        (False, False)
    """
    library, n = kernels_for(x, s1, *others), s1.shape[-1]
    if library is None or n < LEAST_SIZE or torch.is_autocast_enabled("cpu" if s1.is_cpu else s1.device.type):
        return False
    if library == "triton" and n > gpu_hadamard.LARGEST_LAYER:
        return False
    return x.numel() > 0 and load_kernels(_KERNELS[library], library) is not None


def hadamard_layer(
    x: Tensor,
    s1: Tensor,
    s2: Tensor,
    mean: Tensor,
    log_std: Tensor,
    eps: Tensor,
    bias: Sequence[Tensor] = (),
    unit: float = 1.0,
    outputs: int | None = None,
) -> Tensor:
    r"""Multiply x by K random blocks: $y_k = u S_{1,k} H (g_k \circ H S_{2,k} x)$, $g_k = \mu_k + \sigma_k \circ \epsilon_k$.

    x is padded with zeros, the outputs of the blocks are joined and cut, and a random bias is added. Nothing is saved for the
    backward pass but the arguments; it repeats two transforms, which takes less time than reading them.

    Args:
        x: (R, I), I at most n.
        s1, s2, mean, log_std: (K, n), n a power of two of at least 16.
        eps: (R, K, n), standard normal noise.
        bias: mean (O,), log standard deviation (O,) and noise (S, O) of a bias, S draws of R / S rows each; nothing for none.
        unit: u.
        outputs: O, at most K n; K n by default.

    Returns:
        (R, O), differentiable any number of times except in eps and in the noise of the bias.

    Example:
        >>> x, ones, eps = torch.randn(4, 16), torch.ones(1, 16), torch.zeros(4, 1, 16)
        >>> y = hadamard_layer(x, ones, ones, ones, ones, eps)  # mu = 1 without noise: H H x = 16 x
        >>> torch.allclose(y, 16 * x, atol=1e-4)
        True
    """
    return _Layer.apply(unit, s1.numel() if outputs is None else outputs, x, s1, s2, mean, log_std, eps, *bias)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unit: float, outputs: int, *tensors: Tensor) -> Tensor:
        ctx.unit = unit
        ctx.save_for_backward(*tensors)
        return _calls(tensors).layer([t.contiguous() for t in tensors], unit, outputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            used = [t for t in tensors if t.requires_grad]
            found = iter(torch.autograd.grad(_composed(ctx.unit, grad.shape[1], *tensors), used, grad, create_graph=True))
            return None, None, *(next(found) if t.requires_grad else None for t in tensors)
        found = _calls(tensors).layer_gradient(grad.contiguous(), [t.contiguous() for t in tensors], ctx.unit)
        return None, None, *found[:5], None, *found[5:], *[None] * (len(tensors) > 6)


def _calls(tensors: Sequence[Tensor]) -> Any:
    return gpu_hadamard if runs_triton(tensors[0]) else hadamard_calls


def _composed(
    unit: float, outputs: int, x: Tensor, s1: Tensor, s2: Tensor, mean: Tensor, log_std: Tensor, eps: Tensor, *bias: Tensor
) -> Tensor:
    g, x = torch.addcmul(mean, log_std.exp(), eps), F.pad(x, (0, s2.shape[1] - x.shape[1])).unsqueeze(-2)
    y = (unit * s1 * native_fwht(g * native_fwht(s2 * x))).flatten(1)[:, :outputs]
    if not bias:
        return y
    center, bias_log_std, noise = bias
    return y + torch.addcmul(center, bias_log_std.exp(), noise).repeat_interleave(len(y) // len(noise), 0)

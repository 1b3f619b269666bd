"""A layer of Walsh-Hadamard variational inference in one pass forward and one backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.native import hadamard_calls
from bayesify.native.draws import draw_key, draws_natively
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
    eps: Tensor | None = None,
    bias: Sequence[Tensor] = (),
    unit: float = 1.0,
    outputs: int | None = None,
    bias_prior_std: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    r"""Multiply x by K random blocks: $y_k = u S_{1,k} H (g_k \circ H S_{2,k} x)$, $g_k = \mu_k + \sigma_k \circ \epsilon_k$.

    x is padded with zeros, the outputs of the blocks are joined and cut, and a random bias is added. Nothing is saved for the
    backward pass but the arguments and the noise; it repeats two transforms, which takes less time than reading them.

    Args:
        x: (R, I), I at most n.
        s1, s2, mean, log_std: (K, n), n a power of two of at least 16.
        eps: (R, K, n), standard normal noise; by default it is drawn, with the values of `bayesify.functional.standard_normal`.
        bias: mean (O,), log standard deviation (O,) and noise (S, O) of a bias, S draws of R / S rows each; nothing for none.
        unit: u.
        outputs: O, at most K n; K n by default.
        bias_prior_std: standard deviation of the normal prior on the bias.

    Returns:
        (R, O), differentiable any number of times except in eps and in the noise of the bias; and the KL of g from a standard
        normal and of the bias from its prior, in nats, a scalar. On a GPU, None: there the KL saves no call.

    Example:
        >>> x, ones, eps = torch.randn(4, 16), torch.ones(1, 16), torch.zeros(4, 1, 16)
        >>> y, _ = hadamard_layer(x, ones, ones, ones, ones, eps)  # mu = 1 without noise: H H x = 16 x
        >>> torch.allclose(y, 16 * x, atol=1e-4)
        True
    """
    key = None
    if eps is None:
        size, device = (x.shape[0], *mean.shape), x.device
        if x.dtype == torch.float32 and draws_natively(math.prod(size), device):
            eps, key = x.new_empty(size), draw_key()
        else:
            eps = torch.randn(size, dtype=x.dtype, device=device)
    outputs = s1.numel() if outputs is None else outputs
    return _Layer.apply(unit, outputs, bias_prior_std, key, x, s1, s2, mean, log_std, eps, *bias)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, unit: float, outputs: int, bias_prior_std: float, key: tuple[int, int] | None, *tensors: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        ctx.unit, ctx.outputs, ctx.bias_prior_std = unit, outputs, bias_prior_std
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        contiguous = [t.contiguous() for t in tensors]
        if runs_triton(tensors[0]):
            return gpu_hadamard.layer(contiguous, unit, outputs), None
        return hadamard_calls.layer(contiguous, unit, outputs, bias_prior_std, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_kl: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors = ctx.saved_tensors
        by_y = tensors[0].new_zeros(len(tensors[0]), ctx.outputs) if grad is None else grad  # None: the KL alone
        if torch.is_grad_enabled():  # gradients of the gradient
            used = [t for t in tensors if t.requires_grad]
            y, kl = _composed(ctx.unit, ctx.outputs, ctx.bias_prior_std, *tensors)
            ends, grads = ([y], [by_y]) if by_kl is None else ([y, kl], [by_y, by_kl])
            found = iter(torch.autograd.grad(ends, used, grads, create_graph=True))
            return None, None, None, None, *(next(found) if t.requires_grad else None for t in tensors)
        by_y, contiguous = by_y.contiguous(), [t.contiguous() for t in tensors]
        if runs_triton(by_y):
            found = gpu_hadamard.layer_gradient(by_y, contiguous, ctx.unit)
        else:
            found = hadamard_calls.layer_gradient(by_y, by_kl, contiguous, ctx.unit, ctx.bias_prior_std)
        return None, None, None, None, *found[:5], None, *found[5:], *[None] * (len(tensors) > 6)


def _composed(
    unit: float,
    outputs: int,
    bias_prior_std: float,
    x: Tensor,
    s1: Tensor,
    s2: Tensor,
    mean: Tensor,
    log_std: Tensor,
    eps: Tensor,
    *bias: Tensor,
) -> tuple[Tensor, Tensor]:
    g, x = torch.addcmul(mean, log_std.exp(), eps), F.pad(x, (0, s2.shape[1] - x.shape[1])).unsqueeze(-2)
    y = (unit * s1 * native_fwht(g * native_fwht(s2 * x))).flatten(1)[:, :outputs]
    kl = _kl(mean, log_std)
    if not bias:
        return y, kl
    center, bias_log_std, noise = bias
    drawn = torch.addcmul(center, bias_log_std.exp(), noise)
    return y + drawn.repeat_interleave(len(y) // len(noise), 0), kl + _kl(center, bias_log_std, bias_prior_std)


def _kl(mean: Tensor, log_std: Tensor, prior_std: float = 1.0) -> Tensor:
    log_ratio = log_std - math.log(prior_std)
    return (((2 * log_ratio).exp() + (mean / prior_std).square() - 1) / 2 - log_ratio).sum()

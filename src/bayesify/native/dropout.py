"""The KL of Gaussian dropout in one call, and its factors with the KL as one node of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesify.native.gpu import channels as gpu_channels
from bayesify.native.operators import kernels_for
from bayesify.native.switch import kernel_for, load_kernels, runs_triton
from bayesify.native.threads import over_rows

__all__ = ["draws_factors_natively", "evaluates_natively", "factors_and_kl", "log_uniform_kl_and_slope"]

_MODULES = {"numba": "dropout_kernels", "triton": "channel_kernels"}
_ELEMENTS = 2**10  # elements of a KL per thread
_MOST = 2**17  # factors of one thread, above which sums over rows are left to PyTorch's threads

Composed = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""The factors and the KL as composed operators, for gradients of gradients."""


def evaluates_natively(log_alpha: Tensor) -> bool:
    """Whether `log_uniform_kl_and_slope` can be used."""
    library = kernels_for(log_alpha)
    if library is None or not log_alpha.is_contiguous() or not log_alpha.numel():
        return False
    return load_kernels(_MODULES[library], library) is not None


def log_uniform_kl_and_slope(log_alpha: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The KL of `bayesify.functional.log_uniform_kl` and its derivative, without a graph; the table is (2, terms), float64."""
    if runs_triton(log_alpha):
        return gpu_channels.log_uniform(log_alpha, table)
    value, slope = torch.empty_like(log_alpha), torch.empty_like(log_alpha)
    kernel = kernel_for(log_alpha.dtype, "dropout_kernels", "log_uniform")
    addresses = (t.data_ptr() for t in (log_alpha, value, slope, table))
    over_rows(kernel, (*addresses, table.shape[1]), log_alpha.numel(), _ELEMENTS)
    return value, slope


def draws_factors_natively(log_alpha: Tensor, eps: Tensor) -> bool:
    """Whether `factors_and_kl` can be used."""
    if log_alpha.dim() != 1 or kernels_for(log_alpha, eps) != "numba" or not eps.is_contiguous():
        return False
    return 0 < eps.numel() <= _MOST and log_alpha.is_contiguous() and load_kernels("dropout_kernels") is not None


def factors_and_kl(log_alpha: Tensor, eps: Tensor, bound: float, table: Tensor, composed: Composed) -> tuple[Tensor, Tensor]:
    r"""Factors $1 + \sqrt{\min(\alpha, e^b)}\,\epsilon$ and the sum over k of their KL from the log-uniform prior.

    Args:
        log_alpha: (K,).
        eps: (R, K).
        bound: b; infinity for none.
        table: coefficients of `log_uniform_kl_and_slope`.
        composed: the same values by operators, without the table.

    Returns:
        (R, K) and a scalar in nats, differentiable any number of times in log_alpha, with the gradient of
        `bayesify.functional.at_most` above the bound.
    """
    return _FactorsAndKL.apply(log_alpha, eps, bound, table, composed)


class _FactorsAndKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_alpha: Tensor, eps: Tensor, bound: float, table: Tensor, composed: Composed) -> tuple[Tensor, Tensor]:
        rows, n = eps.shape
        out, work, kl = torch.empty_like(eps), log_alpha.new_empty(2, n), log_alpha.new_empty(())
        values = work.data_ptr()
        slopes = values + n * work.element_size()
        addresses = log_alpha.data_ptr(), eps.data_ptr(), out.data_ptr(), values, slopes, kl.data_ptr(), table.data_ptr()
        over_rows(kernel_for(eps.dtype, "dropout_kernels", "factors_and_kl"), (*addresses, table.shape[1], n), rows, rows, (bound,))
        ctx.bound, ctx.composed = bound, composed
        ctx.save_for_backward(log_alpha, eps, work)
        return out, kl

    @staticmethod
    def backward(ctx: Any, by_out: Tensor, by_kl: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        log_alpha, eps, work = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            outputs = ctx.composed(log_alpha, eps, ctx.bound)
            (by_log_alpha,) = torch.autograd.grad(outputs, log_alpha, (by_out, by_kl), create_graph=True)
            return by_log_alpha, None, None, None, None
        by_out, by_log_alpha, n = by_out.contiguous(), torch.empty_like(log_alpha), len(log_alpha)
        addresses = by_out.data_ptr(), eps.data_ptr(), log_alpha.data_ptr(), work[1].data_ptr(), by_log_alpha.data_ptr()
        kernel = kernel_for(eps.dtype, "dropout_kernels", "factors_and_kl_gradient")
        over_rows(kernel, (*addresses, n), len(eps), len(eps), (ctx.bound, float(by_kl)))
        return by_log_alpha, None, None, None, None

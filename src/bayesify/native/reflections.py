"""Noise rotated by Householder reflections and the KL of variational structured dropout, as one node of the graph, for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesify.native.operators import kernels_for
from bayesify.native.switch import load_kernels
from bayesify.native.threads import over_rows

__all__ = ["noise_and_kl", "rotates_natively"]

Composed = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""The noise and the KL as composed operators, for gradients of gradients."""


def rotates_natively(log_alpha: Tensor, vectors: Tensor, eps: Tensor) -> bool:
    """Whether `noise_and_kl` can be used."""
    if kernels_for(log_alpha, vectors, eps) != "numba":
        return False
    return vectors.numel() > 0 and load_kernels("reflection_kernels") is not None


def noise_and_kl(
    log_alpha: Tensor, vectors: Tensor, eps: Tensor, columns: int, shortest: float, composed: Composed
) -> tuple[Tensor, Tensor]:
    r"""The noise and the KL of `bayesify.functional.structured_noise_and_kl`.

    Args:
        log_alpha: (K,).
        vectors: (T, K).
        eps: (B, K).
        columns: Q.
        shortest: the least norm of a vector that is not ignored.
        composed: the same values by operators, without `shortest`.

    Returns:
        (B, K) and a scalar in nats, differentiable any number of times in log_alpha and vectors.
    """
    return _NoiseAndKL.apply(log_alpha, vectors, eps, columns, shortest, composed)


def _run(name: str, tensors: tuple[Tensor, ...], dtype: torch.dtype, integers: tuple[int, ...], reals: tuple[float, ...]) -> None:
    kernel: Any = getattr(load_kernels("reflection_kernels"), f"{name}{'32' if dtype == torch.float32 else '64'}")
    over_rows(kernel, (*(t.data_ptr() for t in tensors), *integers), reals=reals)


class _NoiseAndKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_alpha: Tensor, vectors: Tensor, eps: Tensor, columns: int, shortest: float, composed: Composed
    ) -> tuple[Tensor, Tensor]:
        log_alpha, vectors = log_alpha.contiguous(), vectors.contiguous()
        w, r, std, kl = (torch.empty_like(vectors), torch.empty_like(vectors), torch.empty_like(log_alpha), log_alpha.new_empty(()))
        inverses = vectors.new_empty(len(vectors), dtype=torch.float64)
        arguments = vectors, log_alpha, w, r, inverses, std, kl
        _run("form", arguments, log_alpha.dtype, tuple(vectors.shape), (columns, shortest))
        along = eps @ (r * std).mT
        ctx.columns, ctx.composed = columns, composed
        ctx.save_for_backward(log_alpha, vectors, eps, w, r, inverses, std, along)
        return torch.addmm(torch.addcmul(std.new_ones(()), std, eps), along, w, alpha=-2), kl

    @staticmethod
    def backward(ctx: Any, by_noise: Tensor, by_kl: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        log_alpha, vectors, eps, w, r, inverses, std, along = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            used = [t for t in (log_alpha, vectors) if t.requires_grad]
            outputs = ctx.composed(log_alpha, vectors, eps, ctx.columns)
            found = iter(torch.autograd.grad(outputs, used, (by_noise, by_kl), create_graph=True))
            return *(next(found) if t.requires_grad else None for t in (log_alpha, vectors)), None, None, None, None
        by_along = -2 * (by_noise @ w.mT)
        by_w = torch.mm(along.mT, by_noise).mul_(-2)
        turned = torch.mm(by_along.mT, eps)  # the gradient of R diag(std)
        by_r, by_std = turned * std, (by_noise * eps).sum(0) + (turned * r).sum(0)
        by_vectors, by_log_alpha, work = torch.empty_like(vectors), torch.empty_like(log_alpha), torch.empty_like(vectors)
        arguments = log_alpha, w, r, inverses, by_w, by_r, by_std, by_vectors, by_log_alpha, work
        _run("form_gradient", arguments, log_alpha.dtype, tuple(vectors.shape), (ctx.columns, float(by_kl)))
        return by_log_alpha, by_vectors, None, None, None, None

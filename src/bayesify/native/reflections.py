"""The compact form of Householder reflections and the KL of variational structured dropout in one call, for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesify.native.operators import is_plain
from bayesify.native.switch import load_kernels

__all__ = ["form_and_kl", "forms_natively"]

Composed = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor, Tensor]]
"""W, R, the root of alpha and the KL as composed operators, for gradients of gradients."""


def forms_natively(log_alpha: Tensor, vectors: Tensor) -> bool:
    """Whether `form_and_kl` can be used."""
    return vectors.numel() > 0 and is_plain(log_alpha, vectors) and load_kernels("reflection_kernels") is not None


def form_and_kl(
    log_alpha: Tensor, vectors: Tensor, columns: int, shortest: float, composed: Composed
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""W, R, $\sqrt\alpha$ and the KL of `bayesify.functional.vsd_kl`.

    Args:
        log_alpha: (K,).
        vectors: (T, K).
        columns: Q.
        shortest: the least norm of a vector that is not ignored.
        composed: the same values by operators, without `shortest`.

    Returns:
        (T, K), (T, K), (K,) and a scalar in nats, differentiable any number of times.
    """
    return _Form.apply(log_alpha, vectors, columns, shortest, composed)


def _run(name: str, tensors: tuple[Tensor, ...], dtype: torch.dtype, *numbers: float) -> None:
    kernel: Any = getattr(load_kernels("reflection_kernels"), f"{name}{'32' if dtype == torch.float32 else '64'}")
    kernel(*(t.data_ptr() for t in tensors), *numbers)


class _Form(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_alpha: Tensor, vectors: Tensor, columns: int, shortest: float, composed: Composed
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_alpha, vectors = log_alpha.contiguous(), vectors.contiguous()
        w, r, std, kl = (torch.empty_like(vectors), torch.empty_like(vectors), torch.empty_like(log_alpha), log_alpha.new_empty(()))
        inverses = vectors.new_empty(len(vectors), dtype=torch.float64)
        arguments = vectors, log_alpha, w, r, inverses, std, kl
        _run("form", arguments, log_alpha.dtype, *vectors.shape, float(columns), shortest)
        ctx.columns, ctx.composed = columns, composed
        ctx.save_for_backward(log_alpha, vectors, w, r, inverses)
        return w, r, std, kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        log_alpha, vectors, w, r, inverses = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            used = [t for t in (log_alpha, vectors) if t.requires_grad]
            found = iter(torch.autograd.grad(ctx.composed(log_alpha, vectors, ctx.columns), used, grads, create_graph=True))
            return *(next(found) if t.requires_grad else None for t in (log_alpha, vectors)), None, None, None
        by_w, by_r, by_std, by_kl = (g.contiguous() for g in grads)
        by_vectors, by_log_alpha, work = torch.empty_like(vectors), torch.empty_like(log_alpha), torch.empty_like(vectors)
        arguments = log_alpha, w, r, inverses, by_w, by_r, by_std, by_vectors, by_log_alpha, work
        _run("form_gradient", arguments, log_alpha.dtype, *vectors.shape, float(ctx.columns), float(by_kl))
        return by_log_alpha, by_vectors, None, None, None

"""Noise rotated by Householder reflections and the KL of variational structured dropout, as one node of the graph, for the CPU."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesify.native.operators import kernels_for
from bayesify.native.switch import kernel_for, load_kernels
from bayesify.native.threads import THREAD, over_rows

__all__ = ["Connection", "noise_and_kl", "rotates_natively"]

_CHUNK = 64  # rows whose gradients are summed together

Connection = tuple[Tensor, Tensor, Tensor, Tensor]
"""W_1 (H, K), b_1 (H,), W_2 (K, H) and b_2 (K,) of the map from one vector to the next."""

Composed = Callable[..., tuple[Tensor, Tensor]]
"""The noise and the KL as composed operators, for gradients of gradients."""


def rotates_natively(log_alpha: Tensor, vectors: Tensor, eps: Tensor, connections: Sequence[Connection]) -> bool:
    """Whether `noise_and_kl` can be used."""
    parameters = [t for connection in connections for t in connection]
    if kernels_for(log_alpha, vectors, eps, *parameters) != "numba" or not all(t.is_contiguous() for t in parameters):
        return False
    if len({len(bias) for _, bias, _, _ in connections}) > 1:
        return False
    return vectors.numel() > 0 and load_kernels("reflection_kernels") is not None


def noise_and_kl(
    log_alpha: Tensor,
    vectors: Tensor,
    eps: Tensor,
    columns: int,
    connections: Sequence[Connection],
    shortest: float,
    composed: Composed,
) -> tuple[Tensor, Tensor]:
    r"""The noise and the KL of `bayesify.functional.structured_noise_and_kl`.

    Args:
        log_alpha: (K,).
        vectors: the first ones, (T - C, K).
        eps: (B, K).
        columns: Q.
        connections: C maps from a vector to the next one, contiguous and of one size.
        shortest: the least norm of a vector that is not ignored.
        composed: from log_alpha, vectors, eps, columns and connections to the same values by operators.

    Returns:
        (B, K) and a scalar in nats, differentiable any number of times in all but eps.
    """
    return _NoiseAndKL.apply(log_alpha, vectors, eps, columns, shortest, composed, *(t for c in connections for t in c))


def _run(name: str, like: Tensor, integers: Sequence[int], reals: tuple[float, ...] = (), rows: int = 1, least: int = 1) -> None:
    module = "rotation_kernels" if name.startswith("rotate") else "reflection_kernels"
    over_rows(kernel_for(like.dtype, module, name), integers, rows, least, reals)


def _rows(state: Tensor, count: int) -> tuple[int, int, int, int]:
    """Addresses of the vectors, W, R and the root of alpha in a state (3 T + 1, K)."""
    first, size = state.data_ptr(), count * state.shape[1] * state.element_size()
    return first, first + size, first + 2 * size, first + 3 * size


class _NoiseAndKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_alpha: Tensor,
        base: Tensor,
        eps: Tensor,
        columns: int,
        shortest: float,
        composed: Composed,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        log_alpha, base, eps = log_alpha.contiguous(), base.contiguous(), eps.contiguous()
        (rows, n), given = eps.shape, len(base)
        count, rank = given + len(parameters) // 4, len(parameters[1]) if parameters else 0
        state, kl, out = log_alpha.new_empty(3 * count + 1, n), log_alpha.new_empty(()), torch.empty_like(eps)
        along, wide = log_alpha.new_empty(rows, count), state.new_empty(count + (count - given) * rank, dtype=torch.float64)
        vectors, w, r, std = _rows(state, count)
        table, inverses = array("q", (t.data_ptr() for t in parameters)), wide.data_ptr()
        integers = base.data_ptr(), given, table.buffer_info()[0], rank, inverses + 8 * count, vectors, w, r, std
        integers = *integers, log_alpha.data_ptr(), inverses, kl.data_ptr(), count, n, columns
        _run("form", eps, integers, (shortest,))
        integers = eps.data_ptr(), w, r, std, along.data_ptr(), out.data_ptr(), count, n
        _run("rotate", eps, integers, (), rows, THREAD // (count * n))
        ctx.columns, ctx.composed = columns, composed
        ctx.save_for_backward(log_alpha, base, eps, state, wide, along, *parameters)
        return out, kl

    @staticmethod
    def backward(ctx: Any, by_noise: Tensor, by_kl: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        log_alpha, base, eps, state, wide, along, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradient
            connections = list(zip(*[iter(parameters)] * 4, strict=True))
            inputs = log_alpha, base, *parameters
            used = [t for t in inputs if t.requires_grad]
            outputs = ctx.composed(log_alpha, base, eps, ctx.columns, connections)
            found = iter(torch.autograd.grad(outputs, used, (by_noise, by_kl), create_graph=True))
            by_log_alpha, by_base, *others = [next(found) if t.requires_grad else None for t in inputs]
            return by_log_alpha, by_base, None, None, None, None, *others
        by_noise, (rows, n), (given, count) = by_noise.contiguous(), eps.shape, (len(base), along.shape[1])
        rank, chunks = len(parameters[1]) if parameters else 0, -(-rows // _CHUNK)
        vectors, w, r, std = _rows(state, count)
        sums, work = eps.new_empty(chunks, 2 * count + 1, n), eps.new_empty(count, n, dtype=torch.float64)
        integers = by_noise.data_ptr(), eps.data_ptr(), w, along.data_ptr(), sums.data_ptr(), count, n, rows, _CHUNK
        _run("rotate_gradient", eps, integers, (), chunks, THREAD // (count * n * _CHUNK))
        by_log_alpha, by_base, *others = [torch.empty_like(t) for t in (log_alpha, base, *parameters)]
        table, by_table = (array("q", (t.data_ptr() for t in tensors)) for tensors in (parameters, others))
        inverses = wide.data_ptr()
        integers = by_base.data_ptr(), given, table.buffer_info()[0], by_table.buffer_info()[0], rank, inverses + 8 * count
        integers = *integers, vectors, w, r, std, inverses, sums.data_ptr(), chunks, work.data_ptr(), by_log_alpha.data_ptr()
        _run("form_gradient", eps, (*integers, count, n, ctx.columns), (float(by_kl),))
        return by_log_alpha, by_base, None, None, None, None, *others

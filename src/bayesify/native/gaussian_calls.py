"""Calls of the kernels of normal weights, and sums of their KL."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bayesify.native.gpu import gaussians as gpu_gaussians
from bayesify.native.switch import kernel_for, runs_triton
from bayesify.native.threads import THREAD, over_rows

__all__ = ["KLSum", "composed_kl", "parts_of_gradient", "run_kernel", "shifted", "variances_with_kl"]

_CHUNK = 2**13  # elements whose KL is summed in the precision of the weights


def run_kernel(name: str, rows: Sequence[Sequence[Tensor | int]], *scalars: float | Tensor, dtype: torch.dtype) -> None:
    """Call a kernel for several sets of tensors of one size, or their addresses; the first is a tensor."""
    if runs_triton(cast(Tensor, rows[0][0])):
        for row in cast(Sequence[Sequence[Tensor]], rows):
            gpu_gaussians.run_kernel(name, row[0].numel(), row, scalars)
        return
    table, chunks = array("q"), 0
    for row in rows:
        n = cast(Tensor, row[0]).numel()
        chunks -= -n // _CHUNK
        table.append(n)
        table.extend([t if isinstance(t, int) else t.data_ptr() for t in row])
    integers = table.buffer_info()[0], len(rows), _CHUNK
    over_rows(kernel_for(dtype, "gaussian_kernels", name), integers, chunks, THREAD // _CHUNK, cast(Sequence[float], scalars))


class KLSum:
    """The KL of several tensors: a sum for every chunk, so that threads do not change their order."""

    def __init__(self, tensors: Sequence[Tensor], prior_std: float) -> None:
        self.constants = 1 / (2 * prior_std**2), math.log(prior_std) - 0.5
        self.on_gpu = runs_triton(tensors[0])
        self.chunk = gpu_gaussians.BLOCK if self.on_gpu else _CHUNK
        chunks = sum(-(-t.numel() // self.chunk) for t in tensors)
        self.kls = torch.empty(chunks, dtype=torch.float64, device=tensors[0].device)
        self.next = 0

    def place(self, n: int) -> Tensor | int:
        """The memory for the sums of a tensor of n elements, or its address."""
        first, self.next = self.next, self.next - (-n // self.chunk)
        return self.kls[first : self.next] if self.on_gpu else self.kls.data_ptr() + 8 * first

    def total(self, dtype: torch.dtype) -> Tensor:
        """The KL."""
        return self.kls.sum(dtype=dtype)


def variances_with_kl(rows: Sequence[tuple[Tensor, Tensor, Tensor | None]], prior_std: float) -> tuple[list[Tensor], Tensor]:
    """Variances of weights and their KL, without a graph, for rows of mean, log standard deviation and the prior's mean."""
    kl, variances = KLSum([mean for mean, _, _ in rows], prior_std), [torch.empty_like(mean) for mean, _, _ in rows]
    arguments = [
        (log_std, shifted(mean, center), variance, kl.place(mean.numel()))
        for (mean, log_std, center), variance in zip(rows, variances, strict=True)
    ]
    run_kernel("variance", arguments, *kl.constants, dtype=variances[0].dtype)
    return variances, kl.total(variances[0].dtype)


def shifted(mean: Tensor, center: Tensor | None) -> Tensor:
    """The mean minus that of the prior."""
    return mean if center is None else mean - center


def parts_of_gradient(by_kl: Tensor | None, prior_std: float, like: Tensor) -> tuple[float, float] | tuple[Tensor, Tensor]:
    """The gradient of the KL's squares, and of the KL: numbers, or on a GPU, which is not waited for, tensors."""
    if runs_triton(like):
        value = like.new_zeros(()) if by_kl is None else by_kl
        return value / prior_std**2, value
    value = 0.0 if by_kl is None else float(by_kl)
    return value / prior_std**2, value


def composed_kl(rows: Sequence[Sequence[Tensor]], centers: Sequence[Tensor | None], prior_std: float) -> Tensor:
    """The KL of rows of mean and log standard deviation as composed operators, for gradients of gradients."""
    total = rows[0][0].new_zeros(())
    for (mean, log_std, *_), center in zip(rows, centers, strict=True):
        shift = shifted(mean, center)
        squares = torch.exp(2 * log_std).sum() + shift.square().sum()
        total = total + squares / (2 * prior_std**2) - log_std.sum() + mean.numel() * (math.log(prior_std) - 0.5)
    return total

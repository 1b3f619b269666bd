"""Calls of the kernels of normal weights, and sums of their KL."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bayesify.native.switch import load_kernels
from bayesify.native.threads import THREAD, over_rows

__all__ = ["KLSum", "composed_kl", "parts_of_gradient", "run_kernel", "variances_with_kl"]

_CHUNK = 2**13  # elements whose KL is summed in the precision of the weights


def run_kernel(name: str, n: int, tensors: Iterable[Tensor | int], *scalars: float, dtype: torch.dtype) -> None:
    """Call a kernel with addresses of tensors of n elements."""
    kernel = getattr(load_kernels("gaussian_kernels"), f"{name}{'32' if dtype == torch.float32 else '64'}")
    addresses = [t if isinstance(t, int) else t.data_ptr() for t in tensors]
    over_rows(kernel, (*addresses, n, _CHUNK), _chunks(n), THREAD // _CHUNK, scalars)


def _chunks(n: int) -> int:
    return -(-n // _CHUNK)


class KLSum:
    """The KL of several tensors: a sum for every chunk, so that threads do not change their order."""

    def __init__(self, tensors: Iterable[Tensor], prior_std: float) -> None:
        self.constants = 1 / (2 * prior_std**2), math.log(prior_std) - 0.5
        self.kls = torch.empty(sum(_chunks(t.numel()) for t in tensors), dtype=torch.float64, device="cpu")
        self.next = self.kls.data_ptr()

    def place(self, n: int) -> int:
        """The address for the sums of a tensor of n elements."""
        place, self.next = self.next, self.next + 8 * _chunks(n)
        return place

    def total(self, dtype: torch.dtype) -> Tensor:
        """The KL."""
        return self.kls.sum().to(dtype)


def variances_with_kl(rows: Sequence[tuple[Tensor, Tensor, Tensor | None]], prior_std: float) -> tuple[list[Tensor], Tensor]:
    """Variances of weights and their KL, without a graph, for rows of mean, log standard deviation and the prior's mean."""
    kl, variances = KLSum((mean for mean, _, _ in rows), prior_std), list[Tensor]()
    for mean, log_std, center in rows:
        variances.append(torch.empty_like(mean))
        n, shift = mean.numel(), mean if center is None else mean - center
        run_kernel("variance", n, (log_std, shift, variances[-1], kl.place(n)), *kl.constants, dtype=mean.dtype)
    return variances, kl.total(variances[0].dtype)


def parts_of_gradient(by_kl: Tensor | None, prior_std: float) -> tuple[float, float]:
    """The gradient of the KL's squares, and of the KL."""
    value = 0.0 if by_kl is None else float(by_kl)
    return value / prior_std**2, value


def composed_kl(rows: Sequence[Sequence[Tensor]], centers: Sequence[Tensor | None], prior_std: float) -> Tensor:
    """The KL of rows of mean and log standard deviation as composed operators, for gradients of gradients."""
    total = rows[0][0].new_zeros(())
    for (mean, log_std, *_), center in zip(rows, centers, strict=True):
        shift = mean if center is None else mean - center
        squares = torch.exp(2 * log_std).sum() + shift.square().sum()
        total = total + squares / (2 * prior_std**2) - log_std.sum() + mean.numel() * (math.log(prior_std) - 0.5)
    return total

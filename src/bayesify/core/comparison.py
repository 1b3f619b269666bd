"""Whether two computations of one tensor agree."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["close", "equal_rows"]


def close(a: Tensor, b: Tensor, eps: float = 0.0) -> bool:
    """Whether two tensors are equal up to rounding.

    Args:
        a, b: tensors.
        eps: relative rounding error of a single operation, if it is larger than that of their dtype.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return bool((a == b).all())
    tolerance = min(0.05, 1000 * max(eps, torch.finfo(a.dtype).eps))
    largest = float(torch.where(a.isfinite(), a, 0).abs().max())
    return torch.allclose(a, b, rtol=0, atol=tolerance * largest, equal_nan=True)


def equal_rows(folded: Tensor, first: Tensor, second: Tensor, samples: int = 2) -> bool:
    """Whether (S*B, ...) equals a (B, ...), then another S - 1 times, up to rounding or 0.1 % of the difference between the two.

    Equal ones, those of a network that is not random, may differ by 0.1 % of their size: sums that nearly cancel have larger
    rounding errors than their size tells.
    """
    if not first.dim() or first.shape != second.shape or folded.shape != (samples * len(first), *first.shape[1:]):
        return False
    if not first.numel():
        return True
    tolerance = 0.0
    if first.is_floating_point() or first.is_complex():
        rounding = min(0.05, 100 * torch.finfo(first.dtype).eps)
        size = max(_difference(x, torch.zeros_like(x)) for x in (first, second))
        tolerance = max(1e-3 * (_difference(first, second) or size), rounding * size)
    return all(
        torch.equal(rows.isfinite(), expected.isfinite()) and _difference(rows, expected) <= tolerance
        for rows, expected in zip(folded.split(len(first)), itertools.chain([first], itertools.repeat(second)), strict=False)
    )


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference of finite elements."""
    a, b = (torch.view_as_real(x.to(torch.complex128).resolve_conj()) if x.is_complex() else x.double() for x in (a, b))
    return float((a.nan_to_num(0, 0, 0) - b.nan_to_num(0, 0, 0)).abs().max())

"""Whether two computations of one tensor agree."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["close"]


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

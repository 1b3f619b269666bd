"""Calls of the kernels of normal weights on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesify.native.switch import load_kernels

__all__ = ["BLOCK", "run_kernel"]

BLOCK = 1024  # elements of a program


def run_kernel(name: str, n: int, tensors: Sequence[Tensor], scalars: Sequence[float | Tensor]) -> None:
    """Call a kernel with tensors of n elements."""
    kernel = getattr(load_kernels("gaussian_kernels", "triton"), name)
    with torch.cuda.device_of(tensors[0]):
        kernel[(-(-n // BLOCK),)](*tensors, n, *scalars, BLOCK=BLOCK)

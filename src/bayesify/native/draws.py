"""Normal, uniform and Bernoulli draws from a counter, in machine code, for the CPU.

Element i of a draw is a function of i and of 128 bits from PyTorch's generator (Philox4x32-10), whatever the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.native.switch import LIBRARIES, load_kernels
from bayesify.native.threads import THREAD, over_rows

__all__ = ["draw_key", "draws_natively", "fill_bernoulli", "fill_normal", "fill_uniform"]

_LEAST = 4096  # elements, below which PyTorch's kernels take less time than a call


def draws_natively(n: int, device: torch.device) -> bool:
    """Whether n numbers are drawn by the functions here; it depends on nothing else, so all kinds of code draw equal values."""
    if n < _LEAST or LIBRARIES.get(device.type) != "numba":  # on a GPU, PyTorch's draws are such
        return False
    return load_kernels("draw_kernels") is not None


def draw_key(generator: torch.Generator | None = None) -> tuple[int, int]:
    """The upper half of the counters and the key of a native draw."""
    upper, key = torch.empty(2, dtype=torch.int64, device="cpu").random_(generator=generator).tolist()
    return upper, key


def fill_normal(out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a contiguous float32 tensor on the CPU with standard normal draws; the generator is PyTorch's by default."""
    return _fill(out, generator, "NORMAL")


def fill_uniform(out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a contiguous float32 tensor on the CPU with draws from [0, 1), multiples of 2^-24."""
    return _fill(out, generator, "UNIFORM")


def fill_bernoulli(out: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """Fill a contiguous float32 tensor on the CPU with 1, with probability p up to 2^-33, and 0."""
    limit = round(p * 2**32)
    return out.fill_(limit >> 32) if limit in (0, 2**32) else _fill(out, generator, "BERNOULLI", limit)


def _fill(out: Tensor, generator: torch.Generator | None, kind: str, limit: int = 0) -> Tensor:
    kernels = load_kernels("draw_kernels")
    assert kernels is not None
    upper, key = draw_key(generator)
    n, block = out.numel(), kernels.BLOCK
    over_rows(kernels.draw32, (out.data_ptr(), n, getattr(kernels, kind), limit, upper, key), -(-n // block), THREAD // block)
    return out

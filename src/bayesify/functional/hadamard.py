r"""The fast Walsh-Hadamard transform and Hadamard matrices.

$H_1 = 1$ and $H_{2n} = \begin{pmatrix} H_n & H_n \\ H_n & -H_n \end{pmatrix}$ (natural order, entries 1 and -1), so
that $H = H^\top$, $HH = nI$, and $H_{ab} = H_a \otimes H_b$: a transform is a product with a few small Hadamard matrices.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError
from bayesify.native.operators import native_fwht, transforms_natively

__all__ = ["fwht", "hadamard_matrix"]


def fwht(x: Tensor, normalize: bool = False) -> Tensor:
    r"""Fast Walsh-Hadamard transform over the last dimension, $y_i = \sum_j (-1)^{\mathrm{popcount}(i \wedge j)} x_j$.

    It is differentiable any number of times. Under autocast it runs in the lower precision, like any matrix product.

    Args:
        x: (..., n), floating point, n a power of two; pad with zeros to reach one (`torch.nn.functional.pad`).
        normalize: divide by $\sqrt n$, which makes the transform orthonormal and its own inverse; otherwise `fwht(fwht(x))`
            is n x.

    Returns:
        (..., n), in about n log n operations; no matrix is larger than 128 x 128.

    Raises:
        TypeError: x is not a floating point tensor.
        ConfigurationError: n is not a power of two.

    Source: Fino & Algazi, *Unified matrix treatment of the fast Walsh-Hadamard transform* (1976).

    Example:
        >>> fwht(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([10., -2., -4.,  0.])
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"x must be a floating point tensor, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")
    if x.dim() == 0:
        raise ConfigurationError("x must have at least one dimension, got a scalar")
    n = int(x.shape[-1])  # not a symbolic size while tracing
    if not _is_power_of_two(n):
        raise ConfigurationError(
            f"the last dimension of x must be a power of two, got {n}; x has shape {tuple(x.shape)}, pad it with zeros"
        )
    if transforms_natively(x):
        y = native_fwht(x)
    else:
        sizes = factors(n)
        y = torch.matmul(x, _small(n, x)) if len(sizes) == 1 else _products(x, sizes)
    return y * n**-0.5 if normalize else y


def hadamard_matrix(n: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """The n x n Hadamard matrix in natural order, whose product with x is `fwht(x)`.

    Args:
        n: a power of two.
        dtype, device: of the result; by default PyTorch's.

    Returns:
        (n, n), symmetric, with entries 1 and -1.

    Raises:
        ConfigurationError: n is not a power of two.

    Example:
        >>> hadamard_matrix(2)
        tensor([[ 1.,  1.],
                [ 1., -1.]])
    """
    if isinstance(n, bool) or not isinstance(n, int) or not _is_power_of_two(n):
        raise ConfigurationError(f"n must be a power of two, got {n!r}")
    h = torch.ones(1, 1, dtype=dtype, device=device)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


# log2 of the sizes of the Hadamard matrices whose Kronecker product is H, by log2 of n; the fastest for batches of 128 and 512
_FACTORS = {
    8: (4, 4), 9: (5, 4), 10: (6, 4), 11: (2, 4, 5), 12: (3, 4, 5), 13: (3, 4, 6), 14: (5, 4, 5),
}  # fmt: skip
_DENSE, _LARGEST = 7, 7


def factors(n: int) -> tuple[int, ...]:
    """The sizes of the Hadamard matrices that `fwht` multiplies by."""
    bits = n.bit_length() - 1
    if bits <= _DENSE:
        return (n,)
    count = math.ceil(bits / 5)
    even = tuple(bits // count + (i < bits % count) for i in range(count))
    return tuple(2**b for b in _FACTORS.get(bits, even))


def _products(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Products with the factors, the fastest-varying first. Autograd saves no activations, because H is constant."""
    *others, inner = sizes
    y = torch.mm(x.reshape(-1, inner), _small(inner, x))
    for size in reversed(others):
        y = y.view(-1, size, inner)
        y = torch.bmm(_small(size, y).expand(y.shape[0], size, size), y)
        inner *= size
    return y.view(x.shape)


# Small Hadamard matrices are cached: making one takes longer than multiplying by it.
_CORNERS = [2**bits for bits in range(_LARGEST + 1)]
_TABLE = hadamard_matrix(_CORNERS[-1], dtype=torch.float64, device="cpu")
_TABLES: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}
for _dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    _TABLES |= {(n, _dtype, _TABLE.device): _TABLE.to(_dtype)[:n, :n] for n in _CORNERS}


def _small(n: int, like: Tensor) -> Tensor:
    """The cached matrix of size n, a corner of the largest."""
    table = _TABLES.get((n, like.dtype, like.device))
    if table is None:
        table = _TABLE[:n, :n].to(device=like.device, dtype=like.dtype)
        # tensors made while tracing have no values and must not be cached
        if type(table) is Tensor and not torch.compiler.is_compiling() and not cast(Any, torch)._is_functional_tensor(table):
            _TABLES[n, like.dtype, like.device] = table
    return table

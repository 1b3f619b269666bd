"""Elementary functions that kernels share."""
# pyright: reportMissingImports=false, reportOperatorIssue=false, reportUntypedFunctionDecorator=false, reportArgumentType=false

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from bayesify.native.compilation import INLINED, inlined

SUMS = {"contract", "nsz", "reassoc"}  # flags of fast mathematics for sums of vectors in any order
f32, i32 = np.float32, np.int32


def exponential(x):
    """The exponential, in vector instructions for float32: the polynomial of the Cephes library, 0 below 1e-38."""


@overload(exponential, jit_options={**INLINED, "fastmath": {"contract"}})
def _(x):
    def wide(x):
        return np.exp(x)

    def single(x):
        x = f32(-88) if x < f32(-88) else f32(89) if x > f32(89) else x  # NaN stays
        n = np.rint(x * f32(1.44269504))
        r = (x - n * f32(0.693359375)) + n * f32(2.12194440e-4)
        p = f32(1.9875691500e-4)
        p = p * r + f32(1.3981999507e-3)
        p = p * r + f32(8.3334519073e-3)
        p = p * r + f32(4.1665795894e-2)
        p = p * r + f32(1.6666665459e-1)
        p = p * r + f32(5.0000001201e-1)
        return (p * (r * r) + (r + f32(1))) * i32((i32(n) + i32(127)) << i32(23)).view(f32)

    return single if x == types.float32 else wide


@inlined(SUMS)
def dot(a, s, b, t, n):
    """The product of row s of a and row t of b, float64."""
    total = 0.0
    for k in range(n):
        total += np.float64(a[s * n + k]) * b[t * n + k]
    return total


@inlined({"contract"})
def add_row(a, t, factor, b, s, n):
    """Add row s of b, times a factor, to row t of a."""
    for k in range(n):
        a[t * n + k] += factor * b[s * n + k]

"""Rows of noise rotated by Householder reflections in the compact form of `reflection_kernels`, and the gradient."""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.elementary_kernels import SUMS, add_row
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at

f32 = np.float32


@inlined(SUMS)
def _rotate(zero, one, eps, w, r, std, along, out, count, n, first, rows):
    scaled = np.full(count * n, zero)  # R diag(std)
    for t in range(count):
        for k in range(n):
            scaled[t * n + k] = r[t * n + k] * std[k]
    for row in range(first, first + rows):
        begin = row * n
        for k in range(n):
            out[begin + k] = one + std[k] * eps[begin + k]
        for t in range(count):
            total = zero
            for k in range(n):
                total += eps[begin + k] * scaled[t * n + k]
            along[row * count + t] = total
            add_row(out, row, -(total + total), w, t, n)


@inlined(SUMS)
def _rotate_gradient(zero, by_noise, eps, w, along, sums, count, n, begin, end):
    """Sums over rows of the gradients in W, in R diag(std), and in std without U: (2 T + 1, K)."""
    for i in range((2 * count + 1) * n):
        sums[i] = zero
    for row in range(begin, end):
        for t in range(count):
            total, factor = zero, -(along[row * count + t] + along[row * count + t])
            for k in range(n):
                total += by_noise[row * n + k] * w[t * n + k]
            add_row(sums, t, factor, by_noise, row, n)
            add_row(sums, count + t, -(total + total), eps, row, n)
        for k in range(n):
            sums[2 * count * n + k] += by_noise[row * n + k] * eps[row * n + k]


@Kernel
def rotate32(record):
    """The noise 1 + U (std eps) of rows of eps, and R (std eps), (rows, T)."""
    eps, w, r, std, along, out, count, n, first, rows = arguments(record, 8, 0)
    p = float32_at
    _rotate(f32(0), f32(1), p(eps), p(w), p(r), p(std), p(along), p(out), count, n, first, rows)


@Kernel
def rotate64(record):
    """`rotate32` for float64."""
    eps, w, r, std, along, out, count, n, first, rows = arguments(record, 8, 0)
    p = float64_at
    _rotate(0.0, 1.0, p(eps), p(w), p(r), p(std), p(along), p(out), count, n, first, rows)


@Kernel
def rotate_gradient32(record):
    """For every chunk of rows the sums of `_rotate_gradient`, from the gradient of the noise."""
    by_noise, eps, w, along, sums, count, n, total, chunk, first, chunks = arguments(record, 9, 0)
    p = float32_at
    for c in range(first, first + chunks):
        own, end = p(sums + 4 * c * (2 * count + 1) * n), min((c + 1) * chunk, total)
        _rotate_gradient(f32(0), p(by_noise), p(eps), p(w), p(along), own, count, n, c * chunk, end)


@Kernel
def rotate_gradient64(record):
    """`rotate_gradient32` for float64."""
    by_noise, eps, w, along, sums, count, n, total, chunk, first, chunks = arguments(record, 9, 0)
    p = float64_at
    for c in range(first, first + chunks):
        own, end = p(sums + 8 * c * (2 * count + 1) * n), min((c + 1) * chunk, total)
        _rotate_gradient(0.0, p(by_noise), p(eps), p(w), p(along), own, count, n, c * chunk, end)

"""Factors of channels in one pass over memory."""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.elementary_kernels import SUMS
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at


@inlined({"contract"})
def _scale_planes(x, factors, shift, out, channels, positions, first, rows):
    for plane in range(first * channels, (first + rows) * channels):
        factor, constant, begin = factors[plane], shift[plane % channels], plane * positions
        for i in range(begin, begin + positions):
            out[i] = x[i] * factor + constant


@inlined({"contract"})
def _scale_pixels(x, factors, shift, out, channels, positions, first, rows):
    for row in range(first, first + rows):
        for begin in range(row * positions * channels, (row + 1) * positions * channels, channels):
            for c in range(channels):
                out[begin + c] = x[begin + c] * factors[row * channels + c] + shift[c]


@inlined(SUMS)
def _plane_gradient(zero, grad, x, factor, by_x, begin, end):
    products = total = zero
    for i in range(begin, end):
        by_x[i] = grad[i] * factor
        products += grad[i] * x[i]
        total += grad[i]
    return products, total


@inlined()
def _planes_gradient(zero, grad, x, factors, by_x, sums, totals, channels, positions, first, rows):
    for plane in range(first * channels, (first + rows) * channels):
        begin = plane * positions
        sums[plane], totals[plane] = _plane_gradient(zero, grad, x, factors[plane], by_x, begin, begin + positions)


@inlined({"contract"})
def _pixels_gradient(zero, grad, x, factors, by_x, sums, totals, channels, positions, first, rows):
    for row in range(first, first + rows):
        start = row * channels
        for c in range(start, start + channels):
            sums[c] = totals[c] = zero
        for begin in range(start * positions, (start + channels) * positions, channels):
            for c in range(channels):
                g = grad[begin + c]
                by_x[begin + c] = g * factors[start + c]
                sums[start + c] += g * x[begin + c]
                totals[start + c] += g


@Kernel
def scale32(record):
    """out = x factor + shift by channel, for rows (channels, positions) at addresses, or (positions, channels) if last."""
    x, factors, shift, out, channels, positions, last, first, rows = arguments(record, 7, 0)
    p = float32_at
    if last:
        _scale_pixels(p(x), p(factors), p(shift), p(out), channels, positions, first, rows)
    else:
        _scale_planes(p(x), p(factors), p(shift), p(out), channels, positions, first, rows)


@Kernel
def scale64(record):
    """`scale32` for float64."""
    x, factors, shift, out, channels, positions, last, first, rows = arguments(record, 7, 0)
    p = float64_at
    if last:
        _scale_pixels(p(x), p(factors), p(shift), p(out), channels, positions, first, rows)
    else:
        _scale_planes(p(x), p(factors), p(shift), p(out), channels, positions, first, rows)


@Kernel
def scale_gradient32(record):
    """Gradients of `scale32`: in x, and by row and channel in the factors (sums) and the shift (totals)."""
    grad, x, factors, by_x, sums, totals, channels, positions, last, first, rows = arguments(record, 9, 0)
    p, zero = float32_at, np.float32(0)
    if last:
        _pixels_gradient(zero, p(grad), p(x), p(factors), p(by_x), p(sums), p(totals), channels, positions, first, rows)
    else:
        _planes_gradient(zero, p(grad), p(x), p(factors), p(by_x), p(sums), p(totals), channels, positions, first, rows)


@Kernel
def scale_gradient64(record):
    """`scale_gradient32` for float64."""
    grad, x, factors, by_x, sums, totals, channels, positions, last, first, rows = arguments(record, 9, 0)
    p, zero = float64_at, 0.0
    if last:
        _pixels_gradient(zero, p(grad), p(x), p(factors), p(by_x), p(sums), p(totals), channels, positions, first, rows)
    else:
        _planes_gradient(zero, p(grad), p(x), p(factors), p(by_x), p(sums), p(totals), channels, positions, first, rows)

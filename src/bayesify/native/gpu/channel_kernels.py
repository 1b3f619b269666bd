"""Factors of channels, and the KL of Gaussian dropout, each in one pass over memory.

A program has CHANNELS of one row and their positions, POSITIONS at a time. Strides are those of channels and of positions, so that
contiguous and channels-last tensors have the same kernels.
"""
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def scale(x, factors, shift, out, channels, positions, stride, step, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr):
    """out = x factor + shift by channel, for rows at multiples of channels * positions."""
    row, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    factor = tl.load(factors + row * channels + channel, mask=is_channel, other=0)[:, None]
    constant = tl.load(shift + channel, mask=is_channel, other=0)[:, None]
    for begin in range(0, positions, POSITIONS):
        position = begin + tl.arange(0, POSITIONS)[None, :]
        at = row * channels * positions + channel[:, None] * stride + position * step
        used = is_channel[:, None] & (position < positions)
        tl.store(out + at, tl.load(x + at, mask=used, other=0) * factor + constant, mask=used)


@triton.jit
def scale_gradient(
    grad, x, factors, by_x, sums, totals, channels, positions, stride, step, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr
):  # fmt: skip
    """Gradients of `scale`: in x, and by row and channel in the factors (sums) and the shift (totals)."""
    row, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    factor = tl.load(factors + row * channels + channel, mask=is_channel, other=0)[:, None]
    products = tl.zeros([CHANNELS, POSITIONS], tl.float32)
    gradients = tl.zeros([CHANNELS, POSITIONS], tl.float32)
    for begin in range(0, positions, POSITIONS):
        position = begin + tl.arange(0, POSITIONS)[None, :]
        at = row * channels * positions + channel[:, None] * stride + position * step
        used = is_channel[:, None] & (position < positions)
        upstream = tl.load(grad + at, mask=used, other=0)
        products += upstream * tl.load(x + at, mask=used, other=0)
        gradients += upstream
        tl.store(by_x + at, upstream * factor, mask=used)
    tl.store(sums + row * channels + channel, tl.sum(products, 1), mask=is_channel)
    tl.store(totals + row * channels + channel, tl.sum(gradients, 1), mask=is_channel)


@triton.jit
def _log1p(x):
    # log(1 + x) times the ratio of x and the rounded 1 + x - 1, which corrects the rounding
    rounded = 1 + x
    difference = rounded - 1
    return tl.where(difference == 0, x, tl.log(rounded) * (x / tl.where(difference == 0, 1, difference)))


@triton.jit
def log_uniform(log_alphas, values, slopes, table, n, TERMS: tl.constexpr, BLOCK: tl.constexpr):
    """The KL of Gaussian dropout from the log-uniform prior and its derivative, for the coefficients of P and Q, in float64."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    log_alpha = tl.load(log_alphas + at, mask=at < n, other=0).to(tl.float64)
    inverse = tl.exp(-log_alpha)
    s, rest = 1 / (1 + inverse / 2), 1 / (1 + 2 / inverse)
    top = tl.zeros([BLOCK], tl.float64)
    bottom = tl.zeros([BLOCK], tl.float64)
    by_top = tl.zeros([BLOCK], tl.float64)
    by_bottom = tl.zeros([BLOCK], tl.float64)
    for i in range(TERMS):  # Horner's rule, of the polynomials and their derivatives
        p, q = tl.load(table + TERMS - 1 - i), tl.load(table + 2 * TERMS - 1 - i)
        by_top, top = by_top * s + top, top * s + p
        by_bottom, bottom = by_bottom * s + bottom, bottom * s + q
    ratio, square = top / bottom, rest * rest
    value = tl.where(log_alpha > -30, _log1p(inverse), -log_alpha) / 2 + square * ratio
    slope = s * square * (rest * (by_top - ratio * by_bottom) / bottom - 2 * ratio) - 1 / (1 + 1 / inverse) / 2
    tl.store(values + at, value, mask=at < n)
    tl.store(slopes + at, slope, mask=at < n)

"""Draws, variances and KL divergences of normal weights, and local reparameterization, each in one pass over memory.

A kernel computes on several tensors in one call: its record has the address of a table with a row for each, of their number of
elements and addresses, and the number of rows. Chunks are numbered through all tensors.
"""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import numpy as np

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.elementary_kernels import SUMS, exponential
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at, int64_at

f32 = np.float32


@inlined(SUMS)
def _draw(zero, mean, log_std, shift, eps, out, begin, end):
    squares = logs = zero
    for i in range(begin, end):
        std = exponential(log_std[i])
        out[i] = mean[i] + std * eps[i]
        squares += std * std + shift[i] * shift[i]
        logs += log_std[i]
    return squares, logs


@inlined(SUMS)
def _variance(zero, log_std, shift, out, begin, end):
    squares = logs = zero
    for i in range(begin, end):
        std = exponential(log_std[i])
        out[i] = std * std
        squares += std * std + shift[i] * shift[i]
        logs += log_std[i]
    return squares, logs


@inlined({"contract"})
def _draw_gradient(by_out, log_std, shift, eps, by_mean, by_log, share, by_kl, begin, end):
    for i in range(begin, end):
        std = exponential(log_std[i])
        by_mean[i] = by_out[i] + share * shift[i]
        by_log[i] = std * (by_out[i] * eps[i] + share * std) - by_kl


@inlined({"contract"})
def _variance_gradient(by_out, by_variance, variance, shift, by_mean, by_log, share, by_kl, begin, end):
    for i in range(begin, end):
        by_mean[i] = by_out[i] + share * shift[i]
        by_log[i] = variance[i] * (by_variance[i] * 2 + share) - by_kl


@inlined({"contract"})
def _add_kl_gradient(by_mean, by_log, variance, shift, share, by_kl, begin, end):
    for i in range(begin, end):
        by_mean[i] += share * shift[i]
        by_log[i] = variance[i] * (by_log[i] * 2 + share) - by_kl


@inlined({"contract"})
def _reparameterize(mean, variance, eps, out, least, half, begin, end):
    for i in range(begin, end):
        std, noise = np.sqrt(least if variance[i] < least else variance[i]), eps[i]
        out[i] = mean[i] + std * noise
        eps[i] = half * noise / std


@inlined()
def _draw_chunks(zero, mean, log_std, shift, eps, out, kls, n, chunk, half, constant, first, chunks):
    for c in range(first, first + chunks):
        begin, end = c * chunk, min((c + 1) * chunk, n)
        squares, logs = _draw(zero, mean, log_std, shift, eps, out, begin, end)
        kls[c] = half * squares - logs + constant * (end - begin)


@inlined()
def _variance_chunks(zero, log_std, shift, out, kls, n, chunk, half, constant, first, chunks):
    for c in range(first, first + chunks):
        begin, end = c * chunk, min((c + 1) * chunk, n)
        squares, logs = _variance(zero, log_std, shift, out, begin, end)
        kls[c] = half * squares - logs + constant * (end - begin)


@inlined()
def _draw_gradient_chunks(by_out, log_std, shift, eps, by_mean, by_log, n, chunk, share, by_kl, first, chunks):
    _draw_gradient(by_out, log_std, shift, eps, by_mean, by_log, share, by_kl, first * chunk, min((first + chunks) * chunk, n))


@inlined()
def _variance_gradient_chunks(by_out, by_variance, variance, shift, by_mean, by_log, n, chunk, share, by_kl, first, chunks):
    begin, end = first * chunk, min((first + chunks) * chunk, n)
    _variance_gradient(by_out, by_variance, variance, shift, by_mean, by_log, share, by_kl, begin, end)


@inlined()
def _add_kl_gradient_chunks(by_mean, by_log, variance, shift, n, chunk, share, by_kl, first, chunks):
    _add_kl_gradient(by_mean, by_log, variance, shift, share, by_kl, first * chunk, min((first + chunks) * chunk, n))


@inlined()
def _reparameterize_chunks(mean, variance, eps, out, n, chunk, least, half, first, chunks):
    _reparameterize(mean, variance, eps, out, least, half, first * chunk, min((first + chunks) * chunk, n))


@inlined()
def _own(n, chunk, start, first, chunks):
    """The chunks of a tensor, of which the first has this number, that are in a range: the first of them and how many."""
    begin, end = max(first, start), min(first + chunks, start - (-n // chunk))
    return begin - start, max(end - begin, 0)


@Kernel
def draw32(record):
    """out = mean + exp(log_std) eps, and for every chunk the KL in nats, float64.

    Args:
        t: n, mean, log_std, the mean minus that of the prior, eps, out, KLs.
        half, constant: 1 / (2 s^2) and log(s) - 1/2 for the prior's standard deviation s.
    """
    table, count, chunk, half, constant, first, chunks = arguments(record, 3, 2)
    p, start = float32_at, 0
    for i in range(count):
        t = int64_at(table + 56 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _draw_chunks(f32(0), p(t[1]), p(t[2]), p(t[3]), p(t[4]), p(t[5]), float64_at(t[6]), t[0], chunk, half, constant, begin, own)
        start -= -t[0] // chunk


@Kernel
def draw64(record):
    """`draw32` for float64."""
    table, count, chunk, half, constant, first, chunks = arguments(record, 3, 2)
    p, start = float64_at, 0
    for i in range(count):
        t = int64_at(table + 56 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _draw_chunks(0.0, p(t[1]), p(t[2]), p(t[3]), p(t[4]), p(t[5]), float64_at(t[6]), t[0], chunk, half, constant, begin, own)
        start -= -t[0] // chunk


@Kernel
def variance32(record):
    """out = exp(2 log_std), and KLs as in `draw32`; t: n, log_std, the mean minus that of the prior, out, KLs."""
    table, count, chunk, half, constant, first, chunks = arguments(record, 3, 2)
    p, start = float32_at, 0
    for i in range(count):
        t = int64_at(table + 40 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _variance_chunks(f32(0), p(t[1]), p(t[2]), p(t[3]), float64_at(t[4]), t[0], chunk, half, constant, begin, own)
        start -= -t[0] // chunk


@Kernel
def variance64(record):
    """`variance32` for float64."""
    table, count, chunk, half, constant, first, chunks = arguments(record, 3, 2)
    p, start = float64_at, 0
    for i in range(count):
        t = int64_at(table + 40 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _variance_chunks(0.0, p(t[1]), p(t[2]), p(t[3]), float64_at(t[4]), t[0], chunk, half, constant, begin, own)
        start -= -t[0] // chunk


@Kernel
def draw_gradient32(record):
    """Gradients of `draw32` in mean and log_std, given those in out and in the KL; share is the latter over s^2.

    Args:
        t: n, the gradient in out, log_std, the mean minus that of the prior, eps, the gradients in mean and log_std.
    """
    table, count, chunk, share, by_kl, first, chunks = arguments(record, 3, 2)
    p, start = float32_at, 0
    for i in range(count):
        t = int64_at(table + 56 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _draw_gradient_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), p(t[5]), p(t[6]), t[0], chunk, f32(share), f32(by_kl), begin, own)
        start -= -t[0] // chunk


@Kernel
def draw_gradient64(record):
    """`draw_gradient32` for float64."""
    table, count, chunk, share, by_kl, first, chunks = arguments(record, 3, 2)
    p, start = float64_at, 0
    for i in range(count):
        t = int64_at(table + 56 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _draw_gradient_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), p(t[5]), p(t[6]), t[0], chunk, share, by_kl, begin, own)
        start -= -t[0] // chunk


@Kernel
def variance_gradient32(record):
    """Gradients of `variance32`, as in `draw32`.

    Args:
        t: n, the gradient that the mean has otherwise, that in out, out, the mean minus that of the prior, the gradients in mean
            and log_std.
    """
    table, count, chunk, share, by_kl, first, chunks = arguments(record, 3, 2)
    p, start = float32_at, 0
    for i in range(count):
        t = int64_at(table + 56 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _variance_gradient_chunks(
            p(t[1]), p(t[2]), p(t[3]), p(t[4]), p(t[5]), p(t[6]), t[0], chunk, f32(share), f32(by_kl), begin, own
        )
        start -= -t[0] // chunk


@Kernel
def variance_gradient64(record):
    """`variance_gradient32` for float64."""
    table, count, chunk, share, by_kl, first, chunks = arguments(record, 3, 2)
    p, start = float64_at, 0
    for i in range(count):
        t = int64_at(table + 56 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _variance_gradient_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), p(t[5]), p(t[6]), t[0], chunk, share, by_kl, begin, own)
        start -= -t[0] // chunk


@Kernel
def add_kl_gradient32(record):
    """`variance_gradient32` in place; t: n, the gradients in out and in the variance, the variance, the mean minus the prior's."""
    table, count, chunk, share, by_kl, first, chunks = arguments(record, 3, 2)
    p, start = float32_at, 0
    for i in range(count):
        t = int64_at(table + 40 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _add_kl_gradient_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), t[0], chunk, f32(share), f32(by_kl), begin, own)
        start -= -t[0] // chunk


@Kernel
def add_kl_gradient64(record):
    """`add_kl_gradient32` for float64."""
    table, count, chunk, share, by_kl, first, chunks = arguments(record, 3, 2)
    p, start = float64_at, 0
    for i in range(count):
        t = int64_at(table + 40 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _add_kl_gradient_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), t[0], chunk, share, by_kl, begin, own)
        start -= -t[0] // chunk


@Kernel
def reparameterize32(record):
    """out = mean + std eps, and half eps / std in place of eps, for the root of the variance, which is at least `least`.

    Args:
        t: n, mean, variance, eps, out.
    """
    table, count, chunk, least, half, first, chunks = arguments(record, 3, 2)
    p, start = float32_at, 0
    for i in range(count):
        t = int64_at(table + 40 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _reparameterize_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), t[0], chunk, f32(least), f32(half), begin, own)
        start -= -t[0] // chunk


@Kernel
def reparameterize64(record):
    """`reparameterize32` for float64."""
    table, count, chunk, least, half, first, chunks = arguments(record, 3, 2)
    p, start = float64_at, 0
    for i in range(count):
        t = int64_at(table + 40 * i)
        begin, own = _own(t[0], chunk, start, first, chunks)
        _reparameterize_chunks(p(t[1]), p(t[2]), p(t[3]), p(t[4]), t[0], chunk, least, half, begin, own)
        start -= -t[0] // chunk

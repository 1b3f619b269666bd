"""Draws, variances and KL divergences of normal weights, and local reparameterization, each in one pass over memory."""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import numpy as np
from numba import njit

from bayesify.native.compilation import Kernel
from bayesify.native.elementary_kernels import exponential
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at

_SUMS = {"contract", "nsz", "reassoc"}  # sums of vectors in any order
f32 = np.float32


@njit(nogil=True, error_model="numpy", fastmath=_SUMS)
def _draw(zero, mean, log_std, shift, eps, out, begin, end):
    squares = logs = zero
    for i in range(begin, end):
        std = exponential(log_std[i])
        out[i] = mean[i] + std * eps[i]
        squares += std * std + shift[i] * shift[i]
        logs += log_std[i]
    return squares, logs


@njit(nogil=True, error_model="numpy", fastmath=_SUMS)
def _variance(zero, log_std, shift, out, begin, end):
    squares = logs = zero
    for i in range(begin, end):
        std = exponential(log_std[i])
        out[i] = std * std
        squares += std * std + shift[i] * shift[i]
        logs += log_std[i]
    return squares, logs


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _draw_gradient(by_out, log_std, shift, eps, by_mean, by_log, share, by_kl, begin, end):
    for i in range(begin, end):
        std = exponential(log_std[i])
        by_mean[i] = by_out[i] + share * shift[i]
        by_log[i] = std * (by_out[i] * eps[i] + share * std) - by_kl


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _variance_gradient(by_out, by_variance, variance, shift, by_mean, by_log, share, by_kl, begin, end):
    for i in range(begin, end):
        by_mean[i] = by_out[i] + share * shift[i]
        by_log[i] = variance[i] * (by_variance[i] * 2 + share) - by_kl


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _add_kl_gradient(by_mean, by_log, variance, shift, share, by_kl, begin, end):
    for i in range(begin, end):
        by_mean[i] += share * shift[i]
        by_log[i] = variance[i] * (by_log[i] * 2 + share) - by_kl


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _reparameterize(mean, variance, eps, out, least, half, begin, end):
    for i in range(begin, end):
        std, noise = np.sqrt(least if variance[i] < least else variance[i]), eps[i]
        out[i] = mean[i] + std * noise
        eps[i] = half * noise / std


@njit(nogil=True, error_model="numpy")
def _draw_chunks(zero, mean, log_std, shift, eps, out, kls, n, chunk, half, constant, first, chunks):
    for c in range(first, first + chunks):
        begin, end = c * chunk, min((c + 1) * chunk, n)
        squares, logs = _draw(zero, mean, log_std, shift, eps, out, begin, end)
        kls[c] = half * squares - logs + constant * (end - begin)


@njit(nogil=True, error_model="numpy")
def _variance_chunks(zero, log_std, shift, out, kls, n, chunk, half, constant, first, chunks):
    for c in range(first, first + chunks):
        begin, end = c * chunk, min((c + 1) * chunk, n)
        squares, logs = _variance(zero, log_std, shift, out, begin, end)
        kls[c] = half * squares - logs + constant * (end - begin)


@njit(nogil=True, error_model="numpy")
def _draw_gradient_chunks(by_out, log_std, shift, eps, by_mean, by_log, n, chunk, share, by_kl, first, chunks):
    _draw_gradient(by_out, log_std, shift, eps, by_mean, by_log, share, by_kl, first * chunk, min((first + chunks) * chunk, n))


@njit(nogil=True, error_model="numpy")
def _variance_gradient_chunks(by_out, by_variance, variance, shift, by_mean, by_log, n, chunk, share, by_kl, first, chunks):
    begin, end = first * chunk, min((first + chunks) * chunk, n)
    _variance_gradient(by_out, by_variance, variance, shift, by_mean, by_log, share, by_kl, begin, end)


@njit(nogil=True, error_model="numpy")
def _add_kl_gradient_chunks(by_mean, by_log, variance, shift, n, chunk, share, by_kl, first, chunks):
    _add_kl_gradient(by_mean, by_log, variance, shift, share, by_kl, first * chunk, min((first + chunks) * chunk, n))


@njit(nogil=True, error_model="numpy")
def _reparameterize_chunks(mean, variance, eps, out, n, chunk, least, half, first, chunks):
    _reparameterize(mean, variance, eps, out, least, half, first * chunk, min((first + chunks) * chunk, n))


@Kernel
def draw32(record):
    """out = mean + exp(log_std) eps for n weights at addresses, and for every chunk the KL in nats, float64.

    Args:
        shift: the mean minus that of the prior.
        half, constant: 1 / (2 s^2) and log(s) - 1/2 for the prior's standard deviation s.
        first, chunks: the range of chunks.
    """
    mean, log_std, shift, eps, out, kls, n, chunk, half, constant, first, chunks = arguments(record, 8, 2)
    p = float32_at
    _draw_chunks(f32(0), p(mean), p(log_std), p(shift), p(eps), p(out), float64_at(kls), n, chunk, half, constant, first, chunks)


@Kernel
def draw64(record):
    """`draw32` for float64."""
    mean, log_std, shift, eps, out, kls, n, chunk, half, constant, first, chunks = arguments(record, 8, 2)
    p = float64_at
    _draw_chunks(0.0, p(mean), p(log_std), p(shift), p(eps), p(out), float64_at(kls), n, chunk, half, constant, first, chunks)


@Kernel
def variance32(record):
    """out = exp(2 log_std), and KLs as in `draw32`."""
    log_std, shift, out, kls, n, chunk, half, constant, first, chunks = arguments(record, 6, 2)
    p = float32_at
    _variance_chunks(f32(0), p(log_std), p(shift), p(out), float64_at(kls), n, chunk, half, constant, first, chunks)


@Kernel
def variance64(record):
    """`variance32` for float64."""
    log_std, shift, out, kls, n, chunk, half, constant, first, chunks = arguments(record, 6, 2)
    p = float64_at
    _variance_chunks(0.0, p(log_std), p(shift), p(out), float64_at(kls), n, chunk, half, constant, first, chunks)


@Kernel
def draw_gradient32(record):
    """Gradients of `draw32` in mean and log_std, given those in out and in the KL; share is the latter over s^2."""
    by_out, log_std, shift, eps, by_mean, by_log, n, chunk, share, by_kl, first, chunks = arguments(record, 8, 2)
    p = float32_at
    _draw_gradient_chunks(
        p(by_out), p(log_std), p(shift), p(eps), p(by_mean), p(by_log), n, chunk, f32(share), f32(by_kl), first, chunks
    )


@Kernel
def draw_gradient64(record):
    """`draw_gradient32` for float64."""
    by_out, log_std, shift, eps, by_mean, by_log, n, chunk, share, by_kl, first, chunks = arguments(record, 8, 2)
    p = float64_at
    _draw_gradient_chunks(p(by_out), p(log_std), p(shift), p(eps), p(by_mean), p(by_log), n, chunk, share, by_kl, first, chunks)


@Kernel
def variance_gradient32(record):
    """Gradients of `variance32`, as in `draw32`; by_out is the gradient that the mean has otherwise."""
    by_out, by_variance, variance, shift, by_mean, by_log, n, chunk, share, by_kl, first, chunks = arguments(record, 8, 2)
    p = float32_at
    _variance_gradient_chunks(
        p(by_out), p(by_variance), p(variance), p(shift), p(by_mean), p(by_log), n, chunk, f32(share), f32(by_kl), first, chunks
    )


@Kernel
def variance_gradient64(record):
    """`variance_gradient32` for float64."""
    by_out, by_variance, variance, shift, by_mean, by_log, n, chunk, share, by_kl, first, chunks = arguments(record, 8, 2)
    p = float64_at
    _variance_gradient_chunks(
        p(by_out), p(by_variance), p(variance), p(shift), p(by_mean), p(by_log), n, chunk, share, by_kl, first, chunks
    )


@Kernel
def add_kl_gradient32(record):
    """`variance_gradient32` in place: by_mean and by_log are first the gradients in out and in the variance."""
    by_mean, by_log, variance, shift, n, chunk, share, by_kl, first, chunks = arguments(record, 6, 2)
    p = float32_at
    _add_kl_gradient_chunks(p(by_mean), p(by_log), p(variance), p(shift), n, chunk, f32(share), f32(by_kl), first, chunks)


@Kernel
def add_kl_gradient64(record):
    """`add_kl_gradient32` for float64."""
    by_mean, by_log, variance, shift, n, chunk, share, by_kl, first, chunks = arguments(record, 6, 2)
    p = float64_at
    _add_kl_gradient_chunks(p(by_mean), p(by_log), p(variance), p(shift), n, chunk, share, by_kl, first, chunks)


@Kernel
def reparameterize32(record):
    """out = mean + std eps, and half eps / std in place of eps, for the root of the variance, which is at least `least`."""
    mean, variance, eps, out, n, chunk, least, half, first, chunks = arguments(record, 6, 2)
    p = float32_at
    _reparameterize_chunks(p(mean), p(variance), p(eps), p(out), n, chunk, f32(least), f32(half), first, chunks)


@Kernel
def reparameterize64(record):
    """`reparameterize32` for float64."""
    mean, variance, eps, out, n, chunk, least, half, first, chunks = arguments(record, 6, 2)
    p = float64_at
    _reparameterize_chunks(p(mean), p(variance), p(eps), p(out), n, chunk, least, half, first, chunks)

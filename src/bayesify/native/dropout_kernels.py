"""The KL of Gaussian dropout, and its factors with the KL in one call."""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.elementary_kernels import exponential
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at

_BLOCK = 64  # elements whose polynomials are evaluated side by side
f32 = np.float32


@inlined({"contract"})
def _polynomials(s, p, q, terms, top, bottom, by_top, by_bottom):
    """P, Q and their derivatives at s, by Horner's rule."""
    for i in range(_BLOCK):
        top[i] = bottom[i] = by_top[i] = by_bottom[i] = 0.0
    for k in range(terms - 1, -1, -1):
        a, b = p[k], q[k]
        for i in range(_BLOCK):
            by_top[i] = by_top[i] * s[i] + top[i]
            top[i] = top[i] * s[i] + a
            by_bottom[i] = by_bottom[i] * s[i] + bottom[i]
            bottom[i] = bottom[i] * s[i] + b


@inlined()
def _log_uniform(log_alphas, bound, values, slopes, table, terms, begin, end):
    """Values and slopes at the elements or the bound above them; the slope above the bound is 0."""
    p, q, work = float64_at(table), float64_at(table + 8 * terms), np.zeros((6, _BLOCK))
    inverse, s, top, bottom, by_top, by_bottom = work[0], work[1], work[2], work[3], work[4], work[5]
    for start in range(begin, end, _BLOCK):
        size = min(_BLOCK, end - start)
        for i in range(size):
            inverse[i] = np.exp(-min(np.float64(log_alphas[start + i]), bound))
            s[i] = 1 / (1 + inverse[i] / 2)
        _polynomials(s, p, q, terms, top, bottom, by_top, by_bottom)
        for i in range(size):
            log_alpha = min(np.float64(log_alphas[start + i]), bound)
            rest = 1 / (1 + 2 / inverse[i])
            ratio, square = top[i] / bottom[i], rest * rest
            values[start + i] = (np.log1p(inverse[i]) if log_alpha > -30 else -log_alpha) / 2 + square * ratio
            slope = s[i] * square * (rest * (by_top[i] - ratio * by_bottom[i]) / bottom[i] - 2 * ratio)
            slopes[start + i] = 0.0 if log_alphas[start + i] > bound else slope - 1 / (1 + 1 / inverse[i]) / 2


@Kernel
def log_uniform32(record):
    """The KL of Gaussian dropout from the log-uniform prior and its derivative, for the coefficients of P and Q, in float64."""
    log_alphas, values, slopes, table, terms, begin, size = arguments(record, 5, 0)
    _log_uniform(float32_at(log_alphas), np.inf, float32_at(values), float32_at(slopes), table, terms, begin, begin + size)


@Kernel
def log_uniform64(record):
    """`log_uniform32` for float64."""
    log_alphas, values, slopes, table, terms, begin, size = arguments(record, 5, 0)
    _log_uniform(float64_at(log_alphas), np.inf, float64_at(values), float64_at(slopes), table, terms, begin, begin + size)


@inlined({"contract"})
def _factors(one, half, log_alpha, bound, std, eps, out, n, first, rows):
    for k in range(n):
        std[k] = exponential(half * (bound if log_alpha[k] > bound else log_alpha[k]))
    for row in range(first, first + rows):
        for k in range(n):
            out[row * n + k] = one + std[k] * eps[row * n + k]


@inlined()
def _factors_and_kl(one, half, log_alpha, bound, eps, out, values, slopes, kl, table, terms, n, first, rows):
    _factors(one, half, log_alpha, bound, values, eps, out, n, first, rows)
    _log_uniform(log_alpha, np.float64(bound), values, slopes, table, terms, 0, n)
    total = 0.0
    for k in range(n):
        total += values[k]
    kl[0] = total


@inlined({"contract"})
def _gradient(zero, half, grad, eps, log_alpha, bound, slopes, by_kl, by_log_alpha, n, rows):
    for k in range(n):
        by_log_alpha[k] = zero
    for row in range(rows):
        for k in range(n):
            by_log_alpha[k] += grad[row * n + k] * eps[row * n + k]
    for k in range(n):
        inside = not log_alpha[k] > bound
        slope = half * exponential(half * (log_alpha[k] if inside else bound)) * by_log_alpha[k]
        by_log_alpha[k] = slope + by_kl * slopes[k] if inside else max(slope, zero)


@Kernel
def factors_and_kl32(record):
    """Factors 1 + sqrt(alpha) eps for rows of n variables, the sum of their KLs, and its slopes in log alpha, up to a bound."""
    log_alpha, eps, out, values, slopes, kl, table, terms, n, bound, first, rows = arguments(record, 9, 1)
    p = float32_at
    _factors_and_kl(
        f32(1), f32(0.5), p(log_alpha), f32(bound), p(eps), p(out), p(values), p(slopes), p(kl), table, terms, n, first, rows
    )


@Kernel
def factors_and_kl64(record):
    """`factors_and_kl32` for float64."""
    log_alpha, eps, out, values, slopes, kl, table, terms, n, bound, first, rows = arguments(record, 9, 1)
    p = float64_at
    _factors_and_kl(1.0, 0.5, p(log_alpha), bound, p(eps), p(out), p(values), p(slopes), p(kl), table, terms, n, first, rows)


@Kernel
def factors_and_kl_gradient32(record):
    """The gradient of `factors_and_kl32` in log alpha; above the bound that of a projection."""
    grad, eps, log_alpha, slopes, by_log_alpha, n, bound, by_kl, _, rows = arguments(record, 6, 2)
    p = float32_at
    _gradient(f32(0), f32(0.5), p(grad), p(eps), p(log_alpha), f32(bound), p(slopes), f32(by_kl), p(by_log_alpha), n, rows)


@Kernel
def factors_and_kl_gradient64(record):
    """`factors_and_kl_gradient32` for float64."""
    grad, eps, log_alpha, slopes, by_log_alpha, n, bound, by_kl, _, rows = arguments(record, 6, 2)
    p = float64_at
    _gradient(0.0, 0.5, p(grad), p(eps), p(log_alpha), bound, p(slopes), by_kl, p(by_log_alpha), n, rows)

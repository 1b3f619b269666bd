r"""The compact form of Householder reflections with the KL of variational structured dropout, and their gradients, in one call.

Sums are in float64. Names as in `bayesify.functional.reflections`: W and R are (T, K), and C is
$R\,\mathrm{diag}(\alpha)\,R^\top$.
"""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np
from numba import njit

from bayesify.native.compilation import Kernel
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at


@njit(nogil=True, error_model="numpy")
def _dot(a, s, b, t, n):
    total = 0.0
    for k in range(n):
        total += np.float64(a[s * n + k]) * b[t * n + k]
    return total


@njit(nogil=True, error_model="numpy")
def _add(a, t, factor, b, s, n):
    for k in range(n):
        a[t * n + k] += factor * b[s * n + k]


@njit(nogil=True, error_model="numpy")
def _products(r, log_alpha, count, n):
    """C."""
    products = np.zeros((count, count))
    for k in range(n):
        alpha = np.exp(np.float64(log_alpha[k]))
        for s in range(count):
            for t in range(count):
                products[s, t] += alpha * r[s * n + k] * r[t * n + k]
    return products


@njit(nogil=True, error_model="numpy")
def _spread(w, r, products, alpha, k, count, n):
    """S_k, the variance of noise variable k."""
    spread = alpha
    for t in range(count):
        turned = -alpha * r[t * n + k]
        for s in range(count):
            turned += products[t, s] * w[s * n + k]
        spread += 4 * w[t * n + k] * turned
    return spread


@njit(nogil=True, error_model="numpy")
def _form(vectors, log_alpha, w, r, inverses, std, kl, count, n, columns, shortest):
    for t in range(count):
        norm = np.sqrt(_dot(vectors, t, vectors, t, n))
        inverses[t] = 0.0 if norm < shortest else 1 / norm
        for k in range(n):
            w[t * n + k] = r[t * n + k] = vectors[t * n + k] * inverses[t]
        for s in range(t):
            _add(r, t, -2 * _dot(w, t, w, s, n), r, s, n)
    products, total = _products(r, log_alpha, count, n), 0.0
    for k in range(n):
        wide = np.float64(log_alpha[k])
        std[k] = np.exp(0.5 * wide)
        spread = _spread(w, r, products, np.exp(wide), k, count, n)
        total += np.log1p(0.0 if spread < 0 else spread) - wide
    kl[0] = 0.5 * columns * total


@njit(nogil=True, error_model="numpy")
def _kl_gradient(log_alpha, w, r, products, share, by_w, by_r, by_products, by_log_alpha, count, n):
    """Gradients of the KL for given C, with share = by_kl Q / 2, added to those in W, R and C, and set in log alpha."""
    for k in range(n):
        alpha = np.exp(np.float64(log_alpha[k]))
        spread = _spread(w, r, products, alpha, k, count, n)
        by_spread = 0.0 if spread < 0 else share / (1 + spread)
        by_alpha = by_spread
        for t in range(count):
            turned = -alpha * r[t * n + k]
            for s in range(count):
                turned += 2 * products[t, s] * w[s * n + k]
                by_products[t, s] += 4 * by_spread * w[t * n + k] * w[s * n + k]
            by_alpha -= 4 * by_spread * w[t * n + k] * r[t * n + k]
            by_w[t * n + k] += 4 * by_spread * turned
            by_r[t * n + k] -= 4 * by_spread * alpha * w[t * n + k]
        by_log_alpha[k] = alpha * by_alpha - share


@njit(nogil=True, error_model="numpy")
def _products_gradient(log_alpha, r, by_products, by_r, by_log_alpha, count, n):
    """Gradients of C, added to those in R and log alpha."""
    for k in range(n):
        alpha, by_alpha = np.exp(np.float64(log_alpha[k])), 0.0
        for t in range(count):
            for s in range(count):
                by_alpha += by_products[t, s] * r[t * n + k] * r[s * n + k]
                by_r[t * n + k] += 2 * alpha * by_products[t, s] * r[s * n + k]
        by_log_alpha[k] += alpha * by_alpha


@njit(nogil=True, error_model="numpy")
def _normals_gradient(w, r, by_r, by_w, count, n):
    """Gradients of R, the solution of a triangular system with inner products of W, added to those in W."""
    for t in range(count - 1, -1, -1):
        for s in range(t + 1, count):
            _add(by_r, t, -2 * _dot(w, s, w, t, n), by_r, s, n)
    for t in range(count):
        _add(by_w, t, 1.0, by_r, t, n)
        for s in range(t):
            by_overlap = -2 * _dot(by_r, t, r, s, n)
            _add(by_w, t, by_overlap, w, s, n)
            _add(by_w, s, by_overlap, w, t, n)


@njit(nogil=True, error_model="numpy")
def _form_gradient(log_alpha, w, r, inverses, by_w, by_r, by_std, by_kl, by_vectors, by_log_alpha, work, count, n, columns):
    for i in range(count * n):
        by_vectors[i], work[i] = by_w[i], by_r[i]
    products, by_products = _products(r, log_alpha, count, n), np.zeros((count, count))
    _kl_gradient(log_alpha, w, r, products, 0.5 * columns * by_kl, by_vectors, work, by_products, by_log_alpha, count, n)
    _products_gradient(log_alpha, r, by_products, work, by_log_alpha, count, n)
    _normals_gradient(w, r, work, by_vectors, count, n)
    for k in range(n):
        by_log_alpha[k] += 0.5 * np.exp(0.5 * np.float64(log_alpha[k])) * by_std[k]
    for t in range(count):
        along = _dot(w, t, by_vectors, t, n)
        for k in range(n):
            by_vectors[t * n + k] = inverses[t] * (by_vectors[t * n + k] - along * w[t * n + k])


@Kernel
def form32(record):
    """W, R, the reciprocals of norms (float64), the root of alpha and the KL in nats, for arrays at addresses."""
    vectors, log_alpha, w, r, inverses, std, kl, count, n, columns, shortest, _, _ = arguments(record, 9, 2)
    p = float32_at
    _form(p(vectors), p(log_alpha), p(w), p(r), float64_at(inverses), p(std), p(kl), count, n, columns, shortest)


@Kernel
def form64(record):
    """`form32` for float64."""
    vectors, log_alpha, w, r, inverses, std, kl, count, n, columns, shortest, _, _ = arguments(record, 9, 2)
    p = float64_at
    _form(p(vectors), p(log_alpha), p(w), p(r), p(inverses), p(std), p(kl), count, n, columns, shortest)


@Kernel
def form_gradient32(record):
    """Gradients of `form32` in the vectors and log alpha."""
    log_alpha, w, r, inverses, by_w, by_r, by_std, by_vectors, by_log_alpha, work, count, n, columns, by_kl, _, _ = arguments(
        record, 12, 2
    )
    p = float32_at
    _form_gradient(
        p(log_alpha), p(w), p(r), float64_at(inverses), p(by_w), p(by_r), p(by_std), by_kl, p(by_vectors), p(by_log_alpha), p(work),
        count, n, columns,
    )  # fmt: skip


@Kernel
def form_gradient64(record):
    """`form_gradient32` for float64."""
    log_alpha, w, r, inverses, by_w, by_r, by_std, by_vectors, by_log_alpha, work, count, n, columns, by_kl, _, _ = arguments(
        record, 12, 2
    )
    p = float64_at
    _form_gradient(
        p(log_alpha), p(w), p(r), p(inverses), p(by_w), p(by_r), p(by_std), by_kl, p(by_vectors), p(by_log_alpha), p(work),
        count, n, columns,
    )  # fmt: skip

r"""Noise rotated by Householder reflections with the KL of variational structured dropout, and their gradients.

Small sums are in float64. Names as in `bayesify.functional.reflections`: W and R are (T, K), and C is
$R\,\mathrm{diag}(\alpha)\,R^\top$. A connection maps a vector v to the next one, $W_2\,\mathrm{relu}(W_1 v + b_1) + b_2$.
"""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np
from numba import njit

from bayesify.native.compilation import Kernel
from bayesify.native.elementary_kernels import exponential
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at, int64_at

_SUMS = {"contract", "nsz", "reassoc"}  # sums of vectors in any order
f32 = np.float32


@njit(nogil=True, error_model="numpy", fastmath=_SUMS)
def _dot(a, s, b, t, n):
    total = 0.0
    for k in range(n):
        total += np.float64(a[s * n + k]) * b[t * n + k]
    return total


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _add(a, t, factor, b, s, n):
    for k in range(n):
        a[t * n + k] += factor * b[s * n + k]


@njit(nogil=True, error_model="numpy")
def _variances(std, n):
    """alpha."""
    alpha = np.empty(n)
    for k in range(n):
        alpha[k] = np.float64(std[k]) * std[k]
    return alpha


@njit(nogil=True, error_model="numpy")
def _products(r, alpha, count, n):
    """C."""
    products = np.zeros((count, count))
    for s in range(count):
        for t in range(count):
            for k in range(n):
                products[s, t] += alpha[k] * r[s * n + k] * r[t * n + k]
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
def _connect(w1, b1, w2, b2, vectors, t, hidden, n, rank):
    """Vector t from the one before."""
    for j in range(rank):
        hidden[j] = max(b1[j] + _dot(w1, j, vectors, t - 1, n), 0.0)
    for k in range(n):
        total = np.float64(b2[k])
        for j in range(rank):
            total += w2[k * rank + j] * hidden[j]
        vectors[t * n + k] = total


@njit(nogil=True, error_model="numpy")
def _connect_gradient(w1, w2, by_w1, by_b1, by_w2, by_b2, vectors, t, hidden, by_vectors, n, rank):
    """Gradients of the parameters, given that of vector t; that of the vector before is added to."""
    for j in range(rank):
        by_hidden = 0.0
        for k in range(n):
            by_hidden += by_vectors[t * n + k] * w2[k * rank + j]
            by_w2[k * rank + j] = by_vectors[t * n + k] * hidden[j]
        by_hidden = by_hidden if hidden[j] > 0 else 0.0
        by_b1[j] = by_hidden
        for k in range(n):
            by_w1[j * n + k] = by_hidden * vectors[(t - 1) * n + k]
        _add(by_vectors, t - 1, by_hidden, w1, j, n)
    for k in range(n):
        by_b2[k] = by_vectors[t * n + k]


@njit(nogil=True, error_model="numpy")
def _form(half, vectors, log_alpha, w, r, std, inverses, kl, count, n, columns, shortest):
    for t in range(count):
        norm = np.sqrt(_dot(vectors, t, vectors, t, n))
        inverses[t] = 0.0 if norm < shortest else 1 / norm
        for k in range(n):
            w[t * n + k] = r[t * n + k] = vectors[t * n + k] * inverses[t]
        for s in range(t):
            _add(r, t, -2 * _dot(w, t, w, s, n), r, s, n)
    for k in range(n):
        std[k] = exponential(half * log_alpha[k])
    alpha = _variances(std, n)
    products, total = _products(r, alpha, count, n), 0.0
    for k in range(n):
        spread = _spread(w, r, products, alpha[k], k, count, n)
        total += np.log1p(0.0 if spread < 0 else spread) - log_alpha[k]
    kl[0] = 0.5 * columns * total


@njit(nogil=True, error_model="numpy", fastmath=_SUMS)
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
            _add(out, row, -(total + total), w, t, n)


@njit(nogil=True, error_model="numpy", fastmath=_SUMS)
def _rotate_gradient(zero, by_noise, eps, w, along, sums, count, n, begin, end):
    """Sums over rows of the gradients in W, in R diag(std), and in std without U: (2 T + 1, K)."""
    for i in range((2 * count + 1) * n):
        sums[i] = zero
    for row in range(begin, end):
        for t in range(count):
            total, factor = zero, -(along[row * count + t] + along[row * count + t])
            for k in range(n):
                total += by_noise[row * n + k] * w[t * n + k]
            _add(sums, t, factor, by_noise, row, n)
            _add(sums, count + t, -(total + total), eps, row, n)
        for k in range(n):
            sums[2 * count * n + k] += by_noise[row * n + k] * eps[row * n + k]


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _kl_gradient(alpha, w, r, products, share, by_w, by_r, by_products, by_log_alpha, count, n):
    """Gradients of the KL for given C, with share = by_kl Q / 2, added to those in W, R and C, and set in log alpha."""
    for k in range(n):
        spread = _spread(w, r, products, alpha[k], k, count, n)
        by_spread = 0.0 if spread < 0 else share / (1 + spread)
        by_alpha = by_spread
        for t in range(count):
            turned = -alpha[k] * r[t * n + k]
            for s in range(count):
                turned += 2 * products[t, s] * w[s * n + k]
                by_products[t, s] += 4 * by_spread * w[t * n + k] * w[s * n + k]
            by_alpha -= 4 * by_spread * w[t * n + k] * r[t * n + k]
            by_w[t * n + k] += 4 * by_spread * turned
            by_r[t * n + k] -= 4 * by_spread * alpha[k] * w[t * n + k]
        by_log_alpha[k] = alpha[k] * by_alpha - share


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _products_gradient(alpha, r, by_products, by_r, by_log_alpha, count, n):
    """Gradients of C, added to those in R and log alpha."""
    for k in range(n):
        by_alpha = 0.0
        for t in range(count):
            for s in range(count):
                by_alpha += by_products[t, s] * r[t * n + k] * r[s * n + k]
                by_r[t * n + k] += 2 * alpha[k] * by_products[t, s] * r[s * n + k]
        by_log_alpha[k] += alpha[k] * by_alpha


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
def _form_gradient(w, r, std, inverses, sums, chunks, by_kl, by_vectors, by_log_alpha, count, n, columns):
    """Gradients in the vectors, float64, and in log alpha, from the sums of every chunk of rows."""
    by_r, by_std, by_logs, size = np.zeros(count * n), np.zeros(n), np.empty(n), count * n
    for i in range(size):
        by_vectors[i] = 0.0
    for begin in range(0, chunks * (2 * size + n), 2 * size + n):
        for i in range(size):
            by_vectors[i] += sums[begin + i]
            by_r[i] += sums[begin + size + i] * std[i % n]
            by_std[i % n] += sums[begin + size + i] * r[i]
        for k in range(n):
            by_std[k] += sums[begin + 2 * size + k]
    alpha = _variances(std, n)
    products, by_products = _products(r, alpha, count, n), np.zeros((count, count))
    _kl_gradient(alpha, w, r, products, 0.5 * columns * by_kl, by_vectors, by_r, by_products, by_logs, count, n)
    _products_gradient(alpha, r, by_products, by_r, by_logs, count, n)
    _normals_gradient(w, r, by_r, by_vectors, count, n)
    for k in range(n):
        by_log_alpha[k] = by_logs[k] + 0.5 * std[k] * by_std[k]
    for t in range(count):
        along = _dot(w, t, by_vectors, t, n)
        for k in range(n):
            by_vectors[t * n + k] = inverses[t] * (by_vectors[t * n + k] - along * w[t * n + k])


@Kernel
def form32(record):
    """Vectors, W, R, the root of alpha, the reciprocals of norms (float64), the KL in nats, and hidden units (float64).

    Args:
        base, given: the first vectors and their number.
        table: four addresses for every connection.
    """
    (
        base, given, table, rank, hidden, vectors, w, r, std, log_alpha, inverses, kl, count, n, columns, shortest, _, _
    ) = arguments(record, 15, 1)  # fmt: skip
    p, first = float32_at, float32_at(base)
    for i in range(given * n):
        p(vectors)[i] = first[i]
    for t in range(given, count):
        c, units = int64_at(table + 32 * (t - given)), float64_at(hidden + 8 * rank * (t - given))
        _connect(p(c[0]), p(c[1]), p(c[2]), p(c[3]), p(vectors), t, units, n, rank)
    _form(f32(0.5), p(vectors), p(log_alpha), p(w), p(r), p(std), float64_at(inverses), p(kl), count, n, columns, shortest)


@Kernel
def form64(record):
    """`form32` for float64."""
    (
        base, given, table, rank, hidden, vectors, w, r, std, log_alpha, inverses, kl, count, n, columns, shortest, _, _
    ) = arguments(record, 15, 1)  # fmt: skip
    p, first = float64_at, float64_at(base)
    for i in range(given * n):
        p(vectors)[i] = first[i]
    for t in range(given, count):
        c, units = int64_at(table + 32 * (t - given)), p(hidden + 8 * rank * (t - given))
        _connect(p(c[0]), p(c[1]), p(c[2]), p(c[3]), p(vectors), t, units, n, rank)
    _form(0.5, p(vectors), p(log_alpha), p(w), p(r), p(std), p(inverses), p(kl), count, n, columns, shortest)


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


@Kernel
def form_gradient32(record):
    """Gradients of `form32` in base, log alpha and the connections, with addresses in a second table; work is (T, K) float64."""
    (
        by_base, given, table, by_table, rank, hidden, vectors, w, r, std, inverses, sums, chunks, work, by_log_alpha, count, n,
        columns, by_kl, _, _,
    ) = arguments(record, 18, 1)  # fmt: skip
    p, out, by_vectors = float32_at, float32_at(by_base), float64_at(work)
    _form_gradient(p(w), p(r), p(std), float64_at(inverses), p(sums), chunks, by_kl, by_vectors, p(by_log_alpha), count, n, columns)
    for t in range(count - 1, given - 1, -1):
        c, by, units = int64_at(table + 32 * (t - given)), int64_at(by_table + 32 * (t - given)), hidden + 8 * rank * (t - given)
        _connect_gradient(
            p(c[0]), p(c[2]), p(by[0]), p(by[1]), p(by[2]), p(by[3]), p(vectors), t, float64_at(units), by_vectors, n, rank
        )
    for i in range(given * n):
        out[i] = by_vectors[i]


@Kernel
def form_gradient64(record):
    """`form_gradient32` for float64."""
    (
        by_base, given, table, by_table, rank, hidden, vectors, w, r, std, inverses, sums, chunks, work, by_log_alpha, count, n,
        columns, by_kl, _, _,
    ) = arguments(record, 18, 1)  # fmt: skip
    p, out, by_vectors = float64_at, float64_at(by_base), float64_at(work)
    _form_gradient(p(w), p(r), p(std), p(inverses), p(sums), chunks, by_kl, by_vectors, p(by_log_alpha), count, n, columns)
    for t in range(count - 1, given - 1, -1):
        c, by, units = int64_at(table + 32 * (t - given)), int64_at(by_table + 32 * (t - given)), hidden + 8 * rank * (t - given)
        _connect_gradient(p(c[0]), p(c[2]), p(by[0]), p(by[1]), p(by[2]), p(by[3]), p(vectors), t, p(units), by_vectors, n, rank)
    for i in range(given * n):
        out[i] = by_vectors[i]

r"""The compact form of Householder reflections with the KL of variational structured dropout, and their gradients.

Small sums are in float64. Names as in `bayesify.functional.reflections`: W and R are (T, K), and C is
$R\,\mathrm{diag}(\alpha)\,R^\top$. A connection maps a vector v to the next one, $W_2\,\mathrm{relu}(W_1 v + b_1) + b_2$.
"""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.elementary_kernels import add_row, dot, exponential
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at, int64_at

f32 = np.float32


@inlined()
def _variances(std, n):
    """alpha."""
    alpha = np.empty(n)
    for k in range(n):
        alpha[k] = np.float64(std[k]) * std[k]
    return alpha


@inlined()
def _products(r, alpha, count, n):
    """C."""
    products = np.zeros((count, count))
    for s in range(count):
        for t in range(count):
            for k in range(n):
                products[s, t] += alpha[k] * r[s * n + k] * r[t * n + k]
    return products


@inlined()
def _spread(w, r, products, alpha, k, count, n):
    """S_k, the variance of noise variable k."""
    spread = alpha
    for t in range(count):
        turned = -alpha * r[t * n + k]
        for s in range(count):
            turned += products[t, s] * w[s * n + k]
        spread += 4 * w[t * n + k] * turned
    return spread


@inlined()
def _connect(w1, b1, w2, b2, vectors, t, hidden, n, rank):
    """Vector t from the one before."""
    for j in range(rank):
        hidden[j] = max(b1[j] + dot(w1, j, vectors, t - 1, n), 0.0)
    for k in range(n):
        total = np.float64(b2[k])
        for j in range(rank):
            total += w2[k * rank + j] * hidden[j]
        vectors[t * n + k] = total


@inlined()
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
        add_row(by_vectors, t - 1, by_hidden, w1, j, n)
    for k in range(n):
        by_b2[k] = by_vectors[t * n + k]


@inlined()
def _form(half, vectors, log_alpha, w, r, std, inverses, kl, count, n, columns, shortest):
    for t in range(count):
        norm = np.sqrt(dot(vectors, t, vectors, t, n))
        inverses[t] = 0.0 if norm < shortest else 1 / norm
        for k in range(n):
            w[t * n + k] = r[t * n + k] = vectors[t * n + k] * inverses[t]
        for s in range(t):
            add_row(r, t, -2 * dot(w, t, w, s, n), r, s, n)
    for k in range(n):
        std[k] = exponential(half * log_alpha[k])
    alpha = _variances(std, n)
    products, total = _products(r, alpha, count, n), 0.0
    for k in range(n):
        spread = _spread(w, r, products, alpha[k], k, count, n)
        total += np.log1p(0.0 if spread < 0 else spread) - log_alpha[k]
    kl[0] = 0.5 * columns * total


@inlined({"contract"})
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


@inlined({"contract"})
def _products_gradient(alpha, r, by_products, by_r, by_log_alpha, count, n):
    """Gradients of C, added to those in R and log alpha."""
    for k in range(n):
        by_alpha = 0.0
        for t in range(count):
            for s in range(count):
                by_alpha += by_products[t, s] * r[t * n + k] * r[s * n + k]
                by_r[t * n + k] += 2 * alpha[k] * by_products[t, s] * r[s * n + k]
        by_log_alpha[k] += alpha[k] * by_alpha


@inlined()
def _normals_gradient(w, r, by_r, by_w, count, n):
    """Gradients of R, the solution of a triangular system with inner products of W, added to those in W."""
    for t in range(count - 1, -1, -1):
        for s in range(t + 1, count):
            add_row(by_r, t, -2 * dot(w, s, w, t, n), by_r, s, n)
    for t in range(count):
        add_row(by_w, t, 1.0, by_r, t, n)
        for s in range(t):
            by_overlap = -2 * dot(by_r, t, r, s, n)
            add_row(by_w, t, by_overlap, w, s, n)
            add_row(by_w, s, by_overlap, w, t, n)


@inlined()
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
        along = dot(w, t, by_vectors, t, n)
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

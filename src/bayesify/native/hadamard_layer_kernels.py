"""Layers of Walsh-Hadamard variational inference, forward and backward, in one pass over their rows.

A layer has K blocks of size n, I <= n inputs, O <= K n outputs, and S draws of a bias, 0 without one. x is (R, I), y (R, O), eps
(R, K, n); s1, s2, mean and log_std are (K, n), the bias and its log_std (O,), its noise is (S, O). A draw has R / S rows.

The memory `work` begins with u s1 (K, n), the standard deviations (K, n) and the drawn biases (S, O), rounded up to a multiple of
n. A scratch for every chunk of rows follows.

Records have the addresses of x, s1, s2, mean, log_std, eps, the bias, its log_std, its noise and work; then n, K, I, O, S, R and
the rows of a chunk; the address of the KL, or 0; then what is a kernel's own. Their reals are u, the prior standard deviation of
the bias and the gradient of the KL.
"""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import math

import numpy as np

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.draw_kernels import BLOCK, NORMAL, fill
from bayesify.native.elementary_kernels import SUMS, exponential
from bayesify.native.hadamard_kernels import step, step_and_transform
from bayesify.native.records import arguments
from bayesify.native.vectors import at, float32_at, float64_at


@step_and_transform
def _enter(u, s2, x):
    return (s2 * x,)


@step_and_transform
def _weigh(v, u, mean, std, eps):
    return ((mean + std * eps) * u,)


@step_and_transform
def _turn(v, by_s1, by_bias, grad, s1):
    return grad * s1, by_s1 + grad * v, by_bias + grad


@step_and_transform
def _return(v, by_mean, by_std, u, mean, std, eps):
    by_g = u * v
    return v * (mean + std * eps), by_mean + by_g, by_std + by_g * eps


@step
def _leave(by_s2, by_x, v, x, s2):
    return by_s2 + v * x, by_x + v * s2


@inlined()
def _add(target, source, n):
    for i in range(n):
        target[i] += source[i]


@inlined()
def _clear(target, n):
    for i in range(n):
        target[i] = 0


@inlined()
def _pad(target, source, used, n):
    for i in range(used):
        target[i] = source[i]
    for i in range(used, n):
        target[i] = 0


@inlined()
def _scratches(work, n, blocks, outputs, draws):
    """Where the scratches begin, in the line of a cache."""
    return at(work, 2 * blocks * n + (draws * outputs + n - 1) // n * n)


@inlined(SUMS)
def _kl(mean, log_std, std, prior_std, n):
    total, scale = 0.0, 1 / prior_std**2
    for i in range(n):
        m, v = np.float64(mean[i]), np.float64(std[i])
        total += (m * m + v * v) * scale / 2 - log_std[i]
    return total + n * (math.log(prior_std) - 0.5)


@inlined()
def _prepare(s1, mean, log_std, bias, bias_log_std, noise, work, n, blocks, outputs, draws, kl, wants_kl, unit, bias_prior_std):
    """Write the beginning of work, and the KL if it is wanted."""
    size, drawn = blocks * n, 2 * blocks * n
    for i in range(size):
        work[i] = s1[i] * unit
    for i in range(size):
        work[size + i] = exponential(log_std[i])
    total = _kl(mean, log_std, at(work, size), 1.0, size) if wants_kl else 0.0
    if draws:
        std = at(work, drawn + (draws - 1) * outputs)  # of which the last draw takes the place
        for i in range(outputs):
            std[i] = exponential(bias_log_std[i])
        if wants_kl:
            total += _kl(bias, bias_log_std, std, bias_prior_std, outputs)
        for s in range(draws):
            for i in range(outputs):
                work[drawn + s * outputs + i] = bias[i] + std[i] * noise[s * outputs + i]
    if wants_kl:
        kl[0] = total


@inlined()
def _layer(x, s2, mean, eps, work, n, blocks, inputs, outputs, draws, total, chunk, y, first, chunks):
    size = blocks * n
    for c in range(first, first + chunks):
        v = at(_scratches(work, n, blocks, outputs, draws), 2 * c * n)
        for row in range(c * chunk, min((c + 1) * chunk, total)):
            ins = at(x, row * inputs)
            if inputs < n:
                _pad(at(v, n), ins, inputs, n)
                ins = at(v, n)
            for k in range(blocks):
                own = k * n
                used, noise, out = min(n, outputs - own), at(eps, row * size + own), at(y, row * outputs + own)
                _enter(n, v, at(s2, own), ins)
                _weigh(n, v, v, at(mean, own), at(work, size + own), noise)
                for i in range(used):
                    out[i] = v[i] * work[own + i]
                if draws:
                    _add(out, at(work, 2 * size + row * draws // total * outputs + own), used)


@inlined()
def _layer_gradient(x, s2, mean, eps, bias_noise, work, n, blocks, inputs, outputs, draws, total, chunk, grad, by_x, first, chunks):
    """Sums over the rows of a chunk are kept apart, so that threads do not change their order."""
    size = blocks * n
    for c in range(first, first + chunks):
        sums = at(_scratches(work, n, blocks, outputs, draws), 6 * c * (size + n))
        own_x, own_by_x, own_grad = at(sums, 6 * size), at(sums, 6 * size + n), at(sums, 6 * size + 2 * n)
        u, v = at(sums, 6 * size + 3 * n), at(sums, 6 * size + 4 * n)
        _clear(sums, 6 * size)
        for row in range(c * chunk, min((c + 1) * chunk, total)):
            ins, by_ins = at(x, row * inputs), at(by_x, row * inputs)
            if inputs < n:
                _pad(own_x, ins, inputs, n)
                ins, by_ins = own_x, own_by_x
            _clear(by_ins, n)
            for k in range(blocks):
                own = k * n
                used, outs, noise = min(n, outputs - own), at(grad, row * outputs + own), at(eps, row * size + own)
                if draws:
                    of_draw = at(bias_noise, row * draws // total * outputs + own)
                    for i in range(used):
                        sums[5 * size + own + i] += outs[i] * of_draw[i]
                if used < n:
                    _pad(own_grad, outs, used, n)
                    outs = own_grad
                _enter(n, u, at(s2, own), ins)
                _weigh(n, v, u, at(mean, own), at(work, size + own), noise)
                _turn(n, v, at(sums, own), at(sums, 4 * size + own), outs, at(work, own))
                _return(n, v, at(sums, 2 * size + own), at(sums, 3 * size + own), u, at(mean, own), at(work, size + own), noise)
                _leave(n, at(sums, size + own), by_ins, v, ins, at(s2, own))
            if inputs < n:
                _pad(at(by_x, row * inputs), own_by_x, inputs, inputs)


@inlined()
def _finish(
    means, bias_mean, bias_log_std, work, n, blocks, outputs, draws, total, chunk, s1, s2, mean, log_std, bias, by_bias_log_std,
    unit, bias_prior_std, by_kl,
):  # fmt: skip
    """Gradients of the parameters from the sums of all chunks, and from that of the KL."""
    size = blocks * n
    sums, stds = _scratches(work, n, blocks, outputs, draws), at(work, size)
    for c in range(1, (total + chunk - 1) // chunk):
        _add(sums, at(sums, 6 * c * (size + n)), 6 * size)
    for i in range(size):
        s1[i] = sums[i] * unit
        s2[i] = sums[size + i]
        mean[i] = sums[2 * size + i] + by_kl * means[i]
        log_std[i] = sums[3 * size + i] * stds[i] + by_kl * (stds[i] * stds[i] - 1)
    scale = 1 / bias_prior_std**2
    for i in range(outputs if draws else 0):
        std = exponential(bias_log_std[i])
        bias[i] = sums[4 * size + i] + by_kl * bias_mean[i] * scale
        by_bias_log_std[i] = sums[5 * size + i] * std + by_kl * (std * std * scale - 1)


@inlined()
def _fill(eps, n, blocks, total, chunk, upper, key, c):
    """Draw the noise of a chunk, which has a multiple of eight rows: whole blocks of a draw, except at its end."""
    size = blocks * n
    begin, end = c * chunk * size, min((c + 1) * chunk, total) * size
    fill(eps, total * size, NORMAL, 0, upper, key, begin // BLOCK, (end - begin + BLOCK - 1) // BLOCK)


@Kernel
def prepare32(record):
    """Write the beginning of work and the KL, float32."""
    w, p = arguments(record, 18, 3), float32_at
    own = p(w[1]), p(w[3]), p(w[4]), p(w[6]), p(w[7]), p(w[8]), p(w[9])
    _prepare(*own, w[10], w[11], w[13], w[14], p(w[17]), w[17] != 0, w[18], w[19])


@Kernel
def prepare64(record):
    """`prepare32` for float64."""
    w, p = arguments(record, 18, 3), float64_at
    own = p(w[1]), p(w[3]), p(w[4]), p(w[6]), p(w[7]), p(w[8]), p(w[9])
    _prepare(*own, w[10], w[11], w[13], w[14], p(w[17]), w[17] != 0, w[18], w[19])


@Kernel
def layer32(record):
    """Rows of y, float32, by chunks with a scratch of 2 n; before, the noise of a chunk is drawn if `fills` is not 0."""
    w, p = arguments(record, 22, 3), float32_at
    y, fills, upper, key = p(w[18]), w[19], w[20], w[21]
    for c in range(w[25], w[25] + w[26]):
        if fills:
            _fill(p(w[5]), w[10], w[11], w[15], w[16], upper, key, c)
        _layer(p(w[0]), p(w[2]), p(w[3]), p(w[5]), p(w[9]), *w[10:17], y, c, 1)


@Kernel
def layer64(record):
    """`layer32` for float64, whose noise is drawn before."""
    w, p = arguments(record, 22, 3), float64_at
    _layer(p(w[0]), p(w[2]), p(w[3]), p(w[5]), p(w[9]), *w[10:17], p(w[18]), w[25], w[26])


@Kernel
def layer_gradient32(record):
    """The gradient of x, float32, and by chunks of rows, with a scratch of 6 (K + 1) n, sums (6, K, n) of the others."""
    w, p = arguments(record, 20, 3), float32_at
    _layer_gradient(p(w[0]), p(w[2]), p(w[3]), p(w[5]), p(w[8]), p(w[9]), *w[10:17], p(w[18]), p(w[19]), w[23], w[24])


@Kernel
def layer_gradient64(record):
    """`layer_gradient32` for float64."""
    w, p = arguments(record, 20, 3), float64_at
    _layer_gradient(p(w[0]), p(w[2]), p(w[3]), p(w[5]), p(w[8]), p(w[9]), *w[10:17], p(w[18]), p(w[19]), w[23], w[24])


@Kernel
def finish32(record):
    """Gradients of s1, s2, mean, log_std, the bias and its log_std, float32, after `layer_gradient32`."""
    w, p = arguments(record, 26, 3), float32_at
    found = p(w[20]), p(w[21]), p(w[22]), p(w[23]), p(w[24]), p(w[25])
    _finish(p(w[3]), p(w[6]), p(w[7]), p(w[9]), w[10], w[11], *w[13:17], *found, w[26], w[27], w[28])


@Kernel
def finish64(record):
    """`finish32` for float64."""
    w, p = arguments(record, 26, 3), float64_at
    found = p(w[20]), p(w[21]), p(w[22]), p(w[23]), p(w[24]), p(w[25])
    _finish(p(w[3]), p(w[6]), p(w[7]), p(w[9]), w[10], w[11], *w[13:17], *found, w[26], w[27], w[28])

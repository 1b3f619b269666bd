"""The fast Walsh-Hadamard transform in vector instructions: all stages of a row that fit into registers in one pass."""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from bayesify.native.compilation import Kernel
from bayesify.native.records import arguments
from bayesify.native.vectors import float32_at, float64_at

_LANES = {types.float32: 16, types.float64: 8}  # 64 bytes; LLVM splits vectors that are wider than the machine's
_LINE = 4096  # elements of a row that are transformed completely before the next; they fit into the first cache


@intrinsic
def _lanes(typingctx: Any, pointer: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(64), _LANES[pointer.dtype])

    return types.int64(pointer), emit


@intrinsic(prefer_literal=True)
def _pass(typingctx: Any, source: Any, target: Any, start: Any, stride: Any, radix: Any, within: Any) -> Any:
    """Butterflies between `radix` vectors at multiples of `stride` from `start`, and if `within` between a vector's lanes."""
    lanes = _LANES[source.dtype]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        first, second, begin, step = arguments[:4]
        vector = ir.VectorType(context.get_value_type(source.dtype), lanes)
        offsets = [begin]
        for _ in range(radix.literal_value - 1):
            offsets.append(builder.add(offsets[-1], step))

        def at(pointer: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [offset]), vector.as_pointer())

        size = _LANES[types.float64] * 8 // lanes
        values = [builder.load(at(first, offset), align=size) for offset in offsets]
        if within.literal_value:
            values = [_across(builder, value, vector, lanes) for value in values]
        h = 1
        while h < len(values):
            for i in range(len(values)):
                if not i & h:
                    a, b = values[i], values[i + h]
                    values[i], values[i + h] = builder.fadd(a, b), builder.fsub(a, b)
            h *= 2
        for value, offset in zip(values, offsets, strict=True):
            builder.store(value, at(second, offset), align=size)

    return types.void(source, target, types.int64, types.int64, radix, within), emit


def _across(builder: Any, value: Any, vector: Any, lanes: int) -> Any:
    """The transform of the lanes of a vector."""
    h = 1
    integers = ir.VectorType(ir.IntType(32), lanes)
    while h < lanes:
        partner = builder.shuffle_vector(value, value, ir.Constant(integers, [i ^ h for i in range(lanes)]))
        signs = ir.Constant(vector, [-1.0 if i & h else 1.0 for i in range(lanes)])
        value = builder.fadd(builder.fmul(value, signs), partner)
        h *= 2
    return value


@njit(nogil=True, error_model="numpy")
def _stage(source, target, begin, end, h, bits):
    """A pass with radix 2**bits at distance h over elements begin to end."""
    lanes = _lanes(source)
    for base in range(begin, end, h << bits):
        for j in range(base, base + h, lanes):
            if bits == 4:
                _pass(source, target, j, h, 16, 0)
            elif bits == 3:
                _pass(source, target, j, h, 8, 0)
            elif bits == 2:
                _pass(source, target, j, h, 4, 0)
            else:
                _pass(source, target, j, h, 2, 0)


@njit(nogil=True, error_model="numpy")
def _first(source, target, begin, end, bits):
    """All lanes and 2**bits neighboring vectors."""
    lanes = _lanes(source)
    for j in range(begin, end, lanes << bits):
        if bits == 4:
            _pass(source, target, j, lanes, 16, 1)
        elif bits == 3:
            _pass(source, target, j, lanes, 8, 1)
        elif bits == 2:
            _pass(source, target, j, lanes, 4, 1)
        elif bits == 1:
            _pass(source, target, j, lanes, 2, 1)
        else:
            _pass(source, target, j, lanes, 1, 1)


@njit(nogil=True, error_model="numpy")
def _next_bits(h, n):
    left = 0
    while h << left < n:
        left += 1
    passes = (left + 3) // 4
    return (left + passes - 1) // passes


@njit(nogil=True, error_model="numpy")
def _rows(source, target, n, first, end_row):
    lanes = _lanes(source)
    line = min(n, _LINE)
    for row in range(first, end_row):
        for begin in range(row * n, (row + 1) * n, line):
            end = begin + line
            bits = min(4, _log2(line // lanes))
            _first(source, target, begin, end, bits)
            h = lanes << bits
            while h < line:
                bits = _next_bits(h, line)
                _stage(target, target, begin, end, h, bits)
                h <<= bits
        h = line
        while h < n:
            bits = _next_bits(h, n)
            _stage(target, target, row * n, (row + 1) * n, h, bits)
            h <<= bits


@njit(nogil=True, error_model="numpy")
def _log2(n):
    bits = 0
    while n > 1:
        n >>= 1
        bits += 1
    return bits


@Kernel
def fwht32(record):
    """Transform rows of n float32 values from one address to another; n is at least 16."""
    source, target, n, first, rows = arguments(record, 3, 0)
    _rows(float32_at(source), float32_at(target), n, first, first + rows)


@Kernel
def fwht64(record):
    """Transform rows of n float64 values from one address to another; n is at least 8."""
    source, target, n, first, rows = arguments(record, 3, 0)
    _rows(float64_at(source), float64_at(target), n, first, first + rows)


@njit(nogil=True, error_model="numpy")
def _layer(x, s1, s2, mean, std, eps, shift, y, n, blocks, first, rows):
    for row in range(first, first + rows):
        for k in range(blocks):
            out = (row * blocks + k) * n
            for i in range(n):
                y[out + i] = s2[k * n + i] * x[row * n + i]
            _rows(y, y, n, row * blocks + k, row * blocks + k + 1)
            for i in range(n):
                y[out + i] *= mean[k * n + i] + std[k * n + i] * eps[out + i]
            _rows(y, y, n, row * blocks + k, row * blocks + k + 1)
            for i in range(n):
                y[out + i] = y[out + i] * s1[k * n + i] + shift[k * n + i]


@njit(nogil=True, error_model="numpy")
def _multiply(target, t, a, i, b, j, n):
    for o in range(n):
        target[t + o] = a[i + o] * b[j + o]


@njit(nogil=True, error_model="numpy")
def _add_product(target, t, a, i, b, j, n):
    for o in range(n):
        target[t + o] += a[i + o] * b[j + o]


@njit(nogil=True, error_model="numpy")
def _add(target, t, a, i, n):
    for o in range(n):
        target[t + o] += a[i + o]


@njit(nogil=True, error_model="numpy")
def _layer_gradient(grad, x, s1, s2, mean, std, eps, grad_x, sums, work, n, blocks, total, chunk, first, chunks):
    """Gradients of chunks of rows. Sums over the rows of a chunk are kept apart, so that threads do not change their order."""
    for c in range(first, first + chunks):
        ds1 = c * 5 * blocks * n  # five sums per chunk: s1, s2, mean, std, shift
        for i in range(ds1, ds1 + 5 * blocks * n):
            sums[i] = 0
        u, v, g = 3 * c * n, (3 * c + 1) * n, (3 * c + 2) * n  # of `work`
        for row in range(c * chunk, min((c + 1) * chunk, total)):
            for i in range(n):
                grad_x[row * n + i] = 0
            for k in range(blocks):
                out, own, at, ds = (row * blocks + k) * n, k * n, row * n, ds1 + k * n
                _multiply(work, u, s2, own, x, at, n)
                _rows(work, work, n, 3 * c, 3 * c + 1)
                for i in range(n):
                    work[g + i] = mean[own + i] + std[own + i] * eps[out + i]
                _multiply(work, v, work, g, work, u, n)
                _rows(work, work, n, 3 * c + 1, 3 * c + 2)
                _add_product(sums, ds, grad, out, work, v, n)
                _add(sums, ds + 4 * blocks * n, grad, out, n)
                _multiply(work, v, grad, out, s1, own, n)
                _rows(work, work, n, 3 * c + 1, 3 * c + 2)
                _multiply(work, u, work, u, work, v, n)  # the gradient of g
                _add(sums, ds + 2 * blocks * n, work, u, n)
                _add_product(sums, ds + 3 * blocks * n, work, u, eps, out, n)
                _multiply(work, v, work, v, work, g, n)
                _rows(work, work, n, 3 * c + 1, 3 * c + 2)
                _add_product(sums, ds + blocks * n, work, v, x, at, n)
                _add_product(grad_x, at, work, v, s2, own, n)


@Kernel
def layer32(record):
    """Rows of y = s1 H((mean + std eps) H(s2 x)) + shift, float32: x (R, n), eps and y (R, K, n), all others (K, n)."""
    x, s1, s2, mean, std, eps, shift, y, n, blocks, first, rows = arguments(record, 10, 0)
    p = float32_at
    _layer(p(x), p(s1), p(s2), p(mean), p(std), p(eps), p(shift), p(y), n, blocks, first, rows)


@Kernel
def layer64(record):
    """`layer32` for float64."""
    x, s1, s2, mean, std, eps, shift, y, n, blocks, first, rows = arguments(record, 10, 0)
    p = float64_at
    _layer(p(x), p(s1), p(s2), p(mean), p(std), p(eps), p(shift), p(y), n, blocks, first, rows)


@Kernel
def layer_gradient32(record):
    """Gradients of `layer32` by chunks of rows: grad_x (R, n), sums (C, 5, K, n) of the others; work (C, 3, n)."""
    grad, x, s1, s2, mean, std, eps, grad_x, sums, work, n, blocks, total, chunk, first, chunks = arguments(record, 14, 0)
    p = float32_at
    _layer_gradient(
        *(p(grad), p(x), p(s1), p(s2), p(mean), p(std), p(eps), p(grad_x), p(sums), p(work)),
        *(n, blocks, total, chunk, first, chunks),
    )


@Kernel
def layer_gradient64(record):
    """`layer_gradient32` for float64."""
    grad, x, s1, s2, mean, std, eps, grad_x, sums, work, n, blocks, total, chunk, first, chunks = arguments(record, 14, 0)
    p = float64_at
    _layer_gradient(
        *(p(grad), p(x), p(s1), p(s2), p(mean), p(std), p(eps), p(grad_x), p(sums), p(work)),
        *(n, blocks, total, chunk, first, chunks),
    )

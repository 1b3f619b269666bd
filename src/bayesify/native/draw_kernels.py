"""Random numbers from a counter: Philox4x32-10, and normal draws by Box-Muller, in vector instructions.

Element i of a draw depends on the key, on i and on the upper half of the counter alone, so that any range of elements can be
computed by any thread.

Sources: Salmon, Moraes, Dror & Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011); polynomials of the Cephes library.
"""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.records import arguments
from bayesify.native.vectors import FLOAT, INT, LANES, WIDE, Vector, at, float32_at, load, splat, store

BLOCK = 4 * LANES  # elements: the four words of a counter per lane
NORMAL, UNIFORM, BERNOULLI = range(3)  # kinds of draws
_LOWER = 0xFFFFFFFF
_POINTER = types.CPointer(types.float32)


def _philox(counter: Sequence[Vector], key: Sequence[Vector]) -> list[Vector]:
    """The words of counters, in the lower halves of 64 bits; the upper halves have no meaning."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = (a & _LOWER) * 0xD2511F53, (c & _LOWER) * 0xCD9E8D57
        a, b, c, d = (q >> 32) ^ b ^ k, q, (p >> 32) ^ d ^ m, p
        k, m = k + 0x9E3779B9, m + 0xBB67AE85
    return [a, b, c, d]


@intrinsic
def words(typingctx: Any, target: Any, block: Any, upper: Any, key: Any) -> Any:
    """Store the 64 words of counters 16 * block + (0 to 15), with the upper 64 bits `upper`: word w of lane l at 16 w + l."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        target, block, *others = arguments
        lower = splat(builder, builder.mul(block, ir.Constant(ir.IntType(64), LANES)), WIDE)
        upper, key = (splat(builder, x, WIDE) for x in others)
        even, odd = (
            _philox(
                [lower + Vector(builder, ir.Constant(WIDE, list(range(start, LANES, 2)))), lower >> 32, upper, upper >> 32],
                [key, key >> 32],
            )
            for start in (0, 1)
        )
        for word in range(4):
            store(builder, target, word * LANES, (even[word] & _LOWER) ^ (odd[word] << 32))

    return types.void(_POINTER, types.int64, types.int64, types.int64), emit


def _log(u: Vector) -> Vector:
    """The logarithm of positive numbers that are not subnormal."""
    bits = u.viewed(INT)
    exponent = (bits - 0x3F3504F3).shift_signed(23)  # of a mantissa in [sqrt(1/2), sqrt(2))
    x = (bits - (exponent << 23)).viewed(FLOAT) - 1.0
    square = x * x
    tail = x.polynomial(
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
    return exponent.to_float() * math.log(2) + (x + square * (x * tail - 0.5))


@intrinsic
def normals(typingctx: Any, target: Any) -> Any:
    """Replace 64 words with standard normal draws."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        for first, second in ((0, LANES), (2 * LANES, 3 * LANES)):
            radius, angle = load(builder, arguments[0], first, INT), load(builder, arguments[0], second, INT)
            u = (radius >> 1).to_float() * 2.0**-31 + 2.0**-32  # (0, 1]
            r = (_log(u) * -2.0).sqrt()
            t = angle.shift_signed(2).to_float() * (math.pi / 4 / 2**29)  # [-pi/4, pi/4)
            s = t * t
            sin = t * s.polynomial(1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0)
            cos = s.polynomial(1 / 40320, -1 / 720, 1 / 24, -1 / 2, 1.0)
            # the other quadrants: a sign for the cosine, and an exchange
            x, y = r * (cos.viewed(INT) ^ ((angle & 2) << 30)).viewed(FLOAT), r * sin
            is_exchanged = angle & 1
            store(builder, arguments[0], first, is_exchanged.where(y, x))
            store(builder, arguments[0], second, is_exchanged.where(x, y))

    return types.void(_POINTER), emit


@intrinsic
def uniforms(typingctx: Any, target: Any) -> Any:
    """Replace 64 words with draws from [0, 1), multiples of 2^-24."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        for offset in range(0, BLOCK, LANES):
            store(builder, arguments[0], offset, (load(builder, arguments[0], offset, INT) >> 8).to_float() * 2.0**-24)

    return types.void(_POINTER), emit


@intrinsic
def bernoullis(typingctx: Any, target: Any, limit: Any) -> Any:
    """Replace 64 words with 1 if they are below a limit, else with 0."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        limit = splat(builder, builder.trunc(arguments[1], ir.IntType(32)), INT)
        for offset in range(0, BLOCK, LANES):
            store(builder, arguments[0], offset, load(builder, arguments[0], offset, INT).is_below(limit))

    return types.void(_POINTER, types.int64), emit


@intrinsic
def _local_block(typingctx: Any) -> Any:
    """Memory for a block on the stack."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), BLOCK)), ir.FloatType().as_pointer())

    return _POINTER(), emit


@inlined()
def fill(target, n, kind, limit, upper, key, first, blocks):
    """Fill a range of blocks of n float32 values with draws of a kind: `draw32`."""
    last = _local_block()
    for block in range(first, first + blocks):
        is_whole = (block + 1) * BLOCK <= n
        where = at(target, block * BLOCK) if is_whole else last
        words(where, block, upper, key)
        if kind == NORMAL:
            normals(where)
        elif kind == UNIFORM:
            uniforms(where)
        else:
            bernoullis(where, limit)
        if not is_whole:
            for i in range(block * BLOCK, n):
                target[i] = last[i - block * BLOCK]


@Kernel
def draw32(record):
    """Fill blocks of n float32 values at an address.

    Args:
        kind: NORMAL for standard normal draws, UNIFORM, or BERNOULLI for 1 with probability limit / 2^32.
        upper, key: of Philox; the lower half of a counter is the number of a value divided by four.
        first, blocks: the range of blocks.
    """
    target, n, kind, limit, upper, key, first, blocks = arguments(record, 6, 0)
    fill(float32_at(target), n, kind, limit, upper, key, first, blocks)

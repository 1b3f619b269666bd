"""The fast Walsh-Hadamard transform in vector instructions: all stages of a row that fit into registers in one pass."""
# pyright: reportMissingImports=false, reportCallIssue=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from bayesify.native.compilation import Kernel, inlined
from bayesify.native.records import arguments
from bayesify.native.vectors import Vector, float32_at, float64_at, load, store

_LANES = {types.float32: 16, types.float64: 8}  # 64 bytes; LLVM splits vectors that are wider than the machine's
_LINE = 4096  # elements of a row that are transformed completely before the next; they fit into the first cache


@intrinsic
def lanes_of(typingctx: Any, pointer: Any) -> Any:
    """The elements of a vector."""

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
        for value, offset in zip(_between(builder, values), offsets, strict=True):
            builder.store(value, at(second, offset), align=size)

    return types.void(source, target, types.int64, types.int64, radix, within), emit


def _across(builder: Any, value: Any, vector: Any, lanes: int) -> Any:
    """The transform of the lanes of a vector."""
    h = 1
    integers = ir.VectorType(ir.IntType(32), lanes)
    while h < lanes:
        partner = builder.shuffle_vector(value, value, ir.Constant(integers, [i ^ h for i in range(lanes)]))
        signs = ir.Constant(vector, [-1.0 if i & h else 1.0 for i in range(lanes)])
        value = builder.fadd(builder.fmul(value, signs, flags=("contract",)), partner, flags=("contract",))  # exact in any case
        h *= 2
    return value


def _between(builder: Any, values: list[Any]) -> list[Any]:
    """The transform between vectors."""
    values, h = values.copy(), 1
    while h < len(values):
        for i in range(len(values)):
            if not i & h:
                a, b = values[i], values[i + h]
                values[i], values[i + h] = builder.fadd(a, b), builder.fsub(a, b)
        h *= 2
    return values


@inlined()
def _stage(source, target, begin, end, h, bits):
    """A pass with radix 2**bits at distance h over elements begin to end."""
    lanes = lanes_of(source)
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


@inlined()
def _first(source, target, begin, end, bits):
    """All lanes and 2**bits neighboring vectors."""
    lanes = lanes_of(source)
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


@inlined()
def _next_bits(h, n):
    left = 0
    while h << left < n:
        left += 1
    passes = (left + 3) // 4
    return (left + passes - 1) // passes


@inlined()
def transform_rows(source, target, n, first, end_row):
    """Transform rows of n elements."""
    lanes = lanes_of(source)
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


@inlined()
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
    transform_rows(float32_at(source), float32_at(target), n, first, first + rows)


@Kernel
def fwht64(record):
    """Transform rows of n float64 values from one address to another; n is at least 8."""
    source, target, n, first, rows = arguments(record, 3, 0)
    transform_rows(float64_at(source), float64_at(target), n, first, first + rows)


def step(compute: Callable[..., tuple[Vector, ...]]) -> Any:
    """A function of kernels, of n and pointers to rows of n elements, that computes with their vectors.

    The results replace the first of the rows.
    """
    vectors = _vectors(compute, 0, transforms=False)

    @inlined()
    def run(n, *rows):
        for i in range(0, n, lanes_of(rows[0])):
            vectors(i, *rows)

    return run


def step_and_transform(compute: Callable[..., tuple[Vector, ...]]) -> Any:
    """`step`, and the transform of the first row, in registers if it is short."""
    each, four, eight, sixteen = step(compute), *(_vectors(compute, bits, transforms=True) for bits in (2, 3, 4))

    @inlined()
    def run(n, *rows):
        vectors = n // lanes_of(rows[0])
        if vectors == 4:
            four(0, *rows)
        elif vectors == 8:
            eight(0, *rows)
        elif vectors == 16:
            sixteen(0, *rows)
        else:
            each(n, *rows)
            transform_rows(rows[0], rows[0], n, 0, 1)

    return run


def _vectors(compute: Callable[..., tuple[Vector, ...]], bits: int, *, transforms: bool) -> Any:
    """`step` for 2**bits vectors from an offset."""

    def typed(typingctx: Any, offset: Any, *rows: Any) -> Any:
        lanes = _LANES[rows[0].dtype]

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
            kind = ir.VectorType(context.get_value_type(rows[0].dtype), lanes)
            places = [builder.gep(row, [arguments[0]]) for row in arguments[1:]]
            values = []
            for i in range(0, lanes << bits, lanes):
                first, *others = compute(*(load(builder, place, i, kind) for place in places))
                values.append(first.value)
                for place, other in zip(places[1:], others, strict=False):
                    store(builder, place, i, other)
            if transforms:
                values = _between(builder, [_across(builder, value, kind, lanes) for value in values])
            for i, value in enumerate(values):
                store(builder, places[0], i * lanes, Vector(builder, value))

        return types.void(types.int64, *rows), emit

    names = "typingctx", "offset", *inspect.signature(compute).parameters
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    cast(Any, typed).__signature__ = inspect.Signature(parameters)
    return intrinsic(typed)

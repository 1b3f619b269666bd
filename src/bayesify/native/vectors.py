"""Vectors of a machine in numba kernels: 64 bytes, with the operators of Python, from which intrinsics are written."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "Vector", "at", "float32_at", "float64_at", "int64_at", "load", "splat", "store"]

LANES = 16  # 64 bytes; LLVM splits vectors that are wider than the machine's
INT = ir.VectorType(ir.IntType(32), LANES)
WIDE = ir.VectorType(ir.IntType(64), LANES // 2)
FLOAT = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def float32_at(typingctx: Any, address: Any) -> Any:
    """The address as a pointer to float32."""
    return types.CPointer(types.float32)(types.int64), _cast


@intrinsic
def float64_at(typingctx: Any, address: Any) -> Any:
    """The address as a pointer to float64."""
    return types.CPointer(types.float64)(types.int64), _cast


@intrinsic
def int64_at(typingctx: Any, address: Any) -> Any:
    """The address as a pointer to integers, such as addresses."""
    return types.CPointer(types.int64)(types.int64), _cast


def _cast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))


class Vector:
    """A vector of an IR builder. Python numbers become vectors of equal lanes; products and sums may be fused."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _with(self, name: str, other: Any) -> Vector:
        b, floating = self.builder, isinstance(self.value.type.element, (ir.FloatType, ir.DoubleType))
        other = other.value if isinstance(other, Vector) else ir.Constant(self.value.type, [other] * self.value.type.count)
        value = getattr(b, f"f{name}")(self.value, other, flags=("contract",)) if floating else getattr(b, name)(self.value, other)
        return Vector(b, value)

    def __add__(self, other: Any) -> Vector:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Vector:
        return self._with("sub", other)

    def __mul__(self, other: Any) -> Vector:
        return self._with("mul", other)

    def __xor__(self, other: Any) -> Vector:
        return self._with("xor", other)

    def __and__(self, other: Any) -> Vector:
        return self._with("and_", other)

    def __lshift__(self, bits: int) -> Vector:
        return self._with("shl", bits)

    def __rshift__(self, bits: int) -> Vector:
        """Shift zeros in."""
        return self._with("lshr", bits)

    def shift_signed(self, bits: int) -> Vector:
        """Shift copies of the sign in."""
        return self._with("ashr", bits)

    def viewed(self, kind: Any) -> Vector:
        """The same bits as another type."""
        return Vector(self.builder, self.builder.bitcast(self.value, kind))

    def to_float(self) -> Vector:
        """Signed integers as floating-point numbers."""
        return Vector(self.builder, self.builder.sitofp(self.value, FLOAT))

    def shuffled(self, other: Vector, lanes: list[int]) -> Vector:
        """Lanes of this vector, numbered from 0, and of another, numbered from the number of lanes."""
        return Vector(self.builder, self.builder.shuffle_vector(self.value, other.value, ir.Constant(INT, lanes)))

    def where(self, a: Vector, b: Vector) -> Vector:
        """Lanes of a where this is not zero, else of b."""
        zero = ir.Constant(self.value.type, None)
        return Vector(self.builder, self.builder.select(self.builder.icmp_signed("!=", self.value, zero), a.value, b.value))

    def is_below(self, limit: Vector) -> Vector:
        """1.0 where an unsigned integer is below another, else 0.0."""
        is_below = self.builder.icmp_unsigned("<", self.value, limit.value)
        return Vector(
            self.builder, self.builder.select(is_below, ir.Constant(FLOAT, [1.0] * LANES), ir.Constant(FLOAT, [0.0] * LANES))
        )

    def sqrt(self) -> Vector:
        """The square root."""
        kind = ir.FunctionType(FLOAT, [FLOAT])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.sqrt.v{LANES}f32")
        return Vector(self.builder, self.builder.call(function, [self.value]))

    def polynomial(self, *coefficients: float) -> Vector:
        """The value of a polynomial, by Horner's rule, from the highest coefficient to the constant."""
        value = self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            value = value * self + coefficient
        return value


def splat(builder: Any, scalar: Any, kind: Any) -> Vector:
    """A vector of equal lanes."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    return Vector(builder, builder.shuffle_vector(first, first, lanes))


def _address(builder: Any, pointer: Any, offset: int, kind: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [ir.Constant(ir.IntType(64), offset)]), kind.as_pointer())


def load(builder: Any, pointer: Any, offset: int, kind: Any = FLOAT) -> Vector:
    """The vector at a pointer to elements and a number of them."""
    return Vector(builder, builder.load(_address(builder, pointer, offset, kind), align=64 // kind.count))


def store(builder: Any, pointer: Any, offset: int, vector: Vector) -> None:
    """Store a vector where `load` finds it."""
    kind = vector.value.type
    builder.store(vector.value, _address(builder, pointer, offset, kind), align=64 // kind.count)


@intrinsic
def at(typingctx: Any, pointer: Any, offset: Any) -> Any:
    """The pointer to a later element."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), emit

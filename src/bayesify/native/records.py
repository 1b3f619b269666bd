"""Arguments of kernels: a record of 64-bit words, of which every call takes one part of the rows.

A record has the number of parts that have been taken, the rows per part, the rows, reals, and integers, of which a kernel may read
the first alone: `bayesify.native.threads` writes it.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["arguments"]

_WORD = ir.IntType(64)
_HEAD = 3  # words before the reals


@intrinsic(prefer_literal=True)
def arguments(typingctx: Any, record: Any, integers: Any, reals: Any) -> Any:
    """The given number of integers and of reals of a record, and a part that no other call has: its first row and its rows."""
    counts = integers.literal_value, reals.literal_value
    kinds = types.Tuple((types.int64,) * counts[0] + (types.float64,) * counts[1] + (types.int64, types.int64))

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = builder.inttoptr(arguments[0], _WORD.as_pointer())

        def word(index: int) -> Any:
            return builder.load(builder.gep(words, [ir.Constant(_WORD, index)]))

        reals = [builder.bitcast(word(_HEAD + i), ir.DoubleType()) for i in range(counts[1])]
        integers = [word(_HEAD + counts[1] + i) for i in range(counts[0])]
        part = builder.atomic_rmw("add", words, ir.Constant(_WORD, 1), "seq_cst")
        first = builder.mul(part, word(1))
        left = builder.sub(word(2), first)
        rows = builder.select(builder.icmp_signed("<", left, word(1)), left, word(1))
        return context.make_tuple(builder, signature.return_type, [*integers, *reals, first, rows])

    return kinds(record, integers, reals), emit

"""numba's compilation of kernels, with a cache on disk that follows every source file of the kernels."""
# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib import resources
from typing import Any

from numba import cfunc, njit, types

__all__ = ["INLINED", "Kernel", "inlined"]

INLINED = {"error_model": "numpy", "forceinline": True}
"""Options of numba for a function that kernels call.

Without `forceinline` a function may stay a symbol of its own. The process that compiles a kernel calls the machine code of the
function alone; one that loads the kernel from disk calls the copy in the kernel, which was optimized twice and may add the parts
of a sum in another order.
"""


def _digest() -> str:
    """A digest of the source of all kernels and of what they are written with."""
    files = {file.name: file for file in resources.files(__package__ or "").iterdir()}
    names = sorted(name for name in files if name.endswith("_kernels.py") or name in ("compilation.py", "records.py", "vectors.py"))
    return hashlib.sha256(b"".join(files[name].read_bytes() for name in names)).hexdigest()[:12]


_SOURCES = _digest()


def inlined(fastmath: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """A decorator of functions that kernels call, with numba's flags of fast mathematics."""
    return njit(**INLINED, fastmath=set(fastmath))


class Kernel:
    """A function of the address of a record (`bayesify.native.records`), compiled on first use and kept on disk.

    numba compares the file of the function with the cached one, but not the files of what it calls. The name of an entry
    contains the function's qualified name, which therefore gets a digest of all files.
    """

    def __init__(self, function: Callable[[Any], None]) -> None:
        function.__qualname__ += f"-{_SOURCES}"
        self._function = function

    @cached_property
    def compiled(self) -> Any:
        """numba's form of the function."""
        return cfunc(types.void(types.int64), cache=True, error_model="numpy")(self._function)

    @cached_property
    def address(self) -> int:
        """The address of the machine code."""
        return self.compiled.address

    @cached_property
    def call(self) -> Callable[[int], None]:
        """Call the machine code with the address of a record, without the interpreter's lock."""
        return ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.address)

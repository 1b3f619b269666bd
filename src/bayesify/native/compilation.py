"""numba's compilation of kernels, with a cache on disk that follows every source file of the kernels."""
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from numba import njit

__all__ = ["kernel"]


def _digest() -> str:
    """A digest of the source of all kernels and of what they are written with."""
    files = {file.name: file for file in resources.files(__package__ or "").iterdir()}
    names = sorted(name for name in files if name.endswith("_kernels.py") or name in ("compilation.py", "vectors.py"))
    return hashlib.sha256(b"".join(files[name].read_bytes() for name in names)).hexdigest()[:12]


_SOURCES = _digest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, and keep the machine code on disk.

    numba compares the file of the function with the cached one, but not the files of what it calls. The name of an entry
    contains the function's qualified name, which therefore gets a digest of all files.
    """
    function.__qualname__ += f"-{_SOURCES}"
    return njit(nogil=True, cache=True, error_model="numpy")(function)

"""Whether the native operators are used."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from types import ModuleType

from bayesify.errors import MissingDependencyError, warn

__all__ = ["load_kernels", "native_is_used", "use_native"]


@cache
def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ModuleNotFoundError:
        return False


_is_used = os.environ.get("BAYESIFY_NATIVE", "1") != "0" and _is_installed()


def native_is_used() -> bool:
    """Return whether native operators are used where they are faster.

    Example:
        >>> use_native(False)
        >>> native_is_used()
        False
    """
    return _is_used


def use_native(use: bool = True) -> None:
    """Turn the native operators on or off for this process. They are on if numba is installed and `BAYESIFY_NATIVE` is not 0.

    Compiled functions (`torch.compile`) keep the operators that they were compiled with.

    Args:
        use: whether to use them.

    Raises:
        MissingDependencyError: numba is not installed.

    Example:
        >>> use_native(False)
        >>> fwht(torch.tensor([1.0, 2.0]))
        tensor([ 3., -1.])
    """
    global _is_used  # noqa: PLW0603 - a setting of the process
    if use and not _is_installed():
        raise MissingDependencyError("use_native(True)", "numba", extra="fast")
    _is_used = use


@cache
def load_kernels(name: str) -> ModuleType | None:
    """Import a module of kernels. If numba cannot be imported, warn, turn the operators off and return None.

    Importing numba takes half a second, compiling a kernel one or two more, once per machine.
    """
    try:
        return importlib.import_module(f"bayesify.native.{name}")
    except ImportError as error:
        warn(f"numba is installed but cannot be imported, so the native operators are off: {error}")
        use_native(False)
        return None

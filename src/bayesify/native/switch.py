"""Whether native operators are used, and the library whose kernels they run: numba on a CPU, Triton on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from types import ModuleType
from typing import Any, Literal, cast

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError, MissingDependencyError, warn

__all__ = ["LIBRARIES", "kernel_for", "load_kernels", "native_is_used", "runs_triton", "use_native"]

_PACKAGES = {"cpu": "numba", "cuda": "triton"}
_LEAST_CAPABILITY = (8, 0)  # that of the tensor cores which compute products of float32
_FOLDERS = {"numba": "native", "triton": "native.gpu"}


@cache
def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _is_wanted(variable: str, default: str, package: str) -> bool:
    return os.environ.get(variable, default) != "0" and _is_installed(package)


LIBRARIES: dict[str, str | None] = {
    "cpu": "numba" if _is_wanted("BAYESIFY_NATIVE", "1", "numba") else None,
    "cuda": "triton" if _is_wanted("BAYESIFY_NATIVE_CUDA", "1", "triton") and torch.version.hip is None else None,
}
"""By type of device, the library whose kernels the operators run, or None for PyTorch's operators."""


def runs_triton(tensor: Tensor) -> bool:
    """Whether kernels for this tensor are those of Triton."""
    return LIBRARIES.get("cpu" if tensor.is_cpu else tensor.device.type) == "triton"


def native_is_used(device: Literal["cpu", "cuda"] = "cpu") -> bool:
    """Return whether native operators are used where they are faster.

    Args:
        device: the type of device.

    Example:
        >>> use_native(False)
        >>> native_is_used()
        False
    """
    return LIBRARIES.get(device) is not None


def use_native(use: bool = True, device: Literal["cpu", "cuda"] = "cpu") -> None:
    """Turn the native operators of a type of device on or off for this process.

    On a CPU they are on if numba is installed and `BAYESIFY_NATIVE` is not 0; on a GPU of NVIDIA if triton is installed, which
    comes with PyTorch for CUDA, and `BAYESIFY_NATIVE_CUDA` is not 0. Compiled functions (`torch.compile`) keep the operators that
    they were compiled with.

    Args:
        use: whether to use them.
        device: the type of device.

    Raises:
        ConfigurationError: another type of device.
        MissingDependencyError: numba, or for a GPU triton, is not installed.

    Example:
        >>> use_native(False)
        >>> fwht(torch.tensor([1.0, 2.0]))
        tensor([ 3., -1.])
    """
    if device not in _PACKAGES:
        raise ConfigurationError(f"device must be one of {list(_PACKAGES)}, got {device!r}")
    package = _PACKAGES[device]
    if use and not _is_installed(package):
        raise MissingDependencyError(f"use_native(True, {device!r})", package, extra="fast" if package == "numba" else None)
    LIBRARIES[device] = package if use else None


@cache
def load_kernels(name: str, library: str = "numba") -> ModuleType | None:
    """Import a module of kernels. If the library cannot be imported or used, warn, turn its operators off and return None.

    Importing numba takes half a second, compiling a kernel one or two more, once per machine.
    """
    try:
        module = importlib.import_module(f"bayesify.{_FOLDERS[library]}.{name}")
        if library == "triton":
            _probe()
        return module
    except ImportError as error:
        reason, cause = "cannot be imported", error
    except Exception as error:  # noqa: BLE001 # whatever a compiler raises; PyTorch's operators compute the same
        reason, cause = "cannot run kernels here", error
    warn(f"{library} is installed but {reason}, so its native operators are off: {cause}")
    for device in [device for device, used in LIBRARIES.items() if used == library]:
        use_native(False, cast(Any, device))
    return None


@cache
def kernel_for(dtype: torch.dtype, module: str, name: str) -> Any:
    """Return the kernel of numba for tensors of a dtype, float32 or float64, by its name without the precision."""
    return getattr(load_kernels(module), f"{name}{torch.finfo(dtype).bits}")


@cache
def _probe() -> None:
    """Compile and run a kernel on the GPU, or raise whatever forbids it; without a GPU, kernels run in Triton's interpreter."""
    if not torch.cuda.is_available():
        return
    if torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        raise ConfigurationError(f"the GPU has a compute capability below {'.'.join(map(str, _LEAST_CAPABILITY))}")
    importlib.import_module("bayesify.native.gpu.probe_kernels").run()

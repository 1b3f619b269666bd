"""The native transform, registered with PyTorch, and which tensors kernels can compute with."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bayesify.native.gpu import hadamard as gpu_hadamard
from bayesify.native.switch import LIBRARIES, kernel_for, load_kernels, runs_triton
from bayesify.native.threads import THREAD, over_rows

__all__ = [
    "LEAST_SIZE",
    "has_kernels",
    "is_eager",
    "is_exporting",
    "is_transformed",
    "kernels_for",
    "native_fwht",
    "transforms_natively",
]

_LIBRARY = torch.library.Library("bayesify", "DEF")
_LIBRARY.define("fwht(Tensor x) -> Tensor")
_fwht: Any = torch.ops.bayesify.fwht.default

LEAST_SIZE = 16  # of a row, a vector register
_DTYPES = {"numba": (torch.float32, torch.float64), "triton": (torch.float32,)}
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_DENSE_SIZE, _DENSE_WORK = 128, 2**18  # where a product with the dense matrix takes less time than a call


def transforms_natively(x: Tensor) -> bool:
    """Whether `native_fwht` is faster for x than products with Hadamard matrices, and available."""
    library, n = LIBRARIES.get(x.device.type), x.shape[-1]
    if library is None or n < LEAST_SIZE or (library == "triton" and x.dtype == torch.float64):
        return False
    if torch.compiler.is_compiling():  # sizes of batches are symbols; exported programs must run without bayesify
        return n >= _DENSE_SIZE and not is_exporting() and not is_transformed()
    is_worth_a_call = library == "triton" or n > _DENSE_SIZE or x.numel() * n >= _DENSE_WORK
    return is_worth_a_call and load_kernels("hadamard_kernels", library) is not None


def native_fwht(x: Tensor) -> Tensor:
    """Fast Walsh-Hadamard transform over the last dimension, unnormalized: `bayesify.functional.fwht` without its checks.

    Half precision is computed in float32. Under autocast the result has the lower precision.

    Args:
        x: (..., n), floating point, n a power of two of at least 16; on a GPU at most in float32.

    Returns:
        (..., n).

    Example:
        >>> native_fwht(torch.ones(2, 16))[:, :2]  # all of a constant row goes to the first of 16 coefficients
        tensor([[16.,  0.],
                [16.,  0.]])
    """
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(device))
    return _Transform.apply(x) if is_transformed() else _fwht(x)


def _transform(x: Tensor) -> Tensor:
    if not x.is_cpu or runs_triton(x):  # also in code that was compiled before they were turned off
        return gpu_hadamard.transform(x)
    wide = (x if x.dtype == torch.float64 else x.float()).contiguous()
    y = torch.empty_like(wide)
    n = wide.shape[-1]
    over_rows(
        kernel_for(wide.dtype, "hadamard_kernels", "fwht"), (wide.data_ptr(), y.data_ptr(), n), wide.numel() // n, THREAD // n
    )
    return y.to(x.dtype)


def _empty(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_LIBRARY.impl("fwht", _transform, "CPU")
_LIBRARY.impl("fwht", _transform, "CUDA")
torch.library.register_fake("bayesify::fwht", _empty, lib=_LIBRARY)
torch.library.register_autograd("bayesify::fwht", lambda ctx, grad: _fwht(grad), lib=_LIBRARY)
torch.library.register_vmap("bayesify::fwht", lambda info, in_dims, x: (_fwht(x.movedim(in_dims[0], 0)), 0), lib=_LIBRARY)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode differentiation is active: registered gradients support neither."""
    return cast(Any, torch._C)._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def is_exporting() -> bool:
    """Whether `torch.export` is tracing. The compiler of PyTorch 2.8 takes PyTorch's own function for true in all compiled code."""
    return torch.compiler.is_exporting()


# The compiler calls them while it traces, inside of the traced transforms: `torch.compiler.assume_constant_result` without
# importing the compiler.
for _function in (is_transformed, is_exporting):
    cast(Any, _function)._dynamo_marked_constant = True


def is_eager() -> bool:
    """Whether nothing traces or transforms what is computed now."""
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return not (torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state())


def kernels_for(*tensors: Tensor) -> str | None:
    """The library whose kernels can compute with tensors: plain ones of one dtype and device that nothing traces or transforms.

    None if there is none. numba computes in float32 and float64, Triton in float32.
    """
    first = tensors[0]
    dtype, on_cpu = first.dtype, first.is_cpu
    library = LIBRARIES.get("cpu" if on_cpu else first.device.type)
    if library is None or torch.compiler.is_compiling() or dtype not in _DTYPES[library]:
        return None
    for t in tensors:  # a loop: the function is called for every layer
        if t.dtype != dtype or t.is_cpu != on_cpu or type(t) not in _PLAIN:
            return None
        if not on_cpu and t.device != first.device:
            return None
    return library if is_eager() else None


def has_kernels(tensor: Tensor) -> bool:
    """Whether there are kernels for a tensor of this device and dtype, whatever traces or transforms it."""
    library = LIBRARIES.get(tensor.device.type)
    return library is not None and tensor.dtype in _DTYPES[library]


class _Transform(torch.autograd.Function):
    """The operator for transforms of `torch.func`; its registered gradient takes less time per call."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _fwht(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return native_fwht(grad)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return native_fwht(tangent)

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[int], x: Tensor
    ) -> tuple[Tensor, int]:
        return native_fwht(x.movedim(in_dims[0], 0)), 0

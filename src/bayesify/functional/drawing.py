"""Normal, uniform and Bernoulli draws: native ones on a CPU if `bayesify[fast]` is installed, otherwise PyTorch's.

Compiled code calls the same functions, because the draws of PyTorch's compiler take several times as long on a CPU. Eager code,
compiled code and code traced by `fit_many` or `torch.func.grad` therefore draw equal values for a seed. `torch.func.vmap`,
exported programs and `torch.jit.trace` draw with PyTorch's functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from bayesify.native.draws import draws_natively, fill_bernoulli, fill_normal, fill_uniform
from bayesify.native.operators import is_exporting

__all__ = ["OPERATORS", "bernoulli", "standard_normal", "standard_uniform"]

_LIBRARY = torch.library.Library("bayesify", "FRAGMENT")


def standard_normal(*size: int, like: Tensor) -> Tensor:
    r"""Independent $N(0, 1)$ draws with the dtype and device of a tensor, for the seed of `torch.manual_seed`.

    These are the values of `torch.randn`, unless native draws are used: see `bayesify.native`.

    Args:
        size: the shape.
        like: a tensor with the dtype and device of the draws.

    Returns:
        A contiguous tensor of this shape.

    Example:
        >>> standard_normal(2, 3, like=torch.zeros(1)).shape
        torch.Size([2, 3])
    """
    if _is_opaque(size, like.device):
        return torch.ops.bayesify.randn(size, like.dtype, _place())
    return _randn(size, like.dtype, like.device)


def standard_uniform(*size: int, like: Tensor) -> Tensor:
    r"""Independent draws from $U[0, 1)$ with the dtype and device of a tensor, as `standard_normal`.

    Args:
        size: the shape.
        like: a tensor with the dtype and device of the draws.

    Returns:
        A contiguous tensor of this shape.

    Example:
        >>> standard_uniform(2, 3, like=torch.zeros(1)).shape
        torch.Size([2, 3])
    """
    if _is_opaque(size, like.device):
        return torch.ops.bayesify.rand(size, like.dtype, _place())
    return _rand(size, like.dtype, like.device)


def bernoulli(*size: int, p: float, like: Tensor) -> Tensor:
    r"""Independent draws, 1 with probability p and else 0, as `standard_normal`.

    PyTorch's compiler would keep a comparison for the backward pass as booleans, which it writes one by one on a CPU.

    Args:
        size: the shape.
        p: the probability of a 1, in [0, 1].
        like: a tensor with the dtype and device of the draws.

    Returns:
        A contiguous tensor of this shape.

    Example:
        >>> bernoulli(2, p=1.0, like=torch.zeros(1))
        tensor([1., 1.])
    """
    if _is_opaque(size, like.device):
        return torch.ops.bayesify.bernoulli(size, p, like.dtype, _place())
    return _bernoulli(size, p, like.dtype, like.device)


def _randn(size: Sequence[int], dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    if dtype != torch.float64 and _is_native(size, device):
        drawn = fill_normal(torch.empty(size, dtype=torch.float32, device=device), generator)
        return drawn if dtype == torch.float32 else drawn.to(dtype)
    return torch.randn(size, dtype=dtype, device=device, **_given(generator))


def _rand(size: Sequence[int], dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    if dtype == torch.float32 and _is_native(size, device):  # rounded to a lower precision, they would reach 1
        return fill_uniform(torch.empty(size, dtype=dtype, device=device), generator)
    return torch.rand(size, dtype=dtype, device=device, **_given(generator))


def _bernoulli(
    size: Sequence[int], p: float, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    if _is_native(size, device):
        return fill_bernoulli(torch.empty(size, dtype=torch.float32, device=device), p, generator).to(dtype)
    # On a CPU four times faster than Tensor.bernoulli_.
    return (torch.rand(size, device=device, **_given(generator)) >= 1 - p).to(dtype)


def _given(generator: torch.Generator | None) -> dict[str, Any]:
    # PyTorch's operators with a generator, even None, cannot be exported with a dynamic size.
    return {} if generator is None else {"generator": generator}


def _is_native(size: Sequence[int], device: torch.device) -> bool:
    """Whether the kernels can draw here: not while something records PyTorch's operators."""
    if torch.compiler.is_compiling():
        return False
    return draws_natively(math.prod(size), device) and not _is_transformed() and not torch._C._get_tracing_state()


def _is_opaque(size: Sequence[int], device: torch.device) -> bool:
    """Whether draws are calls of the operators here: in compiled code, and where tracing records what would be native draws."""
    if torch.compiler.is_compiling():  # exported programs must run without bayesify
        return device.type == "cpu" and not is_exporting() and not _is_transformed()
    if not (torch._C._len_torch_dispatch_stack() or _is_transformed()):
        return False
    return draws_natively(math.prod(size), device) and not _is_vectorized()


_places = itertools.count()


def _place() -> int:
    """A number for each call in traced code: the compiler merges calls with equal arguments, even of a random operator."""
    return next(_places)


def _is_transformed() -> bool:
    """Whether a transform of `torch.func` is active, which in compiled code knows how to draw with PyTorch's own functions only."""
    return _functorch.peek_interpreter_stack() is not None


def _is_vectorized() -> bool:
    """Whether `torch.func.vmap` is active, which knows how to draw with PyTorch's own functions only."""
    return any(level.key() == _functorch.TransformType.Vmap for level in _functorch.get_interpreter_stack() or ())


for _function in (_place, _is_transformed):  # called while the compiler traces, as by `torch.compiler.assume_constant_result`
    cast(Any, _function)._dynamo_marked_constant = True

OPERATORS: dict[Any, Callable[..., Tensor]] = {}
"""The operators, and functions of the same arguments and a generator."""


def _register(name: str, parameters: str, draw: Callable[..., Tensor]) -> None:
    """Define an operator that no compiler looks into: no tensor among its arguments decides the device."""

    def on_cpu(size: Sequence[int], *options: Any, generator: torch.Generator | None = None) -> Tensor:
        return draw(size, *options[:-1], torch.device("cpu"), generator)

    _LIBRARY.define(f"{name}(SymInt[] size, {parameters}int place) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    _LIBRARY.impl(name, on_cpu, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"bayesify::{name}", lambda size, *options: torch.empty(size, dtype=options[-2], device="cpu"), lib=_LIBRARY
    )
    OPERATORS[getattr(torch.ops.bayesify, name).default] = on_cpu


_register("randn", "ScalarType dtype, ", _randn)
_register("rand", "ScalarType dtype, ", _rand)
_register("bernoulli", "float p, ScalarType dtype, ", _bernoulli)

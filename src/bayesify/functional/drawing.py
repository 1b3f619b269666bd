"""Normal, uniform and Bernoulli draws, also in compiled code, whose own draws on a CPU take several times as long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

__all__ = ["bernoulli", "standard_normal", "standard_uniform"]

_LIBRARY = torch.library.Library("bayesify", "FRAGMENT")


def standard_normal(*size: int, like: Tensor) -> Tensor:
    r"""Independent $N(0, 1)$ draws with the dtype and device of a tensor: `torch.randn`, with the same values for a seed.

    Where `torch.compile` compiles for a CPU, the draws stay a call of PyTorch's own kernel.

    Args:
        size: the shape.
        like: a tensor with the dtype and device of the draws.

    Returns:
        A contiguous tensor of this shape.

    Example:
        >>> standard_normal(2, 3, like=torch.zeros(1)).shape
        torch.Size([2, 3])
    """
    if _is_opaque(like.device):
        return torch.ops.bayesify.randn(size, like.dtype, _place())
    return torch.randn(size, dtype=like.dtype, device=like.device)


def standard_uniform(*size: int, like: Tensor) -> Tensor:
    r"""Independent draws from $U[0, 1)$ with the dtype and device of a tensor: `torch.rand`, compiled as `standard_normal`.

    Args:
        size: the shape.
        like: a tensor with the dtype and device of the draws.

    Returns:
        A contiguous tensor of this shape.

    Example:
        >>> standard_uniform(2, 3, like=torch.zeros(1)).shape
        torch.Size([2, 3])
    """
    if _is_opaque(like.device):
        return torch.ops.bayesify.rand(size, like.dtype, _place())
    return torch.rand(size, dtype=like.dtype, device=like.device)


def bernoulli(*size: int, p: float, like: Tensor) -> Tensor:
    r"""Independent draws, 1 with probability p and else 0, compiled as `standard_normal`.

    Compiled code would keep a comparison for the backward pass as booleans, which it writes one by one on a CPU.

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
    if _is_opaque(like.device):
        return torch.ops.bayesify.bernoulli(size, p, like.dtype, _place())
    return _bernoulli(size, p, like.dtype, like.device)


def _bernoulli(size: Sequence[int], p: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    # On a CPU four times faster than Tensor.bernoulli_.
    return (torch.rand(size, device=device) >= 1 - p).to(dtype)


def _is_opaque(device: torch.device) -> bool:
    """Whether draws are calls of operators here; exported programs must run without bayesify."""
    return torch.compiler.is_compiling() and device.type == "cpu" and not torch.compiler.is_exporting() and not _is_transformed()


_places = itertools.count()


def _place() -> int:
    """A number for each call in traced code: the compiler merges calls with equal arguments, even of a random operator."""
    return next(_places)


def _is_transformed() -> bool:
    """Whether a transform of `torch.func` is active, which knows how to draw with PyTorch's own functions only."""
    return _functorch.peek_interpreter_stack() is not None


for _function in (_place, _is_transformed):  # called while the compiler traces, as by `torch.compiler.assume_constant_result`
    cast(Any, _function)._dynamo_marked_constant = True


def _register(name: str, parameters: str, draw: Callable[..., Tensor]) -> None:
    """Define an operator that no compiler looks into: no tensor among its arguments decides the device."""
    _LIBRARY.define(f"{name}(SymInt[] size, {parameters}int place) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    _LIBRARY.impl(name, lambda size, *options: draw(size, *options[:-1], torch.device("cpu")), "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"bayesify::{name}", lambda size, *options: torch.empty(size, dtype=options[-2], device="cpu"), lib=_LIBRARY
    )


_register("randn", "ScalarType dtype, ", lambda size, dtype, device: torch.randn(size, dtype=dtype, device=device))
_register("rand", "ScalarType dtype, ", lambda size, dtype, device: torch.rand(size, dtype=dtype, device=device))
_register("bernoulli", "float p, ScalarType dtype, ", _bernoulli)

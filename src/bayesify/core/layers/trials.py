"""Trials of a layer whose class is not known: copies of it with other parameters, on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LARGE", "LARGEST", "are_close", "depends_on_mode", "have_values", "watched", "with_parameters"]

LARGE, LARGEST = 2**20, 2**27  # numbers of a layer: of single precision, and too many to be tried
_IN_CACHE = 2**16  # elements that are compared at a time


def with_parameters(layer: nn.Module, values: Mapping[str, Tensor], training: bool) -> nn.Module:
    """A copy of the layer with these parameters, and with copies of its buffers, lists and dictionaries."""
    probe = copy.copy(layer)
    probe.__dict__.update({name: copy.copy(value) for name, value in vars(layer).items() if isinstance(value, list | dict | set)})
    probe.training = training
    random = {name: nn.Parameter(value, requires_grad=False) for name, value in values.items()}
    probe.__dict__["_parameters"] = dict.fromkeys(layer._parameters) | random  # a bias may be None
    dtype = next(iter(values.values())).dtype
    probe.__dict__["_buffers"] = {
        name: value if value is None else value.detach().to("cpu", dtype if value.is_floating_point() else value.dtype, copy=True)
        for name, value in layer._buffers.items()
    }
    return probe


def have_values(tensors: Mapping[str, Any], values: Mapping[str, Tensor]) -> bool:
    """Whether tensors still have these values: a layer may change its weight in place (a bound on its norm)."""
    return all(torch.equal(tensors[name], value) for name, value in values.items())


def are_close(result: object, expected: Tensor) -> bool:
    """Whether a result is a tensor with the expected values, up to rounding."""
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        return False
    result, expected = result.detach().to(expected).flatten(), expected.detach().flatten()
    if expected.is_complex():
        result, expected = torch.view_as_real(result).flatten(), torch.view_as_real(expected).flatten()
    if not expected.is_floating_point():
        return torch.equal(result, expected)
    low, high = expected.aminmax()
    least = 1e-5 * torch.maximum(-low, high)
    pairs = zip(result.split(_IN_CACHE), expected.split(_IN_CACHE), strict=True)
    return all(bool(((x - y).abs_() <= y.abs().mul_(1e-4).add_(least)).all()) for x, y in pairs)


def watched(kind: type[nn.Module], read: set[str]) -> type[nn.Module]:
    """A subclass whose instances add the names of the attributes that are read to `read`."""

    def get(layer: nn.Module, name: str) -> Any:
        read.add(name)
        return kind.__getattribute__(layer, name)

    def unnoted(name: str) -> Callable[..., Any]:
        """A method of `nn.Module` without what it reads itself, which is `__dict__`."""
        method = getattr(kind, name)

        def call(*args: Any) -> Any:
            before = set(read)
            try:
                return method(*args)
            finally:
                read.intersection_update(before)

        return call

    own = {name: unnoted(name) for name in ("__getattr__", "__setattr__") if getattr(kind, name) is getattr(nn.Module, name)}
    return type(kind.__name__, (kind,), {**own, "__getattribute__": get, "__module__": kind.__module__})


def depends_on_mode(layer: nn.Module, read: set[str]) -> bool:
    """Whether a layer that read these attributes in a trial may compute something else in the other mode."""
    is_plain = type(layer).__getattribute__ is object.__getattribute__  # others may read without a trace
    return not is_plain or "training" in read or any(name.startswith("__") for name in read)  # such as `__dict__`

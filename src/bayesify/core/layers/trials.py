"""Trials of a layer whose class is not known: copies of it with other parameters, on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LARGE", "LARGEST", "are_close", "have_values", "with_parameters"]

LARGE, LARGEST = 2**20, 2**27  # numbers of a layer: of single precision, and too many to be tried


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
    result, expected = result.detach().to(expected), expected.detach()
    size = expected.abs()  # several times as fast as torch.allclose
    return bool(((result - expected).abs() <= 1e-4 * size + 1e-5 * size.max()).all())

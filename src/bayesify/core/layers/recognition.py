"""Layers of other libraries that compute what a supported layer does.

Libraries of pretrained transformers define root mean square normalizations and linear layers as classes of their own, often one
per architecture. Such a layer is recognized by its parameters, and its function is verified at random weights and inputs.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer
from bayesify.core.layers.linear import InputMajorLinear
from bayesify.core.layers.normalization import RMSNormalization, epsilon

__all__ = ["recognized"]


def recognized(layer: nn.Module) -> type[BayesianLayer] | None:
    """The kind of supported layer whose function this layer has, with the same parameters; None if there is none."""
    if isinstance(layer, torch.jit.ScriptModule):
        return None
    if any(True for _ in layer.children()) or any(True for _ in layer.buffers()) or not _has_one_input(layer):
        return None
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters() if not isinstance(p, nn.UninitializedParameter)}
    if set(shapes) == {"weight"} and len(shapes["weight"]) == 1 and (eps := epsilon(layer)) is not None:
        kind, function = RMSNormalization, lambda x, weight: F.rms_norm(x, weight.shape, weight, eps)
    elif set(shapes) == {"weight", "bias"} and len(shapes["weight"]) == 2 and shapes["bias"] == shapes["weight"][1:]:
        kind, function = InputMajorLinear, lambda x, weight, bias: x @ weight + bias
    else:
        return None
    return kind if all(_agrees(layer, shapes, function, training) for training in (False, True)) else None


def _has_one_input(layer: nn.Module) -> bool:
    parameters = inspect.signature(type(layer).forward).parameters.values()
    return len(parameters) == 2 and all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)


@torch.no_grad()
def _agrees(layer: nn.Module, shapes: Mapping[str, tuple[int, ...]], function: Callable[..., Tensor], training: bool) -> bool:
    """Whether the layer computes this function of its input and parameters in this mode, at random values."""
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    x = torch.randn(2, 3, shapes["weight"][0], generator=generator, dtype=torch.float64)
    x[1] *= 1e-3  # where the eps of a normalization is of consequence
    probe = copy.copy(layer)
    probe.training = training
    probe.__dict__["_parameters"] = {name: nn.Parameter(value, requires_grad=False) for name, value in values.items()}
    try:
        result = type(layer).forward(probe, x)
    except (RuntimeError, TypeError, ValueError, AttributeError):  # it takes other inputs
        return False
    expected = function(x, **values)
    return (
        isinstance(result, Tensor)
        and result.shape == expected.shape
        and torch.allclose(result.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    )

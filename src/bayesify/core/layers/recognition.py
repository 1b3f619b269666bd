"""Layers of other libraries that compute what a supported layer does.

Libraries of pretrained transformers and of graph networks define root mean square normalizations and linear layers as classes of
their own, often one per architecture. Such a layer is recognized by its parameters, and its function is verified at random weights
and inputs.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.layer import BayesianLayer
from bayesify.core.layers.linear import InputMajorLinear, OutputMajorLinear
from bayesify.core.layers.normalization import RMSNormalization, epsilon

__all__ = ["recognized"]

_LARGE, _LARGEST = 2**20, 2**27  # numbers of a layer: of single precision, and too many to be tried


def recognized(layer: nn.Module) -> type[BayesianLayer] | None:
    """The kind of supported layer whose function this layer has, with the same parameters; None if there is none."""
    if isinstance(layer, torch.jit.ScriptModule):
        return None
    if any(True for _ in layer.children()) or any(True for _ in layer.buffers()) or not _has_one_input(layer):
        return None
    if not all(p.is_floating_point() for p in layer.parameters()):  # bitsandbytes warns if its layers are tried
        return None
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters() if not isinstance(p, nn.UninitializedParameter)}
    candidates, size = list(_candidates(layer, shapes)), sum(map(math.prod, shapes.values()))
    if not candidates or size > _LARGEST:
        return None
    generator, dtype = torch.Generator().manual_seed(0), torch.float64 if size < _LARGE else torch.float32
    values = {name: torch.rand(shape, generator=generator, dtype=dtype, device="cpu").sub_(0.4) for name, shape in shapes.items()}
    for kind, inputs, function in candidates:
        x = torch.randn(2, 3, inputs, generator=generator, dtype=dtype, device="cpu")
        x[1] *= 1e-3  # where the eps of a normalization is of consequence
        if all(_agrees(layer, values, x, function, training) for training in (False, True)):
            return kind
    return None


def _candidates(
    layer: nn.Module, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[type[BayesianLayer], int, Callable[..., Tensor]]]:
    """Kinds of layers with parameters of these shapes, the size of their inputs, and their function."""
    weight, bias = shapes.get("weight", ()), shapes.get("bias")
    if set(shapes) - {"bias"} != {"weight"}:
        return
    if len(weight) == 1 and bias is None and (eps := epsilon(layer)) is not None:
        yield RMSNormalization, weight[0], lambda x, weight: F.rms_norm(x, weight.shape, weight, eps)
    if len(weight) == 2 and bias in (None, weight[:1]):
        yield OutputMajorLinear, weight[1], F.linear
    if len(weight) == 2 and bias in (None, weight[1:]):
        yield InputMajorLinear, weight[0], lambda x, weight, bias=None: F.linear(x, weight.mT, bias)


def _has_one_input(layer: nn.Module) -> bool:
    try:
        parameters = inspect.signature(type(layer).forward).parameters.values()
    except (TypeError, ValueError):  # geoopt's manifolds are modules whose `forward` is NotImplemented
        return False
    return len(parameters) == 2 and all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)


@torch.no_grad()
def _agrees(layer: nn.Module, values: Mapping[str, Tensor], x: Tensor, function: Callable[..., Tensor], training: bool) -> bool:
    """Whether the layer computes this function of its input and parameters in this mode."""
    probe = copy.copy(layer)
    probe.training = training
    random = {name: nn.Parameter(value, requires_grad=False) for name, value in values.items()}
    probe.__dict__["_parameters"] = dict.fromkeys(layer._parameters) | random  # a bias may be None
    try:
        result = type(layer).forward(probe, x)
    except NETWORK_ERRORS:  # it takes other inputs
        return False
    expected = function(x, **values)
    return (
        isinstance(result, Tensor)
        and result.shape == expected.shape
        and torch.allclose(result.double(), expected.double(), rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    )

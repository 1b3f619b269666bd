"""Trials of the layers of one network, once for those that are alike: networks repeat layers, and large ones take long to try."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor, nn

from bayesify.core.layers.recognition import STATISTICS, UNCHANGEABLE, Recognized, is_normalization, recognized

__all__ = ["NetworkTrials"]

_OTHERS = ("_parameters", "_buffers", "_modules", "training")  # attributes that are compared otherwise, or that trials set


class NetworkTrials:
    """What the layers of a network are, for the time of its conversion, in which they do not change."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Recognized | None] = {}

    def recognized(self, layer: nn.Module) -> Recognized | None:
        """The result of `recognized` for this layer, or for one that is alike."""
        try:
            key: Hashable = _function_of(layer)
        except _UnknownError:
            key = layer
        if key not in self._found:
            self._found[key] = recognized(layer)
        return self._found[key]


class _UnknownError(Exception):
    """A layer has an attribute whose value may change, or that cannot be compared."""


def _function_of(layer: nn.Module) -> Hashable:
    """What a trial of a layer depends on; layers with equal ones differ in the values of their parameters only.

    Raises:
        _UnknownError: it is not known.
    """
    if layer._buffers and not (layer._buffers.keys() <= STATISTICS and is_normalization(layer)):  # a mask, whose values count
        raise _UnknownError
    modules = [(name, child) for name, child in layer._modules.items() if child is not None]
    if any(child._parameters for _, child in modules):  # which a layer of a supported kind does not have
        raise _UnknownError
    children = tuple((name, child.training, _function_of(child)) for name, child in modules)
    own = tuple((name, _constant(value)) for name, value in vars(layer).items() if name not in _OTHERS)
    return type(layer), _forms(layer._parameters), _forms(layer._buffers), children, own


def _forms(tensors: Mapping[str, Tensor | None]) -> Hashable:
    if any(isinstance(x, nn.UninitializedParameter) for x in tensors.values()):
        raise _UnknownError
    return tuple((name, None if x is None else (type(x), x.shape, x.dtype)) for name, x in tensors.items())


def _constant(value: Any) -> Hashable:
    """A value of an attribute with its type, as 1, 1.0 and True are equal."""
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_constant, value))
    if isinstance(value, dict):
        return type(value), tuple((_constant(key), _constant(part)) for key, part in value.items())
    if type(value) is set and not value:
        return set
    if type(value) not in UNCHANGEABLE:
        raise _UnknownError
    return type(value), value

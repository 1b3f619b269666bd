"""The layer that a method takes for the output layer, and whether the network calls others after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Self

from torch import nn
from torch.utils.hooks import RemovableHandle

from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import kind_of
from bayesify.core.packed import is_inner
from bayesify.core.tensor_functions import tensors_in
from bayesify.core.watch import origin_of
from bayesify.formatting import listing

__all__ = ["LaterLayers", "last_layer"]


def last_layer(layers: Mapping[str, nn.Module]) -> str | None:
    """The name of the last linear layer or convolution in module order, also if it cannot be made random; None without any."""
    names = [name for name, layer in layers.items() if kind_of(layer).contracts and not is_inner(layer)]
    return names[-1] if names else None


class LaterLayers:
    """Records, in a watched pass, the linear layers and convolutions that get results of layers taken for the output layer."""

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer]) -> None:
        self._net = net
        self._outputs = {layer for layer in layers if layer.is_taken_for_output}
        self._found = dict[BayesianLayer, set[nn.Module]]()
        self._handles = list[RemovableHandle]()

    def __enter__(self) -> Self:
        others = [module for module in self._net.modules() if kind_of(module).contracts] if self._outputs else []
        self._handles = [module.register_forward_pre_hook(self._record, with_kwargs=True) for module in others]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for layer in self._outputs & frozenset().union(*map(origin_of, tensors_in((args, kwargs)))) - {module}:
            self._found.setdefault(layer, set()).add(module)

    def finding(self) -> str:
        """What to say of a layer that is not the output layer; empty if there is none."""
        if not self._found:
            return ""
        layer, later = next(iter(self._found.items()))
        names = {module: name for name, module in self._net.named_modules()}
        return (
            f"the method takes {names[layer]!r} for the output layer, the last one in module order, but the network passes its "
            f"outputs on to {listing((repr(names[module]) for module in names if module in later), most=3)}; name the output layer "
            "by a pattern, {name: method}"
        )

"""Parameters that FSDP2 shards, gathered for a function of one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify.errors import PassError

__all__ = ["check_whole", "is_distributed", "local_part", "reshard", "shards_of", "with_whole_parameters"]

T = TypeVar("T")


def is_distributed() -> bool:
    """Whether this process is one of several that train together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def shards_of(layer: nn.Module) -> dict[str, Tensor]:
    """The sharded parameters of a layer, by name."""
    if not is_distributed():
        return {}
    return {name: p for name, p in layer.named_parameters() if getattr(p, "full_tensor", None) is not None}


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: all of it unless it is sharded."""
    sharded: Any = tensor
    return sharded.to_local() if hasattr(sharded, "to_local") else tensor


def reshard(net: nn.Module) -> None:
    """Free the parameters that FSDP2 gathered for a pass, so that between passes they are always the same tensors."""
    if not is_distributed():
        return
    from torch.distributed.fsdp import FSDPModule

    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def with_whole_parameters(layer: nn.Module, function: Callable[[], T]) -> T:
    """Call a function while the layer's parameters are gathered from all processes."""
    shards = shards_of(layer)
    if not shards:
        return function()
    gathered = {f"layer.{name}": p.full_tensor() for name, p in shards.items()}  # pyright: ignore[reportAttributeAccessIssue]
    return functional_call(_WithLayer(layer, function), gathered, ())


class _WithLayer(nn.Module):
    """A function of a layer as a module, for `functional_call`."""

    def __init__(self, layer: nn.Module, function: Callable[[], object]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self) -> object:
        return self.function()


def check_whole(net: nn.Module) -> None:
    """Raise a `PassError` if parameters are sharded."""
    if shards_of(net):
        raise PassError("the parameters of this network are sharded (FSDP): use bnn.function(seed), or a copy without shards")

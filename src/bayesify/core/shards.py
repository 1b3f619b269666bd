"""Parameters that FSDP2 keeps in shards, lent whole to a function of one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["put_away", "shards_of", "with_whole_parameters"]

T = TypeVar("T")


def shards_of(layer: nn.Module) -> dict[str, Tensor]:
    """The parameters of a layer that this process holds a part of, by name."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {name: p for name, p in layer.named_parameters() if getattr(p, "full_tensor", None) is not None}


def put_away(net: nn.Module) -> None:
    """Give back what FSDP2 has put together for a pass: between passes, parameters are then always the same tensors."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    from torch.distributed.fsdp import FSDPModule

    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def with_whole_parameters(layer: nn.Module, function: Callable[[], T]) -> T:
    """What `function` returns while the layer's parameters are put together from all processes."""
    shards = shards_of(layer)
    if not shards:
        return function()
    whole = {f"layer.{name}": p.full_tensor() for name, p in shards.items()}  # pyright: ignore[reportAttributeAccessIssue]
    return functional_call(_Borrower(layer, function), whole, ())


class _Borrower(nn.Module):
    """A function of a layer as a module, so that `functional_call` can lend it parameters."""

    def __init__(self, layer: nn.Module, function: Callable[[], object]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self) -> object:
        return self.function()

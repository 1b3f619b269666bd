"""Modes of networks and of PyTorch: kept, switched off, asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn

__all__ = ["buffers_kept", "can_compare", "modes_kept", "without_autocast"]


@contextmanager
def modes_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Every module is in its own train or eval mode again afterwards."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def buffers_kept(net: nn.Module) -> Iterator[None]:
    """Buffers that are changed in place inside (running statistics) have their values back afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in net.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            # Written only where it must be: autograd may hold it. Batch normalisation changes no version counter.
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off for a device; the meta device, for one, has none."""
    autocast = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if autocast else nullcontext()


def can_compare(net: nn.Module) -> bool:
    """Whether tensors have values now: not while operators are traced, inside transforms of `torch.func`, or on the meta device."""
    if torch.compiler.is_compiling() or any(parameter.is_meta for parameter in net.parameters()):
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and cast(Any, torch._C)._functorch.peek_interpreter_stack() is None

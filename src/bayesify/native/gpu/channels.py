"""Calls of the kernels of channels on a GPU, and of the KL of Gaussian dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesify.native.switch import load_kernels

__all__ = ["log_uniform", "run"]

_TILE = 1024  # elements of a program at a time
_MOST_CHANNELS = 64  # of a program, where channels are neighbors in memory
_BLOCK = 256  # elements of a KL per program


def run(name: str, tensors: Sequence[Tensor], channels: int, positions: int, channels_last: bool) -> None:
    """Call `scale` or `scale_gradient` for tensors whose first is (R, C, ...)."""
    if channels_last:
        tile = min(_power_of_two(channels), _MOST_CHANNELS)
        sizes = {"CHANNELS": tile, "POSITIONS": min(_power_of_two(positions), _TILE // tile)}
        strides = 1, channels
    else:
        along = min(_power_of_two(positions), _TILE)
        sizes = {"CHANNELS": min(_power_of_two(channels), _TILE // along), "POSITIONS": along}
        strides = positions, 1
    grid = len(tensors[0]), -(-channels // sizes["CHANNELS"])
    with torch.cuda.device_of(tensors[0]):
        _kernel(name)[grid](*tensors, channels, positions, *strides, **sizes)


def log_uniform(log_alpha: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The KL and its derivative, without a graph, for a table of coefficients (2, terms)."""
    value, slope, n = torch.empty_like(log_alpha), torch.empty_like(log_alpha), log_alpha.numel()
    arguments = log_alpha, value, slope, _on_device(table, log_alpha.device), n
    with torch.cuda.device_of(log_alpha):
        _kernel("log_uniform")[(-(-n // _BLOCK),)](*arguments, TERMS=table.shape[1], BLOCK=_BLOCK)
    return value, slope


def _kernel(name: str) -> Any:
    return getattr(load_kernels("channel_kernels", "triton"), name)


def _power_of_two(n: int) -> int:
    """The least one that is not smaller."""
    return 1 << (n - 1).bit_length()


@cache
def _on_device(table: Tensor, device: torch.device) -> Tensor:
    return table.to(device)

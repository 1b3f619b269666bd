"""The state of this process while a model is trained: random numbers, devices, modes, subnormal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from bayesify.core.modes import modes_kept
from bayesify.train.batches import seed_for

__all__ = ["borrowed", "seed_noise"]


def seed_noise(device: torch.device, *parts: object) -> None:
    """Seed the generators the noise of this process comes from, and no others."""
    seed = seed_for(*parts)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def borrowed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Give the module back on its device, its submodules in their modes, and PyTorch's random state as it was."""
    home = next(module.parameters()).device
    fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with fork, _without_subnormals(), modes_kept(module.modules()):
        try:
            module.to(device)
            yield
        finally:
            module.zero_grad()
            module.to(home)


@contextmanager
def _without_subnormals() -> Iterator[None]:
    """Take numbers below the smallest normal one (1e-38 in float32) for zero.

    A prior draws the weights of inputs that are always zero, such as the border of an image, below it, and so does Adam with their
    moments. There arithmetic on a CPU takes many times as long: an epoch on MNIST took eight times as long.
    """
    before = bool(torch.tensor(1e-310, dtype=torch.float64) * 1.0 == 0)  # there is nothing to ask for it
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)

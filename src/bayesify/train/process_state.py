"""State of the process during training: seeds, random generators, device, modes, subnormal numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from bayesify.core.generators import generators_kept
from bayesify.core.modes import modes_kept
from bayesify.core.turns import turn

__all__ = ["preserved_state", "seed_for", "seed_noise"]


def seed_for(*parts: object) -> int:
    """Return a separate seed for each purpose and epoch.

    Noise is then a function of seed and epoch: resuming needs no random state, and validation does not change training.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()  # PyTorch's CPU generator takes 32 bits
    return int.from_bytes(digest, "big")


def seed_noise(device: torch.device, *parts: object) -> None:
    """Seed PyTorch's generators of the CPU and of `device` with `seed_for(*parts)`, when no other thread draws from them."""
    seed = seed_for(*parts)
    with turn():
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):  # manual_seed seeds the current device
                torch.cuda.manual_seed(seed)


@contextmanager
def preserved_state(module: nn.Module, device: torch.device, move: bool = True) -> Iterator[None]:
    """Move a module to `device`, unless without `move`; restore its device and modes, and PyTorch's random state, afterwards."""
    original_device = next(module.parameters()).device
    with generators_kept(device), _flushed_subnormals(), modes_kept(module.modules()):
        try:
            if move:
                module.to(device)
            yield
        finally:
            module.zero_grad()
            module.to(original_device)


@contextmanager
def _flushed_subnormals() -> Iterator[None]:
    """Flush subnormal numbers (below 1e-38 in float32) to zero.

    The weights of inputs that are always zero, such as the border of an image, and Adam's moments shrink to subnormals, with which
    CPUs compute slowly: an epoch on MNIST took eight times as long.
    """
    before = bool(torch.tensor(1e-310, dtype=torch.float64, device="cpu") * 1.0 == 0)  # PyTorch has no getter
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)

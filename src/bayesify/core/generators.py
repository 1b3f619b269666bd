"""PyTorch's random generators, borrowed: seeded at will inside, as they were afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

__all__ = ["own_noise"]


@contextlib.contextmanager
def own_noise(tensors: Iterable[Tensor]) -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds the generators of these tensors' devices; their states come back afterwards."""
    devices = sorted({t.device for t in tensors if t.device.type not in ("cpu", "meta")}, key=str)

    def reseed(seed: int) -> None:
        # Not torch.manual_seed: it would also seed the devices that are not used here, whose states nobody restores.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.get_device_module(device).set_rng_state(torch.Generator(device).manual_seed(seed).get_state(), device)

    with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
        yield reseed

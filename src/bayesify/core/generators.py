"""PyTorch's random generators, borrowed: seeded at will inside, as they were afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

__all__ = ["generator_states", "noise_of_rank", "own_noise", "set_generator_states"]

_CPU = torch.device("cpu")


def _devices(tensors: Iterable[Tensor]) -> list[torch.device]:
    """The accelerators these tensors are on."""
    return sorted({t.device for t in tensors if t.device.type not in ("cpu", "meta")}, key=str)


@contextlib.contextmanager
def own_noise(tensors: Iterable[Tensor]) -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds the generators of these tensors' devices; their states come back afterwards."""
    devices = _devices(tensors)

    def reseed(seed: int) -> None:
        # Not torch.manual_seed: it would also seed the devices that are not used here, whose states nobody restores.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.get_device_module(device).set_rng_state(torch.Generator(device).manual_seed(seed).get_state(), device)

    with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
        yield reseed


def noise_of_rank(net: nn.Module, training: bool) -> contextlib.AbstractContextManager[object]:
    """In training with several processes, noise that differs between them even where all were seeded alike.

    The processes' own generators move on equally, so that what else is drawn from them (the order of examples) stays in step.
    """
    if not training or torch.compiler.is_compiling() or not torch.distributed.is_available():
        return contextlib.nullcontext()
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return contextlib.nullcontext()
    return _noise_of_rank(net)


@contextlib.contextmanager
def _noise_of_rank(net: nn.Module) -> Iterator[None]:
    seed = int(torch.randint(2**53, (), device="cpu"))
    with own_noise(net.parameters()) as reseed:
        reseed(seed + torch.distributed.get_rank())
        yield


def generator_states(tensors: Iterable[Tensor]) -> dict[torch.device, Tensor]:
    """The states of the generators of the CPU and of these tensors' devices."""
    states = {_CPU: torch.get_rng_state()}
    return states | {device: torch.get_device_module(device).get_rng_state(device) for device in _devices(tensors)}


def set_generator_states(tensors: Iterable[Tensor], states: Mapping[torch.device, Tensor]) -> None:
    """Set what `generator_states` returned."""
    torch.set_rng_state(states[_CPU])
    for device in _devices(tensors):
        torch.get_device_module(device).set_rng_state(states[device], device)

"""The state of PyTorch's random generators: saved, seeded and restored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesify.core.turns import turn

__all__ = [
    "generator_state",
    "generator_states",
    "generators_kept",
    "noise_from",
    "noise_of_rank",
    "own_noise",
    "set_generator_state",
    "set_generator_states",
]

_CPU = torch.device("cpu")


def generators_kept(device: torch.device = _CPU) -> contextlib.AbstractContextManager[None]:
    """Restore the random state of the CPU, and of a CUDA device, on exit."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextlib.contextmanager
def own_noise(tensors: Iterable[Tensor]) -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds the generators of the CPU and of these tensors' devices; restore their states on exit.

    Passes and predictions of other threads wait meanwhile.
    """
    devices = _accelerators(tensors)

    def reseed(seed: int) -> None:
        # torch.manual_seed would also seed other devices, whose states are not restored.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            set_generator_state(device, torch.Generator(device).manual_seed(seed).get_state())

    with turn(), torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
        yield reseed


def noise_of_rank(net: nn.Module, training: bool) -> contextlib.AbstractContextManager[object]:
    """In training with several processes, draw different noise in each, even if all have the same seed.

    The processes' own generators advance equally, so other draws from them (the order of examples) stay in step.
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


def generator_state(device: torch.device) -> Tensor:
    """The state of a device's default generator."""
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def generator_states(tensors: Iterable[Tensor]) -> dict[torch.device, Tensor]:
    """The states of the default generators of the CPU and of these tensors' devices."""
    return {device: generator_state(device) for device in (_CPU, *_accelerators(tensors))}


def set_generator_states(tensors: Iterable[Tensor], states: Mapping[torch.device, Tensor]) -> None:
    """Set the states that `generator_states` returned."""
    for device in (_CPU, *_accelerators(tensors)):
        set_generator_state(device, states[device])


@contextlib.contextmanager
def noise_from(states: Mapping[torch.device, Tensor], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Draw from these states, and then go on from the current ones; if both are equal, go on from what was drawn."""
    current = generator_states(tensors)
    if all(torch.equal(state, states[device]) for device, state in current.items()):
        yield
        return
    set_generator_states(tensors, states)
    try:
        yield
    finally:
        set_generator_states(tensors, current)


def _accelerators(tensors: Iterable[Tensor]) -> list[torch.device]:
    """The accelerators these tensors are on."""
    return sorted({t.device for t in tensors if t.device.type not in ("cpu", "meta")}, key=str)

"""The state of random generators, PyTorch's and others: saved, seeded and restored."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from bayesify.core.shards import is_distributed
from bayesify.core.turns import turn
from bayesify.errors import PassError

__all__ = [
    "OtherGenerators",
    "check_not_seeded",
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


@contextlib.contextmanager
def generators_kept(device: torch.device = _CPU) -> Iterator[None]:
    """Restore the random state of the CPU, and of a CUDA device, on exit.

    Other threads may pass and predict meanwhile, but not while the state is read or set.
    """
    kept = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with turn():
        kept.__enter__()
    try:
        yield
    finally:
        with turn():
            kept.__exit__(None, None, None)


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
    if not training or torch.compiler.is_compiling() or not is_distributed() or torch.distributed.get_world_size() == 1:
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
    with torch._C.DisableTorchFunction():  # this comparison is no decision of the network
        is_current = all(torch.equal(state, states[device]) for device, state in current.items())
    if is_current:
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


def check_not_seeded(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    """Check that two passes, which started from different states of PyTorch's generator, went on from different ones.

    Raises:
        PassError: one state is the same: noise that is drawn from it would be the same in every pass.
    """
    if any(map(torch.equal, first, second)):
        raise PassError(
            "the network seeds PyTorch's generator in forward (torch.manual_seed), so that every pass would draw the same noise; "
            "give the network a torch.Generator of its own, or seed inside torch.random.fork_rng(), with random layers outside"
        )


class OtherGenerators:
    """Seed the global generators of Python's `random` and of NumPy, if it is in use, and restore their states on exit.

    Attributes:
        used: whether numbers were drawn from them.
    """

    used = False

    def __enter__(self) -> Self:
        self._numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
        state = None if self._numpy is None else self._numpy.get_state(legacy=False)
        if state is not None and state["bit_generator"] != "MT19937":  # others cannot be seeded anew
            self._numpy = None
        self._states = random.getstate(), state
        self._seed()
        return self

    def __exit__(self, *exception: object) -> None:
        reached = self._next()
        self._seed()
        self.used = reached != self._next()
        random.setstate(self._states[0])
        if self._numpy is not None:
            self._numpy.set_state(self._states[1])

    def _seed(self) -> None:
        random.seed(0)
        if self._numpy is not None:
            self._numpy.seed(0)

    def _next(self) -> tuple[float, float]:
        return random.random(), 0.0 if self._numpy is None else self._numpy.random_sample()

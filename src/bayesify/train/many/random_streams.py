"""One random stream per model, with the numbers that the model would draw alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bayesify.core.generators import generator_state, set_generator_state
from bayesify.core.turns import turn
from bayesify.functional.drawing import OPERATORS
from bayesify.train.process_state import seed_noise

__all__ = ["Draw", "Noise", "Streams"]

aten = torch.ops.aten
# Functions with arguments `out` and `generator`.
_IN_PLACE: dict[Any, Callable[..., Tensor]] = {
    aten.randn.default: torch.randn,
    aten.rand.default: torch.rand,
    aten.randint.default: torch.randint,
    aten.randint.low: torch.randint,
}


class Streams:
    """One random generator per model, with the numbers that PyTorch's default generator would draw from the same state."""

    def __init__(self, models: int, device: torch.device) -> None:
        self.device = device
        self.generators = [torch.Generator(device) for _ in range(models)]

    def seed(self, parts: Sequence[tuple[object, ...]]) -> None:
        """Seed the streams, each as `seed_noise` does."""
        for model, seed_parts in enumerate(parts):
            with turn():
                seed_noise(self.device, *seed_parts)
                self.save(model)

    @contextmanager
    def active(self, model: int) -> Iterator[None]:
        """Let PyTorch's default generator draw from the model's stream, while no other thread draws from it."""
        with turn():
            set_generator_state(self.device, self.generators[model].get_state())
            yield
            self.save(model)

    def save(self, model: int) -> None:
        """Set the state of the model's stream to that of PyTorch's default generator."""
        self.generators[model].set_state(generator_state(self.device))

    def states(self) -> list[Tensor]:
        """Return the states of the streams."""
        return [generator.get_state() for generator in self.generators]

    def restore(self, states: Sequence[Tensor]) -> None:
        """Set the states that `states` returned."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


class Draw:
    """A random operator of a graph with its arguments: shapes, numbers, and tensors of which only the shape matters."""

    def __init__(self, target: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs

    def into(self, out: Tensor, streams: Streams, model: int) -> None:
        """Draw into `out`, from a model's stream."""
        if self.target in _IN_PLACE:
            _IN_PLACE[self.target](*self.args, out=out, generator=streams.generators[model])
        elif self.target in OPERATORS:
            out.copy_(OPERATORS[self.target](*self.args, generator=streams.generators[model]))
        else:
            with streams.active(model):
                out.copy_(self.target(*self.args, **self.kwargs))

    def empty(self, models: int) -> Tensor:
        """Return an uninitialized tensor for one draw per model."""
        with turn():
            example = self.target(*self.args, **self.kwargs)
        return torch.empty(models, *example.shape, dtype=example.dtype, device=example.device)


class Noise:
    """Random numbers of one call of K models.

    Args:
        draws: the random operators of each model, of equal shapes in equal order.
    """

    def __init__(self, draws: Sequence[Sequence[Draw]]) -> None:
        self.buffers = [operators[0].empty(len(draws)) for operators in zip(*draws, strict=True)]
        self.plans = [[(draw, x[model]) for draw, x in zip(plan, self.buffers, strict=True)] for model, plan in enumerate(draws)]

    def __call__(self, streams: Streams) -> list[Tensor]:
        """Return the numbers of every operator, (K, ...), in the same tensors in every call."""
        for model, plan in enumerate(self.plans):
            for draw, out in plan:
                draw.into(out, streams, model)
        return self.buffers

"""Random numbers for many models: a stream for each, from which it draws the very numbers it would draw alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesify.train.device import seed_noise

__all__ = ["Draw", "Noise", "Streams"]

aten = torch.ops.aten
# Operators that draw into a tensor they are given, from a generator they are given.
_DIRECT: dict[Any, Callable[..., Tensor]] = {
    aten.randn.default: torch.randn,
    aten.rand.default: torch.rand,
    aten.randint.default: torch.randint,
    aten.randint.low: torch.randint,
}


class Streams:
    """One random stream per model: a generator that draws what PyTorch's own would draw, if it were in the same state."""

    def __init__(self, models: int, device: torch.device) -> None:
        self.device = device
        self.generators = [torch.Generator(device) for _ in range(models)]

    def seed(self, parts: Sequence[tuple[object, ...]]) -> None:
        """Begin the streams anew, each as `seed_noise` does."""
        for model, what in enumerate(parts):
            seed_noise(self.device, *what)
            self.put_aside(model)

    def take_up(self, model: int) -> None:
        """From here on, PyTorch's own random numbers come from the model's stream, until it is put aside."""
        state = self.generators[model].get_state()
        torch.cuda.set_rng_state(state, self.device) if self.device.type == "cuda" else torch.default_generator.set_state(state)

    def put_aside(self, model: int) -> None:
        """The model's stream goes on where PyTorch's own generator is now."""
        cuda = self.device.type == "cuda"
        self.generators[model].set_state(torch.cuda.get_rng_state(self.device) if cuda else torch.default_generator.get_state())

    def states(self) -> list[Tensor]:
        """Where the streams are."""
        return [generator.get_state() for generator in self.generators]

    def go_back(self, states: Sequence[Tensor]) -> None:
        """To where they were when `states` were taken."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


class Draw:
    """A random operator of a graph with all it needs: shapes and numbers, and tensors of which only the shape counts."""

    def __init__(self, target: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs

    def into(self, out: Tensor, streams: Streams, model: int) -> None:
        """Draw into `out`, from a model's stream."""
        if self.target in _DIRECT:
            _DIRECT[self.target](*self.args, out=out, generator=streams.generators[model])
        else:
            streams.take_up(model)
            out.copy_(self.target(*self.args, **self.kwargs))
            streams.put_aside(model)

    def like(self, models: int) -> Tensor:
        """Room for as many draws."""
        example = self.target(*self.args, **self.kwargs)
        return torch.empty(models, *example.shape, dtype=example.dtype, device=example.device)


class Noise:
    """The random numbers of one call of K models.

    Args:
        draws: for each model its random operators, in their order, which are alike in shape.
    """

    def __init__(self, draws: Sequence[Sequence[Draw]]) -> None:
        self.buffers = [alike[0].like(len(draws)) for alike in zip(*draws, strict=True)]
        self.plan = [[(draw, x[model]) for draw, x in zip(own, self.buffers, strict=True)] for model, own in enumerate(draws)]

    def __call__(self, streams: Streams) -> list[Tensor]:
        """The numbers of every operator, (K, ...); the same tensors in every call."""
        for model, plan in enumerate(self.plan):
            for draw, out in plan:
                draw.into(out, streams, model)
        return self.buffers

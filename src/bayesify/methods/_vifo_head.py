"""What follows the last layer of a network with normal outputs: a test that it only reshapes and averages.

Such a map L is linear and keeps constants, and only such a map treats means and raw standard deviations as the distribution of the
outputs needs. The test replaces the layer's means with numbers m, with negative numbers r, and with c - 2m - r for a constant c,
and compares L(c - 2m - r) with c - 2 L(m) - L(r). Every place of the layer's output is negative in one of these passes and
positive in another, so that rectifiers and absolute values differ, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bayesify.core.layer import BayesianLayer
from bayesify.core.noise_free import NoiseFree

__all__ = ["HeadProbes", "UnscaledNoise"]

_TOLERANCE = 0.02
_NEUTRAL = 0.7  # the constant, if the layer's means are zero


class HeadProbes:
    """What the last layer returns in the passes of the test: functions of the layer and its means.

    Numbers depend on their place and the size of the means alone: training mode may change the means from pass to pass.

    Attributes:
        each: (K,) factors of the outputs, all different.
        size: the largest mean that `means` has got.
    """

    def __init__(self, each: Tensor) -> None:
        self.each, self.size = each, 0.0

    @property
    def constant(self) -> float:
        """The constant c."""
        return self.size or _NEUTRAL

    def means(self, layer: BayesianLayer, mean: Tensor) -> Tensor:
        """The means themselves; note their size."""
        if mean.numel():
            self.size = max(self.size, float(_bounded(mean.detach()).abs().max()))
        return mean

    def mixed(self, layer: BayesianLayer, mean: Tensor) -> Tensor:
        """The numbers m in (-c, c)."""
        return self._numbers(mean, 0.7548777, -1.0, 1.0)

    def scaled(self, layer: BayesianLayer, mean: Tensor) -> Tensor:
        """The numbers m times a factor for each output."""
        return layer.over_outputs(self.each.to(mean.dtype), mean) * self.mixed(layer, mean)

    def negative(self, layer: BayesianLayer, mean: Tensor) -> Tensor:
        """The numbers r in (-c, 0)."""
        return self._numbers(mean, 0.618034, -0.9, -0.1)

    def rest(self, layer: BayesianLayer, mean: Tensor) -> Tensor:
        """The numbers c - 2m - r, positive where m is not."""
        return self.constant - 2 * self.mixed(layer, mean) - self.negative(layer, mean)

    def _numbers(self, mean: Tensor, step: float, low: float, high: float) -> Tensor:
        """A fixed sequence between two multiples of c; random numbers would be constants in the test."""
        numbers = torch.arange(1, mean.numel() + 1, device=mean.device, dtype=torch.float32).mul_(step).frac_()
        numbers = numbers.mul_((high - low) * self.constant).add_(low * self.constant).reshape(mean.shape).to(mean.dtype)
        mean = _bounded(mean)
        return numbers + (mean - mean.detach())  # with the derivatives of means, which a network may return

    def agree(self, mixed: Tensor, negative: Tensor, rest: Tensor) -> bool | None:
        """Whether the outputs of the passes are those of averages, where the network does not fill in zeros or infinities.

        None if it does so everywhere, as for rows that are all padding.
        """
        outputs = mixed, negative, rest
        if not all(y.is_floating_point() and y.shape == mixed.shape for y in outputs):
            return False
        tolerance = max(_TOLERANCE, *(8 * torch.finfo(y.dtype).eps for y in outputs))
        m, r, left = (y.to(torch.promote_types(y.dtype, torch.float32)) for y in outputs)
        filled = torch.stack([(y == 0) | ~y.isfinite() for y in (m, r, left)]).all(0) & _equal(m, r) & _equal(r, left)
        if filled.all():
            return None
        m, r, left = (y[~filled] for y in (m, r, left))
        size = max(self.constant, *(float(y.abs().max()) for y in (m, r, left)))
        return bool(((left - (self.constant - 2 * m - r)).abs() <= tolerance * size).all())  # False for what is not a number


class UnscaledNoise(NoiseFree):
    """`NoiseFree`, with dropout that multiplies by one: masks are their means, by which dropout divides."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.overloadpacket.__name__.rstrip("_") == "bernoulli" and len(args) > 1 and result.is_floating_point():
            result.copy_(args[1]) if isinstance(args[1], Tensor) else result.fill_(args[1])
        return result


def _bounded(mean: Tensor) -> Tensor:
    """Finite numbers whose multiples are finite."""
    most = torch.finfo(mean.dtype).max ** 0.5
    return mean.nan_to_num(0.0, most, -most).clamp(-most, most)


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())

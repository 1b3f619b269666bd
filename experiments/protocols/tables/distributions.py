"""Predictive distributions of methods that predict a normal distribution or quantiles.

Shapes: N rows, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from bayesify.core.checks import check_choice
from bayesify.errors import DataError
from bayesify.predictive import GaussianPredictive

__all__ = ["NARROWEST", "QuantilePredictive", "normal"]

NARROWEST = 1e-3
"""Least standard deviation of a predictive distribution, in standard deviations of the training targets."""


def normal(mean: np.ndarray, std: np.ndarray | float, scale: float) -> GaussianPredictive:
    """A normal distribution per row, mean (N,) and std (N,) or a number; std is at least `NARROWEST` times `scale`."""
    means = torch.tensor(np.asarray(mean, dtype=np.float64).reshape(1, -1))
    stds = torch.as_tensor(np.asarray(std, dtype=np.float64)).clamp_min(NARROWEST * scale)
    return GaussianPredictive(means, stds.expand(means.shape[1:]).unsqueeze(0).clone())


class QuantilePredictive:
    """A distribution per row from quantiles: its cumulative distribution function is linear between them.

    The density is constant between two quantiles and falls exponentially below the first and above the last, where the mean
    distance from it is that of a normal distribution with the same distance between the first or last quantile and the middle one.
    Quantiles that cross are sorted. The density is at most that of a normal distribution with the standard deviation
    `NARROWEST * scale`, so equal quantiles are moved apart.

    Args:
        quantiles: (N, L).
        levels: increasing probabilities in (0, 1), at least three.
        scale: standard deviation of the training targets.

    Example:
        >>> p = QuantilePredictive(np.array([[0.0, 0.5, 1.0]]), [0.25, 0.5, 0.75], 1.0)
        >>> p.mean, p.log_prob(torch.tensor([0.5])).exp(), p.cdf(torch.tensor([0.5]))
        (tensor([0.5000], dtype=torch.float64), tensor([0.5000], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
    """

    def __init__(self, quantiles: np.ndarray, levels: Sequence[float], scale: float) -> None:
        ordered = torch.tensor(np.sort(np.asarray(quantiles, dtype=np.float64), axis=1))
        if ordered.shape[1] != len(levels) or len(levels) < 3:
            raise DataError(f"quantiles {tuple(ordered.shape)} must have a column for each of the levels, got {len(levels)} levels")
        self.levels = torch.tensor(levels, dtype=torch.float64)
        shares = self.levels.diff()
        highest = 1 / (NARROWEST * scale * (2 * torch.pi) ** 0.5)
        gaps = torch.maximum(ordered.diff(dim=1), shares / highest)
        self.quantiles = torch.cat([ordered[:, :1], ordered[:, :1] + gaps.cumsum(1)], 1)
        self.heights = shares / gaps
        self.below, self.above = self.levels[0], 1 - self.levels[-1]
        middle = len(levels) // 2
        # Lengths of the exponential tails. Those of a density without a jump would vanish where the outer two quantiles are equal.
        self.left = _tail_ratio(levels[0], levels[middle]) * (self.quantiles[:, middle] - self.quantiles[:, 0])
        self.right = _tail_ratio(1 - levels[-1], 1 - levels[middle]) * (self.quantiles[:, -1] - self.quantiles[:, middle])

    @property
    def mean(self) -> Tensor:
        """(N,)."""
        first, last = self.quantiles[:, 0], self.quantiles[:, -1]
        centers = (self.quantiles[:, 1:] + self.quantiles[:, :-1]) / 2
        return centers @ self.levels.diff() + self.below * (first - self.left) + self.above * (last + self.right)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of y (N,): (N,) nats."""
        segment = self._segment(y).clamp(1, len(self.levels) - 1) - 1
        inside = self.heights.gather(1, segment.unsqueeze(1)).squeeze(1).log()
        below, above = self._outside(y)
        left, right = (self.below / self.left).log() - below / self.left, (self.above / self.right).log() - above / self.right
        return torch.where(below > 0, left, torch.where(above > 0, right, inside))

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y), (N,)."""
        inside = self.below + (self.heights * self._parts(y)).sum(1)
        below, above = self._outside(y)
        return torch.where(below > 0, self.below * torch.exp(-below / self.left), inside) - self.above * torch.expm1(
            -above / self.right
        )

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval; both its ends must be among the levels."""
        known = [round(p, 6) for p in self.levels.tolist()]
        ends = [round(p, 6) for p in ((1 - level) / 2, (1 + level) / 2)]
        for end in ends:
            check_choice("an end of the interval", end, tuple(known))
        low, high = (self.quantiles[:, known.index(end)] for end in ends)
        return low, high

    def crps(self, y: Tensor) -> Tensor:
        r"""Continuous ranked probability score of y (N,), $\int (F(t) - 1[t \ge y])^2 dt$, piece by piece: (N,)."""
        start, end = self.levels[:-1], self.levels[1:]
        at = start + self.heights * self._parts(y)
        inside = (at**3 - start**3 + (1 - at) ** 3 - (1 - end) ** 3) / (3 * self.heights)
        below, above = self._outside(y)
        return inside.sum(1) + _tail(below, self.below, self.left) + _tail(above, self.above, self.right)

    def _segment(self, y: Tensor) -> Tensor:
        """Number of quantiles below y, (N,)."""
        return torch.searchsorted(self.quantiles, y.to(self.quantiles).unsqueeze(1).contiguous()).squeeze(1)

    def _parts(self, y: Tensor) -> Tensor:
        """The length of each segment below y, (N, L - 1)."""
        lengths = self.quantiles.diff(dim=1)
        return (y.to(self.quantiles).unsqueeze(1) - self.quantiles[:, :-1]).clamp_min(0).minimum(lengths)

    def _outside(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The distance of y below the first and above the last quantile, 0 otherwise, (N,) each."""
        y = y.to(self.quantiles)
        return (self.quantiles[:, 0] - y).clamp_min(0), (y - self.quantiles[:, -1]).clamp_min(0)


def _tail_ratio(outer: float, inner: float) -> float:
    """For the normal distribution, mean distance below the quantile of level `outer` by the distance of the two quantiles.

    Example:
        >>> round(_tail_ratio(0.01, 0.5), 3)
        0.146
    """
    standard = NormalDist()
    low, high = standard.inv_cdf(outer), standard.inv_cdf(inner)
    return (standard.pdf(low) / outer + low) / (high - low)


def _tail(distance: Tensor, mass: Tensor, length: Tensor) -> Tensor:
    """The part of the CRPS in a tail of that mass and length, with y at that distance from its start."""
    # The squared distribution function beyond y, then the squared rest between y and the start.
    beyond = mass**2 * length / 2 * torch.exp(-2 * distance / length)
    between = (
        distance + 2 * mass * length * torch.expm1(-distance / length) - mass**2 * length / 2 * torch.expm1(-2 * distance / length)
    )
    return beyond + between

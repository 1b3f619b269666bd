"""Conformal prediction intervals (regression)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesify.conformal.scores import Calibration, as_folds, sort_scores
from bayesify.predictive import Predictive
from bayesify.predictive.base import align_targets

__all__ = ["ConformalIntervals"]

_NORMAL = 0.01  # share of the normal distribution in F


@dataclasses.dataclass(frozen=True, eq=False)
class ConformalIntervals(Calibration):
    r"""Intervals of guaranteed coverage: central intervals of the predictive distribution, at the level that calibration rows need.

    The score of a calibration row is the level of the central interval whose end is its target,

    $$s_i = |2 F(y_i \mid x_i) - 1|,$$

    and the interval of a new row is its central interval of the level $s_{(r)}$, the r-th smallest score (`conformal_rank`). One
    set of scores serves every level, and rows with a wider predictive distribution have a wider interval. For normal distributions
    this is conformal prediction with the scores |y - mean| / std.

    F is 99 % the predictive distribution and 1 % the normal distribution of its mean and standard deviation, so that it increases
    between distant modes. In the tails, where 1 - F has no digits left, the score is 1 + |y - mean| / std; intervals stay finite.

    With one model per fold, the ends are those of CV+: the lower end of fold k's central interval of level s_i, for every
    calibration row i of every fold k, and of these n numbers the (n + 1 - r)-th smallest; likewise the r-th smallest upper end.

    Several outputs are calibrated independently; the guarantee is for each output, not for all outputs of a row together.

    With `groups`, a score has the weight 1 / rows of its group instead of 1, and the G groups take the place of the n rows: the
    level of the interval is the smallest score up to which the scores have a weight of (G + 1) level.

    Source: Chernozhukov, Wüthrich & Zhu (2021); CV+: Barber, Candès, Ramdas & Tibshirani (2021), for nested intervals Gupta,
    Kuchibhotla & Ramdas (2022); groups: Lee, Barber & Willett (2023).

    Example:
        A model of your own: `predict` its calibration rows, then new rows.

        >>> net = bayesify(nn.Linear(3, 1), MeanField())
        >>> x, y = torch.randn(100, 3), torch.randn(100)
        >>> calibration = ConformalIntervals.calibrate(predict(net, x, Gaussian(std=0.1), samples=8), y)
        >>> lower, upper = calibration.interval(predict(net, torch.randn(5, 3), Gaussian(std=0.1), samples=8), level=0.9)
        >>> lower.shape
        torch.Size([5])
    """

    region: ClassVar[str] = "Intervals"

    @classmethod
    def calibrate(
        cls,
        predictives: Predictive | Sequence[Predictive],
        y: Tensor | Sequence[Tensor],
        *,
        groups: Tensor | Sequence[Tensor] | None = None,
    ) -> Self:
        """Compute the scores of calibration rows.

        Args:
            predictives: the predictive distribution of rows that the model was not trained on; in cross-conformal prediction one
                per fold, from the model of the other folds. It must have `cdf`.
            y: their targets, (n,) or (n, D), likewise.
            groups: integers, (n,), likewise: rows with the same one depend on each other, and new rows are of other groups. A
                group must not have rows in two folds.

        Raises:
            TypeError: a predictive distribution of classes.
            DataError: no rows, targets or groups of another shape, or a group in two folds.
            DivergenceError: predictions or targets are not finite.
        """
        folds = as_folds(predictives)
        targets = [y] if isinstance(y, Tensor) else y
        for fold in folds:
            if not hasattr(fold, "cdf"):
                raise TypeError(
                    f"intervals need a predictive distribution of numbers, got {type(fold).__name__}; use ConformalSets"
                )
        scores = [_Ruler(fold).signed(part).abs() for fold, part in zip(folds, targets, strict=True)]
        ordered, weights = sort_scores(scores, groups)
        return cls(ordered, weights=weights)

    def interval(self, predictives: Predictive | Sequence[Predictive], level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends, each (N,) or (N, D), like the `interval` of a predictive distribution.

        Args:
            predictives: of the N rows, from the model or models of the calibration.
            level: in (0, 1).

        Raises:
            ConfigurationError: `level` is not in (0, 1) or needs more calibration rows or groups; not one predictive per fold.
        """
        folds = as_folds(predictives)
        self._check(folds)
        least = self._least_weight(level)
        scores, order = torch.cat(self.scores).sort(0)
        weights = torch.cat(tuple(self._weights)).gather(0, order).cumsum(0)
        score = scores.gather(0, (weights[:-1] < least).sum(0, keepdim=True)).squeeze(0)
        rulers = [_Ruler(fold) for fold in folds]
        lower, upper = (self._outermost(rulers, score, least, sign) for sign in (-1, 1))
        if getattr(folds[0], "integers", False):  # counts between the ends stay inside
            return (-lower).ceil().clamp_min(0) + 0.0, upper.floor().clamp_min(0)  # without + 0.0, some would be -0.0
        return -lower, upper

    def _outermost(self, rulers: Sequence[_Ruler], score: Tensor, least: float, sign: int) -> Tensor:
        """Return the smallest z = sign * y, up to the tolerance, such that the ends up to z have at least a weight.

        The scores up to `score` are the fewest that have it.
        """
        ends = torch.stack([ruler.end(score, sign) for ruler in rulers])
        if len(rulers) == 1:
            return ends[0]
        # Up to the last end of this score in all folds, the ends have the weight, and before all of them less.
        cumulative = self._cumulative()
        tolerance = torch.stack([ruler.tolerance for ruler in rulers]).amin(0)
        low, high = ends.amin(0) - 2 * tolerance, ends.amax(0)
        while True:
            middle = (low + high) / 2
            if not _unfinished(low, middle, high, tolerance):
                return high
            signed = [sign * ruler.signed(sign * middle) for ruler in rulers]
            parts = zip(self.scores, cumulative, signed, strict=True)
            less = torch.stack([_weight(part, of_first, bound) for part, of_first, bound in parts]).sum(0) < least
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)


def _unfinished(low: Tensor, middle: Tensor, high: Tensor, tolerance: Tensor) -> bool:
    return bool(((high - low > tolerance) & (low < middle) & (middle < high)).any())


def _weight(scores: Tensor, cumulative: Tensor, bound: Tensor) -> Tensor:
    """Weight of the scores (n,) or (n, D) that are at most `bound` (N,) or (N, D), per element of the latter."""
    scores = scores.to(bound.device, bound.dtype)
    if scores.dim() == 1:
        count = torch.searchsorted(scores, bound, right=True)
    else:
        count = torch.searchsorted(scores.mT.contiguous(), bound.mT.contiguous(), right=True).mT
    return cumulative.to(bound.device).gather(0, count)


class _Ruler:
    """Signed scores of the numbers y of each row."""

    def __init__(self, predictive: Predictive) -> None:
        self.predictive, self.mean = predictive, predictive.mean
        number = torch.finfo(self.mean.dtype)
        self.std = predictive.variance.sqrt().maximum(number.eps * self.mean.abs() + number.tiny)
        self.tolerance = 1e-7 * self.std
        self.widest = 1 - 2 * number.eps**0.5  # in smaller tails, 1 - F has less than half of its digits

    def signed(self, y: Tensor) -> Tensor:
        """Return 2 F(y) - 1, shaped like `mean`, and in the tails plus or minus 1 + |y - mean| / std; increasing in y."""
        y = align_targets(torch.as_tensor(y, dtype=self.mean.dtype, device=self.mean.device), tuple(self.mean.shape))
        z = (y - self.mean) / self.std
        level = (1 - _NORMAL) * (2 * self.predictive.cdf(y) - 1) + _NORMAL * torch.erf(z * math.sqrt(0.5))
        return torch.where(level.abs() <= self.widest, level, level.sign() * (1 + z.abs()))

    def end(self, score: Tensor, sign: int) -> Tensor:
        """Return the smallest z = sign * y, up to the tolerance, whose score is at least `score`, () or (D,), shaped like `mean`.

        Regula falsi with the Illinois rule (Dowell & Jarratt 1971), and bisection in every fourth step.
        """
        score = score.to(self.mean.device, self.mean.dtype)
        near, far = self._distances(score)
        low, high = sign * self.mean + near, sign * self.mean + far
        below, above = (sign * self.signed(sign * z) - score for z in (low, high))
        last = torch.zeros_like(low, dtype=torch.bool)
        for step in itertools.count(1):
            middle = (low + high) / 2
            if not _unfinished(low, middle, high, self.tolerance):
                return high
            secant = (low * above - high * below) / (above - below)
            secant = secant.maximum(low + self.tolerance / 2).minimum(high - self.tolerance / 2)  # to close in from both sides
            z = torch.where((low < secant) & (secant < high), secant, middle) if step % 4 else middle
            excess = sign * self.signed(sign * z) - score
            under = excess < 0
            low, high = torch.where(under, z, low), torch.where(under, high, z)
            again = under == last  # the same end has moved twice: count the other one half
            below, above = (
                torch.where(under, excess, torch.where(again, below / 2, below)),
                torch.where(under, torch.where(again, above / 2, above), excess),
            )
            last = under
        raise AssertionError("unreachable")

    def _distances(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest distance of the upper end of this score from the mean, shaped like `mean`.

        By Cantelli's inequality, the p-quantile is at most sqrt(p / (1 - p)) standard deviations above the mean. The lower end has
        the same distances below the mean.
        """
        level = score.clamp(max=self.widest)
        odds = ((1 + level) / (1 - level)).sqrt()
        return -self.std / odds, self.std * odds.maximum(score - 1)

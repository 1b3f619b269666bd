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

    Source: Chernozhukov, Wüthrich & Zhu (2021); CV+: Barber, Candès, Ramdas & Tibshirani (2021), for nested intervals Gupta,
    Kuchibhotla & Ramdas (2022).

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
    def calibrate(cls, predictives: Predictive | Sequence[Predictive], y: Tensor | Sequence[Tensor]) -> Self:
        """Compute the scores of calibration rows.

        Args:
            predictives: the predictive distribution of rows that the model was not trained on; in cross-conformal prediction one
                per fold, from the model of the other folds. It must have `cdf`.
            y: their targets, (n,) or (n, D), likewise.

        Raises:
            TypeError: a predictive distribution of classes.
            DataError: no rows, or targets of another shape.
            DivergenceError: predictions or targets are not finite.
        """
        folds = as_folds(predictives)
        targets = [y] if isinstance(y, Tensor) else y
        for fold in folds:
            if not hasattr(fold, "cdf"):
                raise TypeError(
                    f"intervals need a predictive distribution of numbers, got {type(fold).__name__}; use ConformalSets"
                )
        return cls(sort_scores([_Ruler(fold).signed(part).abs() for fold, part in zip(folds, targets, strict=True)]))

    def interval(self, predictives: Predictive | Sequence[Predictive], level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends, each (N,) or (N, D), like the `interval` of a predictive distribution.

        Args:
            predictives: of the N rows, from the model or models of the calibration.
            level: in (0, 1).

        Raises:
            ConfigurationError: `level` is not in (0, 1) or needs more calibration rows; not one predictive per fold.
        """
        folds = as_folds(predictives)
        self._check(folds)
        rank = self.rank(level)
        score = torch.cat(self.scores).sort(0).values[rank - 1]
        rulers = [_Ruler(fold) for fold in folds]
        lower, upper = (self._outermost(rulers, score, rank, sign) for sign in (-1, 1))
        if getattr(folds[0], "integers", False):  # counts between the ends stay inside
            return (-lower).ceil().clamp_min(0) + 0.0, upper.floor().clamp_min(0)  # without + 0.0, some would be -0.0
        return -lower, upper

    def _outermost(self, rulers: Sequence[_Ruler], score: Tensor, rank: int, sign: int) -> Tensor:
        """Return the smallest z = sign * y, up to the tolerance, that is at least `rank` of the n ends; `score` has this rank."""
        ends = torch.stack([ruler.end(score, sign) for ruler in rulers])
        if len(rulers) == 1:
            return ends[0]
        # Beyond the ends of this score in all folds there are r of the n ends, and before all of them fewer.
        tolerance = torch.stack([ruler.tolerance for ruler in rulers]).amin(0)
        low, high = ends.amin(0) - 2 * tolerance, ends.amax(0)
        while True:
            middle = (low + high) / 2
            if not _unfinished(low, middle, high, tolerance):
                return high
            signed = [sign * ruler.signed(sign * middle) for ruler in rulers]
            count = torch.stack([_count(part, score) for part, score in zip(self.scores, signed, strict=True)]).sum(0)
            low, high = torch.where(count < rank, middle, low), torch.where(count < rank, high, middle)


def _unfinished(low: Tensor, middle: Tensor, high: Tensor, tolerance: Tensor) -> bool:
    return bool(((high - low > tolerance) & (low < middle) & (middle < high)).any())


def _count(scores: Tensor, bound: Tensor) -> Tensor:
    """Number of scores (n,) or (n, D) that are at most `bound` (N,) or (N, D), per element of the latter."""
    scores = scores.to(bound.device, bound.dtype)
    if scores.dim() == 1:
        return torch.searchsorted(scores, bound, right=True)
    return torch.searchsorted(scores.mT.contiguous(), bound.mT.contiguous(), right=True).mT


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

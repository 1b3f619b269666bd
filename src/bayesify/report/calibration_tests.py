"""Tests of calibration with simulated reference distributions: their false alarms are at the stated rate for any number of rows.

Shapes: N rows, D outputs, K classes.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LEVELS", "ClassCalibration", "Gap", "IntervalCalibration", "class_calibration", "interval_calibration"]

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals that are tested together
_SIMULATIONS = 9999
_MOST_ROWS, _MOST_LABELS = 20_000, 5_000_000  # of the simulated labels: bounds time and memory
_BINS, _LEAST_PER_BIN, _CLASSES = 5, 20, 10


class IntervalCalibration(NamedTuple):
    """Coverage of central intervals at all `LEVELS` and the share of targets above the median, tested jointly.

    Attributes:
        shares: of the targets inside, over all outputs, one per level.
        worst: the output that deviates most.
        deviations: share minus level, of that output.
        z: the same in standard errors.
        above: share of targets above the predicted median, of that output.
        above_z: its deviation from 1/2 in standard errors.
        p: p-value of the hypothesis that the model is calibrated.
    """

    shares: list[float]
    worst: int
    deviations: list[float]
    z: list[float]
    above: float
    above_z: float
    p: float


def interval_calibration(pit: Tensor) -> IntervalCalibration:
    """Test whether probability integral transforms F(y) are uniform, by the coverage at `LEVELS` and the share above 1/2.

    The statistic is the largest deviation in standard errors; its reference distribution is simulated. Outputs of a row may depend
    on each other in any way: the smallest of their p-values is multiplied by D (Bonferroni).

    Args:
        pit: predicted probabilities of a value up to the target, (N,) or (N, D).

    Example:
        >>> interval_calibration(torch.linspace(0.001, 0.999, 200)).p > 0.5, interval_calibration(torch.full((200,), 0.9)).p < 0.001
        (True, True)
    """
    pit = pit.detach().double().cpu().reshape(len(pit), -1)
    rows, outputs = pit.shape
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    # a target is inside the central interval of level |2 F(y) - 1| and every wider one
    inside = ((2 * pit - 1).abs().unsqueeze(0) <= levels.view(-1, 1, 1)).double().mean(1)  # (levels, D)
    above = (pit > 0.5).double().mean(0)
    z = (inside - levels.unsqueeze(1)) / (levels * (1 - levels) / rows).sqrt().unsqueeze(1)
    above_z = (above - 0.5) * 2 * math.sqrt(rows)
    largest = torch.cat([z.abs(), above_z.abs().unsqueeze(0)]).amax(0)
    worst = int(largest.argmax())
    reference = _largest_deviations(rows)
    p = (1 + int((reference >= largest[worst] - 1e-9).sum())) / (1 + len(reference))
    return IntervalCalibration(
        shares=inside.mean(1).tolist(),
        worst=worst,
        deviations=(inside[:, worst] - levels).tolist(),
        z=z[:, worst].tolist(),
        above=above[worst].item(),
        above_z=above_z[worst].item(),
        p=min(1.0, outputs * p),
    )


@functools.lru_cache(maxsize=64)
def _largest_deviations(rows: int) -> Tensor:
    """Simulate the statistic of `interval_calibration` for one calibrated output."""
    generator = torch.Generator().manual_seed(0)

    def binomial(trials: Tensor, share: float) -> Tensor:
        return torch.binomial(trials, torch.full_like(trials, share), generator=generator)

    remaining = torch.full((_SIMULATIONS,), float(rows), dtype=torch.float64)
    largest = (binomial(remaining, 0.5) / rows - 0.5).abs() * 2 * math.sqrt(rows)  # sides are independent of the levels
    inside, below = torch.zeros_like(remaining), 0.0
    for level in LEVELS:
        here = binomial(remaining, (level - below) / (1 - below))
        inside, remaining, below = inside + here, remaining - here, level
        largest = largest.maximum((inside / rows - level).abs() / math.sqrt(level * (1 - level) / rows))
    return largest


class Gap(NamedTuple):
    """Expected minus observed share in a group of rows, and the same in standard errors."""

    expected: float
    observed: float
    z: float

    @property
    def size(self) -> float:
        """Expected minus observed share."""
        return self.expected - self.observed


class ClassCalibration(NamedTuple):
    """Calibration of the predicted class overall and by confidence, and of the classes, tested jointly.

    Attributes:
        overall: mean confidence and accuracy.
        bins: the same by increasing confidence, in bins of equal size; empty for few rows.
        classes: mean probability and share of each of the most frequent classes, by number; of one if there are two.
        p: p-value of the hypothesis that the model is calibrated.
    """

    overall: Gap
    bins: list[Gap]
    classes: dict[int, Gap]
    p: float


def class_calibration(probs: Tensor, y: Tensor) -> ClassCalibration:
    """Test whether labels are distributed as predicted.

    The statistic is the largest gap in standard errors, of the predicted class (overall and in bins of confidence) and of the
    classes. Its reference distribution is that of labels drawn from the predictions (consistency resampling). Of more than 20,000
    rows, as many are chosen at random.

    Args:
        probs: predicted probabilities, (N, K).
        y: labels, (N,).

    Source: Bröcker & Smith, *Increasing the reliability of reliability diagrams* (2007), section 3.

    Example:
        >>> probs = torch.rand(500, 1).mul(torch.tensor([1.0, -1.0])).add(torch.tensor([0.0, 1.0]))
        >>> y = torch.multinomial(probs, 1).flatten()
        >>> class_calibration(probs, y).p > 0.01, class_calibration(probs.square() / probs.square().sum(1, True), y).p < 0.01
        (True, True)
    """
    generator = torch.Generator().manual_seed(0)
    probs, y = probs.detach().double().cpu(), y.cpu()
    if len(y) > _MOST_ROWS:
        rows = torch.randperm(len(y), generator=generator, device="cpu")[:_MOST_ROWS]
        probs, y = probs[rows], y[rows]
    probs = probs / probs.sum(1, keepdim=True)
    confidence, predicted = probs.max(1)
    frequent = probs.sum(0).argsort(descending=True)[:_CLASSES].tolist()
    classes = [1] if probs.shape[1] == 2 else sorted(frequent)
    in_bin = torch.cat([torch.ones(1, len(y), dtype=torch.float64), _bins(confidence)])  # the first group is all rows
    expected = torch.cat([in_bin @ confidence, probs[:, classes].sum(0)])
    variance = torch.cat([in_bin @ (confidence * (1 - confidence)), (probs * (1 - probs))[:, classes].sum(0)])
    scale = (variance + 0.25).sqrt()  # half a row more, so that a group of nearly certain rows does not decide alone

    def observed(labels: Tensor) -> Tensor:  # (N, M) -> (groups, M)
        correct = (labels == predicted.unsqueeze(1)).double()
        return torch.cat([in_bin @ correct, torch.stack([(labels == k).double().sum(0) for k in classes])])

    def largest(counts: Tensor) -> Tensor:
        return ((counts - expected.unsqueeze(1)) / scale.unsqueeze(1)).abs().amax(0)

    simulations = min(999, max(199, _MOST_LABELS // len(y)))
    reference = torch.cat(
        [
            largest(observed(torch.multinomial(probs, count, replacement=True, generator=generator)))
            for count in [100] * (simulations // 100) + [simulations % 100]
        ]
    )
    counts = observed(y.unsqueeze(1))
    p = (1 + int((reference >= largest(counts) - 1e-9).sum())) / (1 + simulations)
    sizes = torch.cat([in_bin.sum(1), torch.full((len(classes),), float(len(y)), dtype=torch.float64)])
    z = ((expected - counts[:, 0]) / scale).tolist()
    gaps = [Gap(*each) for each in zip((expected / sizes).tolist(), (counts[:, 0] / sizes).tolist(), z, strict=True)]
    cut = len(in_bin)
    return ClassCalibration(gaps[0], gaps[1:cut], dict(zip(classes, gaps[cut:], strict=True)), p)


def _bins(confidence: Tensor) -> Tensor:
    """Membership (bins, N) of rows in bins of about equal size, with rows of equal confidence in the same one."""
    bins = min(_BINS, len(confidence) // _LEAST_PER_BIN)
    if bins < 2:
        return torch.zeros(0, len(confidence), dtype=torch.float64)
    smaller = torch.searchsorted(confidence.sort().values, confidence)
    index = smaller * bins // len(confidence)
    return (index == index.unique().unsqueeze(1)).double()

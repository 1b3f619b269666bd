"""The metrics in sentences, which claim no more than the number of rows supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesify.formatting import number, percent, plural
from bayesify.plots.statistics import binomial_interval, class_predictions, select_output
from bayesify.predictive import GaussianPredictive, Predictive
from bayesify.predictive.base import align_targets

__all__ = ["Sentence", "verdict"]

Mark = Literal["good", "caution", "bad"]


class Sentence(NamedTuple):
    """A finding (good, caution or bad) and what it means."""

    mark: Mark
    finding: str
    meaning: str


def verdict(
    predictive: Predictive, y: Tensor, scores: dict[str, float], baseline: dict[str, float], *, row: str = "held-out row"
) -> list[Sentence]:
    """Up to three findings: calibration, comparison with the baseline, and whether uncertain rows have larger errors.

    Args:
        predictive: of N rows.
        y: their targets.
        scores: metrics of the model, from `bayesify.metrics.evaluate`.
        baseline: the same metrics of the baseline.
        row: the noun for one row.
    """
    if isinstance(predictive, GaussianPredictive):
        lower, upper = predictive.interval(0.95)
        y = align_targets(torch.as_tensor(y).to(lower.device), tuple(lower.shape))
        inside = ((lower <= y) & (y <= upper)).double()
        uncertainty, errors = _per_row_errors(predictive, y)
        return [
            _coverage(inside.mean().item(), inside.numel(), len(predictive), row),
            _skill("RMSE", scores["rmse"], baseline["rmse"], "predicting the mean", number),
            *_ranking(uncertainty, errors, "RMSE", squared=True),
        ]
    values = class_predictions(predictive, y)
    errors = 1 - values.correct
    return [
        _confidence(values.confidence, values.correct, row),
        _skill("error rate", 1 - scores["accuracy"], 1 - baseline["accuracy"], "predicting the most frequent class", percent),
        *_ranking(values.entropy, errors, "error rate", squared=False),
    ]


def _coverage(share: float, cells: int, rows: int, row: str, level: float = 0.95) -> Sentence:
    # The outputs of a row are dependent, so the range is that of N rows.
    low, high = binomial_interval(rows, level)
    size = plural(rows, row) + (f" \N{MULTIPLICATION SIGN} {plural(cells // rows, 'output')}" if cells > rows else "")
    finding = f"{percent(level)} intervals contain {percent(share)} of the targets ({size})."
    deviation = 0 if low - 1e-9 <= share <= high + 1e-9 else share - level
    mark, meaning = _calibration(-deviation, high - low > 0.15, rows)
    return Sentence(mark, finding, f"{meaning}. 95% range for a calibrated model: {percent(low)} to {percent(high)}.")


def _confidence(confidence: Tensor, correct: Tensor, row: str) -> Sentence:
    rows, mean, accuracy = len(correct), confidence.mean().item(), correct.mean().item()
    finding = f"The mean confidence is {percent(mean)}, the accuracy {percent(accuracy)} ({plural(rows, row)})."
    # The number of correct predictions of a calibrated model is a sum of independent Bernoulli draws, nearly normal.
    spread = 1.96 * (confidence * (1 - confidence)).sum().sqrt().item() / rows + 0.5 / rows
    low, high = max(0, mean - spread), min(1, mean + spread)
    mark, meaning = _calibration(0 if abs(accuracy - mean) <= spread else mean - accuracy, spread > 0.1, rows)
    return Sentence(mark, finding, f"{meaning}. 95% range for a calibrated model: {percent(low)} to {percent(high)}.")


def _calibration(excess: float, is_wide: bool, rows: int) -> tuple[Mark, str]:
    """Interpret the excess confidence, 0 if it is within the 95 % range of a calibrated model; `is_wide` is that range."""
    if excess == 0:
        if is_wide:
            return "caution", f"No evidence of miscalibration, but {plural(rows, 'row')} are too few for a reliable check"
        return "good", "Well calibrated"
    if abs(excess) < 0.015:
        return "good", f"Close to calibrated, slightly {'over' if excess > 0 else 'under'}confident"
    if excess > 0:
        return "bad" if excess > 0.1 else "caution", "Overconfident: the predicted uncertainty is too low"
    return "caution", "Underconfident: the predicted uncertainty is too high"


def _skill(name: str, model: float, baseline: float, rule: str, text: Callable[[float], str]) -> Sentence:
    finding = f"The {name} is {text(model)}, compared with {text(baseline)} for {rule} (baseline)."
    if baseline <= 0:
        return Sentence("caution", finding, "The baseline makes no errors on these rows.")
    reduction = 1 - model / baseline
    if reduction <= 0.02:
        return Sentence(
            "bad", finding, "No better than the baseline: the columns may not be informative, or training was too short."
        )
    return Sentence("good" if reduction >= 0.1 else "caution", finding, f"A reduction of {percent(reduction)}.")


def _ranking(uncertainty: Tensor, errors: Tensor, name: str, squared: bool) -> list[Sentence]:
    """Compare the errors of the most uncertain 20 % of the rows with those of the others."""
    if len(uncertainty) < 50:
        return []
    order = uncertainty.argsort()
    cut = len(order) - len(order) // 5
    if (uncertainty[order[-1]] - uncertainty[order[0]]).item() <= 1e-3 * uncertainty[order[-1]].item():
        return [Sentence("caution", "The uncertainty is the same for all rows.", "It does not identify rows with large errors.")]
    certain, uncertain = errors[order[:cut]], errors[order[cut:]]
    difference = uncertain.mean().item() - certain.mean().item()
    two_errors = 2 * (certain.var().item() / len(certain) + uncertain.var().item() / len(uncertain)) ** 0.5
    high, low = (
        number(group.mean().item() ** 0.5, 3) if squared else percent(group.mean().item()) for group in (uncertain, certain)
    )
    finding = f"The {name} is {high} on the most uncertain 20% of the rows and {low} on the others."
    if difference > two_errors:
        return [Sentence("good", finding, "The uncertainty identifies rows with large errors.")]
    chance = difference > -two_errors
    meaning = "The difference may be due to chance." if chance else "The uncertainty is higher where errors are smaller."
    return [Sentence("caution", finding, meaning)]


def _per_row_errors(predictive: GaussianPredictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """Uncertainty and squared error of each row, averaged over outputs in units of the standard deviation of their targets."""
    if predictive.mean.dim() == 1:
        p, y = select_output(predictive, y)
        return p.std, (y - p.mean).square()
    uncertainty, error = [], []
    for output in range(predictive.mean.shape[1]):
        p, target = select_output(predictive, y, output)
        scale = target.std(correction=0).clamp_min(1e-12) if len(target) > 1 else torch.tensor(1.0)
        uncertainty.append(p.variance / scale**2)
        error.append(((target - p.mean) / scale).square())
    return torch.stack(uncertainty).mean(0).sqrt(), torch.stack(error).mean(0)

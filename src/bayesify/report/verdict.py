"""The metrics in sentences, which claim no more than the number of rows supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesify.formatting import number, percent, plural, too_few
from bayesify.plots.statistics import binomial_interval, class_predictions
from bayesify.plots.style import shorten
from bayesify.predictive import NumericPredictive, Predictive
from bayesify.predictive.base import align_targets
from bayesify.report.calibration_tests import LEVELS, ClassCalibration, IntervalCalibration, class_calibration, interval_calibration
from bayesify.report.sentence import Mark, Sentence
from bayesify.report.skill import skill, squared_errors

__all__ = ["verdict"]

_ENOUGH_ROWS = 100  # to call a model calibrated: then a 50 % interval holds 40 to 60 % by chance
_FALSE_ALARMS = 0.05  # of the tests of calibration
_RANKED_ROWS = 50  # to compare a fifth of them with the others
_CLOSE = 0.02  # deviation of a share that hardly matters
_LARGE = 0.1  # deviation of a share that matters
_OF_CLASS_WEIGHTS = (
    "Class weights shift the probabilities: they are those of the weighted training table, not of these rows.",
    "The log loss counts this shift as an error; compare the balanced accuracy and the ROC AUC instead.",
)


def verdict(
    predictive: Predictive,
    y: Tensor,
    baselines: Mapping[str, Predictive],
    *,
    labels: Sequence[object] | None = None,
    row: str = "held-out row",
    class_weights: bool = False,
) -> list[Sentence]:
    """Findings on calibration, on the comparison with baselines, and on whether uncertain rows have larger errors.

    Args:
        predictive: of N rows.
        y: their targets.
        baselines: predictives of the same rows by name, among them that of `constant_baseline` as "constant".
        labels: names of the K classes.
        row: the noun for one row.
        class_weights: whether the classes had weights in training.
    """
    if isinstance(predictive, NumericPredictive):
        y = align_targets(torch.as_tensor(y).to(predictive.mean.device), tuple(predictive.mean.shape))
        outputs = y.shape[1] if y.dim() > 1 else 1
        size = plural(len(y), row) + (f" \N{MULTIPLICATION SIGN} {plural(outputs, 'output')}" if outputs > 1 else "")
        if predictive.integers:  # `pit` is randomized
            size += "; targets at the end of an interval count in part"
        return [
            _intervals(interval_calibration(predictive.pit(y)), len(y), outputs, size),
            *skill(predictive, y, baselines, row),
            *_ranking(_relative_uncertainty(predictive, y), squared_errors(predictive, y), "RMSE", squared=True),
        ]
    values = class_predictions(predictive, y)
    of_probabilities = [
        _classes(class_calibration(values.probs, values.y), len(values.y), row, labels),
        *skill(predictive, y, baselines, row),
    ]
    if class_weights:
        of_probabilities = [
            sentence if sentence.mark == "good" else Sentence("caution", sentence.finding, meaning)
            for sentence, meaning in zip(of_probabilities, _OF_CLASS_WEIGHTS, strict=True)
        ]
    return [*of_probabilities, *_ranking(values.entropy, 1 - values.correct, "error rate", squared=False)]


def _intervals(result: IntervalCalibration, rows: int, outputs: int, size: str) -> Sentence:
    levels, shares = (_and([percent(value).removesuffix("%") for value in values]) for values in (LEVELS, result.shares))
    finding = f"Intervals of {levels}% contain {shares}% of the targets ({size})."
    ranges = " and ".join("{} to {}".format(*map(percent, binomial_interval(rows, level))) for level in (LEVELS[0], LEVELS[-1]))
    chance = f"By chance, {percent(LEVELS[0])} and {percent(LEVELS[-1])} intervals of a calibrated model contain {ranges}."
    mark, meaning = _interval_meaning(result, rows)
    where = f" Most of all output {result.worst + 1}." if outputs > 1 and result.p <= _FALSE_ALARMS else ""
    return Sentence(mark, finding, f"{meaning}.{where} {chance}")


def _interval_meaning(result: IntervalCalibration, rows: int) -> tuple[Mark, str]:
    largest = max(map(abs, (*result.deviations, result.above - 0.5)))
    if result.p > _FALSE_ALARMS:
        return _no_evidence(rows, largest)
    narrow, wide = (max(sign * d for d in result.deviations) for sign in (-1, 1))
    is_narrow, is_wide = (any(sign * z > 2 for z in result.z) for sign in (-1, 1))
    if largest <= _CLOSE:
        return "good", f"Close to calibrated, slightly {'over' if narrow > wide else 'under'}confident"
    bias = ""
    if abs(result.above_z) > 2:
        word = "low" if result.above > 0.5 else "high"
        bias = f"predictions are too {word}: {percent(result.above)} of the targets are above the median"
    then = f"; {bias}" if bias else ""
    if is_narrow and is_wide:
        return "caution", f"Wrong shape: some intervals are too wide and others too narrow, as for errors with heavy tails{then}"
    if is_narrow:
        return "bad" if narrow > _LARGE else "caution", f"Overconfident: the intervals are too narrow{then}"
    if is_wide:
        return "caution", f"Underconfident: the intervals are too wide{then}"
    return "caution", f"Biased: {bias}"


def _classes(result: ClassCalibration, rows: int, row: str, labels: Sequence[object] | None) -> Sentence:
    overall = result.overall
    finding = f"The mean confidence is {percent(overall.expected)}, the accuracy {percent(overall.observed)} ({plural(rows, row)})."
    mark, meaning = _class_meaning(result, rows, labels)
    return Sentence(mark, finding, f"{meaning}.")


def _class_meaning(result: ClassCalibration, rows: int, labels: Sequence[object] | None) -> tuple[Mark, str]:
    overall = result.overall
    gaps = [overall, *result.bins, *result.classes.values()]
    if result.p > _FALSE_ALARMS:
        return _no_evidence(rows, max(abs(gap.size) for gap in (overall, *result.classes.values())))
    if max(abs(gap.size) for gap in gaps) <= _CLOSE:
        return "good", "Close to calibrated"
    worst = max((gap for gap in gaps if abs(gap.size) > _CLOSE), key=lambda gap: abs(gap.z))
    if abs(overall.z) > 2 or worst is overall:
        if overall.size > 0:
            return "bad" if overall.size > _LARGE else "caution", "Overconfident: the predicted uncertainty is too low"
        return "caution", "Underconfident: the predicted uncertainty is too high"
    if worst in result.bins:
        word = "Overconfident" if worst.size > 0 else "Underconfident"
        return "caution", f"{word} where the confidence is about {percent(worst.expected)}: {percent(worst.observed)} are correct"
    index = next(k for k, gap in result.classes.items() if gap is worst)
    name = index if labels is None else shorten(labels[index], 24)
    shares = f"{percent(worst.expected)} on average, while its share is {percent(worst.observed)}"
    return "caution", f"The probability of class {name} is too {'high' if worst.size > 0 else 'low'}: {shares}"


def _no_evidence(rows: int, largest: float) -> tuple[Mark, str]:
    """The meaning of a test of calibration that finds nothing; `largest` is the largest deviation of a share."""
    if rows < _ENOUGH_ROWS:
        return "caution", f"No evidence of miscalibration, but {too_few(rows, 'row')} for a reliable check"
    if largest > _LARGE:
        return "caution", "No clear evidence of miscalibration, but the deviation is large; check more rows"
    return "good", "Well calibrated"


def _and(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _ranking(uncertainty: Tensor, errors: Tensor, name: str, squared: bool) -> list[Sentence]:
    """Compare the errors of the most uncertain 20 % of the rows with those of the others."""
    if len(uncertainty) < _RANKED_ROWS or not errors.any():
        return []  # without errors there is nothing to rank
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


def _relative_uncertainty(predictive: NumericPredictive, y: Tensor) -> Tensor:
    """Standard deviation of each row; of several outputs, in units of the standard deviation of their targets."""
    if predictive.mean.dim() == 1 or predictive.mean.shape[1] == 1:
        return predictive.std.flatten().double()
    scale = y.double().std(0, correction=0).clamp_min(1e-12)
    return (predictive.variance.double() / scale**2).mean(1).sqrt()

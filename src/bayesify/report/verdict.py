"""What the numbers mean, in sentences that do not say more than so many rows allow."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesify.plots.values import binomial_range, classes, one_output
from bayesify.predictive import GaussianPredictive, Predictive
from bayesify.predictive.base import align_targets
from bayesify.report.numbers import number, percent, plural

__all__ = ["Sentence", "verdict"]

Mark = Literal["good", "caution", "bad"]


class Sentence(NamedTuple):
    """One finding: how it is (good, caution, bad), what was found, and what that means."""

    mark: Mark
    finding: str
    meaning: str


def verdict(
    predictive: Predictive, y: Tensor, scores: dict[str, float], baseline: dict[str, float], *, row: str = "held-out row"
) -> list[Sentence]:
    """Three findings: are the probabilities honest, is the model better than guessing, does it know where it is unsure.

    Args:
        predictive: N rows.
        y: their targets.
        scores: of the model, from `bayesify.metrics.evaluate`.
        baseline: the same of the trivial guess.
        row: what a row is called.
    """
    if isinstance(predictive, GaussianPredictive):
        lower, upper = predictive.interval(0.95)
        y = align_targets(torch.as_tensor(y).to(lower.device), tuple(lower.shape))
        inside = ((lower <= y) & (y <= upper)).double()
        honest = _coverage(inside.mean().item(), inside.numel(), len(predictive), row)
        errors = _per_row_errors(predictive, y)
        skill = _skill("typical error (RMSE)", scores["rmse"], baseline["rmse"], "always guessing the mean")
        return [honest, skill, *_knows(errors[0], errors[1], "typical error", squared=True)]
    values = classes(predictive, y)
    common = 1 - baseline["accuracy"]
    skill = _skill("share of errors", 1 - scores["accuracy"], common, "always guessing the most frequent class", share=True)
    return [
        _confidence(values.confidence, values.correct, row),
        skill,
        *_knows(values.entropy, 1 - values.correct, "share of errors", squared=False),
    ]


def _coverage(found: float, cells: int, rows: int, row: str, level: float = 0.95) -> Sentence:
    # Outputs of one row go together, so that chance is judged by the number of rows.
    low, high = binomial_range(rows, level)
    what = plural(rows, row) + (f" \N{MULTIPLICATION SIGN} {plural(cells // rows, 'output')}" if cells > rows else "")
    finding = f"{percent(level)} intervals contained {percent(found)} of the targets ({what})."
    chance = f"a perfectly calibrated model would show {percent(low)} to {percent(high)} on {plural(rows, 'row')}"
    if low - 1e-9 <= found <= high + 1e-9:
        if high - low > 0.15:
            return Sentence("caution", finding, f"No sign of bad calibration, but {plural(rows, 'row')} cannot tell: {chance}.")
        return Sentence("good", finding, f"Well calibrated: {chance}.")
    if abs(found - level) < 0.015:
        side = "narrow" if found < level else "wide"
        return Sentence("good", finding, f"Close to calibrated, the intervals a little too {side}: {chance}.")
    if found < level:
        mark: Mark = "bad" if found < level - 0.1 else "caution"
        return Sentence(mark, finding, f"Too confident: the intervals are too narrow ({chance}).")
    return Sentence("caution", finding, f"Too cautious: the intervals are wider than they need to be ({chance}).")


def _confidence(confidence: Tensor, correct: Tensor, row: str) -> Sentence:
    rows, said, found = len(correct), confidence.mean().item(), correct.mean().item()
    finding = f"On average it was {percent(said)} sure of its prediction and right in {percent(found)} of {plural(rows, row)}."
    # The number of right predictions of a calibrated model is a sum of independent yes-or-no draws, nearly normal.
    spread = 1.96 * (confidence * (1 - confidence)).sum().sqrt().item() / rows + 0.5 / rows
    chance = f"a perfectly calibrated model would be right in {percent(max(0, said - spread))} to {percent(min(1, said + spread))}"
    if abs(found - said) <= spread:
        if spread > 0.1:
            return Sentence("caution", finding, f"No sign of bad calibration, but {plural(rows, 'row')} cannot tell: {chance}.")
        return Sentence("good", finding, f"Well calibrated on average: {chance}.")
    if abs(found - said) < 0.015:
        side = "confident" if found < said else "cautious"
        return Sentence("good", finding, f"Close to calibrated, a little too {side}: {chance}.")
    if found < said:
        return Sentence("bad" if said - found > 0.1 else "caution", finding, f"Too confident: {chance}.")
    return Sentence("caution", finding, f"Too cautious: {chance}.")


def _skill(name: str, model: float, trivial: float, guess: str, share: bool = False) -> Sentence:
    text = percent if share else number
    finding = f"The {name} is {text(model)}, against {text(trivial)} for {guess}."
    if trivial <= 0:
        return Sentence("caution", finding, "There is nothing to improve on: guessing is perfect on these rows.")
    less = 1 - model / trivial
    if less <= 0.02:
        return Sentence(
            "bad", finding, "It is no better than guessing: the columns may not tell the target, or training was too short."
        )
    return Sentence("good" if less >= 0.1 else "caution", finding, f"That is {percent(less)} less.")


def _knows(doubt: Tensor, error: Tensor, name: str, squared: bool) -> list[Sentence]:
    """Compare the errors of the least certain fifth of the rows with those of the others."""
    if len(doubt) < 50:
        return []
    order = doubt.argsort()
    cut = len(order) - len(order) // 5
    if (doubt[order[-1]] - doubt[order[0]]).item() <= 1e-3 * doubt[order[-1]].item():
        return [Sentence("caution", "It is equally unsure about all rows.", "The uncertainty cannot point at the risky ones.")]
    sure, unsure = error[order[:cut]].mean().item(), error[order[cut:]].mean().item()
    spread = 2 * (error[order[:cut]].var().item() / cut + error[order[cut:]].var().item() / (len(order) - cut)) ** 0.5
    more = unsure - sure
    sure, unsure = (v**0.5 if squared else v for v in (sure, unsure))
    text = number if squared else percent
    digits = (number(unsure, 3), number(sure, 3)) if squared else (text(unsure), text(sure))
    finding = f"The {name} is {digits[0]} on the fifth of the rows it is least sure of, and {digits[1]} on the rest."
    if more > spread:
        return [Sentence("good", finding, "It knows where it does not know.")]
    meaning = "The difference may be chance." if more > -spread else "Its uncertainty points at the wrong rows."
    return [Sentence("caution", finding, meaning)]


def _per_row_errors(predictive: GaussianPredictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """Relative doubt and squared error per row: of several outputs, in units of each one's own spread, so that none drowns."""
    if predictive.mean.dim() == 1:
        p, y = one_output(predictive, y)
        return p.std, (y - p.mean).square()
    doubt, error = [], []
    for output in range(predictive.mean.shape[1]):
        p, target = one_output(predictive, y, output)
        scale = target.std(correction=0).clamp_min(1e-12) if len(target) > 1 else torch.tensor(1.0)
        doubt.append(p.variance / scale**2)
        error.append(((target - p.mean) / scale).square())
    return torch.stack(doubt).mean(0).sqrt(), torch.stack(error).mean(0)

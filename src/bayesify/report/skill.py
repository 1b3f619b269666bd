"""Comparison of a model with baselines on the same rows: paired differences of losses and their standard errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.formatting import MINUS, number, percent, too_few
from bayesify.metrics import balanced_accuracy, roc_auc
from bayesify.plots.statistics import class_predictions, select_output
from bayesify.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    CountPredictive,
    GaussianPredictive,
    NumericPredictive,
    Predictive,
)
from bayesify.predictive.base import align_targets
from bayesify.report.sentence import FEW_ROWS, Mark, Sentence

__all__ = ["CONSTANT", "Difference", "constant_baseline", "difference", "skill"]

CONSTANT = "constant"
"""Name of the baseline that ignores the inputs."""

_IMBALANCED = 0.8  # share of the largest class from which accuracy says little
_WAY_OUT = "Use it if only the predictions count; otherwise try fewer columns, more rows or another --method."


def constant_baseline(predictive: Predictive, y: Tensor, training_y: Tensor | None = None) -> Predictive:
    """The prediction that ignores the inputs: a distribution with the moments of the targets, or class frequencies.

    It is normal, for counts negative binomial.

    Args:
        predictive: of the model, which gives type and shape.
        y: targets of the N rows.
        training_y: targets to learn the distribution from; `y` if None.

    Example:
        >>> p = GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0))
        >>> constant_baseline(p, torch.zeros(2), torch.tensor([1.0, 3.0])).mean
        tensor([2., 2.], dtype=torch.float64)
    """
    source = torch.as_tensor(y if training_y is None else training_y).cpu()
    if isinstance(predictive, CountPredictive):
        source = source.double().reshape(len(source), *predictive.mean.shape[1:])
        mean = source.mean(0)
        return CountPredictive.from_residuals(mean.expand(predictive.mean.shape), source, mean.expand(source.shape))
    if isinstance(predictive, GaussianPredictive):
        source = source.double().reshape(len(source), *predictive.mean.shape[1:])
        std = source.std(0, correction=0)
        return GaussianPredictive(source.mean(0).expand(1, *predictive.mean.shape), torch.where(std > 0, std, 1.0))
    if isinstance(predictive, BernoulliPredictive):
        share = (source.double().sum(0) + 0.5) / (len(source) + 1)
        return BernoulliPredictive.from_logits(share.logit().expand(1, *predictive.probs.shape))
    assert isinstance(predictive, CategoricalPredictive)
    k = predictive.probs.shape[-1]
    counts = torch.bincount(source[source >= 0].flatten().long(), minlength=k).double() + 1 / k  # no class has probability 0
    return CategoricalPredictive.from_logits(counts.log().expand(1, *predictive.probs.shape), predictive.ignore_index)


class Difference(NamedTuple):
    """Mean loss of the model minus that of a baseline, and the standard error of this paired difference."""

    mean: float
    error: float

    @property
    def is_worse(self) -> bool:
        """Whether the model is worse beyond two standard errors."""
        return self.mean > 2 * self.error and self.mean > 0

    @property
    def is_better(self) -> bool:
        """Whether the model is better beyond two standard errors."""
        return self.mean < -2 * self.error and self.mean < 0


def difference(model: Tensor, baseline: Tensor) -> Difference:
    """Compare losses (N,) on the same rows.

    Example:
        >>> difference(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 3.0, 5.0])).is_better
        True
    """
    gaps = (model - baseline).double()
    error = gaps.std().item() / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    return Difference(gaps.mean().item(), error)


def skill(predictive: Predictive, y: Tensor, baselines: Mapping[str, Predictive], row: str = "row") -> list[Sentence]:
    """Compare the model with the constant and with the best other baseline: RMSE (regression) or log loss (classification).

    In regression, a second sentence warns of a log-likelihood that is clearly below that of a baseline. A classifier that makes no
    more errors than a baseline is not called bad for its log loss.

    Args:
        predictive: of N rows.
        y: their targets.
        baselines: predictives of the same rows by name; one is `CONSTANT`.
        row: the noun for one row.
    """
    regression = isinstance(predictive, NumericPredictive)
    loss = squared_errors if regression else _log_loss
    losses = {name: loss(p, y) for name, p in baselines.items()}
    model = loss(predictive, y)
    mark, finding, meaning = _skill(model, losses, _name_of_loss(predictive), row)
    if regression:
        worse = _likelihood(_log_loss(predictive, y), {name: _log_loss(p, y) for name, p in baselines.items()})
        return [Sentence(mark, finding, meaning), *(worse if len(model) >= FEW_ROWS else [])]
    if mark == "bad" and _errors(predictive, y) <= min(_errors(p, y) for p in baselines.values()):
        mark = "caution"
    return [Sentence(mark, f"{finding} {_classes(predictive, y, baselines[CONSTANT])}", meaning)]


def squared_errors(predictive: Predictive, y: Tensor) -> Tensor:
    """Squared errors of regression, (N,); several outputs are averaged in units of the standard deviation of their targets."""
    assert isinstance(predictive, NumericPredictive)
    if predictive.mean.dim() == 1 or predictive.mean.shape[1] == 1:
        p, y = select_output(predictive, y)
        return (y - p.mean).square()
    y = align_targets(y, tuple(predictive.mean.shape)).double()
    scale = y.std(0, correction=0).clamp_min(1e-12)
    return ((y - predictive.mean.double()) / scale).square().mean(1)


def _log_loss(predictive: Predictive, y: Tensor) -> Tensor:
    return -predictive.log_prob(y).double()


def _errors(predictive: Predictive, y: Tensor) -> float:
    return 1 - class_predictions(predictive, y).correct.mean().item()


def _classes(predictive: Predictive, y: Tensor, constant: Predictive) -> str:
    """Accuracy and, where one class dominates, what accuracy does not show."""
    values = class_predictions(predictive, y)
    accuracy = f"The accuracy is {percent(1 - _errors(predictive, y))} ({CONSTANT}: {percent(1 - _errors(constant, y))})"
    counts = torch.bincount(values.y, minlength=values.probs.shape[1])
    if counts.max() < _IMBALANCED * counts.sum() or (counts > 0).sum() < 2 or len(counts) > len(values.y):
        return f"{accuracy}."
    balanced, auc = (number(metric(values.probs, values.y).item(), 3) for metric in (balanced_accuracy, roc_auc))
    one = len(values.prediction.unique()) == 1
    never = "; one class is predicted for every row, so use the probabilities with another threshold" if one else ""
    return f"{accuracy}, the balanced accuracy {balanced}, the ROC AUC {auc}{never}."


def _name_of_loss(predictive: Predictive) -> str:
    if not isinstance(predictive, NumericPredictive):
        return _measure(regression=False)
    return _measure(regression=True) + ("" if predictive.mean[:1].numel() == 1 else ", in standard deviations of the targets,")


def _measure(regression: bool) -> str:
    return "RMSE" if regression else "log loss"


def _skill(model: Tensor, losses: Mapping[str, Tensor], name: str, row: str) -> Sentence:
    regression = name != _measure(regression=False)

    def text(loss: Tensor) -> str:
        return number(loss.mean().sqrt().item() if regression else loss.mean().item(), 3)

    best = min((key for key in losses if key != CONSTANT), key=lambda key: losses[key].mean().item(), default=CONSTANT)
    compared = " and ".join(f"{text(losses[key])} for {_described(key)}" for key in dict.fromkeys((CONSTANT, best)))
    mark, meaning = _against_constant(model, losses[CONSTANT], regression)
    if best != CONSTANT:
        mark, meaning = _against_best(model, losses[best], best, (mark, meaning), regression)
    if mark == "good" and len(model) < FEW_ROWS:
        mark, meaning = "caution", f"{meaning} But {too_few(len(model), row)} for a reliable comparison."
    return Sentence(mark, f"The {name} is {text(model)}, compared with {compared}.", meaning)


def _against_constant(model: Tensor, constant: Tensor, regression: bool) -> tuple[Mark, str]:
    gap = difference(model, constant)
    if not gap.mean < 0:
        return "bad", "No better than the constant prediction: the columns may not be informative, or training was too short."
    if not gap.is_better:
        return "caution", "The difference from the constant prediction may be due to chance."
    size = 1 - (model.mean() / constant.mean()).item() ** (0.5 if regression else 1.0)
    finding = f"The {_measure(regression)} is {percent(size)} below that of the constant prediction."
    return ("good" if size >= 0.1 else "caution"), finding


def _against_best(model: Tensor, other: Tensor, name: str, alone: tuple[Mark, str], regression: bool) -> tuple[Mark, str]:
    """Combine the comparison with the constant prediction, `alone`, with that with the best other baseline."""
    mark, meaning = alone
    gap = difference(model, other)
    if gap.is_worse:
        ratio = (model.mean() / other.mean()).item() ** (0.5 if regression else 1.0)
        return "bad" if ratio > 1.1 or mark == "bad" else "caution", f"{meaning} {_capital(name)} is clearly better. {_WAY_OUT}"
    if gap.is_better:
        return mark, f"{meaning} Better than {name}, the best other baseline."
    if gap.mean > 0 and mark == "good" and gap.mean > 0.1 * other.mean().item():
        return "caution", f"{meaning} {_capital(name)} may be better; the difference is within two standard errors."
    return mark, f"{meaning} About as good as {name}, the best other baseline."


def _likelihood(model: Tensor, losses: Mapping[str, Tensor]) -> list[Sentence]:
    best = min(losses, key=lambda key: losses[key].mean().item())
    if not difference(model, losses[best]).is_worse:
        return []
    own, other = (f"{loss.mean().item():.2f}".replace("-", MINUS) for loss in (model, losses[best]))
    finding = f"The negative log-likelihood is {own} nats, compared with {other} for {_described(best)} with normal errors."
    return [Sentence("caution", finding, "The predicted uncertainty is less informative than one standard deviation for all rows.")]


def _described(name: str) -> str:
    return "the constant prediction" if name == CONSTANT else name


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]

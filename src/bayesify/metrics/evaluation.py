"""`evaluate`: the standard metrics of a predictive distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.metrics.calibration import expected_calibration_error, maximum_calibration_error
from bayesify.metrics.predictions import accuracy, brier, coverage, crps, interval_width, rmse
from bayesify.metrics.ranking import average_precision, balanced_accuracy, roc_auc
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, NumericPredictive, Predictive
from bayesify.predictive.base import align_targets

__all__ = ["evaluate"]

_MOST_CLASSES = 100  # of the metrics that sort the rows once per class


def evaluate(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """Evaluate a predictive distribution with the standard metrics.

    Args:
        predictive: N rows, from `predict`.
        y: the N targets. Labels or tokens (except ignored ones) of one row count as separate predictions, except in `nll`.

    Returns:
        Classification: nll (nats per row), accuracy, balanced_accuracy, brier, ece and mce (15 equal-width bins); also roc_auc and
        average_precision (of the rarer of two classes) if y has two classes or more, of at most 100. Regression: nll, rmse and crps
        (in the unit of y, over rows and outputs), coverage_95 and width_95 of the central 95 % interval, whose ends are whole
        numbers for counts, so that it may contain more.

    Raises:
        TypeError: an unknown type of predictive.
        DataError: targets that do not fit.
        MissingDependencyError: classification without torchmetrics.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0))
        >>> {name: round(value, 2) for name, value in evaluate(p, torch.tensor([0.0, 2.0])).items()}
        {'nll': 1.92, 'rmse': 1.41, 'crps': 0.84, 'coverage_95': 0.5, 'width_95': 3.92}
    """
    y = torch.as_tensor(y).to(predictive.mean.device)
    scores = {"nll": -predictive.log_prob(y).mean()}
    if isinstance(predictive, NumericPredictive):
        y = align_targets(y, predictive.mean.shape)
        lower, upper = predictive.interval(0.95)
        scores["rmse"] = rmse(predictive.mean, y)
        scores["crps"] = crps(predictive, y)
        scores["coverage_95"] = coverage(lower, upper, y)
        scores["width_95"] = interval_width(lower, upper)
    elif isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        y = align_targets(y, tuple(predictive.log_probs.shape[:-1])).flatten().long()
        probs = predictive.log_probs.exp().flatten(0, -2)
        if isinstance(predictive, CategoricalPredictive):
            probs, y = probs[y != predictive.ignore_index], y[y != predictive.ignore_index]
        scores["accuracy"] = accuracy(probs, y)
        scores["balanced_accuracy"] = balanced_accuracy(probs, y)
        scores |= _ranking(probs, y)
        scores["brier"] = brier(probs, y)
        scores["ece"] = expected_calibration_error(probs, y)
        scores["mce"] = maximum_calibration_error(probs, y)
    else:
        raise TypeError(f"predictive must be categorical, Bernoulli or of numbers, got {type(predictive).__name__}")
    return {name: float(value) for name, value in scores.items()}


def _ranking(probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    counts = torch.bincount(y, minlength=probs.shape[1])
    if probs.shape[1] > _MOST_CLASSES or (counts > 0).sum() < 2:
        return {}
    rarer = int(counts[1] <= counts[0])
    return {"roc_auc": roc_auc(probs, y), "average_precision": average_precision(probs, y, rarer)}

"""Scores of predictive distributions batch by batch: statistics of rows, which are small, and the metrics of all of them.

Shapes: B rows, T targets per row (tokens, labels, outputs), N all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesify.metrics.calibration import confidence_gap
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, NumericPredictive, Predictive
from bayesify.predictive.base import align_targets

__all__ = ["metrics_of", "predictions_of", "statistics_of"]


def statistics_of(predictive: Predictive, y: Tensor) -> dict[str, Tensor]:
    """Return the statistics of rows that metrics are computed from.

    Args:
        predictive: of B rows.
        y: their targets.

    Returns:
        `log_prob` (B,) in nats and `count` (B,), the number of predictions it is of: one, or the tokens that are not ignored. For
        classification also `confidence`, `correct` and `valid`, (B, T), for regression `squared_error` (B, T).
    """
    log_prob = predictive.log_prob(y)
    scores = {"log_prob": log_prob, "count": torch.ones_like(log_prob)}
    if isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        y = align_targets(y, tuple(predictive.log_probs.shape[:-1]))
        largest, predicted = predictive.log_probs.max(-1)
        valid = torch.ones_like(y, dtype=torch.bool)
        if isinstance(predictive, CategoricalPredictive):
            valid = y != predictive.ignore_index
            scores["count"] = _flat(valid).sum(1).to(log_prob)
        scores["confidence"], scores["correct"] = _flat(largest.exp()), _flat(predicted == y).to(log_prob)
        scores["valid"] = _flat(valid).to(log_prob)
    elif isinstance(predictive, NumericPredictive):
        mean = predictive.mean
        scores["squared_error"] = _flat((align_targets(y, tuple(mean.shape)) - mean).square())
    return scores


def metrics_of(statistics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of all rows.

    Args:
        statistics: of N rows, as tensors or arrays; padding is marked by a `valid` other than 1.

    Returns:
        nll, in nats per row (per token for sequences), accuracy and ece (15 bins) for classification, rmse for regression.
    """
    values = {name: torch.as_tensor(value).double() for name, value in statistics.items()}
    metrics = {"nll": -values["log_prob"].sum() / values["count"].sum()}
    if "correct" in values:
        valid = values["valid"] == 1
        confidence, correct = values["confidence"][valid], values["correct"][valid]
        metrics["accuracy"] = correct.mean()
        metrics["ece"] = confidence_gap(confidence, correct) if len(confidence) else metrics["accuracy"]
    elif "squared_error" in values:
        metrics["rmse"] = values["squared_error"].mean().sqrt()
    return {name: float(value) for name, value in metrics.items()}


def predictions_of(predictive: Predictive) -> Any:
    """Return what does not grow with the number of draws: log probabilities (B, ..., K), or mean and standard deviation."""
    if isinstance(predictive, NumericPredictive):
        return predictive.mean, predictive.variance.sqrt()
    if isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        return predictive.log_probs
    return predictive.mean


def _flat(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1)

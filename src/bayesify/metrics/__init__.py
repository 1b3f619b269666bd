"""Metrics of predictions: accuracy, calibration, out-of-distribution detection, robustness."""

from bayesify.metrics.calibration import Reliability, expected_calibration_error, maximum_calibration_error, reliability
from bayesify.metrics.evaluation import evaluate
from bayesify.metrics.out_of_distribution import ood_metrics
from bayesify.metrics.predictions import accuracy, brier, coverage, crps, interval_width, nll, rmse
from bayesify.metrics.ranking import average_precision, balanced_accuracy, roc_auc
from bayesify.metrics.robustness import CorruptionErrors, corruption_errors

__all__ = [
    "CorruptionErrors",
    "Reliability",
    "accuracy",
    "average_precision",
    "balanced_accuracy",
    "brier",
    "corruption_errors",
    "coverage",
    "crps",
    "evaluate",
    "expected_calibration_error",
    "interval_width",
    "maximum_calibration_error",
    "nll",
    "ood_metrics",
    "reliability",
    "rmse",
    "roc_auc",
]

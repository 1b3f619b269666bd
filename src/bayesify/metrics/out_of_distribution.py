"""Out-of-distribution detection: how well a score separates out-of-distribution from in-distribution inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.errors import DataError
from bayesify.metrics.requirements import classification_metrics

__all__ = ["ood_metrics"]


def ood_metrics(score_in: Tensor, score_out: Tensor) -> dict[str, float]:
    r"""Metrics of a score as detector of out-of-distribution inputs; in-distribution is the positive class.

    Args:
        score_in: scores (N,) of in-distribution inputs, for example `predictive.entropy`.
        score_out: scores (M,) of out-of-distribution inputs, where higher scores are expected.

    Returns:
        auroc; aupr_in and aupr_out (average precision with either class as positive); fpr95, the false positive rate at a true
        positive rate of 95 %; detection_error, the minimum of $\tfrac12 (1 - \mathrm{TPR}) + \tfrac12 \mathrm{FPR}$.

    Raises:
        DataError: no scores, or NaN.
        MissingDependencyError: torchmetrics is not installed.

    Source: Liang, Li & Srikant, *Enhancing the reliability of out-of-distribution image detection* (2018), section 4.

    Example:
        >>> ood_metrics(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.9]))["auroc"]
        1.0
    """
    for name, score in (("score_in", score_in), ("score_out", score_out)):
        if score.numel() == 0 or score.isnan().any():
            raise DataError(f"{name} must have at least one score and no NaN, got shape {tuple(score.shape)}")
    scores = torch.cat([score_in.flatten(), score_out.flatten()])
    # Ranks instead of scores: torchmetrics takes scores outside [0, 1] for logits, and its sigmoid ties large ones.
    values, rank = scores.unique(return_inverse=True)
    outlier = rank.double() / len(values)
    inlier = 1 - outlier
    is_in = torch.arange(len(scores), device=scores.device) < score_in.numel()
    metric = classification_metrics()
    fpr, tpr, _ = metric.binary_roc(inlier, is_in.long())
    return {
        "auroc": float(metric.binary_auroc(inlier, is_in.long())),
        "aupr_in": float(metric.binary_average_precision(inlier, is_in.long())),
        "aupr_out": float(metric.binary_average_precision(outlier, (~is_in).long())),
        "fpr95": float(fpr[tpr >= 0.95].min()),
        "detection_error": float((0.5 * (1 - tpr) + 0.5 * fpr).min()),
    }

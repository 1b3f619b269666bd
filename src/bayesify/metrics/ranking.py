"""Metrics that do not depend on the class proportions, or judge the order of the probabilities alone: for imbalanced classes.

Shapes: N rows, K classes. `probs` are (N, K), or (N,) as the probability of class 1 of two; labels y are (N,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.metrics.predictions import checked_probs, top_class

__all__ = ["average_precision", "balanced_accuracy", "roc_auc"]


def balanced_accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """Mean over the classes in y of the share of their rows that are predicted correctly; 1/K by chance.

    Example:
        >>> balanced_accuracy(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 0, 0, 1]))
        tensor(0.5000)
    """
    correct = top_class(probs, y)[1]
    classes, index = y.long().unique(return_inverse=True)
    right = torch.zeros(len(classes), dtype=correct.dtype, device=correct.device).index_add(0, index, correct)
    return (right / torch.bincount(index)).mean()


def roc_auc(probs: Tensor, y: Tensor) -> Tensor:
    """Area under the ROC curve: the probability that a row of a class gets a higher probability of it than a row of another.

    One-vs-rest, averaged over the classes in y if there are more than two. 0.5 by chance, NaN if y has one class only.

    Source: Fawcett, *An introduction to ROC analysis* (2006), section 7; ties count half.

    Example:
        >>> roc_auc(torch.tensor([0.1, 0.3, 0.2, 0.4]), torch.tensor([0, 0, 1, 1]))
        tensor(0.7500)
    """
    return torch.stack([_auc(score, positive) for score, positive in _one_vs_rest(probs, y, None)]).mean()


def average_precision(probs: Tensor, y: Tensor, positive: int = 1) -> Tensor:
    r"""Average precision $\sum_n (R_n - R_{n-1}) P_n$, the area under the precision-recall curve.

    One-vs-rest, averaged over the classes in y if there are more than two. The share of the class by chance; NaN if y has one
    class only.

    Args:
        probs, y: probabilities (N, K) or (N,) and labels (N,).
        positive: of two classes, the one to be found.

    Example:
        >>> average_precision(torch.tensor([0.1, 0.3, 0.2, 0.4]), torch.tensor([0, 0, 1, 1]))
        tensor(0.8333)
    """
    return torch.stack([_average_precision(score, positives) for score, positives in _one_vs_rest(probs, y, positive)]).mean()


def _one_vs_rest(probs: Tensor, y: Tensor, positive: int | None) -> list[tuple[Tensor, Tensor]]:
    """Score and membership, each (N,), of the classes to be averaged: of one if there are two, as both have the same curve."""
    probs, y = checked_probs(probs, y)
    found = y.unique().tolist()
    if probs.shape[1] == 2:
        found = [1 if positive is None else positive]
    return [(probs[:, k], y == k) for k in found]


def _auc(score: Tensor, positive: Tensor) -> Tensor:
    """The rank-sum statistic of the positive rows, as a share of all pairs."""
    _, index, count = score.unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count.double() - 1) / 2)[index]  # tied rows share their mean rank; float32 cannot add up many
    n = positive.sum()
    return ((rank[positive].sum() - n * (n + 1) / 2) / (n * (len(score) - n))).to(score.dtype)


def _average_precision(score: Tensor, positive: Tensor) -> Tensor:
    if bool(positive.all()):
        return torch.full((), torch.nan, dtype=score.dtype, device=score.device)
    _, index, count = score.unique(return_inverse=True, return_counts=True)
    hits = torch.zeros(len(count), dtype=score.dtype, device=score.device).index_add(0, index, positive.to(score.dtype)).flip(0)
    precision = hits.cumsum(0) / count.flip(0).cumsum(0)
    return (precision * hits).sum() / hits.sum()

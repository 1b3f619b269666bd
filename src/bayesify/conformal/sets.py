"""Conformal sets of labels (classification)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from bayesify.conformal.scores import Calibration, as_folds, sort_scores
from bayesify.core.checks import check_choice
from bayesify.errors import DataError
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, Predictive
from bayesify.predictive.base import align_targets
from bayesify.predictive.targets import check_labels

__all__ = ["ConformalSets"]


@dataclasses.dataclass(frozen=True, eq=False)
class ConformalSets(Calibration):
    r"""Sets of labels of guaranteed coverage: the labels whose score is not larger than calibration rows need.

    With `score="lac"`, the score of label k is $-\log p_k$: the set has all labels of at least a certain probability. Among sets of
    the same coverage these have the fewest labels on average. With `score="aps"`, it is the total probability of the labels that
    are at least as probable as k: sets are larger, but their coverage depends less on the row.

    Nothing is randomized. The most probable label is always in the set, so no set is empty; where the model is more accurate than
    the level, coverage is higher than the level for this reason.

    With one model per fold, label k is in the set if fewer than r of the n calibration rows have a score below that of k from the
    model of their fold. With `groups`, weights of rows and groups take the place of numbers of rows, as in `ConformalIntervals`.

    Source: LAC: Sadinle, Lei & Wasserman (2019); APS and folds: Romano, Sesia & Candès (2020), algorithms 1 and 2 without
    randomization.

    Args:
        score: "lac" or "aps".

    Raises:
        ConfigurationError: another score.

    Example:
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[2.0, 0.0, -2.0]]]).expand(1, 9, 3))
        >>> calibration = ConformalSets.calibrate(p, torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1]))
        >>> calibration.sets(p, level=0.9)[0], calibration.sets(p, level=0.5)[0]
        (tensor([ True,  True, False]), tensor([ True, False, False]))
    """

    score: Literal["lac", "aps"] = "lac"

    region: ClassVar[str] = "Sets of labels"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("score", self.score, ("lac", "aps"))

    @classmethod
    def calibrate(
        cls,
        predictives: Predictive | Sequence[Predictive],
        y: Tensor | Sequence[Tensor],
        score: Literal["lac", "aps"] = "lac",
        *,
        groups: Tensor | Sequence[Tensor] | None = None,
    ) -> Self:
        """Compute the scores of calibration rows.

        Args:
            predictives: the predictive distribution of rows that the model was not trained on, one label per row; in
                cross-conformal prediction one per fold, from the model of the other folds.
            y: their labels, (n,) integers, likewise.
            score: "lac" or "aps".
            groups: integers, (n,), likewise, as for `ConformalIntervals`.

        Raises:
            TypeError: a predictive distribution of numbers, or labels that are not integers.
            ConfigurationError: another `score`.
            DataError: no rows, several labels per row, labels of another shape or range, or groups as for `ConformalIntervals`.
            DivergenceError: predictions are NaN.
        """
        check_choice("score", score, ("lac", "aps"))
        targets = [y] if isinstance(y, Tensor) else y
        scores = []
        for fold, target in zip(as_folds(predictives), targets, strict=True):
            every = _scores(fold, score)
            labels = align_targets(target, tuple(every.shape[:1])).to(every.device)
            check_labels(labels, every.shape[1])
            scores.append(every.gather(1, labels.long().unsqueeze(1)).squeeze(1))
        ordered, weights = sort_scores(scores, groups)
        return cls(ordered, score, weights=weights)

    def sets(self, predictives: Predictive | Sequence[Predictive], level: float = 0.9) -> Tensor:
        """Return which labels are in the set of each row, (N, K) booleans.

        Args:
            predictives: of the N rows, from the model or models of the calibration.
            level: in (0, 1).

        Raises:
            ConfigurationError: `level` is not in (0, 1) or needs more calibration rows or groups; not one predictive per fold.
        """
        folds = as_folds(predictives)
        self._check(folds)
        least = self._least_weight(level)
        scores = [_scores(fold, self.score) for fold in folds]
        parts = zip(self.scores, self._cumulative(), scores, strict=True)
        below = sum(of_first.to(s.device)[torch.searchsorted(part.to(s.device), s)] for part, of_first, s in parts)
        best = torch.stack(scores).sum(0).argmin(1, keepdim=True)
        return torch.as_tensor(below < least).scatter(1, best, True)


def _scores(predictive: Predictive, score: str) -> Tensor:
    """Score of every label, (N, K), float64."""
    if not isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        raise TypeError(f"sets of labels need a predictive distribution of classes, got {type(predictive).__name__}")
    log_probs = predictive.log_probs.double()
    if log_probs.dim() != 2:
        raise DataError(f"sets of labels need one label per row, got log_probs of shape {tuple(log_probs.shape)}")
    if score == "lac":
        return -log_probs.clamp_min(torch.finfo(log_probs.dtype).min)  # a label of probability 0 has the largest finite score
    ordered, order = log_probs.exp().sort(1, descending=True)
    return torch.empty_like(ordered).scatter(1, order, ordered.cumsum(1))

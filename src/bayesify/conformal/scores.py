"""`Calibration`, the base class: sorted scores of calibration rows by fold, their weights, and what they guarantee."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesify.conformal.levels import cross_coverage, least_weight
from bayesify.errors import ConfigurationError, DataError, DivergenceError
from bayesify.formatting import percent, plural
from bayesify.predictive import Predictive

__all__ = ["Calibration", "as_folds"]


def as_folds(predictives: Predictive | Sequence[Predictive]) -> Sequence[Predictive]:
    """Return one predictive distribution as a sequence of one."""
    return [predictives] if isinstance(predictives, Predictive) else predictives


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of calibration rows: how far each target is from the middle of its predictive distribution.

    Attributes:
        scores: of each fold, sorted: (n_fold,) or (n_fold, D), on the CPU; a single fold in split conformal prediction.
        weights: of the scores, shaped like them: 1 / rows of the group, so that every group has the weight 1; None without groups,
            where every row has it.
    """

    scores: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] | None = dataclasses.field(default=None, kw_only=True)

    region: ClassVar[str]
    """The noun for what is predicted."""

    def __post_init__(self) -> None:
        if self.weights is not None and [w.shape for w in self.weights] != [part.shape for part in self.scores]:
            raise ConfigurationError("weights must have the shapes of scores")

    @property
    def rows(self) -> int:
        """n, the number of calibration rows."""
        return sum(map(len, self.scores))

    @property
    def groups(self) -> int | None:
        """The number of calibration groups; None without groups."""
        return None if self.weights is None else sum(self._sizes)

    def guarantee(self, level: float) -> str:
        """Describe in two sentences what is guaranteed and what is not."""
        self._least_weight(level)
        if len(self.scores) == 1:
            share = f"at least {percent(level)}"
        else:
            worst = percent(cross_coverage(self._sizes, level))
            share = f"about {percent(level)}, and at least {worst} in the worst case,"
        rows = plural(self.rows, "calibration row")
        if self.groups is not None:
            return (
                f"{self.region} contain the target of {share} of the rows of new groups on average, where every group counts alike "
                f"(conformal, {rows} in {plural(self.groups, 'group')}), if these come from the same source as the training "
                "groups. This is not guaranteed within each group, or after the data change."
            )
        return (
            f"{self.region} contain the target of {share} of new rows on average (conformal, {rows}), if these come from the same "
            "source as the training rows. This is not guaranteed within each group of rows, or after the data change."
        )

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON values, for `from_dict`."""
        weights = None if self.weights is None else [part.tolist() for part in self.weights]
        return {**vars(self), "scores": [part.tolist() for part in self.scores], "weights": weights}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build it from the result of `to_dict`, also of earlier versions, which had no weights."""
        tensors = {name: fields[name] for name in ("scores", "weights") if fields.get(name) is not None}
        parts = {name: tuple(torch.tensor(part, dtype=torch.float64) for part in value) for name, value in tensors.items()}
        return cls(**{**fields, **parts})

    @property
    def _sizes(self) -> list[int]:
        """Rows or groups of each fold."""
        return [round(float(w.sum()) * len(w) / w.numel()) for w in self._weights]

    @property
    def _weights(self) -> Sequence[Tensor]:
        return [torch.ones_like(part) for part in self.scores] if self.weights is None else self.weights

    def _least_weight(self, level: float) -> float:
        """Return the total weight of the scores that a new one may exceed: those below this weight are inside the region."""
        return least_weight(sum(self._sizes), level, "row" if self.weights is None else "group")

    def _cumulative(self) -> list[Tensor]:
        """Return the weight of the first 0, 1, ..., n_fold scores of each fold, (n_fold + 1,) or (n_fold + 1, D)."""
        return [torch.cat([torch.zeros_like(w[:1]), w.cumsum(0)]) for w in self._weights]

    def _check(self, predictives: Sequence[Predictive]) -> None:
        if len(predictives) != len(self.scores):
            raise ConfigurationError(
                f"predictives must be one per fold of the calibration, {len(self.scores)}, got {len(predictives)}"
            )


def sort_scores(
    scores: Sequence[Tensor], groups: Tensor | Sequence[Tensor] | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None]:
    """Sort the scores of each fold, on the CPU, in float64; return them and their weights, None without groups.

    Raises:
        DataError: a fold without rows, groups of another shape, or a group in two folds.
        DivergenceError: NaN or infinity.
    """
    if not scores or any(len(part) == 0 for part in scores):
        raise DataError("each fold needs at least one calibration row, got none")
    if not all(part.isfinite().all() for part in scores):
        raise DivergenceError("predictions or targets of calibration rows are NaN or infinite; train with a smaller learning rate")
    parts = [part.detach().cpu().double() for part in scores]
    orders = [part.argsort(0) for part in parts]
    ordered = tuple(part.gather(0, order) for part, order in zip(parts, orders, strict=True))
    if groups is None:
        return ordered, None
    weights = _group_weights([groups] if isinstance(groups, Tensor) else groups, [len(part) for part in parts])
    return ordered, tuple(weight[order] for weight, order in zip(weights, orders, strict=True))


def _group_weights(groups: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """Return 1 / rows of the group for every row of every fold."""
    if [tuple(part.shape) for part in groups] != [(size,) for size in sizes]:
        raise DataError(
            f"groups must have a label per row of each fold, {list(sizes)}, got shapes {[tuple(part.shape) for part in groups]}"
        )
    weights, known = [], torch.cat([part.cpu().unique() for part in groups])
    labels, folds = known.unique(return_counts=True)
    if (folds > 1).any():
        raise DataError(f"group {labels[folds > 1][0].item()} has rows in several folds; keep the rows of a group in one")
    for part in groups:
        _, codes, counts = part.cpu().unique(return_inverse=True, return_counts=True)
        weights.append(1 / counts[codes].double())
    return weights

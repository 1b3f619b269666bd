"""`Calibration`, the base class: sorted scores of calibration rows by fold, and what they guarantee."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesify.conformal.levels import conformal_rank, cross_coverage
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
    """

    scores: tuple[Tensor, ...]

    region: ClassVar[str]
    """The noun for what is predicted."""

    @property
    def rows(self) -> int:
        """n, the number of calibration rows."""
        return sum(map(len, self.scores))

    def rank(self, level: float) -> int:
        """Return the rank of `conformal_rank` among the scores of all folds."""
        return conformal_rank(self.rows, level)

    def guarantee(self, level: float) -> str:
        """Describe in two sentences what is guaranteed and what is not."""
        self.rank(level)
        source = f"conformal, {plural(self.rows, 'calibration row')}"
        if len(self.scores) == 1:
            share = f"at least {percent(level)}"
        else:
            worst = percent(cross_coverage([len(part) for part in self.scores], level))
            share = f"about {percent(level)}, and at least {worst} in the worst case,"
        return (
            f"{self.region} contain the target of {share} of new rows on average ({source}), if these come from the same source as "
            f"the training rows. This is not guaranteed within each group of rows, or after the data change."
        )

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON values, for `from_dict`."""
        return {**vars(self), "scores": [part.tolist() for part in self.scores]}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build it from the result of `to_dict`."""
        return cls(**{**fields, "scores": tuple(torch.tensor(part, dtype=torch.float64) for part in fields["scores"])})

    def _check(self, predictives: Sequence[Predictive]) -> None:
        if len(predictives) != len(self.scores):
            raise ConfigurationError(
                f"predictives must be one per fold of the calibration, {len(self.scores)}, got {len(predictives)}"
            )


def sort_scores(scores: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Sort the scores of each fold, on the CPU, in float64.

    Raises:
        DataError: a fold without rows.
        DivergenceError: NaN or infinity.
    """
    if not scores or any(len(part) == 0 for part in scores):
        raise DataError("each fold needs at least one calibration row, got none")
    if not all(part.isfinite().all() for part in scores):
        raise DivergenceError("predictions or targets of calibration rows are NaN or infinite; train with a smaller learning rate")
    return tuple(part.detach().cpu().double().sort(0).values for part in scores)

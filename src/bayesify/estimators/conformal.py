"""Conformal calibration of the estimators: which rows calibrate, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from bayesify.conformal import ConformalIntervals, ConformalSets, least_rows
from bayesify.errors import DataError, MissingDependencyError, warn
from bayesify.estimators.groups import with_known_classes
from bayesify.estimators.together import train_together
from bayesify.train.group_folds import order_groups

try:
    import numpy as np
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    import pandas as pd

    from bayesify.estimators.base import BayesianEstimator
    from bayesify.predictive import Predictive

__all__ = ["ConformalCalibration", "calibration_rows"]

_FRACTION, _MOST = 0.2, 2000  # rows for calibration; with 2,000, the coverage of 95 % intervals varies by half a percent
_FOLDS = 5
_LEVEL = 0.95  # the default level of intervals


def calibration_rows(rows: int, conformal: bool | str = True) -> int:
    """Return how many of the rows, or groups, of a table calibrate: 20 %, at most 2,000; all with `conformal="cross"`."""
    return rows if conformal == "cross" else min(math.ceil(_FRACTION * rows), _MOST)


class ConformalCalibration:
    """Calibration of an estimator, if its parameter `conformal` is not False.

    With True, a part of the rows calibrates, and the model is trained on the others. With "cross", the model is trained on all
    rows, and every row calibrates one of five more models, which are trained on the rows of the other folds. Rows of a group are
    in one part or fold, so that scores are those of groups that a model has not seen. Groups take the place of rows, then: 20 % of
    the groups calibrate, or equal numbers of groups are in the folds, and every group counts alike.

    Attributes:
        conformal_: the scores of the calibration rows; None without calibration.
        folds_: the models of the folds; none unless `conformal` is "cross".
    """

    calibration_type: ClassVar[type[ConformalIntervals] | type[ConformalSets]]
    conformal: bool | Literal["cross"]
    calibrate: Literal["temperature", "vector", "isotonic", "histogram"] | None
    conformal_: ConformalIntervals | ConformalSets | None = None
    folds_: Sequence[BayesianEstimator] = ()
    seed_: int
    named_columns_: bool
    progress: bool | None
    _kept: tuple[Any, Any, Tensor | None, list[np.ndarray]] | None = None

    if TYPE_CHECKING:

        def predictive(self, X: Any) -> Predictive: ...
        def _learn_target(self, y: Any) -> Tensor: ...
        def _encode_target(self, y: Any) -> Tensor: ...

    def _hold_out(self, table: pd.DataFrame, y: Any, groups: Tensor | None = None) -> tuple[pd.DataFrame, Any, Tensor | None]:
        """Return the rows to train on and their groups, and keep those that `_calibrate` needs.

        Neither preprocessing nor early stopping nor the scale of the targets uses the calibration rows of a model, so they are
        exchangeable with new rows.

        Raises:
            DataError: a class in a single row (or fold of groups) with `conformal="cross"`; no group without all rows of a class.
        """
        self._keep_for_calibration(None)
        if not (self.conformal or self.calibrate):
            return table, y, groups
        target = self._learn_target(y)  # checks all rows
        order = torch.from_numpy(np.random.default_rng((self.seed_, 1)).permutation(len(table)))
        count = calibration_rows(len(table), self.conformal)
        if self.conformal == "cross":
            folds = _folds(target, order) if groups is None else _group_folds(target, order_groups(groups, self.seed_))
            calibrating, others = order, order.sort().values
        else:
            held_out = torch.zeros(len(table), dtype=torch.bool).index_fill_(0, order[:count], True)
            if groups is not None:  # by number, not by rows: a choice by size would not be a random sample
                places = order_groups(groups, self.seed_)
                held_out = places < calibration_rows(int(places.max()) + 1)
            held_out = with_known_classes(held_out, target, groups)
            calibrating, others = held_out.nonzero().squeeze(1), (~held_out).nonzero().squeeze(1)
            folds = [calibrating.numpy()]
        self._kept = table, y, groups, folds
        if groups is None:
            self._warn_of_few(count, len(table))
        elif not len(calibrating):
            raise DataError("every group that could calibrate has all rows of a class; leave out groups, conformal and calibrate")
        else:
            self._warn_of_few(len(groups[calibrating].unique()), len(groups.unique()), "groups")
        return table.iloc[others.numpy()], _safe_indexing(y, others.numpy()), None if groups is None else groups[others]

    def _warn_of_few(self, count: int, total: int, unit: str = "rows") -> None:
        """Warn of fewer calibration rows, or groups, than intervals of the default level need."""
        if self.conformal and count < (least := least_rows(_LEVEL)):
            all_suffice = self.conformal != "cross" and total >= least
            advice = f"conformal='cross' calibrates with all {total}" if all_suffice else f"add {unit}"
            warn(
                f"conformal={self.conformal!r} calibrates with {count} of {total} {unit}, enough for levels up to "
                f"{count / (count + 1):.3g}; level {_LEVEL:g} needs {least}: {advice}"
            )

    def _keep_for_calibration(self, table: pd.DataFrame | None, y: Any = None, rows: int = 0) -> None:
        """Keep rows that are held out already, of a table with a number of `rows`, for `_calibrate`."""
        self.conformal_, self.folds_, self._kept = None, (), None
        if table is not None:
            self._kept = table, y, None, [np.arange(len(table))]
            self._warn_of_few(len(table), rows)

    def _calibrate(self) -> None:
        """Compute the scores of the calibration rows, in cross-conformal prediction with models of the folds."""
        if self._kept is None:
            return
        (table, y, groups, folds), self._kept = self._kept, None
        X = table if self.named_columns_ else table.to_numpy()
        models: Sequence[Any] = [self]
        if self.conformal == "cross":
            rest = [np.setdiff1d(np.arange(len(table)), rows) for rows in folds]
            models = self.folds_ = [clone(self).set_params(conformal=False, random_state=self.seed_) for _ in folds]
            codes = [None if groups is None else groups.numpy()[rows] for rows in rest]
            parts = [(_safe_indexing(X, rows), _safe_indexing(y, rows), None, of) for rows, of in zip(rest, codes, strict=True)]
            train_together([(model, *part) for model, part in zip(models, parts, strict=True)], progress=self.progress)
        self.conformal_ = self.calibration_type.calibrate(
            [model.predictive(_safe_indexing(X, rows)) for model, rows in zip(models, folds, strict=True)],
            [model._encode_target(_safe_indexing(y, rows)) for model, rows in zip(models, folds, strict=True)],
            groups=None if groups is None else [groups[torch.from_numpy(rows)] for rows in folds],
        )

    def _take_kept(self) -> tuple[Any, Any]:
        """Return table and targets of the rows of the only fold that `_hold_out` has kept, and forget them."""
        assert self._kept is not None
        (table, y, _, (rows,)), self._kept = self._kept, None
        return _safe_indexing(table if self.named_columns_ else table.to_numpy(), rows), _safe_indexing(y, rows)

    def _calibrated(self, X: Any) -> list[Predictive]:
        """Return the predictive distributions of X that `conformal_` takes."""
        return [model.predictive(X) for model in self.folds_ or (self,)]


def _folds(target: Tensor, order: Tensor) -> list[np.ndarray]:
    """Return the rows of each fold, sorted: at random, but the rows of a class (integers) are in as many folds as possible."""
    if not target.is_floating_point():
        single = target.bincount() == 1
        if single.any():
            raise DataError(f"conformal='cross' needs two rows of each class, and {int(single.sum())} have one; drop these rows")
        order = order[target[order].argsort(stable=True)]
    return [order[fold::_FOLDS].sort().values.numpy() for fold in range(min(_FOLDS, len(order)))]


def _group_folds(target: Tensor, places: Tensor) -> list[np.ndarray]:
    """Return the rows of each fold, sorted: equal numbers of groups, up to one, whose places in a random order are given by row."""
    folds = [(places % _FOLDS == fold).nonzero().squeeze(1).numpy() for fold in range(min(_FOLDS, int(places.max()) + 1))]
    if not target.is_floating_point():
        single = sum(len(set(target.tolist()) - set(np.delete(target.numpy(), rows).tolist())) for rows in folds)
        if single:
            raise DataError(
                f"conformal='cross' needs rows of each class in two folds of groups, and {single} have them in one; drop these "
                "classes, or use conformal=True"
            )
    return folds

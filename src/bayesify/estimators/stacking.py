"""`method="auto"`: several models, weighted by their likelihood of held-out rows."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from bayesify.core.method import Method
from bayesify.errors import DivergenceError, MissingDependencyError, warn
from bayesify.estimators.groups import with_known_classes
from bayesify.estimators.parameters import EstimatorParameters
from bayesify.estimators.together import train_together
from bayesify.stacking import stacking_weights
from bayesify.train.checkpoint import check_identity, read, write
from bayesify.train.group_folds import fold_groups, hold_out_groups
from bayesify.train.loggers import Loggers

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bayesify.estimators.base import BayesianEstimator
    from bayesify.predictive import Predictive

__all__ = ["Stacking"]

_FOLDS, _ROWS_FOR_FOLDS = 5, 1000  # with more rows, a single part is held out
_FRACTION, _MOST = 0.2, 5000  # of this part
_FEWEST = 20  # rows
_LEAST_WEIGHT = 0.02
_OF_MODEL = ("bnn_", "likelihood_", "history_", "columns_", "preprocessing_", "in_features_", "out_features_", "encoded_")


class Stacking(EstimatorParameters):
    """Training of an estimator with `method="auto"`.

    Every model of `portfolio` is trained on all rows, and together with it on the rows that others hold out: five folds of fewer
    than 1,000 rows, otherwise a fifth, at most 5,000. `stacking_weights` of the held-out rows weight the models, and those below
    0.02 are dropped. Training stops when the next model would probably exceed `time_limit`. With a checkpoint, the models of an
    interrupted run are not trained again, and their time counts.

    Attributes:
        stack_: the fitted models, that of the highest weight first; none for another `method`.
        stack_weights_: their weights.
        leaderboard_: a row per model: its `weight`, `log_score`, the mean log density or probability of the held-out rows in nats,
            and `seconds` of training.
    """

    portfolio: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The parameters of the models by name, in the order of training."""
    stack_: Sequence[BayesianEstimator] = ()
    stack_weights_: Sequence[float] = ()
    leaderboard_: pd.DataFrame
    seed_: int
    named_columns_: bool

    if TYPE_CHECKING:

        def _rows(
            self, X: Any, y: Any, sample_weight: Any, groups: Any
        ) -> tuple[pd.DataFrame, Any, Tensor | None, Tensor | None]: ...
        def _learn_target(self, y: Any) -> Tensor: ...

    def method_in_use(self) -> Method:
        return self.stack_[0].method_in_use() if self.stack_ and self.is_stacked else super().method_in_use()

    def in_use(self, name: str) -> Any:
        chosen = self.stack_ and self.is_stacked and getattr(self, name) is None
        return self.stack_[0].in_use(name) if chosen else super().in_use(name)

    def adopt(self, models: Sequence[BayesianEstimator], weights: Sequence[float]) -> None:
        """Become the mixture of fitted models, the first of which describes the network."""
        self.stack_, self.stack_weights_ = tuple(models), tuple(weights)
        for name in _OF_MODEL:
            setattr(self, name, getattr(models[0], name))

    def _fit_stack(
        self,
        X: ArrayLike | pd.DataFrame,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        groups: ArrayLike | None,
        checkpoint: Path | None,
        log: Loggers,
    ) -> Self:
        started = time.perf_counter()
        table, y, weights, codes = self._rows(X, y, sample_weight, groups)
        splits = _splits(self._learn_target(y), self.seed_, codes)
        given = table if self.named_columns_ else table.to_numpy(), y, weights, codes
        held_out = None if weights is None or not splits else torch.cat([weights[rows] for _, rows in splits])
        models: dict[str, BayesianEstimator] = {}
        scores: dict[str, Tensor] = {}
        lines: dict[str, dict[str, Any]] = {}
        candidates = dict(self._candidates())
        clock = _Clock(checkpoint, {"method": "auto", "models": ", ".join(candidates), "seed": self.seed_})
        spent = time.perf_counter() - started
        for number, (name, candidate) in enumerate(candidates.items()):
            lines[name] = {"weight": 0.0, "log_score": math.nan, "seconds": math.nan}
            longest = max(clock.seconds.values(), default=0.0)
            known = name in clock.seconds  # of an interrupted run, which had the time for it
            if models and not known and self.time_limit is not None and spent + longest > self.time_limit:
                continue
            part = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}.auto{number}")
            begun = time.perf_counter()
            try:
                scores[name] = _train(candidate, *given, splits, part)
                models[name] = candidate
            except DivergenceError as error:
                warn(f"{name} diverged and is left out: {error}")
            lines[name]["seconds"] = clock.stop(name, time.perf_counter() - begun)
            spent += clock.seconds[name]
            if name in models:
                log.log_all(candidate.history_, f"{name}/")
            if not splits:
                break
        if not models:
            raise DivergenceError("all models diverged; choose a lower learning_rate")
        log_probs = torch.stack(list(scores.values()), 1)
        means = log_probs.mean(0) if held_out is None else held_out.double() @ log_probs / held_out.sum()
        shares = self._weights(log_probs, means, held_out)
        for name, share, mean in zip(scores, shares.tolist(), means.tolist(), strict=True):
            lines[name] |= {"weight": share, "log_score": mean}
        for run in log.runs:
            run.log({f"leaderboard/{name}/{column}": value for name in models for column, value in lines[name].items()}, 0)
        self.leaderboard_ = pd.DataFrame.from_dict(lines, orient="index").rename_axis("model")
        order: list[int] = shares.argsort(descending=True).tolist()
        chosen = [i for i in order if shares[i] > 0]
        trained = list(models.values())
        self.adopt([trained[i] for i in chosen], shares[chosen].tolist())
        if self.time_limit is not None and spent > self.time_limit:
            warn(f"training took {spent:.0f} s, more than time_limit={self.time_limit:g}: the first model is always trained")
        return self

    def _candidates(self) -> Iterator[tuple[str, BayesianEstimator]]:
        """Yield the estimators of the portfolio; parameters that are not None here hold for all of them."""
        seen = []
        for name, params in self.portfolio.items():
            own = {key: value for key, value in params.items() if key == "method" or getattr(self, key) is None}
            if self.net is not None:
                own = {"method": own["method"]}
            if own in seen:
                continue
            seen.append(own)
            fixed = {"conformal": False, "time_limit": None, "random_state": self.seed_}
            yield name, clone(self).set_params(**own, **fixed)

    def _weights(self, log_probs: Tensor, means: Tensor, sample_weight: Tensor | None) -> Tensor:
        """Return the weights of the models."""
        if len(log_probs) == 0:
            return log_probs.new_ones(1)
        if not self._mixes():
            return torch.nn.functional.one_hot(means.argmax(), log_probs.shape[1]).to(log_probs)
        weights = stacking_weights(log_probs, sample_weight)
        weights = torch.where(weights < _LEAST_WEIGHT, 0, weights)
        return weights / weights.sum()

    def _mixes(self) -> bool:
        """Whether mixtures of the predictive distributions can have weights; otherwise the best model gets all of it."""
        return True

    def _mixture(self, table: pd.DataFrame) -> Predictive:
        """Return the predictive distribution of a table from `conform`."""
        first, *others = (self._as_here(model)._predictive(table) for model in self.stack_)
        return first if not others else first.mix(*others, weights=self.stack_weights_)

    def _as_here(self, model: BayesianEstimator) -> BayesianEstimator:
        """Return a copy of a model with at most as many draws as `samples`, and with this estimator's progress bar."""
        samples = model.samples_in_use()
        return copy.copy(model).set_params(samples=min(samples, self.samples or samples), progress=self.progress)


@dataclasses.dataclass
class _Clock:
    """Seconds of training of the models that are finished, by name, also those of an interrupted run.

    Args:
        path: a checkpoint with the seconds; None to keep none.
        identity: what a resumed run must have in common with the interrupted one; the checkpoints of the models have more.
    """

    path: Path | None
    identity: dict[str, object]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        if self.path.exists():
            state = read(self.path)
            check_identity(self.path, state["settings"], self.identity)
            self.seconds = state["seconds"]
        else:
            self._write(self.path)

    def stop(self, name: str, seconds: float) -> float:
        """Record the seconds of a model, unless they are known; return those that hold."""
        if name not in self.seconds:
            self.seconds[name] = seconds
            if self.path is not None:
                self._write(self.path)
        return self.seconds[name]

    def _write(self, path: Path) -> None:
        write(path, {"settings": self.identity, "seconds": self.seconds})


def _splits(target: Tensor, seed: int, groups: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return the rows to train on and those held out, of every fold; none of fewer than 20 rows.

    Rows of a class (integers) are in as many folds as possible, and a class with a single row is never held out. Of `groups` (N,),
    whole ones are held out, but none that has all rows of a class.
    """
    rows = len(target)
    if rows < _FEWEST:
        return []
    step = _FOLDS if rows < _ROWS_FOR_FOLDS else max(round(1 / _FRACTION), math.ceil(rows / _MOST))
    if groups is not None:
        parts = _group_parts(target, seed, groups, step)
    else:
        order = torch.from_numpy(np.random.default_rng((seed, 2)).permutation(rows))
        if not target.is_floating_point():
            order = order[target.bincount()[target[order]] > 1]
            order = order[target[order].argsort(stable=True)]
        parts = [order[start::step] for start in range(_FOLDS if rows < _ROWS_FOR_FOLDS else 1)]
    kept = [torch.ones(rows, dtype=torch.bool).index_fill_(0, part, False) for part in parts]
    return [(mask.nonzero().squeeze(1), part.sort().values) for mask, part in zip(kept, parts, strict=True)]


def _group_parts(target: Tensor, seed: int, groups: Tensor, step: int) -> list[Tensor]:
    """Return the rows that are held out: folds of groups, or one part of whole groups."""
    rows = len(target)
    folds = fold_groups(groups, _FOLDS, seed) if rows < _ROWS_FOR_FOLDS else []
    masks = [torch.zeros(rows, dtype=torch.bool).index_fill_(0, fold, True) for fold in folds]
    masks = masks or [hold_out_groups(groups, math.ceil(rows / step), seed)]
    parts = [with_known_classes(mask, target, groups).nonzero().squeeze(1) for mask in masks]
    return [part for part in parts if len(part)]


def _train(
    candidate: BayesianEstimator,
    X: Any,
    y: Any,
    weights: Tensor | None,
    groups: Tensor | None,
    splits: Sequence[tuple[Tensor, Tensor]],
    checkpoint: Path | None,
) -> Tensor:
    """Train a model on all rows, and copies on the rows of the splits; return the log density of the held-out rows."""

    def part(rows: Tensor) -> tuple[Any, Any, Any, Any]:
        index = rows.numpy()
        of_weight, of_group = (None if values is None else values[rows].numpy() for values in (weights, groups))
        return _safe_indexing(X, index), _safe_indexing(y, index), of_weight, of_group

    copies = [clone(candidate) for _ in splits]
    fits = [(model, *part(rows)) for model, (rows, _) in zip(copies, splits, strict=True)]
    train_together([(candidate, *part(torch.arange(len(X)))), *fits], progress=candidate.progress, checkpoint=checkpoint)
    log_probs = [torch.zeros(0, dtype=torch.float64)]
    for model, (_, held_out) in zip(copies, splits, strict=True):
        table, target, *_ = part(held_out)
        log_probs.append(model.predictive(table).log_prob(model._encode_target(target)).double())
    return torch.cat(log_probs)

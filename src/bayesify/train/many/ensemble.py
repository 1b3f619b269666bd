"""Ensembles in `fit_many`: one training per member, whose results are merged afterwards.

With `validation="folds"` every member is validated on another part of the rows, or other groups of them, and trained on the rest.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, DataError
from bayesify.likelihoods import Likelihood
from bayesify.train.arguments import Training
from bayesify.train.batch import Batch, Weighted, as_batch, select_rows
from bayesify.train.group_folds import fold_groups
from bayesify.train.history import History
from bayesify.train.process_state import seed_for

__all__ = ["fold_rows", "merge_members", "split_members"]

_MOST_LEFT_OUT = 0.05  # of the training rows of a member, for equal numbers of rows


def split_members(training: Training) -> list[Training]:
    """Return one training per member of an ensemble, each with a seed and a likelihood; the training itself for other networks."""
    if not isinstance(training, Training):
        raise TypeError(f"trainings must contain Training(...), got {type(training).__name__}")
    members = training.bnn.separate_members if isinstance(training.bnn, Bayesian) else ()
    parts = [
        dataclasses.replace(
            training, bnn=member, likelihood=copy.deepcopy(training.likelihood), seed=seed_for(training.seed, "member", k)
        )
        for k, member in enumerate(members)
    ] or [training]
    return _split_rows(training, parts) if isinstance(training.validation, str) else parts


def fold_rows(n: int, folds: int, seed: int) -> list[Tensor]:
    """Return the validation rows of every member: `folds` disjoint parts of the rows, each of n // folds.

    Example:
        >>> sorted(torch.cat(fold_rows(6, 3, seed=0)).tolist())
        [0, 1, 2, 3, 4, 5]
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed_for(seed, "folds")), device="cpu")
    return [order[k * (n // folds) : (k + 1) * (n // folds)] for k in range(folds)]


def _split_rows(training: Training, members: list[Training]) -> list[Training]:
    """Give every member another part of the rows as validation data, and the others as training data."""
    if len(members) < 2:
        raise ConfigurationError("validation='folds' needs an ensemble of two members or more; give validation=(inputs, y)")
    if not isinstance(training.data, tuple | Weighted):
        raise DataError(f"validation='folds' needs data=(inputs, y), tensors, or Weighted, got {type(training.data).__name__}")
    data = as_batch("data", training.data)
    if data.size < 2 * len(members):
        raise DataError(f"validation='folds' needs two rows per member, {2 * len(members)}, got {data.size}")
    dim, unbatched = training.bnn.batch_dim, training.bnn.unbatched
    if training.groups is None:
        folds = fold_rows(data.size, len(members), training.seed)
    else:
        folds = fold_groups(_checked_groups(training.groups, data.size), len(members), training.seed)
    folds = [folds[k % len(folds)] for k in range(len(members))]
    rest = [torch.ones(data.size, dtype=torch.bool).index_fill_(0, fold, False).nonzero().squeeze(1) for fold in folds]
    fewest, most = min(map(len, rest)), max(map(len, rest))
    equal = most - fewest <= _MOST_LEFT_OUT * most
    parts = []
    for member, held_out, others in zip(members, folds, rest, strict=True):
        kept = _some(others, fewest, member.seed) if equal else others
        train, validation = (select_rows(data, index.to(data.y.device), dim, unbatched) for index in (kept, held_out))
        validation = _padded(validation, max(map(len, folds)), dim, unbatched) if equal and fewest < most else validation
        parts.append(dataclasses.replace(member, data=train.data, validation=validation.data, groups=None))
    return parts


def _checked_groups(groups: Tensor, rows: int) -> Tensor:
    """Return the groups if they are one integer per row."""
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.is_complex():
        got = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
        raise TypeError(f"groups must be a tensor of integers, one per row, got {got}; give codes, as of pandas.factorize")
    if groups.shape != (rows,):
        raise DataError(f"groups must be ({rows},), one integer per row of data, got {tuple(groups.shape)}")
    return groups


def _some(rows: Tensor, count: int, seed: int) -> Tensor:
    """Return a number of the rows, chosen at random, in their order."""
    if count == len(rows):
        return rows
    generator = torch.Generator().manual_seed(seed_for(seed, "left out"))
    return rows[torch.randperm(len(rows), generator=generator, device="cpu")[:count].sort().values]


def _padded(batch: Batch, size: int, dim: int, unbatched: tuple[str, ...]) -> Batch:
    """Return a batch of a certain size, whose further rows have weight 0: no result of validation depends on them."""
    index = torch.arange(size, device=batch.y.device)
    rows = select_rows(batch, index % batch.size, dim, unbatched)
    weights = torch.ones(size, device=index.device) if rows.weights is None else rows.weights
    return Batch(rows.inputs, rows.y, weights * (index < batch.size))


def merge_members(training: Training, members: Sequence[Training], histories: Sequence[History]) -> History:
    """Return the history of a training; average what the likelihoods of the members of an ensemble learned."""
    if members[0] is training:
        return histories[0]
    history = _merge_histories(histories)
    if history.failure is None:
        _average(training.likelihood, [member.likelihood for member in members])
    return history


@torch.no_grad()
def _average(likelihood: Likelihood, members: Sequence[Likelihood]) -> None:
    """Set parameters to the mean over the members (of a standard deviation, the geometric mean)."""
    states = [member.state_dict() for member in members]
    for name, value in likelihood.state_dict().items():
        value.copy_(torch.stack([state[name].to(value.device, torch.float64) for state in states]).mean(0))


def _merge_histories(histories: Sequence[History]) -> History:
    """Return one history: means over the models still running in an epoch, `seconds` as a sum, failures by member."""
    merged = History(stopped_early=all(history.stopped_early for history in histories), n=histories[0].n)
    merged.kept_epochs = [epoch for history in histories for epoch in history.kept_epochs]
    for field in dataclasses.fields(History):
        if field.name == "kept_epochs":
            continue
        rows = [getattr(history, field.name) for history in histories]
        if isinstance(rows[0], list):
            epochs = [[row[e] for row in rows if e < len(row)] for e in range(max(map(len, rows)))]
            setattr(merged, field.name, [sum(v) if field.name == "seconds" else sum(v) / len(v) for v in epochs])
    failures = [f"member {k}: {history.failure}" for k, history in enumerate(histories) if history.failure is not None]
    merged.failure = " ".join(failures) or None
    return merged

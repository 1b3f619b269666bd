"""Ensembles in `fit_many`: one training per member, whose results are merged afterwards."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch

from bayesify.core.model import Bayesian
from bayesify.likelihoods import Likelihood
from bayesify.train.arguments import Training
from bayesify.train.history import History
from bayesify.train.process_state import seed_for

__all__ = ["merge_members", "split_members"]


def split_members(training: Training) -> list[Training]:
    """Return one training per member of an ensemble, each with a seed and a likelihood; the training itself for other networks."""
    members = training.bnn.members if isinstance(training, Training) and isinstance(training.bnn, Bayesian) else ()
    return [
        dataclasses.replace(
            training, bnn=member, likelihood=copy.deepcopy(training.likelihood), seed=seed_for(training.seed, "member", k)
        )
        for k, member in enumerate(members)
    ] or [training]


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
    for field in dataclasses.fields(History):
        rows = [getattr(history, field.name) for history in histories]
        if isinstance(rows[0], list):
            epochs = [[row[e] for row in rows if e < len(row)] for e in range(max(map(len, rows)))]
            setattr(merged, field.name, [sum(v) if field.name == "seconds" else sum(v) / len(v) for v in epochs])
    failures = [f"member {k}: {history.failure}" for k, history in enumerate(histories) if history.failure is not None]
    merged.failure = " ".join(failures) or None
    return merged

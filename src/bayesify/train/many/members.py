"""Ensembles in `fit_many`: each member is a training of its own, and what they learned is put together afterwards."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from bayesify.core.model import Bayesian
from bayesify.likelihoods import Likelihood
from bayesify.train.batches import seed_for
from bayesify.train.history import History
from bayesify.train.training import Training

__all__ = ["average", "merged", "with_members"]

_SUMS = ("seconds",)


def with_members(trainings: Sequence[Any]) -> list[list[Any]]:
    """For every training those that make it up: of an ensemble one per member, with a seed and a likelihood of its own."""
    parts: list[list[Any]] = []
    for training in trainings:
        members = training.bnn.members if isinstance(training, Training) and isinstance(training.bnn, Bayesian) else ()
        own = [
            dataclasses.replace(
                training,
                bnn=member,
                likelihood=copy.deepcopy(training.likelihood),
                seed=seed_for(training.seed, "member", k),
            )
            for k, member in enumerate(members)
        ]
        parts.append(own or [training])
    return parts


@torch.no_grad()
def average(likelihood: Likelihood, members: Sequence[Likelihood]) -> None:
    """Give the likelihood the members' average of what they learned (of a noise's standard deviation, the geometric mean)."""
    states = [member.state_dict() for member in members]
    for name, value in likelihood.state_dict().items():
        value.copy_(torch.stack([state[name].to(value.device, torch.float64) for state in states]).mean(0))


def merged(histories: Sequence[History]) -> History:
    """One history of several: means over the models that still ran, `seconds` as a sum; what went wrong, by member."""
    one = History(stopped_early=all(history.stopped_early for history in histories), n=histories[0].n)
    for field in dataclasses.fields(History):
        rows = [getattr(history, field.name) for history in histories]
        if isinstance(rows[0], list):
            epochs = [[row[e] for row in rows if e < len(row)] for e in range(max(map(len, rows)))]
            setattr(one, field.name, [sum(v) if field.name in _SUMS else sum(v) / len(v) for v in epochs])
    failures = [f"member {k}: {history.failure}" for k, history in enumerate(histories) if history.failure is not None]
    one.failure = "; ".join(failures) or None
    return one

"""Hyperparameters chosen per split on a validation part of its training rows, for all splits and candidates together.

Either a grid, or a search by optuna (Akiba et al., *Optuna*, 2019) with its tree-structured Parzen estimator, several trials at a
time so that they can be trained together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bayesify.errors import MissingDependencyError
from experiments.protocols.shared.configuration import combinations
from experiments.protocols.tabular.settings import Choose, Setup
from experiments.protocols.tabular.splits import Split
from experiments.protocols.tabular.training import Model, train

__all__ = ["Choice", "choose"]


class Choice(NamedTuple):
    """The best candidate: its fields, its mean validation log-likelihood (nats per row), its setup."""

    fields: dict[str, Any]
    log_likelihood: float
    setup: Setup


def choose(setup: Setup, splits: Sequence[Split], seeds: Sequence[int], progress: Callable[[float], object]) -> list[Choice | None]:
    """Choose the best candidate for each split.

    Args:
        setup: with `choose`.
        splits: training rows, and validation rows as test rows.
        seeds: one per split, for all its candidates.
        progress: called with the share that is done.

    Returns:
        One choice per split, None if all candidates failed.
    """
    assert setup.choose is not None
    search = _Grid(setup.choose, len(splits)) if setup.choose.trials is None else _Search(setup.choose, seeds)
    rounds = search.rounds
    best: list[Choice | None] = [None] * len(splits)
    for number in range(rounds):
        candidates = [(index, fields) for index in range(len(splits)) for fields in search.ask(index, number)]
        models = train(
            [setup.with_fields(fields) for _, fields in candidates],
            [splits[index] for index, _ in candidates],
            [seeds[index] for index, _ in candidates],
            lambda share, number=number: progress((number + share) / rounds),
            share=setup.choose.share,
        )
        for (index, fields), model in zip(candidates, models, strict=True):
            score = _score(model, setup.choose.samples)
            search.tell(index, score)
            previous = best[index]
            if score > (-math.inf if previous is None else previous.log_likelihood):
                best[index] = Choice(fields, score, model.setup)
    return best


def _score(model: Model, samples: int | None) -> float:
    if model.history.failure:
        return -math.inf
    score = float(model.predictive(samples).log_prob(model.split.y_test).mean())
    return -math.inf if math.isnan(score) else score


class _Grid:
    """All combinations, in one round."""

    rounds = 1

    def __init__(self, choose: Choose, splits: int) -> None:
        self.candidates = combinations(choose.among)

    def ask(self, split: int, number: int) -> list[dict[str, Any]]:
        return self.candidates

    def tell(self, split: int, score: float) -> None:
        pass


class _Search:
    """One optuna study per split."""

    def __init__(self, choose: Choose, seeds: Sequence[int]) -> None:
        try:
            import optuna
        except ImportError as error:
            raise MissingDependencyError("choose.trials", "optuna", extra="experiments") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        assert choose.trials is not None
        self.rounds, self.trials, self.together = math.ceil(choose.trials / choose.together), choose.trials, choose.together
        self.ranges = {name: _distribution(optuna, values) for name, values in choose.among.items()}
        # "Constant liar" makes the trials of a round differ, as none has results yet.
        samplers = [optuna.samplers.TPESampler(seed=seed, constant_liar=True) for seed in seeds]
        self.studies = [optuna.create_study(direction="maximize", sampler=sampler) for sampler in samplers]
        self.open: list[list[Any]] = [[] for _ in seeds]

    def ask(self, split: int, number: int) -> list[dict[str, Any]]:
        count = min(self.together, self.trials - number * self.together)
        self.open[split] = [self.studies[split].ask(self.ranges) for _ in range(count)]
        return [dict(trial.params) for trial in self.open[split]]

    def tell(self, split: int, score: float) -> None:
        import optuna

        trial = self.open[split].pop(0)
        failed = optuna.trial.TrialState.FAIL if score == -math.inf else None
        self.studies[split].tell(trial, None if failed else score, state=failed)


def _distribution(optuna: Any, values: Sequence[Any] | Mapping[str, Any]) -> Any:
    if isinstance(values, Mapping):
        return optuna.distributions.FloatDistribution(values["low"], values["high"], log=bool(values.get("log")))
    return optuna.distributions.CategoricalDistribution(list(values))

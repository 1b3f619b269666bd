"""Hyperparameters chosen per split on a validation part of its training rows, for all splits and candidates in one pass.

Either all combinations of some values, or a search by optuna (Akiba et al., *Optuna*, 2019) with its tree-structured Parzen
estimator, whose trials are made a few at a time so that they can be trained together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.protocols.tabular.setup import Choose, Setup
from experiments.protocols.tabular.splits import Split
from experiments.protocols.tabular.training import Model, train

__all__ = ["Choice", "choose", "trials_of"]


class Choice(NamedTuple):
    """What was best on the validation part: the fields, their mean log-likelihood there (nats per row), the setup."""

    fields: dict[str, Any]
    log_likelihood: float
    setup: Setup


def choose(setup: Setup, splits: Sequence[Split], seeds: Sequence[int], progress: Callable[[float], object]) -> list[Choice | None]:
    """The best candidate for each split.

    Args:
        setup: with something to `choose`.
        splits: the rows to fit and, as test rows, those to choose by.
        seeds: of the splits; all candidates of a split have the same.
        progress: is given the share that is done.

    Returns:
        One choice per split, None where no candidate could be trained.
    """
    assert setup.choose is not None
    search = _Grid(setup.choose, len(splits)) if setup.choose.trials is None else _Search(setup.choose, seeds)
    rounds = search.rounds
    best: list[Choice | None] = [None] * len(splits)
    for number in range(rounds):
        candidates = [(place, fields) for place in range(len(splits)) for fields in search.ask(place, number)]
        models = train(
            [setup.with_fields(fields) for _, fields in candidates],
            [splits[place] for place, _ in candidates],
            [seeds[place] for place, _ in candidates],
            setup.trial_passes(len(splits[0].y)),
            lambda share, number=number: progress((number + share) / rounds),
        )
        for (place, fields), model in zip(candidates, models, strict=True):
            score = _score(model, setup.choose.samples)
            search.tell(place, score)
            kept = best[place]
            if score > (-math.inf if kept is None else kept.log_likelihood):
                best[place] = Choice(fields, score, model.setup)
    return best


def trials_of(choose: Choose) -> int:
    """The number of models trained per split."""
    sizes = [len(values) for values in choose.among.values()]
    return math.prod(sizes) if choose.trials is None else choose.trials


def _score(model: Model, samples: int | None) -> float:
    if model.history.failure:
        return -math.inf
    score = float(model.predictive(samples).log_prob(model.split.y_test).mean())
    return -math.inf if math.isnan(score) else score


class _Grid:
    """All combinations, in one round."""

    rounds = 1

    def __init__(self, choose: Choose, splits: int) -> None:
        combinations = itertools.product(*choose.among.values())
        self.candidates = [dict(zip(choose.among, values, strict=True)) for values in combinations]

    def ask(self, place: int, number: int) -> list[dict[str, Any]]:
        return self.candidates

    def tell(self, place: int, score: float) -> None:
        pass


class _Search:
    """A study of its own for every split."""

    def __init__(self, choose: Choose, seeds: Sequence[int]) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ImportError('choose.trials needs optuna: pip install "bayesify[experiments]"') from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        assert choose.trials is not None
        self.rounds, self.trials, self.together = math.ceil(choose.trials / choose.together), choose.trials, choose.together
        self.ranges = {name: _distribution(optuna, values) for name, values in choose.among.items()}
        # "Constant liar" keeps the trials of a round apart, which know nothing of each other's results.
        samplers = [optuna.samplers.TPESampler(seed=seed, constant_liar=True) for seed in seeds]
        self.studies = [optuna.create_study(direction="maximize", sampler=sampler) for sampler in samplers]
        self.open: list[list[Any]] = [[] for _ in seeds]

    def ask(self, place: int, number: int) -> list[dict[str, Any]]:
        count = min(self.together, self.trials - number * self.together)
        self.open[place] = [self.studies[place].ask(self.ranges) for _ in range(count)]
        return [dict(trial.params) for trial in self.open[place]]

    def tell(self, place: int, score: float) -> None:
        import optuna

        trial = self.open[place].pop(0)
        failed = optuna.trial.TrialState.FAIL if score == -math.inf else None
        self.studies[place].tell(trial, None if failed else score, state=failed)


def _distribution(optuna: Any, values: Sequence[Any] | Mapping[str, Any]) -> Any:
    if isinstance(values, Mapping):
        return optuna.distributions.FloatDistribution(values["low"], values["high"], log=bool(values.get("log")))
    return optuna.distributions.CategoricalDistribution(list(values))

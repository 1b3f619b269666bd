"""Held-out rows, how good a model is on them, and the page and table that say so."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bayesify.cli.terminal import UsageError, print_line, print_table
from bayesify.estimators import BayesianClassifier, BayesianEstimator
from bayesify.metrics import evaluate
from bayesify.predictive import GaussianPredictive, Predictive
from bayesify.report import environment, write_report
from bayesify.report.numbers import duration, plural
from bayesify.report.sections import Card, cards, trivial
from bayesify.report.verdict import Sentence, verdict

__all__ = ["Result", "assess", "print_result", "run_facts", "split_rows", "targets", "write", "write_page"]


class Result(NamedTuple):
    """A model's predictions of rows it was not trained on, judged."""

    predictive: Predictive
    y: Tensor
    scores: dict[str, float]
    cards: list[Card]
    verdict: list[Sentence]


def split_rows(y: pd.Series, fraction: float, seed: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for testing, both in order: random, and in proportion for every class.

    Example:
        >>> train, test = split_rows(pd.Series(["a", "b"] * 10), 0.2, seed=0, task="classification")
        >>> len(train), len(test), sorted(pd.Series(["a", "b"] * 10)[test])
        (16, 4, ['a', 'a', 'b', 'b'])
    """
    count = round(fraction * len(y))
    if not 0 < count < len(y):
        raise UsageError(f"--test-fraction {fraction} leaves {count} of {len(y)} rows to test on and {len(y) - count} to train on")
    order = np.random.default_rng(seed).permutation(len(y))
    if task == "classification":
        labels = y.iloc[order].reset_index(drop=True)
        place = labels.groupby(labels, observed=True).cumcount() + 0.5
        share = place / labels.groupby(labels, observed=True).transform("size")
        order = order[np.argsort(share.to_numpy(), kind="stable")]
    return np.sort(order[count:]), np.sort(order[:count])


def targets(estimator: BayesianEstimator, y: pd.Series) -> Tensor:
    """Targets as the model's predictive distribution takes them: numbers, or places of labels in `classes_`."""
    if not isinstance(estimator, BayesianClassifier):
        if not pd.api.types.is_numeric_dtype(y) or not np.isfinite(values := y.to_numpy(dtype=float)).all():
            raise UsageError(f"the target {y.name!r} must hold a finite number in every row; drop or correct the others")
        return torch.tensor(values)
    if missing := int(y.isna().sum()):
        raise UsageError(f"the target {y.name!r} is missing in {plural(missing, 'row')}; drop them")
    places = pd.Index(estimator.classes_.tolist()).get_indexer(pd.Index(y.tolist()))
    if unknown := sorted(set(y[places < 0].astype(str))):
        raise UsageError(
            f"the target {y.name!r} holds classes the model was not trained on: {', '.join(map(repr, unknown[:10]))}; "
            f"it knows {', '.join(repr(str(label)) for label in estimator.classes_[:10])}"
        )
    return torch.tensor(places)


def assess(
    estimator: BayesianEstimator,
    features: pd.DataFrame,
    y: pd.Series,
    training_y: pd.Series | None = None,
    *,
    row: str = "held-out row",
) -> Result:
    """Predict the rows and judge the predictions."""
    truth = targets(estimator, y)  # first, because it is quick to say what is wrong with it
    predictive = estimator.predictive(features)
    scores = evaluate(predictive, truth)
    baseline = trivial(predictive, truth, None if training_y is None else targets(estimator, training_y))
    return Result(predictive, truth, scores, cards(scores, baseline, ""), verdict(predictive, truth, scores, baseline, row=row))


def print_result(result: Result, which: str = "held-out rows") -> None:
    """The headline numbers beside those of guessing, then the verdict."""
    rows = [[card.name, card.value, card.baseline, card.unit] for card in result.cards]
    unit = any(card.unit for card in result.cards)
    width = 4 if unit else 3
    print_table([f"on {which}", "model", "guessing", ""][:width], [row[:width] for row in rows])
    print_line()
    signs = {"good": ("✓", "green"), "caution": ("!", "yellow"), "bad": ("✕", "red")}
    for sentence in result.verdict:
        sign, color = signs[sentence.mark]
        print_line(f"{sign} {sentence.finding} {sentence.meaning}", style=color)


def write_page(
    path: Path,
    estimator: BayesianEstimator,
    result: Result,
    features: pd.DataFrame,
    target: str,
    title: str,
    facts: Mapping[str, Mapping[str, object]],
    training_y: pd.Series | None = None,
    comparison: Sequence[Mapping[str, object]] | None = None,
    held_out: bool = True,
) -> None:
    """The report of a fitted estimator: its method, network and training parameters come before the other facts."""
    params = estimator.get_params(deep=False)
    method = estimator.method_in_use().to_dict()
    network = " → ".join(map(str, [estimator.in_features_, *estimator.hidden, estimator.out_features_]))
    layers = {"layers": network, "weights": f"{sum(p.numel() for p in estimator.bnn_.parameters()):,} trained parameters"}
    elsewhere = ("method", "net", "hidden", "progress", "random_state")
    training = {name: "automatic" if value is None else value for name, value in params.items() if name not in elsewhere}
    training |= {"epochs": len(estimator.history_), "beta": estimator.beta_in_use()}
    model = {"Method": method, "Network and training": {**layers, **training}}
    numbers = isinstance(result.predictive, GaussianPredictive)
    write_report(
        path,
        predictive=result.predictive,
        y=result.y,
        title=title,
        target=target,
        labels=None if numbers else list(estimator.classes_) if isinstance(estimator, BayesianClassifier) else None,
        features=features,
        training_y=None if training_y is None else targets(estimator, training_y),
        history=estimator.history_,
        comparison=comparison,
        facts={**model, **facts},
        held_out=held_out,
    )


def run_facts(started: float, seed: int | None) -> dict[str, dict[str, object]]:
    """What was run, when, how long, and with what."""
    run: dict[str, object] = {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "time": duration(time.perf_counter() - started)}
    if seed is not None:
        run["seed"] = seed
    run["command"] = shlex.join(["bayesify", *sys.argv[1:]])
    return {"Run": run, "Environment": dict(environment())}


def write(path: Path, content: bytes) -> None:
    """Write a file in one piece or not at all."""
    beside = path.with_name(f".{path.name}.tmp")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written: {error}") from error

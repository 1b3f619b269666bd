"""Evaluation of a fitted estimator: its assessment, on the terminal and as a report."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bayesify.cli.terminal import UsageError, print_line, print_table
from bayesify.environment import environment
from bayesify.estimators import BayesianClassifier, BayesianEstimator
from bayesify.formatting import duration, plural
from bayesify.report import Assessment, assess, render

__all__ = ["assess_estimator", "encode_targets", "print_assessment", "report_page", "run_facts"]


def encode_targets(estimator: BayesianEstimator, y: pd.Series) -> Tensor:
    """Convert a target column to what the predictive distribution takes: numbers, or indices into `classes_`.

    Raises:
        UsageError: missing or infinite values, or classes the model was not trained on.
    """
    if not isinstance(estimator, BayesianClassifier):
        if not pd.api.types.is_numeric_dtype(y) or not np.isfinite(values := y.to_numpy(dtype=float)).all():
            raise UsageError(f"the target {y.name!r} must be a finite number in every row; drop or correct the other rows")
        return torch.tensor(values)
    if missing := int(y.isna().sum()):
        raise UsageError(f"the target {y.name!r} is missing in {plural(missing, 'row')}; drop these rows")
    indices = pd.Index(estimator.classes_.tolist()).get_indexer(pd.Index(y.tolist()))
    if unknown := sorted(set(y[indices < 0].astype(str))):
        raise UsageError(
            f"the target {y.name!r} has classes the model was not trained on: {', '.join(map(repr, unknown[:10]))}; "
            f"its classes are {', '.join(repr(str(label)) for label in estimator.classes_[:10])}"
        )
    return torch.tensor(indices)


def assess_estimator(
    estimator: BayesianEstimator,
    features: pd.DataFrame,
    y: pd.Series,
    training_y: pd.Series | None = None,
    *,
    held_out: bool = True,
) -> Assessment:
    """Predict the rows and evaluate the predictions."""
    targets = encode_targets(estimator, y)  # before the prediction, which takes longer
    baseline_y = None if training_y is None else encode_targets(estimator, training_y)
    return assess(estimator.predictive(features), targets, training_y=baseline_y, held_out=held_out)


def print_assessment(assessment: Assessment) -> None:
    """Print the metrics of the model and of the baseline, then the verdict."""
    print_table(
        [f"{assessment.row}s", "model", "baseline", "unit"],
        [[card.name, card.value, card.baseline, card.unit] for card in assessment.cards],
    )
    print_line()
    signs = {"good": ("✓", "green"), "caution": ("!", "yellow"), "bad": ("✕", "red")}
    for sentence in assessment.verdict:
        sign, color = signs[sentence.mark]
        print_line(f"{sign} {sentence.finding} {sentence.meaning}", style=color)


def report_page(
    estimator: BayesianEstimator,
    assessment: Assessment,
    features: pd.DataFrame,
    target: str,
    facts: Mapping[str, Mapping[str, object]],
    comparison: Sequence[Mapping[str, object]] | None = None,
) -> bytes:
    """Render the report; the method, the network and the training parameters precede the other facts."""
    network = " → ".join(map(str, [estimator.in_features_, *estimator.hidden, estimator.out_features_]))
    layers = {"layers": network, "weights": f"{sum(p.numel() for p in estimator.bnn_.parameters()):,} trained parameters"}
    shown_elsewhere = ("method", "net", "hidden", "progress", "random_state")
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in shown_elsewhere}
    params |= {"epochs": len(estimator.history_), "beta": estimator.beta_in_use()}
    params["batch_size"] = params["batch_size"] or "automatic"
    page = render(
        assessment,
        title=f"Model evaluation: {target}",
        target=target,
        labels=list(estimator.classes_) if isinstance(estimator, BayesianClassifier) else None,
        features=features,
        history=estimator.history_,
        comparison=comparison,
        facts={"Method": estimator.method_in_use().to_dict(), "Network and training": {**layers, **params}, **facts},
    )
    return page.encode()


def run_facts(started: float, seed: int | None = None) -> dict[str, dict[str, object]]:
    """Return date, duration, seed, command and environment of the run."""
    run: dict[str, object] = {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "time": duration(time.perf_counter() - started)}
    if seed is not None:
        run["seed"] = seed
    run["command"] = shlex.join(["bayesify", *sys.argv[1:]])
    return {"Run": run, "Environment": dict(environment())}

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

from bayesify.cli.leaderboard import leaderboard
from bayesify.cli.terminal import UsageError, print_line, print_table
from bayesify.data import conform
from bayesify.environment import environment
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.formatting import duration, number, percent, plural
from bayesify.inspection import explain
from bayesify.predictive import CountPredictive, GaussianPredictive, Predictive
from bayesify.report import Assessment, assess, render
from bayesify.report.baselines import Baselines, fit_baselines

__all__ = [
    "assess_estimator",
    "conformal_facts",
    "encode_targets",
    "print_assessment",
    "report_page",
    "run_facts",
    "train_baselines",
]

_LEVEL = 0.95  # of intervals and label sets
_EXPLAINED_ROWS = 20  # fewer rows say nothing about columns


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
    baselines: Baselines | None = None,
    held_out: bool = True,
) -> Assessment:
    """Predict the rows and evaluate the predictions; `baselines` are those of `train_baselines` for the same rows.

    Without `training_y`, the constant prediction is that of the training targets as far as the model knows them.
    """
    targets = encode_targets(estimator, y)  # before the prediction, which takes longer
    predictive = estimator.predictive(features)
    return assess(
        predictive,
        targets,
        training_y=_known_targets(estimator, predictive) if training_y is None else encode_targets(estimator, training_y),
        baselines=None if baselines is None else baselines.predictives,
        note="" if baselines is None else baselines.note,
        labels=list(estimator.classes_) if isinstance(estimator, BayesianClassifier) else None,
        held_out=held_out,
        class_weights=estimator.class_weight is not None,
    )


def _known_targets(estimator: BayesianEstimator, predictive: Predictive) -> Tensor | None:
    """Targets with the mean and standard deviation of those of training, or with their classes; None if the model lacks these."""
    if isinstance(estimator, BayesianClassifier):
        counts = estimator.class_counts_
        return None if counts is None else torch.arange(len(counts)).repeat_interleave(torch.from_numpy(counts))
    if not isinstance(estimator, BayesianRegressor) or not isinstance(predictive, GaussianPredictive | CountPredictive):
        return None
    mean, std = torch.from_numpy(estimator.target_mean_), torch.from_numpy(estimator.target_std_)
    pairs = max(1, (estimator.history_.n or 2) // 2)  # the least mean of counts depends on the number of rows
    return torch.stack([mean - std, mean + std]).repeat(pairs, 1)


def train_baselines(
    estimator: BayesianEstimator, features: pd.DataFrame, y: pd.Series, test_features: pd.DataFrame, seed: int
) -> Baselines:
    """Train baselines on the training table of an estimator and predict the test rows."""
    return fit_baselines(estimator, features, encode_targets(estimator, y), test_features, seed=seed)


def print_assessment(assessment: Assessment, conformal: Mapping[str, Mapping[str, object]] | None = None) -> None:
    """Print the metrics of the model and of the baselines, then the verdict, and the result of `conformal_facts`."""
    print_table(
        [f"{assessment.row}s", "model", *assessment.baselines, "unit"],
        [[card.name, card.value, *card.baselines.values(), card.unit] for card in assessment.cards],
    )
    if not assessment.from_training:
        print_line("constant: the distribution of the targets of these rows, as the model does not have that of training")
    print_line()
    signs = {"good": ("✓", "green"), "caution": ("!", "yellow"), "bad": ("✕", "red")}
    for sentence in assessment.verdict:
        sign, color = signs[sentence.mark]
        print_line(f"{sign} {sentence.finding} {sentence.meaning}", style=color)
    for facts in (conformal or {}).values():
        other = facts.get("other numbers", "")  # of regression
        print_line(f"{facts['guarantee']} Here: {facts['these rows']}. {other}".rstrip())


def conformal_facts(estimator: BayesianEstimator, features: pd.DataFrame, y: pd.Series) -> dict[str, dict[str, object]]:
    """Return what a conformal model guarantees, and its coverage of these rows; nothing for another model."""
    if estimator.conformal_ is None:
        return {}
    targets = encode_targets(estimator, y).numpy()
    if isinstance(estimator, BayesianClassifier):
        sets = estimator.predict_set(features, _LEVEL)
        inside, size = sets[np.arange(len(targets)), targets], f"{number(sets.sum(1).mean(), 3)} labels per set on average"
    else:
        assert isinstance(estimator, BayesianRegressor)
        lower, upper = estimator.predict_interval(features, _LEVEL).T
        inside, size = (lower <= targets) & (targets <= upper), f"mean width {number((upper - lower).mean())}"
    covered = f"{percent(inside.mean())} of {plural(len(targets), 'row')}, {size}"
    facts: dict[str, object] = {"guarantee": estimator.conformal_.guarantee(_LEVEL), "these rows": covered}
    if isinstance(estimator, BayesianRegressor):  # label sets leave the probabilities as they are
        facts["other numbers"] = "Metrics and verdict are about the intervals before calibration; predict writes calibrated ones."
    return {"Conformal prediction": facts}


def report_page(
    estimator: BayesianEstimator,
    assessment: Assessment,
    features: pd.DataFrame,
    target: str,
    facts: Mapping[str, Mapping[str, object]],
    comparison: Sequence[Mapping[str, object]] | None = None,
) -> bytes:
    """Render the report; the method, the network and the training parameters precede the other facts."""
    y = assessment.y.numpy()
    labels = list(estimator.classes_) if isinstance(estimator, BayesianClassifier) else None
    known = y if labels is None else estimator.classes_[y]
    explanation = explain(estimator, features, known) if len(y) >= _EXPLAINED_ROWS else None
    page = render(
        assessment,
        title=f"Model evaluation: {target}",
        target=target,
        labels=labels,
        features=_as_read(estimator, features),
        history=estimator.history_,
        comparison=comparison,
        explanation=explanation,
        facts={**_method_facts(estimator), "Network and training": _training_facts(estimator), **facts},
    )
    return page.encode()


def _as_read(estimator: BayesianEstimator, features: pd.DataFrame) -> pd.DataFrame:
    """Dates and numbers that the table has as text, as the model reads them."""
    result = features.copy()
    for name, values in features.items():
        column = next((c for c in estimator.columns_ if c.name == str(name)), None)
        if column is not None and column.kind in ("number", "datetime") and not pd.api.types.is_numeric_dtype(values):
            numbers = conform(values.to_frame(), [column], new=False)[column.name]
            result[name] = pd.to_datetime(numbers, unit="D") if column.kind == "datetime" else numbers
    return result


def _method_facts(estimator: BayesianEstimator) -> dict[str, dict[str, object]]:
    """The method with its fields; of several models their weights, and the best."""
    if not estimator.stack_:
        return {"Method": estimator.method_in_use().to_dict()}
    lines: dict[str, object] = {"method": "auto: a mixture of the models that have a weight"}
    for line in leaderboard(estimator):
        model = line.pop("model")
        lines[model] = ", ".join(f"{name}: {value}" for name, value in line.items() if value)
    return {"Models": lines}


def _training_facts(estimator: BayesianEstimator) -> dict[str, object]:
    """Layers and parameters as they were used; "automatic" for what depends on the table. Those without effect are left out."""
    network = " → ".join(map(str, [estimator.in_features_, *estimator.in_use("hidden"), estimator.out_features_]))
    facts: dict[str, object] = {
        "layers": network,
        "weights": f"{sum(p.numel() for p in estimator.bnn_.parameters()):,} trained parameters",
    }
    shown_elsewhere = ("method", "net", "hidden", "progress", "random_state")
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in shown_elsewhere}
    for name, value in params.items():
        by_method = name in ("activation", "encoding", "learning_rate", "likelihood")
        facts[name] = estimator.in_use(name) if by_method else "automatic" if value is None else value
    if not estimator.history_.validation_nll:
        facts["patience"] = "none, as no rows choose the epoch"
    facts |= {"epochs": len(estimator.history_), "beta": estimator.beta_in_use(), "samples": estimator.samples_in_use()}
    without_effect = {"time_limit": estimator.time_limit is None, "beta": not any(estimator.history_.kl)}
    return {name: value for name, value in facts.items() if not without_effect.get(name)}


def run_facts(started: float, seed: int | None = None) -> dict[str, dict[str, object]]:
    """Return date, duration, seed, command and environment of the run."""
    run: dict[str, object] = {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "time": duration(time.perf_counter() - started)}
    if seed is not None:
        run["seed"] = seed
    run["command"] = shlex.join(["bayesify", *sys.argv[1:]])
    return {"Run": run, "Environment": dict(environment())}

"""Other methods on the same rows: `fit --compare`, and the lines of its table and of the demo's."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pandas as pd

from bayesify.cli.evaluation import assess_estimator
from bayesify.cli.leaderboard import method_name
from bayesify.cli.splits import Split
from bayesify.cli.terminal import say
from bayesify.core.method import Method
from bayesify.errors import DivergenceError, warn
from bayesify.estimators import BayesianEstimator
from bayesify.formatting import duration
from bayesify.report import Assessment
from bayesify.report.skill import CONSTANT

__all__ = ["baseline_lines", "comparison_line", "methods_to_compare", "train_others"]


def methods_to_compare(names: str, estimator: BayesianEstimator) -> list[str]:
    """Return the methods of `--compare`, without that of the estimator: names separated by commas, or all that have a recipe.

    Raises:
        ConfigurationError: no such method.
    """
    every = [kind.__name__ for kind in type(estimator).recipes]
    chosen = every if names == "all" else [Method.named(name.strip()).__name__ for name in names.split(",")]
    return [name for name in dict.fromkeys(chosen) if name != method_name(estimator)]


def train_others(
    methods: Sequence[str], estimator: BayesianEstimator, rows: Split, weights: pd.Series | None, quiet: bool
) -> list[dict[str, str]]:
    """Train other methods on the training rows, and return their lines, the best NLL first.

    They have their default settings, and the epochs of the estimator where those were chosen.
    """
    lines = []
    for method in methods:
        if not quiet:
            say(f"  training {method} ...", style="dim")
        started = time.perf_counter()
        shared = {name: getattr(estimator, name) for name in ("epochs", "random_state", "progress")}
        other = type(estimator)(method=method, **shared)
        try:
            other.fit(rows.features, rows.y, weights, groups=rows.groups)
        except DivergenceError as error:
            warn(f"{method} diverged and is not compared: {error}")
            continue
        seconds = time.perf_counter() - started
        assessment = assess_estimator(other, rows.test_features, rows.test_y, rows.y)
        lines.append((assessment.scores["nll"], comparison_line(assessment, method, duration(seconds))))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def comparison_line(assessment: Assessment, name: str, seconds: str) -> dict[str, str]:
    """A line of the comparison, of the model or of one of its baselines."""
    line = {"method": name}
    for card in assessment.cards:
        line[f"{card.name} ({card.unit})" if card.unit else card.name] = card.baselines.get(name, card.value)
    return {**line, "time": seconds}


def baseline_lines(assessment: Assessment) -> list[dict[str, str]]:
    """The lines of the baselines that use the inputs."""
    return [comparison_line(assessment, name, "") for name in assessment.baselines if name != CONSTANT]

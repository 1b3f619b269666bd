"""The models of `method="auto"` as text."""

import pandas as pd

from bayesify.estimators import BayesianEstimator
from bayesify.estimators.parameters import AUTO
from bayesify.formatting import duration, number

__all__ = ["leaderboard", "method_name"]


def method_name(estimator: BayesianEstimator) -> str:
    """The name of the method; "auto" for several."""
    return AUTO if estimator.is_stacked else type(estimator.method_in_use()).__name__


def leaderboard(estimator: BayesianEstimator) -> list[dict[str, str]]:
    """The lines of the models that `method="auto"` tried, the best first; none of another method."""
    if not estimator.stack_:
        return []
    lines = []
    for name, line in estimator.leaderboard_.sort_values(["weight", "log_score"], ascending=False).iterrows():
        trained = pd.notna(line["seconds"])
        score = "" if pd.isna(line["log_score"]) else number(line["log_score"])
        lines.append(
            {
                "model": str(name),
                "weight": f"{line['weight']:.2f}",
                "log-likelihood, held-out rows (nats)": score,
                "time": duration(line["seconds"]) if trained else "left out, no time",
            }
        )
    return lines

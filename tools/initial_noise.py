"""The numbers of `bayesify.estimators.recipes` on the noise with which early-stopped point estimates start.

    python tools/initial_noise.py FOLDER     # with bostonHousing.npz and yacht.npz

Log-likelihood in nats per row and share of rows in intervals of 95 %, means over two hold-outs of 20 %, by method and initial
noise; of 190 rows whose targets are half noise, and of a random 90 % of the rows of two sets. About three minutes of one core.
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from bayesify.estimators import BayesianRegressor, recipes


def tables(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(350, 8)), random.normal(size=350)
    yield "noisy", X[:190], (X[:, 0] + noise)[:190]
    for name in ("bostonHousing", "yacht"):
        data = np.load(folder / f"{name}.npz")
        chosen = np.random.RandomState(123).permutation(len(data["X"]))[: int(0.9 * len(data["X"]))]
        yield name, data["X"][chosen], data["y"][chosen]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name, X, y in tables(folder):
        for method in ("Deterministic", "EMP"):
            for noise in (0.3, 1.0):
                training = dataclasses.replace(recipes.POINT, noise=noise)
                scores = []
                for seed in range(2):
                    order = np.random.RandomState(seed).permutation(len(X))
                    train, test = np.split(order, [int(0.8 * len(order))])
                    with mock.patch.object(BayesianRegressor, "training_settings", training):
                        model = BayesianRegressor(method=method, random_state=seed).fit(X[train], y[train])
                    low, high = model.predict_interval(X[test], 0.95).T
                    scores.append((model.log_score(X[test], y[test]), ((low <= y[test]) & (y[test] <= high)).mean()))
                print(name, method, noise, *np.mean(scores, 0).round(3), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

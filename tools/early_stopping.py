"""The numbers of `bayesify.estimators.recipes` on early stopping: `Deterministic` and `EMP` by fraction of held-out rows.

    python tools/early_stopping.py FOLDER     # with bostonHousing.npz, yacht.npz and concrete.npz

Mean log-likelihood in nats per row over three hold-outs of 20 % of a random 90 % of the rows; about ten minutes of one core.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from bayesify.estimators import BayesianRegressor


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name in ("bostonHousing", "yacht", "concrete"):
        data = np.load(folder / f"{name}.npz")
        X, y = data["X"], data["y"]
        chosen = np.random.RandomState(123).permutation(len(X))[: int(0.9 * len(X))]
        for method in ("Deterministic", "EMP"):
            for fraction in (0.0, 0.1, 0.2):
                scores = []
                for seed in range(3):
                    order = np.random.RandomState(seed).permutation(chosen)
                    train, test = np.split(order, [int(0.8 * len(order))])
                    patience = 60 if fraction else None
                    model = BayesianRegressor(method=method, random_state=seed, validation_fraction=fraction, patience=patience)
                    scores.append(model.fit(X[train], y[train]).log_score(X[test], y[test]))
                print(
                    f"{name} {method} {fraction:.1f}: {np.mean(scores):.2f} ({', '.join(f'{s:.2f}' for s in scores)})", flush=True
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

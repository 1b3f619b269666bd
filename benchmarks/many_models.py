"""Twenty models trained in one pass (`fit_many`) against one model (`fit`), whole runs, on a data set of the size of boston.

    python -m benchmarks.many_models [--models 20] [--epochs 500] [--rounds 3]

Writes `results/many_models.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from bayesify import Deterministic, MCDropout, MeanField, Method, VariationalDropout, bayesify
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, fit, fit_many
from benchmarks.measure import interleave, machine, write
from benchmarks.nets import mlp

METHODS: list[Method] = [Deterministic(prior_std=1.0), MCDropout(p=0.05), MeanField(), VariationalDropout()]
ROWS, FEATURES, BATCH = 455, 13, 128


def candidates(method: Method, models: int, epochs: int) -> dict[str, Callable[[], object]]:
    """One model alone, and many together, from scratch each time."""

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        x = torch.randn(ROWS, FEATURES)
        data = (x, x[:, 0].sin() + 0.1 * torch.randn(ROWS))
        net = bayesify(mlp(FEATURES, 50, 1), method)
        return Training(bnn=net, data=data, likelihood=Gaussian(std=0.5, learn=True), seed=seed, learning_rate=1e-2)

    def alone() -> None:
        one = make(0)
        fit(
            one.bnn, one.data, one.likelihood,
            epochs=epochs, batch_size=BATCH, learning_rate=one.learning_rate, accelerator="cpu", progress=False,
        )  # fmt: skip

    def together() -> None:
        fit_many([make(seed) for seed in range(models)], epochs=epochs, batch_size=BATCH, accelerator="cpu", progress=False)

    return {"one model": alone, f"{models} models": together}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = {}
    for method in METHODS:
        name = type(method).__name__
        results[name] = interleave(candidates(method, arguments.models, arguments.epochs), arguments.rounds, warmup=0)
        for candidate, numbers in results[name].items():
            print(f"{name:20} {candidate:12} {numbers['milliseconds']:10.0f} ms   x {numbers['ratio']}")
    settings = {"rows": ROWS, "features": FEATURES, "batch": BATCH, **vars(arguments)}
    print(write("many_models", {"machine": machine(), "settings": settings, "results": results}))


if __name__ == "__main__":
    main()

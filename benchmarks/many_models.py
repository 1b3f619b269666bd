"""Complete training runs of twenty models with `fit_many`, against one model with `fit`, on data of the size of boston.

    python -m benchmarks.many_models [--models 20] [--epochs 500] [--rounds 3]

Writes `results/many_models.json`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bayesify import Deterministic, MCDropout, MeanField, Method, VariationalDropout, bayesify
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, fit, fit_many
from benchmarks.measure import interleave, parser, print_timings, write
from benchmarks.nets import mlp

METHODS: list[Method] = [Deterministic(prior_std=1.0), MCDropout(p=0.05), MeanField(), VariationalDropout()]
ROWS, FEATURES, BATCH = 455, 13, 128


def candidates(method: Method, models: int, epochs: int) -> dict[str, Callable[[], object]]:
    """One model alone and many models together, each from scratch."""

    def training(seed: int) -> Training:
        torch.manual_seed(seed)
        x = torch.randn(ROWS, FEATURES)
        data = (x, x[:, 0].sin() + 0.1 * torch.randn(ROWS))
        net = bayesify(mlp(FEATURES, 50, 1), method)
        return Training(bnn=net, data=data, likelihood=Gaussian(std=0.5, learn=True), seed=seed, learning_rate=1e-2)

    def alone() -> None:
        one = training(0)
        fit(
            one.bnn, one.data, one.likelihood,
            epochs=epochs, batch_size=BATCH, learning_rate=one.learning_rate, accelerator="cpu", progress=False,
        )  # fmt: skip

    def together() -> None:
        fit_many([training(seed) for seed in range(models)], epochs=epochs, batch_size=BATCH, accelerator="cpu", progress=False)

    return {"one model": alone, f"{models} models": together}


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--models", type=int, default=20)
    options.add_argument("--epochs", type=int, default=500)
    arguments = options.parse_args()
    results = {}
    for method in METHODS:
        name = type(method).__name__
        results[name] = interleave(candidates(method, arguments.models, arguments.epochs), arguments.rounds, warmup=0)
        print_timings(name, results[name])
    if not arguments.dry:
        settings = {"models": arguments.models, "epochs": arguments.epochs, "rounds": arguments.rounds}
        settings = {"rows": ROWS, "features": FEATURES, "batch": BATCH, **settings}
        write("many_models", {"settings": settings, "results": results})


if __name__ == "__main__":
    main()

"""A training step (forward, loss, backward, fused Adam) of every method against the same deterministic network.

    python -m benchmarks.training_step [--nets LeNet5 ...] [--rounds 30] [--methods MeanField ...]

Writes benchmarks/results/training_step.json: milliseconds and ratios to the plain network, interleaved in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import (
    ECMP,
    EMP,
    VIFO,
    VSD,
    WHVI,
    Deterministic,
    DropConnect,
    MCDropout,
    MeanField,
    Method,
    TensorFactorised,
    VariationalDropout,
    bayesify,
    elbo,
)
from benchmarks.measure import interleave, machine, write
from benchmarks.nets import WORKLOADS, Workload

METHODS: dict[str, Method] = {
    "Deterministic": Deterministic(),
    "MCDropout": MCDropout(),
    "VariationalDropout": VariationalDropout(),
    "VariationalDropout, weight noise": VariationalDropout(noise="weight", alpha_per="layer"),
    "VSD, T = 1": VSD(transforms=1),
    "VSD, T = 2": VSD(transforms=2),
    "VSD, T = 2, full rank": VSD(transforms=2, rank=None),
    "DropConnect": DropConnect(),
    "WHVI": WHVI(),
    "TensorFactorised": TensorFactorised(),
    "EMP": EMP(),
    "ECMP": ECMP(),
    "VIFO": VIFO(),
    "VIFO, auxiliary inputs": VIFO(eta_aux=0.5),
    "MeanField": MeanField(),
    "MeanField, shared noise": MeanField(noise="shared"),
}


def plain_step(workload: Workload, x: Tensor, y: Tensor) -> Callable[[], None]:
    net = workload.net().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        _loss(net(x), y).backward()
        optimizer.step()

    return step


def bayesian_step(workload: Workload, method: Method, x: Tensor, y: Tensor) -> Callable[[], None]:
    bnn = bayesify(workload.net().train(), _only_contractions(workload.net(), method))
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        draws = bnn(x)
        log_prob = -_loss(draws.outputs[0], y, reduction="none")
        loss = -elbo(draws, log_prob[None], n=50_000)
        if bnn.auxiliary_beta:
            loss = loss + bnn.auxiliary_beta * bnn.regularizer(torch.rand_like(x)).mean()
        loss.backward()
        optimizer.step()

    return step


def steps(workload: Workload, methods: Mapping[str, Method]) -> dict[str, Callable[[], object]]:
    """A step of the plain network, and of every method, all on the same data."""
    x, y = workload.inputs(), torch.randint(0, 10, (workload.batch,))
    return {
        "plain": plain_step(workload, x, y),
        **{name: bayesian_step(workload, method, x, y) for name, method in methods.items()},
    }


def _only_contractions(net: nn.Module, method: Method) -> dict[str, Method]:
    """As in the papers' tables, normalisation layers stay deterministic, unless the method chooses its layers itself."""
    if type(method).assign is not Method.assign:
        return {"*": method}
    return {name: method for name, layer in net.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


def _loss(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    if outputs.shape[-1] > 1:
        return F.cross_entropy(outputs, y, reduction=reduction)
    return F.mse_loss(outputs.squeeze(-1), y.to(outputs.dtype), reduction=reduction)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    results: dict[str, object] = {"machine": machine(), "rounds": args.rounds, "nets": {}}
    for name in args.nets:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        made = steps(workload, {label: METHODS[label] for label in args.methods})
        # a step of the smallest net lasts 0.1 ms: time a hundred at once
        repeats = 100 if workload.batch < 64 and len(workload.shape) == 1 else 1
        timed = interleave({label: _repeat(step, repeats) for label, step in made.items()}, args.rounds)
        results["nets"][name] = timed  # pyright: ignore[reportIndexIssue]
        print(f"{name} (batch {workload.batch})")
        for label, row in timed.items():
            print(
                f"  {label:34s} {row['milliseconds'] / repeats:9.3f} ms   x{row['ratio']:.3f}  {row['ratio_quartiles']}", flush=True
            )
    if not args.dry:
        print(write("training_step", results))


def _repeat(step: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            step()

    return run


if __name__ == "__main__":
    main()

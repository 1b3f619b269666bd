"""A prediction from 100 draws (`predict`, checks and mixture included) against one forward pass of the same plain network.

    python -m benchmarks.prediction [--nets ResNet18 ...] [--methods VIFO ...] [--samples 100] [--rounds 10]

"Last layer" means that this one alone is random: what lies before it is computed once, also where the network is wrapped. Writes
benchmarks/results/prediction.json: milliseconds and ratios to the one pass, interleaved in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bayesify import EMP, VIFO, Bayesian, DeepEnsemble, Deterministic, Draws, MCDropout, MeanField, Method, bayesify, predict
from bayesify.likelihoods import Categorical
from benchmarks.measure import interleave, machine, write
from benchmarks.nets import WORKLOADS, Workload

METHODS: dict[str, Method] = {
    "VIFO": VIFO(),
    "VIFO in two networks": VIFO(shared=False),
    "DeepEnsemble of 5": DeepEnsemble(members=5),
    "DeepEnsemble of 5 VIFO": DeepEnsemble(members=5, method=VIFO()),
    "Deterministic": Deterministic(),
    "MCDropout": MCDropout(),
    "MCDropout, last layer": MCDropout(),
    "MeanField": MeanField(),
    "MeanField, last layer": MeanField(),
    "MeanField, last layer, wrapped": MeanField(),
    "EMP": EMP(),
}
CLASSIFIERS = [name for name in WORKLOADS if name != "MLP 13-50-1"]


class Wrapper(nn.Module):
    """Hides the root of a Bayesian network."""

    def __init__(self, bnn: Bayesian) -> None:
        super().__init__()
        self.bnn = bnn

    def forward(self, *args: Any, **kwargs: Any) -> Draws:
        return self.bnn(*args, **kwargs)


def candidates(workload: Workload, methods: list[str], samples: int) -> dict[str, Callable[[], object]]:
    """The one pass first, then every method."""
    x, net = workload.inputs(), workload.net().eval()

    def one_pass() -> None:
        with torch.no_grad():
            net(x)

    def prediction(name: str) -> Callable[[], object]:
        net = workload.net().eval()
        last = [part for part, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
        bnn = bayesify(net, {last: METHODS[name]} if "last layer" in name else METHODS[name])
        root = Wrapper(bnn) if "wrapped" in name else bnn
        return lambda: predict(root, x, Categorical(), samples=samples, seed=0, progress=False)

    return {"one pass": one_pass, **{name: prediction(name) for name in methods}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="*", default=CLASSIFIERS, choices=CLASSIFIERS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    nets: dict[str, object] = {}
    for name in args.nets:
        torch.manual_seed(0)
        timed = interleave(candidates(WORKLOADS[name], args.methods, args.samples), args.rounds)
        nets[name] = timed
        print(f"{name} (batch {WORKLOADS[name].batch}, {args.samples} draws)")
        for label, row in timed.items():
            print(f"  {label:24s} {row['milliseconds']:9.3f} ms   x{row['ratio']:.3f}  {row['ratio_quartiles']}", flush=True)
    if not args.dry:
        settings = {"samples": args.samples, "rounds": args.rounds}
        print(write("prediction", {"machine": machine(), **settings, "nets": nets}))


if __name__ == "__main__":
    main()

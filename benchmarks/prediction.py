"""A prediction from 100 draws (`predict`, checks and mixture included) against one forward pass of the same plain network.

    python -m benchmarks.prediction [--nets ResNet18 ...] [--methods VIFO ...] [--samples 100] [--rounds 10]

Writes benchmarks/results/prediction.json: milliseconds and ratios to the one pass, interleaved in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from bayesify import VIFO, DeepEnsemble, Deterministic, MCDropout, Method, bayesify, predict
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
}
CLASSIFIERS = [name for name in WORKLOADS if name != "MLP 13-50-1"]


def candidates(workload: Workload, methods: list[str], samples: int) -> dict[str, Callable[[], object]]:
    """The one pass first, then every method."""
    x, net = workload.inputs(), workload.net().eval()

    def one_pass() -> None:
        with torch.no_grad():
            net(x)

    def prediction(method: Method) -> Callable[[], object]:
        bnn = bayesify(workload.net().eval(), method)
        return lambda: predict(bnn, x, Categorical(), samples=samples, seed=0, progress=False)

    return {"one pass": one_pass, **{name: prediction(METHODS[name]) for name in methods}}


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

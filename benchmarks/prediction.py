"""A prediction from 100 draws with `predict`, against one forward pass of the plain network.

    python -m benchmarks.prediction [--nets ResNet18 ...] [--methods VIFO ...] [--samples 100] [--rounds 10]
    python -m benchmarks.prediction --new-sizes [--samples 100] [--rounds 10]

"Last layer" means that only this layer is random: the layers before it are computed once, also if the network is wrapped. Writes
results/prediction.json: milliseconds and ratios to one pass, interleaved in one process. `--new-sizes` prints what the first
`predict` at a number of rows takes, which compares passes of this size, and the second: processor time of one thread, MeanField.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesify import EMP, VIFO, Bayesian, DeepEnsemble, Deterministic, Draws, MCDropout, MeanField, Method, bayesify, predict
from bayesify.likelihoods import Categorical
from benchmarks.measure import interleave, parser, print_timings, write
from benchmarks.nets import WORKLOADS, Workload
from benchmarks.pretrained import bert

METHODS: dict[str, Method] = {
    "VIFO": VIFO(),
    "VIFO in two networks": VIFO(separate_std=True),
    "DeepEnsemble of 5": DeepEnsemble(members=5),
    "DeepEnsemble of 5 VIFO": DeepEnsemble(members=5, base=VIFO()),
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
    """Wraps a Bayesian network, so that it is not the root."""

    def __init__(self, bnn: Bayesian) -> None:
        super().__init__()
        self.bnn = bnn

    def forward(self, *args: Any, **kwargs: Any) -> Draws:
        return self.bnn(*args, **kwargs)


def loop_over_passes(net: nn.Module, x: Tensor, count: int) -> Callable[[], Tensor]:
    """Mean class probabilities of `count` forward passes."""

    @torch.no_grad()
    def run() -> Tensor:
        return sum((net(x).softmax(-1) for _ in range(count)), torch.zeros(())) / count

    return run


def candidates(workload: Workload, methods: list[str], samples: int) -> dict[str, Callable[[], object]]:
    """One pass of the plain network, then every method."""
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


def small_bert() -> tuple[nn.Module, Tensor]:
    """A BERT of 2 layers with 128 features, and 16 texts of 16 tokens."""
    return bert(128, 2), torch.randint(1, 1000, (16, 16))


def first_and_second_calls(net: nn.Module, x: Tensor, samples: int) -> dict[str, Callable[[], object]]:
    """A pass of the plain network, and two predictions; one row less in every round."""
    bnn, batch = bayesify(copy.deepcopy(net), MeanField(), output="logits" if hasattr(net, "config") else None), x

    def one_pass() -> None:
        nonlocal batch
        batch = batch[:-1]
        with torch.no_grad():
            net(batch)

    def prediction() -> None:
        predict(bnn, batch, Categorical(), samples=samples, seed=0, progress=False)

    return {"one pass": one_pass, "first call at a size": prediction, "second call": prediction}


def print_new_sizes(samples: int, rounds: int) -> None:
    torch.set_num_threads(1)
    cases = {name: (WORKLOADS[name].net().eval(), WORKLOADS[name].inputs()) for name in ("MLP 784-400-400-10", "LeNet5")}
    for name, (net, x) in {**cases, "BERT, 2 layers of 128": small_bert()}.items():
        timed = interleave(first_and_second_calls(net, x, samples), rounds, clock=time.thread_time)
        print_timings(f"{name} (batch {len(x)}, {samples} draws)", timed)


def main() -> None:
    options = parser(__doc__, rounds=10)
    options.add_argument("--nets", nargs="*", default=CLASSIFIERS, choices=CLASSIFIERS)
    options.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    options.add_argument("--samples", type=int, default=100)
    options.add_argument("--new-sizes", action="store_true")
    args = options.parse_args()
    if args.new_sizes:
        print_new_sizes(args.samples, args.rounds)
        return
    nets: dict[str, object] = {}
    for name in args.nets:
        torch.manual_seed(0)
        timed = interleave(candidates(WORKLOADS[name], args.methods, args.samples), args.rounds)
        nets[name] = timed
        print_timings(f"{name} (batch {WORKLOADS[name].batch}, {args.samples} draws)", timed)
    if not args.dry:
        write("prediction", {"samples": args.samples, "rounds": args.rounds, "nets": nets})


if __name__ == "__main__":
    main()

"""Time of a training step by kind of operation, from the PyTorch profiler.

    python -m benchmarks.breakdown [--nets LeNet5 ...] [--methods MeanField ...] [--steps 20]

The overhead of a method is the difference to the row of the plain network. Writes results/breakdown.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import parser, write
from benchmarks.nets import WORKLOADS
from benchmarks.training_step import METHODS, steps

NETS = ("MLP 784-400-400-10", "LeNet5", "AlexNet", "ResNet18")
SHOWN = ("MeanField", "MeanField, shared noise", "VariationalDropout", "VSD, T = 2", "WHVI", "VIFO", "EMP")
# The first kind with a part that the operator's name contains.
KINDS: dict[str, tuple[str, ...]] = {
    "contractions": ("conv", "mm", "addmv", "dot", "linear"),
    "random numbers": ("normal", "random", "rand", "bernoulli", "uniform"),
    "pooling and normalization": ("pool", "batch_norm"),
    "optimizer": ("adam", "Adam"),
    "passes over tensors": (
        "mul", "add", "sub", "div", "exp", "sqrt", "square", "pow", "sum", "mean", "clamp", "threshold", "relu", "fill", "zero",
        "copy", "log", "where", "neg", "sigmoid", "norm", "cat", "cumprod", "tril", "softmax", "nll", "le", "ge", "gt", "lt",
    ),
}  # fmt: skip
OTHER = "the rest: calls, views, the graph"


def kind_of(operator: str) -> str:
    """The kind of an operator."""
    if not operator.startswith(("aten::", "Optimizer")):
        return OTHER
    return next((kind for kind, parts in KINDS.items() if any(part in operator for part in parts)), OTHER)


def breakdown(step: Callable[[], object], count: int) -> dict[str, float]:
    """Milliseconds per step by kind, and the number of ATen operators per step."""
    for _ in range(3):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(count):
            step()
    times: Counter[str] = Counter()
    calls = 0
    for event in profiled.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total / count / 1e3
        calls += event.count if event.key.startswith("aten::") else 0
    return {**{kind: round(times[kind], 2) for kind in (*KINDS, OTHER)}, "operators": round(calls / count)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--nets", nargs="*", default=list(NETS), choices=list(WORKLOADS))
    options.add_argument("--methods", nargs="*", default=list(SHOWN), choices=list(METHODS))
    options.add_argument("--steps", type=int, default=20)
    args = options.parse_args()
    nets: dict[str, dict[str, dict[str, float]]] = {}
    for name in args.nets:
        torch.manual_seed(0)
        candidates = steps(WORKLOADS[name], {label: METHODS[label] for label in args.methods})
        nets[name] = {label: breakdown(step, args.steps) for label, step in candidates.items()}
        for label, row in nets[name].items():
            print(name, label, row, flush=True)
    if not args.dry:
        write("breakdown", {"steps": args.steps, "nets": nets})


if __name__ == "__main__":
    main()

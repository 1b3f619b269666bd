"""A training step without and with the native operators of `bayesify[fast]`, against the plain network.

    python -m benchmarks.native_steps [--nets LeNet5 ...] [--methods MeanField ...] [--rounds 30] [--threads 2]

The steps of `benchmarks.training_step`, all interleaved in one process. Ratios to the plain network are medians over rounds,
of processor time with one thread, and of wall-clock time with more. Writes results/native_steps.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bayesify.native import use_native
from benchmarks.measure import interleave, parser, print_timings, settings_of, write
from benchmarks.nets import WORKLOADS
from benchmarks.training_step import METHODS, steps

_NETS = ("MLP 784-400-400-10", "LeNet5", "AlexNet", "ResNet18")
_METHODS = ("MeanField", "MeanField, shared noise", "VariationalDropout", "VSD, T = 2")


def _switched(step: Callable[[], object], native: bool) -> Callable[[], object]:
    def run() -> object:
        use_native(native)
        return step()

    return run


def main() -> None:
    options = parser(__doc__, rounds=30)
    options.add_argument("--nets", nargs="*", default=list(_NETS), choices=list(WORKLOADS))
    options.add_argument("--methods", nargs="*", default=list(_METHODS), choices=list(METHODS))
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    nets: dict[str, object] = {}
    for name in arguments.nets:
        torch.manual_seed(0)
        plain, *others = steps(WORKLOADS[name], {label: METHODS[label] for label in arguments.methods}).items()
        candidates = dict([plain])
        for label, step in others:
            candidates |= {label: _switched(step, False), f"{label}, native": _switched(step, True)}
        nets[name] = timed = interleave(candidates, arguments.rounds, warmup=3, clock=clock)
        print_timings(name, timed)
    if not arguments.dry:
        write("native_steps", {"settings": settings_of(arguments), "nets": nets})


if __name__ == "__main__":
    main()

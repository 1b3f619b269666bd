"""Native draws (Philox4x32-10 from `bayesify[fast]`) against PyTorch's, float32, with everything that a call takes.

    python -m benchmarks.draws [--sizes 4096 16384 65536 1048576] [--rounds 15] [--threads 1]

`standard_normal`, `standard_uniform` and `bernoulli` without and with the native operators. Ratios are medians over interleaved
rounds, of processor time with one thread. Writes results/draws.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bayesify.functional import bernoulli, standard_normal, standard_uniform
from bayesify.native import use_native
from benchmarks.measure import interleave, parser, print_timings, repeat, settings_of, write

_REPEATED = 2**20  # draws per timing


def candidates(n: int) -> dict[str, dict[str, Callable[[], object]]]:
    """For each distribution, the draws without and with the native operators."""
    like = torch.zeros(1)
    draws: dict[str, Callable[[], object]] = {
        "normal": lambda: standard_normal(n, like=like),
        "uniform": lambda: standard_uniform(n, like=like),
        "bernoulli": lambda: bernoulli(n, p=0.8, like=like),
    }

    def switched(draw: Callable[[], object], native: bool) -> Callable[[], object]:
        def run() -> object:
            use_native(native)
            return draw()

        return run

    return {name: {"PyTorch": switched(draw, False), "native": switched(draw, True)} for name, draw in draws.items()}


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--sizes", type=int, nargs="+", default=[2**12, 2**14, 2**16, 2**20])
    options.add_argument("--threads", type=int, default=1)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    results = dict[str, object]()
    for n in arguments.sizes:
        repeats = max(3, _REPEATED // n)
        for name, both in candidates(n).items():
            repeated = {kind: repeat(run, repeats) for kind, run in both.items()}
            timings = interleave(repeated, arguments.rounds, warmup=2, clock=clock)
            print_timings(f"{name}, {n}", timings, repeats)
            results[f"{name} {n}"] = {
                kind: {**row, "milliseconds_per_call": round(row["milliseconds"] / repeats, 5)} for kind, row in timings.items()
            }
    if not arguments.dry:
        write("draws", {"settings": settings_of(arguments), "results": results})


if __name__ == "__main__":
    main()

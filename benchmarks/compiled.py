"""Training steps of every method under `torch.compile` against eager ones.

    python -m benchmarks.compiled [--methods MeanField ...] [--rounds 15]

A step of an MLP 256-512-512-10, 128 rows, one thread, processor time, eager and compiled steps interleaved in one process.
Compiling needs a C++ compiler; its time is stated apart. Writes results/compiled.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesify import Categorical, bayesify, elbo
from benchmarks.measure import interleave, parser, print_timings, repeat, write
from benchmarks.training_step import METHODS

_OTHER_STEPS = {  # their optimizer takes the step, or the posterior is made after training, or members take it together
    *("IVON", "VOGN", "NoisyAdam", "NoisyKFAC", "SLANG"),
    *("SWAG", "SGLD", "Laplace", "SNGP", "DVI, diagonal", "RepulsiveEnsemble of 5"),
}
_REPEATS = 3


def _step(name: str, compiled: bool, x: Tensor, y: Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    bnn, likelihood = bayesify(net, METHODS[name]), Categorical()

    def loss() -> Tensor:
        draws = bnn(x)
        return -elbo(draws, likelihood.log_prob(draws.outputs, y), n=10_000)

    function = torch.compile(loss) if compiled else loss
    optimizer = torch.optim.Adam(bnn.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        function().backward()
        optimizer.step()

    return step


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--methods", nargs="+", choices=METHODS, default=[name for name in METHODS if name not in _OTHER_STEPS])
    arguments = options.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(128, 256), torch.randint(10, (128,))
    results = dict[str, object]()
    for name in arguments.methods:
        torch.compiler.reset()
        steps = {"eager": _step(name, False, x, y), "compiled": _step(name, True, x, y)}
        start = time.perf_counter()
        steps["compiled"]()
        seconds = time.perf_counter() - start
        repeated = {kind: repeat(step, _REPEATS) for kind, step in steps.items()}
        timings = interleave(repeated, arguments.rounds, clock=time.thread_time)
        print_timings(f"{name}, compiled in {seconds:.1f} s", timings, _REPEATS)
        results[name] = {**timings, "seconds_to_compile": round(seconds, 1)}
    if not arguments.dry:
        write("compiled", {"settings": {"rounds": arguments.rounds, "repeats": _REPEATS}, "results": results})


if __name__ == "__main__":
    main()

"""A deep network whose equal blocks are compiled by themselves, against the whole network compiled and against eager code.

    python -m benchmarks.compiled_blocks [--depth 12] [--rounds 15] [--dry]

Steps without the optimizer of blocks of a normalization and two linear layers, 128 rows, one thread, processor time, interleaved in
one process; without code of earlier runs, and with the time of the first step, which compiles. Writes results/compiled_blocks.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import MeanField, Method, VariationalDropout, bayesify
from benchmarks.measure import interleave, parser, print_timings, write

METHODS: list[Method] = [MeanField(), VariationalDropout()]
_WIDTH, _ROWS = 128, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


def step(method: Method, depth: int, kind: str) -> Callable[[], None]:
    """A step of a new network that is not compiled, compiled as a whole, or by its blocks."""
    bnn = bayesify(nn.Sequential(nn.Linear(16, _WIDTH), *(Block() for _ in range(depth)), nn.Linear(_WIDTH, 3)), method)
    x = torch.randn(_ROWS, 16)
    bnn(x)
    run: Any = torch.compile(bnn) if kind == "whole" else bnn
    for module in bnn.modules():
        if isinstance(module, Block) and kind == "blocks":
            module.compile()

    def step() -> None:
        draws = run(x)
        (draws.outputs.square().mean() + draws.kl / 1000).backward()
        bnn.zero_grad()

    return step


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--depth", type=int, default=12)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True
    results: dict[str, object] = {}
    for method in METHODS:
        steps = {kind: step(method, arguments.depth, kind) for kind in ("eager", "whole", "blocks")}
        first: dict[str, float] = {}
        for kind, run in steps.items():
            start = time.perf_counter()
            run()
            first[kind] = round(time.perf_counter() - start, 1)
        name = type(method).__name__
        timings = interleave(steps, arguments.rounds, warmup=2, clock=time.thread_time)
        print_timings(f"{name}, first step in s: {first}", timings)
        results[name] = {"first_step_seconds": first, "steps": timings}
    if not arguments.dry:
        write("compiled_blocks", {"settings": {"depth": arguments.depth, "rounds": arguments.rounds}, "results": results})


if __name__ == "__main__":
    main()

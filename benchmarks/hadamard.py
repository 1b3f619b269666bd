"""The fast Walsh-Hadamard transform and the WHVI layer, side by side with what they replace.

    python -m benchmarks.hadamard [--batch 128] [--sizes 64 128 ...] [--rounds 30] [--threads 1]

Per size: `fwht` against the product with the dense Hadamard matrix and a copy of its input (the floor: one read, one write),
forward, and forward with backward against two forwards; a WHVI layer D -> D, forward and backward with all gradients, against
nn.Linear and against the four-transform form of the paper. All ratios are medians over interleaved rounds. Writes
results/hadamard.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesify import WHVI, bayesify
from bayesify.functional import fwht, hadamard_matrix
from benchmarks.measure import interleave, machine, write

_DENSE_LIMIT = 8192  # beyond, the matrix alone takes more than a gigabyte


def transforms(n: int, batch: int) -> dict[str, Callable[[], object]]:
    """The transform against its dense form; the first entry is what ratios refer to."""
    x = torch.randn(batch, n)
    leaf = torch.randn(batch, n, requires_grad=True)
    upstream = torch.randn(batch, n)
    candidates: dict[str, Callable[[], object]] = {}
    if n <= _DENSE_LIMIT:
        h = hadamard_matrix(n)
        candidates["dense"] = lambda: x @ h
    return candidates | {
        "fwht": lambda: fwht(x),
        "copy": x.clone,
        "two fwht": lambda: (fwht(x), fwht(upstream)),
        "fwht and backward": lambda: torch.autograd.grad(fwht(leaf), leaf, upstream),
    }


def step_of(layer: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor, upstream: Tensor) -> Callable[[], object]:
    """Forward and backward with the gradients of input and parameters."""
    return lambda: torch.autograd.grad(layer(x), [x, *parameters], upstream)


def layers(n: int, batch: int) -> dict[str, Callable[[], object]]:
    """nn.Linear, WHVI, and WHVI with mean and noise apart, as the paper's equation (6) has it."""
    x = torch.randn(batch, n, requires_grad=True)
    upstream = torch.randn(batch, n)
    linear = nn.Linear(n, n)
    site = bayesify(nn.Linear(n, n), WHVI()).net
    s1, s2, mean, log_std = (torch.randn(n, requires_grad=True) for _ in range(4))

    def four(x: Tensor) -> Tensor:
        def through(g: Tensor) -> Tensor:
            return s1 * fwht(g * fwht(s2 * x))

        return through(mean) + through(log_std.exp() * torch.randn_like(x))

    return {
        "nn.Linear": step_of(linear, list(linear.parameters()), x, upstream),
        "WHVI": step_of(site, list(site.parameters()), x, upstream),
        "four transforms": step_of(four, [s1, s2, mean, log_std], x, upstream),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**d for d in range(6, 15)])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, object] = {}
    for n in arguments.sizes:
        parts = {"transform": transforms(n, arguments.batch)}
        if n <= _DENSE_LIMIT:
            parts["layer"] = layers(n, arguments.batch)
        for part, candidates in parts.items():
            results[f"{part} {n}"] = numbers = interleave(candidates, arguments.rounds, warmup=3)
            text = ", ".join(f"{name} {value['ratio']} ({value['milliseconds']} ms)" for name, value in numbers.items())
            print(f"{part:10} {n:6} {text}", flush=True)
    print(write("hadamard", {"machine": machine(), "settings": vars(arguments), "results": results}))


if __name__ == "__main__":
    main()

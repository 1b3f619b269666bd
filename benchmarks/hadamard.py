"""The fast Walsh-Hadamard transform and the WHVI layer, against dense products and `nn.Linear`.

    python -m benchmarks.hadamard [--batch 128] [--sizes 64 128 ...] [--rounds 30] [--threads 1]

Per size: `fwht` against the product with the dense Hadamard matrix and against a copy of its input, a lower bound; the native
kernel against a copy, both into memory that is ready, which leaves out the cost of a call and of new memory; forward and backward
against two forward transforms; a WHVI layer D -> D, forward and backward with all gradients, against nn.Linear, against the
paper's form with four transforms, and "by hand": its draws and its node of the graph, without the dispatch of a layer; networks of
eight layers and ReLUs with and without WHVI. "native" rows use the operators of `bayesify[fast]`, the others do not. Short calls
are repeated. Ratios are medians over interleaved rounds, of processor time with one thread. Writes results/hadamard.json.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesify import WHVI, bayesify
from bayesify.functional import fwht, hadamard_matrix
from bayesify.native import hadamard_layer, native_is_used, use_native
from bayesify.native.operators import LEAST_SIZE
from bayesify.native.switch import load_kernels
from bayesify.native.threads import THREAD, over_rows
from benchmarks.measure import interleave, parser, print_timings, repeat, settings_of, write

_NATIVE = native_is_used()
_REPEATED = 2**20  # elements per timing: a call takes microseconds, the first more, because its code and data left the cache
_DEPTH = 8  # layers of a network
_DENSE_LIMIT = 8192  # a larger matrix takes more than a gigabyte


def _both(name: str, run: Callable[[], object]) -> dict[str, Callable[[], object]]:
    """A candidate without the native operators and, if they are installed, with them."""
    return {name: run, f"{name}, native": _natively(run)} if _NATIVE else {name: run}


def _natively(run: Callable[[], object]) -> Callable[[], object]:
    def natively() -> None:
        use_native()
        run()
        use_native(False)

    return natively


def transforms(n: int, batch: int) -> dict[str, Callable[[], object]]:
    """The transform and its dense form; ratios are relative to the first entry."""
    x = torch.randn(batch, n)
    leaf = torch.randn(batch, n, requires_grad=True)
    upstream = torch.randn(batch, n)
    candidates: dict[str, Callable[[], object]] = {}
    if n <= _DENSE_LIMIT:
        h = hadamard_matrix(n)
        candidates["dense"] = lambda: x @ h
    target = torch.empty_like(x)
    if _NATIVE and n >= LEAST_SIZE:
        kernels = load_kernels("hadamard_kernels")
        assert kernels is not None
        integers = x.data_ptr(), target.data_ptr(), n
        candidates["kernel into"] = lambda: over_rows(kernels.fwht32, integers, batch, THREAD // n)
    return candidates | {
        **_both("fwht", lambda: fwht(x)),
        "copy": x.clone,
        "copy into": lambda: target.copy_(x),
        "two fwht": lambda: (fwht(x), fwht(upstream)),
        "fwht and backward": lambda: torch.autograd.grad(fwht(leaf), leaf, upstream),
    }


def forward_backward(
    layer: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor, upstream: Tensor
) -> Callable[[], object]:
    """A forward and a backward pass with the gradients of parameters, and of the input if it requires one."""
    inputs = [x, *parameters] if x.requires_grad else parameters
    return lambda: torch.autograd.grad(layer(x), inputs, upstream, allow_unused=True)


def layers(n: int, batch: int) -> dict[str, Callable[[], object]]:
    """nn.Linear, WHVI, and WHVI with separate transforms of mean and noise, as in the paper's equation (6)."""
    x = torch.randn(batch, n, requires_grad=True)
    upstream = torch.randn(batch, n)
    linear = nn.Linear(n, n)
    site = bayesify(nn.Linear(n, n), WHVI()).net
    s1, s2, mean, log_std = (torch.randn(1, n, requires_grad=True) for _ in range(4))
    bias = [torch.randn(n, requires_grad=True) for _ in range(2)]

    def four(x: Tensor) -> Tensor:
        def through(g: Tensor) -> Tensor:
            return s1 * fwht(g * fwht(s2 * x))

        return through(mean) + through(log_std.exp() * torch.randn_like(x))

    def by_hand(x: Tensor) -> Tensor:
        return hadamard_layer(x, s1, s2, mean, log_std, None, (*bias, torch.randn(1, n)), 0.003)[0]

    vectors = [s1, s2, mean, log_std]
    hand = {"WHVI, native, by hand": _natively(forward_backward(by_hand, [*vectors, *bias], x, upstream))}
    return {
        "nn.Linear": forward_backward(linear, list(linear.parameters()), x, upstream),
        **_both("WHVI", forward_backward(site, list(site.parameters()), x, upstream)),
        **(hand if _NATIVE and n >= LEAST_SIZE else {}),
        "four transforms": forward_backward(four, vectors, x, upstream),
    }


def networks(n: int, batch: int) -> dict[str, Callable[[], object]]:
    """Eight nn.Linear, and the same network with WHVI: outputs and KL, with the gradients of the parameters."""
    x, upstream, one = torch.randn(batch, n), torch.randn(batch, n), torch.ones(())
    plain = nn.Sequential(*[module for _ in range(_DEPTH) for module in (nn.Linear(n, n), nn.ReLU())])
    bnn = bayesify(copy.deepcopy(plain), WHVI())
    parameters = list(bnn.parameters())

    def step() -> None:
        draws = bnn(x)
        torch.autograd.grad([draws.outputs, draws.kl], parameters, [upstream.unsqueeze(0), one])

    return {"nn.Linear": forward_backward(plain, list(plain.parameters()), x, upstream), **_both("WHVI", step)}


def main() -> None:
    options = parser(__doc__, rounds=30)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--sizes", type=int, nargs="+", default=[2**d for d in range(6, 15)])
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    if _NATIVE:
        use_native(False)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    results: dict[str, object] = {}
    for n in arguments.sizes:
        parts = {"transform": transforms(n, arguments.batch)}
        if n <= _DENSE_LIMIT:
            parts["layer"] = layers(n, arguments.batch)
            parts["network"] = networks(n, arguments.batch)
        for part, candidates in parts.items():
            repeats = max(5, _REPEATED // (arguments.batch * n * (_DEPTH if part == "network" else 1)))
            repeated = {name: repeat(run, repeats) for name, run in candidates.items()}
            results[f"{part} {n}"] = timings = interleave(repeated, arguments.rounds, warmup=3, clock=clock)
            print_timings(f"{part} {n}", timings, repeats)
    if not arguments.dry:
        write("hadamard", {"settings": settings_of(arguments), "results": results})


if __name__ == "__main__":
    main()

"""Training steps of every method under `torch.compile` against eager ones.

    python -m benchmarks.compiled [--net "MLP 256-512-512-10"] [--methods MeanField ...] [--rounds 15]
    python -m benchmarks.compiled --net "MLP 13-50-1"

Steps of an MLP 256-512-512-10, 128 rows: eager and with a compiled loss. Of an MLP 13-50-1, 32 rows: the same, and steps of
`fit_many(compile=True)`, whose gradients are one call of compiled code; ratios are to the step of the plain network, eager and
compiled. One thread, processor time, interleaved in one process. Compiling needs a C++ compiler; its time is stated apart. Writes
results/compiled.json or results/compiled_small.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import Categorical, Gaussian, Likelihood, Method, bayesify, elbo
from bayesify.train import Training
from bayesify.train.arguments import Settings
from bayesify.train.many.loop import Loop
from bayesify.train.many.stack import Stack
from bayesify.train.model_data import load_model_data
from bayesify.train.objective import Objective
from benchmarks.measure import interleave, parser, print_timings, repeat, write
from benchmarks.nets import mlp
from benchmarks.training_step import METHODS

_OTHER_STEPS = {  # their optimizer takes the step, or the posterior is made after training, or members take it together
    *("IVON", "VOGN", "NoisyAdam", "NoisyKFAC", "SLANG"),
    *("SWAG", "SGLD", "Laplace", "SNGP", "DVI, diagonal", "RepulsiveEnsemble of 5"),
}
_NETS = {"MLP 256-512-512-10": (256, 512, 512, 10), "MLP 13-50-1": (13, 50, 1)}
_REPEATS = {"MLP 256-512-512-10": 3, "MLP 13-50-1": 100}
_CPU = torch.device("cpu")
_ROWS = 10_000


def _net(name: str) -> nn.Module:
    torch.manual_seed(0)
    return mlp(*_NETS[name])


def _batch(net: str) -> tuple[Tensor, Tensor, Likelihood]:
    torch.manual_seed(0)
    if net == "MLP 13-50-1":
        return torch.randn(32, 13), torch.randn(32), Gaussian(std=0.3)
    return torch.randn(128, 256), torch.randint(10, (128,)), Categorical()


def _step(loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter], compiled: bool) -> Callable[[], None]:
    function = torch.compile(loss) if compiled else loss
    optimizer = torch.optim.Adam(parameters, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        function().backward()
        optimizer.step()

    return step


def _plain_step(name: str, compiled: bool) -> Callable[[], None]:
    x, y, _ = _batch(name)
    net = _net(name)
    return _step(lambda: F.mse_loss(net(x).squeeze(-1), y), net.parameters(), compiled)


def _bayesian_step(net: str, method: Method, compiled: bool) -> Callable[[], None]:
    x, y, likelihood = _batch(net)
    bnn = bayesify(_net(net), method)

    def loss() -> Tensor:
        draws = bnn(x)
        return -elbo(draws, likelihood.log_prob(draws.outputs, y), n=_ROWS)

    return _step(loss, bnn.parameters(), compiled)


def _steps_of_fit_many(net: str, method: Method, steps: int) -> Callable[[], None]:
    """An epoch of `fit_many(compile=True)` of one model, of this many steps."""
    x, y, likelihood = _batch(net)
    training = Training(bnn=bayesify(_net(net), method), data=(x.repeat(steps, 1), y.repeat(steps)), likelihood=likelihood, n=_ROWS)
    settings = Settings(
        epochs=10**9, batch_size=len(x), samples=1, optimizer=None, scheduler=None, clip_norm=None, validation_samples=1,
        patience=None,
    )  # fmt: skip
    data = load_model_data(training, len(x), _CPU)
    stack = Stack([Objective(training.bnn, likelihood, data.auxiliary)], data.n, _CPU, 1, compile=True, join=True)
    loop = Loop([training], [data], settings, stack)
    return lambda: loop.run_epoch(1)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return round(time.perf_counter() - start, 1)


def _measure_large(net: str, method: Method, rounds: int) -> dict[str, Any]:
    steps = {"eager": _bayesian_step(net, method, False), "compiled": _bayesian_step(net, method, True)}
    seconds = _seconds(steps["compiled"])
    timings = interleave({kind: repeat(step, _REPEATS[net]) for kind, step in steps.items()}, rounds, clock=time.thread_time)
    return {**timings, "seconds_to_compile": seconds}


def _measure_small(net: str, method: Method, rounds: int) -> dict[str, Any]:
    repeats = _REPEATS[net]
    steps = {
        "plain": _plain_step(net, False),
        "plain, compiled": _plain_step(net, True),
        "eager": _bayesian_step(net, method, False),
        "compiled": _bayesian_step(net, method, True),
    }
    for step in steps.values():
        step()
    runs = {kind: repeat(step, repeats) for kind, step in steps.items()}
    runs["fit_many"] = _steps_of_fit_many(net, method, repeats)
    seconds = _seconds(runs["fit_many"])
    return {**interleave(runs, rounds, clock=time.thread_time), "seconds_to_compile": seconds}


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--net", choices=_NETS, default="MLP 256-512-512-10")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=[name for name in METHODS if name not in _OTHER_STEPS])
    arguments = options.parse_args()
    torch.set_num_threads(1)
    is_small = arguments.net == "MLP 13-50-1"
    results = dict[str, Any]()
    for name in arguments.methods:
        torch.compiler.reset()
        measure = _measure_small if is_small else _measure_large
        results[name] = row = measure(arguments.net, METHODS[name], arguments.rounds)
        timings = {kind: timing for kind, timing in row.items() if kind != "seconds_to_compile"}
        print_timings(f"{name}, compiled in {row['seconds_to_compile']} s", timings, _REPEATS[arguments.net])
    if not arguments.dry:
        settings = {"rounds": arguments.rounds, "repeats": _REPEATS[arguments.net]}
        write("compiled_small" if is_small else "compiled", {"settings": settings, "results": results})


if __name__ == "__main__":
    main()

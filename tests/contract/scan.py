"""What is true of a whole architecture that was made random: which layers, in which passes, and what is wrong with it.

Shapes: S draws, B batch.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import Bayesian, Gaussian, bayesify, predict, summary
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.switches import observer
from bayesify.formatting import listing
from bayesify.testing.trial import captured_weights, warnings_ignored

__all__ = ["Scan", "scan"]

_DRAWS = 3
_TRIES = 8
_ROUNDING = 1e-6  # a share of the largest gradient that may be no gradient at all


@dataclasses.dataclass
class Scan:
    """The findings about one architecture; `problems` is empty if all is well."""

    random: int
    layers: int
    folded: bool
    unused: list[str]
    seconds: float
    problems: list[str]

    def __str__(self) -> str:
        route = "folded" if self.folded else "a pass per draw"
        unused = f"unused: {listing(self.unused)}" if self.unused else ""
        return f"{self.random:4} of {self.layers:<4} {route:16} {self.seconds:5.1f} s  {unused}"


def scan(plain: nn.Module, x: Tensor, method: Method) -> Scan:
    """Make an architecture random, predict once, and compare what `summary` says of it with what its passes do."""
    start = time.perf_counter()
    plain.eval()
    _move(plain)
    gradients = _gradients(plain, x)
    bnn = bayesify(copy.deepcopy(plain), method).eval()
    with warnings_ignored():
        predict(bnn, x, Gaussian(std=1.0), samples=4, chunk=2, seed=0)
        rows = summary(bnn).layers
        random = [row.name for row in rows if row.random]
        unused = [row.name for row in rows if gradients.get(row.name, 0) is None]
        problems = [
            *_said_of(unused, {row.name: row.reason or row.remark for row in rows}, random),
            *_draws_reach_the_output(bnn, x, [name for name in random if (gradients.get(name) or 0) > _ROUNDING]),
            *_draws_are_the_plain_net(bnn, plain, x),
        ]
        folded = _calls(bnn, x) == 1
    return Scan(len(random), len(rows), folded, unused, time.perf_counter() - start, problems)


@torch.no_grad()
def _move(net: nn.Module) -> None:
    """Move all parameters a little: many are zero to start with, and hide what lies behind them."""
    torch.manual_seed(1)
    for parameter in net.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))


def _gradients(plain: nn.Module, x: Tensor) -> dict[str, float | None]:
    """The largest gradient of each layer's weight in the plain net, as a share of all; None for a weight that is not used."""
    net = copy.deepcopy(plain)
    net(x).square().sum().backward()
    weights = {name: module._parameters.get("weight") for name, module in net.named_modules()}
    used = {name: weight.grad for name, weight in weights.items() if weight is not None}
    largest = {name: None if gradient is None else float(gradient.abs().max()) for name, gradient in used.items()}
    most = max(value for value in largest.values() if value is not None)
    return {name: None if value is None else value / most for name, value in largest.items()}


def _said_of(unused: list[str], said: dict[str, str], random: list[str]) -> Iterator[str]:
    if wrong := [name for name in unused if name in random]:
        yield f"{len(wrong)} unused layers count as random: {listing(wrong)}"
    if wrong := [name for name in unused if not said[name]]:
        yield f"summary says nothing of {len(wrong)} unused layers: {listing(wrong)}"


def _draws_reach_the_output(bnn: Bayesian, x: Tensor, names: list[str]) -> Iterator[str]:
    """Each of these layers has draws that differ, and the output has a gradient with respect to them."""
    same, lost = list(names), list(names)
    for _ in range(_TRIES):  # two draws of a few channels' dropout can be equal, and a unit can be dead in both
        with _recorded({name: layer for name, layer in bnn.random_layers() if name in names}) as drawn:
            y = bnn(x, samples=2, coherent=True).outputs
            y.square().sum().backward()
        if not y.isfinite().all():
            yield "outputs are not finite"
            return
        same = [name for name in same if not drawn[name] or _all_equal(torch.cat(drawn[name]))]
        lost = [name for name in lost if all(w.grad is None or not w.grad.any() for w in drawn[name])]
        if not same and not lost:
            break
    bnn.zero_grad()
    if same:
        yield f"{len(same)} random layers draw equal weights: {listing(same)}"
    if lost:
        yield f"the draws of {len(lost)} random layers do not reach the output: {listing(lost)}"


def _draws_are_the_plain_net(bnn: Bayesian, plain: nn.Module, x: Tensor) -> Iterator[str]:
    """Coherent draws, and so their mean, are those of the plain net with their weights."""
    with torch.no_grad():
        with captured_weights(bnn) as weights:
            outputs = bnn(x, samples=_DRAWS, coherent=True).outputs
        expected = torch.stack([functional_call(plain, each, (x,)) for each in weights[-_DRAWS:]])
    error = float((outputs - expected).abs().max() / expected.abs().max())
    if not error < 1e-3:
        yield f"draws differ from the plain net with their weights by {error:.2g} of the largest output"
    if bool((expected[1:] != expected[:1]).any()) and _all_equal(bnn(x, samples=_DRAWS).outputs.detach()):
        yield "all draws of a default pass are equal"


def _calls(bnn: Bayesian, x: Tensor) -> int:
    """How often the net is called for a pass with several draws."""
    calls: list[None] = []
    handle = bnn.net.register_forward_hook(observer(lambda *_: calls.append(None)))
    bnn(x, samples=_DRAWS)
    handle.remove()
    return len(calls)


def _all_equal(draws: Tensor) -> bool:
    return bool((draws == draws[:1]).all())


@contextmanager
def _recorded(layers: dict[str, BayesianLayer]) -> Iterator[dict[str, list[Tensor]]]:
    """The weights that posteriors draw inside, with their gradients."""
    drawn: dict[str, list[Tensor]] = {name: [] for name in layers}

    def recorder(name: str, sample: Callable) -> Callable:
        def record(*args: object, **kwargs: object) -> tuple[Tensor, Tensor | None]:
            weight, bias = sample(*args, **kwargs)
            if weight.requires_grad:
                weight.retain_grad()
                drawn[name].append(weight)
            return weight, bias

        return record

    for name, layer in layers.items():
        layer.posterior.sample = recorder(name, layer.posterior.sample)
        layer.posterior.draws_ahead = lambda layer: None  # which need not call `sample`
    try:
        yield drawn
    finally:
        for layer in layers.values():
            del layer.posterior.sample, layer.posterior.draws_ahead

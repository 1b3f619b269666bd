"""A method on a small network, and the truth about its draws without any folding: the plain network with explicit weights.

Shapes: S draws, B batch.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify.core.convert import bayesify
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.errors import BayesifyWarning, NothingRandomError
from bayesify.testing.cases import random_layers
from bayesify.testing.require import NotApplicable, require, require_close, require_equal_means

__all__ = [
    "Trial",
    "captured_weights",
    "convert",
    "is_random",
    "need_one_network",
    "need_weights",
    "numbers",
    "quietly",
    "require_equal_moments",
]

_DRAWS = 800  # of a comparison of moments: a variance has a standard error of about 5 %
_DRAWS_PER_PASS = 4


class Trial:
    """A method on a network in float64.

    Args:
        method: what makes the layers random; one that draws weights.
        make: makes the plain network.
        inputs: its positional inputs, the batch first unless `batch_dim` says otherwise.
        layers: names of the layers to make random.
        training: whether both are in training mode.
        layout: as in `bayesify`.

    Raises:
        NotApplicable: the method leaves one of the layers as it is, or draws no weights.
    """

    def __init__(
        self,
        method: Method,
        make: Callable[[], nn.Module],
        inputs: tuple[Any, ...],
        layers: tuple[str, ...] = ("layer", "head"),
        training: bool = False,
        **layout: Any,
    ) -> None:
        need_weights(method)
        self.inputs = inputs
        torch.manual_seed(7)
        self.plain = make().double().train(training)
        torch.manual_seed(8)
        self.bnn = convert(method, copy.deepcopy(self.plain), *layers, **layout)

    def require_equal_weights(self, *, samples: int = _DRAWS_PER_PASS, coherent: bool) -> None:
        """Require of a pass that each of its draws is what the plain network gives with the weights of that draw."""
        with captured_weights(self.bnn) as weights, quietly():
            outputs = self.bnn(*self.inputs, samples=samples, coherent=coherent).outputs
        require(len(weights) >= samples, f"the net served {len(weights)} draws, not {samples}")
        # The last ones: passes that the root makes to find out how the net may be used come before.
        expected = torch.stack([self.plain_outputs(each) for each in weights[-samples:]])
        mode = "coherent draws" if coherent else "draws"
        require_close(outputs, expected, f"{mode} differ from the plain net with their weights", rtol=1e-6, atol=1e-8)

    def require_equal_moments(self) -> None:
        """Require the mean and variance of every output element that the plain network has with weights drawn one by one.

        Within 6 standard errors of 800 draws, which tells variances apart that differ by a factor of two.
        """
        with torch.no_grad(), quietly():
            passes = [self.bnn(*self.inputs, samples=_DRAWS_PER_PASS).outputs for _ in range(_DRAWS // _DRAWS_PER_PASS)]
            truth = self.drawn_outputs()
        require_equal_moments(torch.cat(passes), truth)

    def drawn_outputs(self) -> Tensor:
        """Outputs of the plain network for weights drawn by `Posterior.sample`."""
        layers = random_layers(self.bnn.net)
        drawn = {name: layer.posterior.sample(layer, _DRAWS) for name, layer in layers}
        return torch.stack([self.plain_outputs(_one_draw(drawn, s)) for s in range(_DRAWS)])

    def plain_outputs(self, weights: dict[str, Tensor]) -> Tensor:
        """Outputs (B, ...) of the plain network with other weights."""
        y: Tensor = functional_call(self.plain, weights, self.inputs)
        return y.movedim(self.bnn.batch_dim, 0)


def require_equal_moments(outputs: Tensor, truth: Tensor) -> None:
    """Require equal means and variances of draws (n, B, ...) within 6 standard errors."""
    require_equal_means(outputs, truth, "mean of the outputs")
    squares, true_squares = ((y - y.mean(0)).square() for y in (outputs, truth))
    require_equal_means(squares, true_squares, "variance of the outputs")


@contextmanager
def captured_weights(bnn: Bayesian) -> Iterator[list[dict[str, Tensor]]]:
    """The weights of the random layers in each draw of the passes inside, by parameter name."""
    layers = random_layers(bnn.net)
    weights: list[dict[str, Tensor]] = []

    def look(module: nn.Module, args: object, output: object) -> None:
        drawn = {name: layer.draw() for name, layer in layers}
        served = next(iter(drawn.values()))[0].shape[0]
        weights.extend(_one_draw(drawn, s) for s in range(served))

    handle = bnn.net.register_forward_hook(look)
    try:
        yield weights
    finally:
        handle.remove()


def _one_draw(drawn: dict[str, tuple[Tensor, Tensor | None]], s: int) -> dict[str, Tensor]:
    """Draw s of the weights of all layers, by parameter name."""
    named = {
        f"{layer}.{name}": value for layer, pair in drawn.items() for name, value in zip(("weight", "bias"), pair, strict=True)
    }
    return {name.removeprefix("."): value[s].detach() for name, value in named.items() if value is not None}


def convert(method: Method, net: nn.Module, *layers: str, **layout: Any) -> Bayesian:
    """Make the named layers of a network random, or all of it if the method is an ensemble.

    Raises:
        NotApplicable: the method leaves one of the layers as it is.
    """
    ensemble = _is_ensemble(method)
    try:
        bnn = bayesify(net, method if ensemble else dict.fromkeys(layers, method), **layout)
    except NothingRandomError as error:
        raise NotApplicable(str(error)) from error
    random = {name for name, _ in random_layers(bnn.net)}
    if not ensemble and (missing := [name for name in layers if name not in random]):
        raise NotApplicable(f"it leaves {', '.join(missing)} as it is")
    return bnn


def need_weights(method: Method) -> None:
    """Raise NotApplicable for methods whose draws are not explained by weights of one network."""
    need_one_network(method)
    root = _probe(method)
    if root is not None and root.one_pass:
        raise NotApplicable("it draws outputs, not weights")


def need_one_network(method: Method) -> None:
    """Raise NotApplicable for ensembles."""
    if _is_ensemble(method):
        raise NotApplicable("an ensemble: the method of its members is checked by itself")


def is_random(layer: BayesianLayer) -> bool:
    """Whether a layer's weight or bias differs between draws."""
    with torch.no_grad():
        drawn = layer.posterior.sample(layer, 32)
    return any(bool((value != value[:1]).any()) for value in drawn if value is not None)


@contextmanager
def quietly() -> Iterator[None]:
    """Without bayesify's warnings, which these networks are meant to cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        yield


def numbers(*shape: int) -> Tensor:
    """Standard normal numbers in float64, always the same."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _is_ensemble(method: Method) -> bool:
    root = _probe(method)
    return root is not None and bool(root.members)


@functools.cache
def _probe(method: Method) -> Bayesian | None:
    """The method's root around a small network; None if it leaves that as it is."""
    try:
        return bayesify(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), method)
    except NothingRandomError:
        return None

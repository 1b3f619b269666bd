"""A method on a small network, compared with the plain network and explicit weights.

Shapes: S draws, B batch.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify.core.convert import bayesify
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.packed import Unpacking
from bayesify.core.switches import observer
from bayesify.errors import BayesifyWarning, NothingRandomError
from bayesify.testing.require import NotApplicable, require, require_close, require_equal_means

__all__ = [
    "Trial",
    "captured_weights",
    "convert",
    "fixed_inputs",
    "is_random",
    "require_equal_moments",
    "skip_ensembles",
    "skip_unless_weights",
    "warnings_ignored",
]

_DRAWS = 800  # for moments: the standard error of a variance is about 5 %
_DRAWS_PER_PASS = 4


class Trial:
    """A method on a network in float64.

    Args:
        method: a method that draws weights.
        make: returns the plain network.
        inputs: positional inputs of the network.
        layers: names of the layers to make random.
        layout: `batch_dim` and others, as in `bayesify`.

    Raises:
        NotApplicable: the method does not support one of the layers, or draws no weights.
    """

    def __init__(
        self,
        method: Method,
        make: Callable[[], nn.Module],
        inputs: tuple[Any, ...],
        layers: tuple[str, ...] = ("layer", "head"),
        **layout: Any,
    ) -> None:
        skip_unless_weights(method)
        self.inputs = inputs
        torch.manual_seed(7)
        self.plain = make().double().eval()
        torch.manual_seed(8)
        self.bnn = convert(method, copy.deepcopy(self.plain), *layers, **layout)
        Unpacking.of(self.plain, ())  # the converted network's names of parameters

    def require_equal_weights(self, coherent: Sequence[bool] = (False, True)) -> None:
        """Require that every draw of a pass is the output of the plain network with the weights of that draw.

        Args:
            coherent: a pass is made for each of these values.
        """
        for mode in coherent:
            with captured_weights(self.bnn) as weights, warnings_ignored():
                outputs = self.bnn(*self.inputs, samples=_DRAWS_PER_PASS, coherent=mode).outputs
            require(len(weights) >= _DRAWS_PER_PASS, f"the network made {len(weights)} draws, not {_DRAWS_PER_PASS}")
            # the last ones: the root may make passes of its own before
            expected = torch.stack([self.plain_outputs(each) for each in weights[-_DRAWS_PER_PASS:]])
            name = "coherent draws" if mode else "draws"
            require_close(outputs, expected, f"{name} differ from the plain network with their weights", rtol=1e-6, atol=1e-8)

    def require_equal_moments(self) -> None:
        """Require that every output has the mean and variance of the plain network with weights drawn one by one.

        The tolerance is 6 standard errors of 800 draws, which distinguishes variances that differ by a factor of two.
        """
        with torch.no_grad(), warnings_ignored():
            passes = [self.bnn(*self.inputs, samples=_DRAWS_PER_PASS).outputs for _ in range(_DRAWS // _DRAWS_PER_PASS)]
            reference = self.drawn_outputs()
        require_equal_moments(torch.cat(passes), reference)

    def drawn_outputs(self) -> Tensor:
        """Outputs of the plain network for weights drawn by `Posterior.sample`, jointly for all layers."""
        layers = dict(self.bnn.random_layers())
        weights = self.bnn.passes.draw(layers.values(), _DRAWS)
        drawn = {name: weights[layer] for name, layer in layers.items()}
        return torch.stack([self.plain_outputs(_one_draw(drawn, s)) for s in range(_DRAWS)])

    def plain_outputs(self, weights: dict[str, Tensor]) -> Tensor:
        """Outputs (B, ...) of the plain network with these weights."""
        y: Tensor = functional_call(self.plain, weights, self.inputs)
        return y.movedim(self.bnn.batch_dim, 0)


def require_equal_moments(outputs: Tensor, reference: Tensor) -> None:
    """Require equal means and variances of draws (n, B, ...) within 6 standard errors."""
    require_equal_means(outputs, reference, "mean of the outputs")
    squares, reference_squares = ((y - y.mean(0)).square() for y in (outputs, reference))
    require_equal_means(squares, reference_squares, "variance of the outputs")


@contextmanager
def captured_weights(bnn: Bayesian) -> Iterator[list[dict[str, Tensor]]]:
    """Yield a list that collects the weights of the random layers by parameter name, for each draw of the passes inside."""
    layers = list(bnn.random_layers())
    weights: list[dict[str, Tensor]] = []

    @observer
    def record(module: nn.Module, args: object, output: object) -> None:
        if not all(isinstance(layer, BayesianLayer) for _, layer in layers):
            return  # plain for a comparison
        drawn = {name: layer.draw() for name, layer in layers}
        draws = next(iter(drawn.values()))[0].shape[0]
        weights.extend(_one_draw(drawn, s) for s in range(draws))

    handle = bnn.net.register_forward_hook(record)
    try:
        yield weights
    finally:
        handle.remove()


def _one_draw(drawn: dict[str, tuple[Tensor, Tensor | None]], s: int) -> dict[str, Tensor]:
    """Draw s of all weights, by parameter name."""
    named = {
        f"{layer}.{name}": value for layer, pair in drawn.items() for name, value in zip(("weight", "bias"), pair, strict=True)
    }
    return {name.removeprefix("."): value[s].detach() for name, value in named.items() if value is not None}


def convert(method: Method, net: nn.Module, *layers: str, **layout: Any) -> Bayesian:
    """Make the named layers of a network random, or the whole network if the method is an ensemble.

    Raises:
        NotApplicable: the method does not support one of the layers.
    """
    ensemble = _is_ensemble(method)
    try:
        bnn = bayesify(net, method if ensemble else dict.fromkeys(layers, method), **layout)
    except NothingRandomError as error:
        raise NotApplicable(str(error)) from error
    random = {name for name, _ in bnn.random_layers()}
    if not ensemble and (missing := [name for name in layers if name not in random]):
        raise NotApplicable(f"the method does not support {', '.join(missing)}")
    return bnn


def skip_unless_weights(method: Method) -> None:
    """Raise NotApplicable for ensembles, and for methods that draw outputs, or weights of something else than the layer."""
    skip_ensembles(method)
    root = _probe(method)
    if root is not None and (root.one_pass or not all(layer.posterior.is_plain for _, layer in root.random_layers())):
        raise NotApplicable("the method draws outputs, not weights")


def skip_ensembles(method: Method) -> None:
    """Raise NotApplicable for ensembles."""
    if _is_ensemble(method):
        raise NotApplicable("the method is an ensemble; check the method of its members")


def is_random(layer: BayesianLayer) -> bool:
    """Whether a layer's weight or bias differs between draws."""
    with torch.no_grad():
        drawn = layer.posterior.sample(layer, 32)
    return any(bool((value != value[:1]).any()) for value in drawn if value is not None)


@contextmanager
def warnings_ignored() -> Iterator[None]:
    """Ignore warnings of bayesify."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        yield


def fixed_inputs(*shape: int) -> Tensor:
    """Standard normal inputs in float64, always the same, on PyTorch's default device."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu").to(torch.get_default_device())


def _is_ensemble(method: Method) -> bool:
    root = _probe(method)
    return root is not None and bool(root.members)


@functools.lru_cache(maxsize=256)
def _probe(method: Method) -> Bayesian | None:
    """The method's root of a small network; None if the method supports none of its layers."""
    try:
        return bayesify(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), method)
    except NothingRandomError:
        return None

"""Images and network of the experiments of Kingma, Salimans & Welling (2015) on MNIST, and passes with given weights.

Shapes: B batch, I in, O out, D pixels, H hidden units.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesify import Bayesian, bayesify
from bayesify.core.checks import check_integer
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.datasets import load_images
from bayesify.errors import ConfigurationError

__all__ = [
    "CLASSES",
    "bayesian_net",
    "digits",
    "method_for",
    "method_settings",
    "outputs_with",
    "per_example",
    "posterior_mean",
    "sites",
]

CLASSES = 10


def digits(part: str, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """MNIST as float pixels in [0, 1] (N, D) and labels (N,).

    Args:
        part: "train" or "test".
        data_dir: folder of the data; None for the default ones.
    """
    images = load_images("mnist", cast(Any, part), data_dir)
    return images.scaled().flatten(1), images.y


def method_for(fields: Mapping[str, Any], p: float) -> Method:
    """The method of one layer: `fields` as for `Method.from_dict`, with dropout rate `p` if the method has one.

    Example:
        >>> method_for({"method": "MCDropout"}, 0.2)
        MCDropout(p=0.2, prior_std=None)
        >>> method_for({"method": "Deterministic"}, 0.2)
        Deterministic(prior_std=None)
    """
    has_rate = any(field.name == "p" for field in dataclasses.fields(Method.named(fields.get("method"))))
    return Method.from_dict({**fields, "p": p} if has_rate else dict(fields))


def method_settings(fields: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, Any]:
    """All fields of the method, as for `Method.from_dict`, without the dropout rate, which `rates` gives per layer."""
    return {name: value for name, value in method_for(fields, rates["hidden"]).to_dict().items() if name != "p"}


def bayesian_net(pixels: int, hidden: int, fields: Mapping[str, Any], rates: Mapping[str, float], seed: int) -> Bayesian:
    """A Bayesian D-H-H-H-10 network with ReLU, as in Srivastava et al. (2014).

    Args:
        pixels: D.
        hidden: H, in each of the three hidden layers.
        fields: of the method, as for `Method.from_dict`, without `p`.
        rates: initial dropout rates of the "input" and the "hidden" units.
        seed: of the initial weights; the global random state is unchanged.

    Raises:
        ConfigurationError: other rates, or invalid fields.

    Example:
        >>> net = bayesian_net(784, 30, {"method": "MCDropout"}, {"input": 0.2, "hidden": 0.5}, seed=0)
        >>> [site.posterior.p for site in sites(net)]
        [0.2, 0.5, 0.5, 0.5]
    """
    check_integer("hidden", hidden)
    if set(rates) != {"input", "hidden"}:
        raise ConfigurationError(f"rates must be the dropout rates 'input' and 'hidden', got {dict(rates)}")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        sizes = [pixels, hidden, hidden, hidden, CLASSES]
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        methods = {"0": method_for(fields, rates["input"]), "*": method_for(fields, rates["hidden"])}
        return bayesify(nn.Sequential(*layers[:-1]), methods)


def sites(bnn: Bayesian) -> list[BayesianLayer]:
    """The Bayesian layers from bottom to top."""
    return [site for _, site in bnn.random_layers()]


def outputs_with(bnn: Bayesian, x: Tensor, weights: Callable[[BayesianLayer], tuple[Tensor, Tensor | None]]) -> Tensor:
    """Outputs (B, O) of a sequential network with the weight and bias that `weights` returns for each Bayesian layer."""
    for layer in cast(nn.Sequential, bnn.net):
        x = layer.op(layer.prepare(x), *weights(layer)) if isinstance(layer, BayesianLayer) else layer(x)
    return x


def posterior_mean(bnn: Bayesian, x: Tensor) -> Tensor:
    """Outputs (B, O) with the posterior means of the weights."""
    return outputs_with(bnn, x, lambda site: site.posterior.mean(site))


def per_example(bnn: Bayesian, x: Tensor) -> Tensor:
    """Outputs (B, O) with explicit weights (B, O, I) and biases (B, O): one draw per row."""
    return outputs_with(bnn, x, lambda site: site.posterior.sample(site, len(x)))

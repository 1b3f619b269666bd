r"""VIFO: variational inference on the final-layer output of a network, in one pass.

The last layer returns mean and standard deviation of the outputs z, which are random. The weights are not:

$$q(z \mid x) = N(\mu(x), \mathrm{diag}(s(x)^2)), \qquad
\min \sum_x \mathrm{E}_q[-\log p(y \mid z)] + \eta R(x) + \eta_\mathrm{aux} R(x_\mathrm{aux})$$

R is the KL of q from a prior on z: $N(0, \sigma_p^2)$ (`regularizer="naive"`), or a prior whose parameters are learned in closed
form (`bayesify.functional.vifo_mean`, `vifo_mean_variance`, `vifo_empirical_bayes`). It is added once per example and not divided
by the size of the data set: it is `Draws.local_kl`, and `Draws.kl` is zero.

Source: Wei & Khardon, *Variational inference on the final-layer output of neural networks* (2024, arXiv 2302.02420), sections 2, B
and C. The softplus of the second half of the outputs is a standard deviation, not a variance (as in its theorem 4.5 and its code).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_fraction, check_nonnegative, check_rate, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.method import Method
from bayesify.core.output_layer import last_layer
from bayesify.errors import ConfigurationError
from bayesify.formatting import listing
from bayesify.functional import (
    at_least_float32,
    vifo_empirical_bayes,
    vifo_empirical_bayes_all,
    vifo_mean,
    vifo_mean_all,
    vifo_mean_variance,
    vifo_mean_variance_all,
    vifo_naive,
)
from bayesify.methods._moments_pass import MomentsPass
from bayesify.methods._vifo_root import RandomOutputs

__all__ = ["VIFO"]

_SMALLEST_STD = 1e-6
_REGULARIZERS = ("naive", "mean", "mean-variance", "empirical-bayes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VIFO(Method):
    """Random outputs: the last layer also returns their standard deviations, all other layers stay deterministic.

    `fit` weights the regularizer with `eta`. With `eta_aux` above zero it adds the regularizer at auxiliary inputs, one per
    example: uniform draws from the ranges of the training data, extended by half on both sides, or those of `fit(auxiliary=...)`.
    With a Gaussian likelihood, `fit` computes the expected log likelihood in closed form and draws nothing.

    Args:
        regularizer: which parameters of the prior are learned: none ("naive"), its mean, its mean and variances, or one variance;
            per example or ("-all") for the whole data set, from running averages.
        eta: weight of the regularizer; 1 gives the evidence lower bound, 0.1 is the paper's. Choose it on held-out data: too large
            a weight inflates all uncertainties. On MNIST and Fashion-MNIST 0.003 was best (`experiments/vifo`).
        eta_aux: weight of the regularizer at auxiliary inputs.
        prior_std: standard deviation of the outputs around the prior's mean, of "naive" and "mean"; None for 1 and sqrt(0.3).
        mean_prior_std: standard deviation of the prior's mean itself, of "mean"; None for sqrt(5.7).
        a, b: shape and scale of the inverse gamma prior of "mean-variance" and "empirical-bayes"; None for the paper's, (0.5,
            0.01) and (4.4798, 10).
        delta: of "mean-variance", how strongly means are drawn to zero, in (0, 1).
        head: name of the last layer; None for the last linear layer or convolution in module order.
        separate_std: whether a second network, initially a copy, returns the standard deviations; otherwise means and standard
            deviations share all layers but the last.
        initial_std: initial standard deviation of the outputs.
        link: function that makes standard deviations positive.
        momentum: weight of a batch in the running averages, after the first 1 / momentum batches.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(4, 3), VIFO())
        >>> draws = bnn(torch.zeros(5, 4), samples=10)
        >>> draws.outputs.shape, draws.kl, draws.local_kl.shape
        (torch.Size([10, 5, 3]), tensor(0.), torch.Size([5]))
    """

    family: ClassVar[str] = "Outputs"
    paper: ClassVar[str] = "Wei & Khardon 2024, arXiv 2302.02420"
    advice: ClassVar[str] = "Large networks and little time: any number of draws from one pass; choose eta on held-out rows."
    cost: ClassVar[str] = "1.2, 1.0; one pass"

    has_root: ClassVar[bool] = True
    keeps_weight: ClassVar[bool] = True

    regularizer: Literal[
        "naive", "mean", "mean-variance", "empirical-bayes", "mean-all", "mean-variance-all", "empirical-bayes-all"
    ] = "mean"
    eta: float = 0.1
    eta_aux: float = 0.0
    prior_std: float | None = None
    mean_prior_std: float | None = None
    a: float | None = None
    b: float | None = None
    delta: float = 0.1
    head: str | None = None
    separate_std: bool = False
    initial_std: float = 0.5
    link: Literal["softplus", "exp"] = "softplus"
    momentum: float = 0.01

    def __post_init__(self) -> None:
        check_choice("regularizer", self.regularizer, (*_REGULARIZERS, *(f"{name}-all" for name in _REGULARIZERS[1:])))
        check_choice("link", self.link, ("softplus", "exp"))
        for name in ("eta", "eta_aux"):
            check_nonnegative(name, getattr(self, name))
        for name in ("prior_std", "mean_prior_std", "a", "b", "delta", "initial_std", "momentum"):
            if getattr(self, name) is not None:
                check_scale(name, getattr(self, name))
        check_fraction("delta", self.delta)
        check_rate("momentum", self.momentum)
        if self.initial_std <= _SMALLEST_STD:
            raise ConfigurationError(f"initial_std must be above {_SMALLEST_STD}, got {self.initial_std!r}")

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        if self.head is None:
            last = last_layer(layers)
            return {} if last is None else {last: self}
        # also layers that cannot be made random: then bayesify reports why
        candidates = [name for name, layer in layers.items() if kind_of(layer).contracts]
        if self.head not in candidates:
            raise ConfigurationError(
                f"head must name a linear layer or convolution, got {self.head!r}; there are "
                f"{listing(map(repr, candidates)) or 'none'}"
            )
        return {self.head: self}

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return OutputPosterior(layer, self) if layer.contracts else None

    def root(self, net: nn.Module) -> RandomOutputs:
        return RandomOutputs(net, self)

    def penalty(self, mean: Tensor, std: Tensor, averages: Tensor | None) -> Tensor:
        """R, nats (B,), of outputs (B, *, K); `averages` (3, K) are those of mean, mean ** 2 and std ** 2 over the data set."""
        kind = self.regularizer.removesuffix("-all")
        if kind == "naive":
            return vifo_naive(mean, std, **self._given("prior_std"))
        if kind == "mean":
            given = self._given("prior_std", "mean_prior_std")
            return vifo_mean(mean, std, **given) if averages is None else vifo_mean_all(mean, std, averages[0], **given)
        if kind == "mean-variance":
            given = self._given("a", "b", "delta")
            if averages is None:
                return vifo_mean_variance(mean, std, **given)
            return vifo_mean_variance_all(mean, std, averages[1], averages[2], **given)
        given = self._given("a", "b")
        if averages is None:
            return vifo_empirical_bayes(mean, std, **given)
        return vifo_empirical_bayes_all(mean, std, averages[1], averages[2], **given)

    def _given(self, *names: str) -> dict[str, float]:
        """The fields of these names but for those that are None, for which the functions have the paper's values."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def initial_bias(self) -> float:
        """The value that the link maps to `initial_std`."""
        std = self.initial_std - _SMALLEST_STD
        return math.log(std) if self.link == "exp" else std + math.log(-math.expm1(-std))

    def std(self, raw: Tensor) -> Tensor:
        """Standard deviations of at least 1e-6, from the layer's second half of outputs."""
        raw = at_least_float32(raw)
        return _SMALLEST_STD + (raw.exp() if self.link == "exp" else F.softplus(raw))


class OutputPosterior(Posterior):
    """The last layer: point estimates of the weights of the means, and of a second set for the standard deviations.

    In passes of `RandomOutputs` the layer returns twice as many rows, means followed by raw standard deviations, so that what
    follows it (pooling, reshaping, moving classes last) applies to both. The standard deviations start constant: before training,
    uncertainty does not depend on the input.
    """

    means = ("weight",)
    needs_linearity = True

    def __init__(self, layer: BayesianLayer, method: VIFO) -> None:
        super().__init__()
        self.weight, self.bias = None, None
        if not method.separate_std:
            self.weight = nn.Parameter(torch.zeros_like(layer.weight))
            self.bias = nn.Parameter(
                torch.full_like(self.weight[:1].flatten()[:1].expand(layer.output_channels), method.initial_bias())
            )

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return at_least_float32(layer.weight.new_zeros(()))

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        x = layer.prepare(x)
        mean = layer.op(x, *self.mean(layer))
        current = layer.forward_pass
        if not isinstance(current, MomentsPass):
            return mean
        if current.probes:
            return torch.cat([probe(layer, mean) for probe in current.probes], current.batch_dim)
        if self.weight is None:
            return mean
        current.check_rows(mean)
        return torch.cat([mean, layer.op(x, self.weight, self.bias)], current.batch_dim)

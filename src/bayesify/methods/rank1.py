r"""Rank-1 factors on shared weights: Bayesian (`Rank1`), and an ensemble of them (`BatchEnsemble`).

$$W_k = W \circ s_k r_k^\top, \qquad y = \bigl(W (x \circ r_k)\bigr) \circ s_k + b,$$

with a shared weight W and bias b, and vectors r (inputs) and s (outputs) for each of K components. Each draw uses one component,
the same in all layers, because the vectors of a component are trained together. The draws of a call are spread evenly over the
components.

`Rank1`: the vectors of a component are normal, so the posterior of the network's vectors v = (r, s) is a mixture:

$$q(v) = \frac1K \sum_k N(v \mid \mu_k, \sigma_k^2), \qquad p(v) = N(1, \sigma_p^2), \qquad
  \mathrm{KL}(q \Vert p) \le \frac1K \sum_k \mathrm{KL}\bigl(N(\mu_k, \sigma_k^2) \Vert p\bigr).$$

The bound, which `kl` returns, is at most log K nats above the KL, for the whole network: it is the KL of component and vectors
together, with a uniform prior on the component. Dusenberry et al., *Efficient and scalable Bayesian neural nets with rank-1
factors* ([arXiv:2005.07186](https://arxiv.org/abs/2005.07186), 2020).

`BatchEnsemble`: vectors without noise or prior. Wen, Tran & Ba, *BatchEnsemble: an alternative approach to efficient ensemble and
lifelong learning* ([arXiv:2002.06715](https://arxiv.org/abs/2002.06715), 2020).

The papers start the vectors with random signs, which discards the function of a given network; here they start near 1. The
components share the biases.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_integer, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, dropout_kl, gaussian_kl_sum, standard_normal

__all__ = ["BatchEnsemble", "Rank1"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank1(Method):
    r"""Normal factors of the inputs and outputs of linear layers and convolutions, in several components.

    The component is drawn once per draw, the factors given the component per example, the same at every position.

    Args:
        components: K, the number of components.
        prior_std: $\sigma_p$, standard deviation of the prior on factors, whose mean is 1.
        initial_std: initial posterior standard deviation of a component.
        spread: initial standard deviation of the components' means around 1.
        weight_prior_std: standard deviation of a normal prior on the shared weights and biases, which are point estimates; None
            for a flat one.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(3, 2), Rank1())
        >>> [tuple(p.shape) for p in bnn.parameters()]
        [(2, 3), (2,), (4, 3), (4, 3), (4, 2), (4, 2)]
    """

    family: ClassVar[str] = "Ensembles"
    paper: ClassVar[str] = "Dusenberry et al. 2020, arXiv 2005.07186"
    advice: ClassVar[str] = "A Bayesian BatchEnsemble: uncertain factors, deterministic weights."
    cost: ClassVar[str] = "1.8, 1.2; S passes"

    components: int = 4
    prior_std: float = 0.1
    initial_std: float = 0.05
    spread: float = 0.1
    weight_prior_std: float | None = None

    def __post_init__(self) -> None:
        check_integer("components", self.components)
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)
        _check_spread_and_prior(self.spread, self.weight_prior_std)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return RankOnePosterior(self, layer) if layer.contracts else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Method):
    """An ensemble of networks that share their weights, up to factors of the inputs and outputs of every layer.

    Args:
        components: K, the number of members. Train with `samples=K`, which trains every member in every step.
        spread: initial standard deviation of the factors around 1.
        weight_prior_std: as in `Rank1`.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), BatchEnsemble(components=4))
        >>> bnn(torch.ones(2, 3), samples=8).outputs.unique(dim=0).shape  # two draws of every member
        torch.Size([4, 2, 1])
    """

    family: ClassVar[str] = "Ensembles"
    paper: ClassVar[str] = "Wen, Tran & Ba 2020, arXiv 2002.06715"
    advice: ClassVar[str] = "An ensemble in nearly the memory of one network."
    cost: ClassVar[str] = "1.5, 1.1; one pass per component"

    components: int = 4
    spread: float = 0.5
    weight_prior_std: float | None = None

    def __post_init__(self) -> None:
        check_integer("components", self.components)
        _check_spread_and_prior(self.spread, self.weight_prior_std)

    @property
    def is_random(self) -> bool:
        return self.components > 1

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return RankOnePosterior(self, layer) if layer.contracts else None


class RankOnePosterior(Posterior):
    """Factors of inputs (K, I) and outputs (K, O), with log standard deviations in `Rank1`; the layer's weight is shared."""

    draws_jointly = True

    input_mean: Tensor
    output_mean: Tensor
    input_log_std: Tensor | None
    output_log_std: Tensor | None

    def __init__(self, method: Rank1 | BatchEnsemble, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.is_random = method.is_random
        for name, size in (("input", layer.input_channels), ("output", layer.output_channels)):
            mean = 1 + method.spread * torch.randn(method.components, size)
            log_std = torch.full_like(mean, math.log(method.initial_std)) if isinstance(method, Rank1) else None
            self.register_parameter(f"{name}_mean", nn.Parameter(mean))
            self.register_parameter(f"{name}_log_std", None if log_std is None else nn.Parameter(log_std))

    def factors(self, layer: BayesianLayer, rows: int, draws: int | None = None) -> tuple[Tensor, Tensor]:
        """r (rows, I) and s (rows, O), all rows of draw 0 first, for the draws of the pass or a given number of draws."""
        # noise first, because a checkpoint that repeats it would not draw the component, which all layers share, again
        pairs = ((self.input_mean, self.input_log_std), (self.output_mean, self.output_log_std))
        noise = [None if log_std is None else standard_normal(rows, mean.shape[1], like=mean) for mean, log_std in pairs]
        position = layer.forward_pass.jointly(_COMPONENT, _spread_evenly)
        if draws not in (None, position.shape[0]):  # outside a pass
            position = _spread_evenly(draws)
        z = (position.to(self.input_mean.device) * self.method.components).long()
        r, s = (_factor(*pair, eps, z, rows) for pair, eps in zip(pairs, noise, strict=True))
        return r, s

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        bias = None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)
        return self._weight(layer, *self.factors(layer, samples, draws=samples)), bias

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        r, s = self.factors(layer, x.shape[0])
        return layer.scaled(layer.op_of_scaled(x, r, layer.weight, None), s, layer.bias)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return self._weight(layer, self.input_mean, self.output_mean).mean(0), layer.bias

    def kl(self, layer: BayesianLayer) -> Tensor:
        method = self.method
        total = dropout_kl(layer.weight, layer.bias, 0.0, method.weight_prior_std)
        if not isinstance(method, Rank1):
            return total
        for mean, log_std in ((self.input_mean, self.input_log_std), (self.output_mean, self.output_log_std)):
            assert log_std is not None
            each = gaussian_kl_sum(at_least_float32(mean), at_least_float32(log_std), 1.0, method.prior_std)
            total = total + each / method.components
        return total

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        return math.inf if isinstance(self.method, Rank1) else math.log(self.method.components)

    def _weight(self, layer: BayesianLayer, r: Tensor, s: Tensor) -> Tensor:
        """W times s and r, (S, *weight_shape)."""
        return layer.weight * (layer.over_weight(r) * layer.over_weight_outputs(s)).to(layer.weight.dtype)


_COMPONENT = "component of Rank1"  # the key under which all layers of a pass find its components


def _spread_evenly(samples: int) -> Tensor:
    """Uniform numbers in [0, 1), one per draw, at equal distances (systematic sampling); on the CPU for all devices."""
    return (torch.rand(1, device="cpu") + torch.arange(samples, device="cpu") / samples) % 1


def _factor(mean: Tensor, log_std: Tensor | None, eps: Tensor | None, z: Tensor, rows: int) -> Tensor:
    """Factors (rows, *) of components z (S,), with noise eps (rows, *)."""
    mean, draws = mean.index_select(0, z).unsqueeze(1), z.shape[0]
    if log_std is None or eps is None:
        return mean.expand(-1, rows // draws, -1).flatten(0, 1)
    std = log_std.exp().index_select(0, z).unsqueeze(1)
    return torch.addcmul(mean, std, eps.unflatten(0, (draws, -1))).flatten(0, 1)


def _check_spread_and_prior(spread: float, weight_prior_std: float | None) -> None:
    if spread != 0:
        check_scale("spread", spread)
    if weight_prior_std is not None:
        check_scale("weight_prior_std", weight_prior_std)

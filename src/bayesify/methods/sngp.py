r"""SNGP: a Gaussian process on the features of a deterministic network with bounded distances.

Liu, Lin, Padhy, Tran, Bedrax-Weiss & Lakshminarayanan, *Simple and principled uncertainty estimation with deterministic deep
learning via distance awareness* (2020, arXiv 2006.10108), section 3.

Hidden weights are $W \min(1, c / \lVert W\rVert_2)$, which bounds the distance of two features h of the last layer by a multiple
of the distance of the inputs. Residual blocks with c < 1 also bound it from below, as the paper requires; networks without skip
connections may map distant inputs to the same features. Each output k is a Gaussian process with an RBF kernel, by D random
features:

$$f_k = b_k + \phi(h)^\top \beta_k, \quad \phi(h) = \sqrt{2 / D}\,\cos(\Omega h + \gamma), \quad
  \Omega_{ij} \sim N(0, \ell^{-2}), \quad \gamma_i \sim U(0, 2\pi), \quad \beta_k \sim N(0, s^2 I)$$

with $\mathrm{E}\,\phi(h)^\top \phi(h') = \exp(-\lVert h - h'\rVert^2 / 2\ell^2)$. Training maximizes the posterior density of β,
together with the hidden weights. Then the posterior of β given all other weights is

$$\beta_k \sim N(\mu_k, P_k^{-1}), \qquad P_k = s^{-2} I + \sum_i \Lambda_{ik}\,\phi_i \phi_i^\top, \qquad
  \Lambda_{ik} = -\frac{\partial^2 \log p(y_i \mid f_i)}{\partial f_{ik}^2}$$

which is exact for normal noise, $\Lambda_k = \sigma_k^{-2}$, with $\mu_k = P_k^{-1} \sum_i \Lambda_{ik} (y_{ik} - b_k) \phi_i$.
For other likelihoods it is a Laplace approximation at the trained $\mu_k$, with $\Lambda = p (1 - p)$ for classes. As in the paper,
the outputs of classes are independent. For two classes with two outputs, this overestimates the variance of their difference by a
factor of up to two; use one output with `Bernoulli` instead.

Differences from the published code (google/edward2, `random_feature.py`):

- The precision is the sum over all training rows of the final network. The code's default is an exponential average over batches
  during training, divided by the batch size, which does not grow with the data and forgets the prior.
- $\Lambda$ is that of the likelihood. In the code it is 1 by default, that of normal noise, and always with several classes.
- The code's scaled features have the factor $2 / \sqrt D$ instead of $\sqrt{2 / D}$, which doubles the kernel.
- The code normalizes the features h by default (`LayerNormalization`).
- Predictions average draws of the outputs; the code divides the logits by a factor (mean-field approximation).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.call_arguments import arguments_of
from bayesify.core.checks import check_integer, check_scale
from bayesify.core.completion import CompletedPosterior
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.core.modes import eval_mode, without_autocast
from bayesify.core.output_layer import last_layer
from bayesify.errors import ConfigurationError
from bayesify.functional import dropout_kl, standard_normal
from bayesify.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["SNGP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SNGP(Method):
    r"""Spectral-normalized neural Gaussian process: the last layer is a Gaussian process, the hidden layers have bounded norms.

    The last linear layer is replaced with random features and their weights; all other linear layers and convolutions get
    `SpectralNorm(max_norm)`. The posterior is made after training, in one pass over the data; it needs the likelihood `Gaussian`,
    `Categorical`, `Bernoulli` or `Poisson`. One prediction takes one pass through the network, and memory is K D^2 for K outputs.
    With patterns, name the last layer: `bayesify(net, {"head": SNGP(), "*": SpectralNorm()})`.

    Args:
        features: D, the number of random features. The kernel has an error of the order sqrt(2 / D).
        length_scale: $\ell$ of the kernel, in units of the features h.
        prior_std: s, the prior standard deviation of the outputs.
        max_norm: c, the largest spectral norm of a hidden weight.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        >>> bnn = bayesify(net, SNGP(features=128, length_scale=0.5))
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=40, learning_rate=0.01, accelerator="cpu")
        >>> inside, outside = predict(bnn, torch.tensor([[0.5], [9.0]]), Gaussian(std=0.1), samples=200, seed=0).epistemic
        >>> bool(outside > 10 * inside)
        True
    """

    family: ClassVar[str] = "After training"
    paper: ClassVar[str] = "Liu et al. 2020, arXiv 2006.10108"
    advice: ClassVar[str] = "Uncertainty that grows with the distance from the data, in one network."
    cost: ClassVar[str] = "1.4, 1.1; one pass"

    features: int = 512
    length_scale: float = 1.0
    prior_std: float = 1.0
    max_norm: float = 0.95

    def __post_init__(self) -> None:
        check_integer("features", self.features)
        for name in ("length_scale", "prior_std", "max_norm"):
            check_scale(name, getattr(self, name))

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        bounded = Method.from_dict({"method": "SpectralNorm", "max_norm": self.max_norm})
        last = last_layer(layers)
        contracting = [name for name, layer in layers.items() if kind_of(layer).contracts]
        return {name: self if name == last else bounded for name in contracting}

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return RandomFeaturePosterior(self, layer) if isinstance(layer, OutputMajorLinear) else None

    def check_completion(self, likelihood: Likelihood, weighted: bool) -> None:
        _curvature(likelihood)

    def complete(
        self,
        bnn: Bayesian,
        names: Sequence[str],
        batches: Iterable[Any],
        likelihood: Likelihood,
        scale: float,
        advance: Callable[[float], object],
    ) -> None:
        if len(names) > 1:
            raise ConfigurationError(f"SNGP() makes one layer a Gaussian process, got {len(names)}: {', '.join(names)}")
        if bnn.batch_dim:
            raise ConfigurationError(f"SNGP() takes networks whose batch is the first dimension, got batch_dim={bnn.batch_dim}")
        layer = dict(bnn.random_layers())[names[0]]
        posterior = layer.posterior
        assert isinstance(posterior, RandomFeaturePosterior)
        curvature = _curvature(likelihood)
        outputs, d = posterior.weight.shape
        identity = torch.eye(d, dtype=torch.float64, device=posterior.weight.device)
        precision = (identity / self.prior_std**2).repeat(outputs, 1, 1)
        moment = precision.new_zeros(outputs, d)
        _, bias = posterior.trained(layer)
        for rows in _rows(bnn, names[0], posterior, batches):
            weights = scale * rows.weights * curvature(rows, likelihood)
            precision += (weights.T.unsqueeze(2) * rows.features).mT @ rows.features
            if isinstance(likelihood, Gaussian):
                moment += (weights * (rows.targets if bias is None else rows.targets - bias.detach())).T @ rows.features
        factor = torch.linalg.cholesky(precision)
        exact = torch.cholesky_solve(moment.unsqueeze(2), factor).squeeze(2)
        root = torch.linalg.solve_triangular(factor.mT, identity.expand_as(factor), upper=True)
        posterior.store(center=exact if isinstance(likelihood, Gaussian) else posterior.weight, root=root)
        advance(1.0)


class RandomFeaturePosterior(CompletedPosterior):
    """Normal weights (K, D) of random features; the layer keeps its bias.

    Attributes:
        weight: the trained weights.
        frequencies, phases: (D, H) and (D,), fixed.
        center: the posterior mean (K, D).
        root: (K, D, D), square roots of the covariances.
    """

    is_plain = False
    drops_weights = True
    means = ("weight",)
    frequencies: Tensor
    phases: Tensor
    center: Tensor
    root: Tensor

    def __init__(self, method: SNGP, layer: BayesianLayer) -> None:
        super().__init__(method, method.prior_std, ("center", "root"))
        outputs, inputs = layer.weight_shape
        self.weight = nn.Parameter(layer.weight.new_zeros(outputs, method.features), layer.weight.requires_grad)
        self.register_buffer("frequencies", torch.randn(method.features, inputs) / method.length_scale)
        self.register_buffer("phases", 2 * math.pi * torch.rand(method.features))
        layer.weight = None

    def features(self, h: Tensor) -> Tensor:
        """Random features (..., D) of h (..., H)."""
        angles = F.linear(h.to(self.frequencies.dtype), self.frequencies, self.phases)
        return math.sqrt(2 / len(self.phases)) * angles.cos()

    def outputs(self, layer: BayesianLayer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        with without_autocast(x.device):
            return layer.op(self.features(x), weight, bias).to(x.dtype)

    def trained(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return self.weight, None if layer.bias is None else layer.bias.to(self.weight.dtype)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.trained(layer)
        return self.center if self.is_complete else weight, bias

    def drawn(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        noise = standard_normal(len(self.root), samples, self.root.shape[1], like=self.root)
        weight, bias = self.mean(layer)
        drawn = weight + (noise @ self.root.mT).transpose(0, 1)
        return drawn, None if bias is None else bias.expand(samples, *bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return dropout_kl(self.weight, None, 0.0, self.prior_std)

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        """Only the bias can be that of the plain network."""
        super().adopt(layer, weight, bias)
        self.weight.zero_()

    def remark(self) -> str:
        return f"{len(self.phases)} random features"


class _Rows(NamedTuple):
    """Rows of a batch (R), in float64: features (R, D), outputs (R, K), weights (R, 1), and targets (R, K) or labels (R,)."""

    features: Tensor
    outputs: Tensor
    weights: Tensor
    targets: Tensor


@torch.no_grad()
def _rows(bnn: Bayesian, name: str, posterior: RandomFeaturePosterior, batches: Iterable[Any]) -> Iterator[_Rows]:
    """The rows of all batches, from the network in eval mode with the mean weights of all layers."""
    layers = dict(bnn.random_layers())
    means = {layer: layer.posterior.mean(layer) for layer in layers.values()}
    drawn = {layer: (w.unsqueeze(0), None if b is None else b.unsqueeze(0)) for layer, (w, b) in means.items()}
    calls: list[tuple[Tensor, Tensor]] = []

    def record(_: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
        calls.append((args[0], y))

    handle = layers[name].register_forward_hook(record)
    try:
        for inputs, y, *weights in batches:
            calls.clear()
            args, kwargs = arguments_of(inputs)
            with eval_mode(bnn.net):
                outputs = bnn.passes.run(ForwardPass(coherent=True, drawn=drawn), bnn.net, args, kwargs, alone=True)
            if len(calls) != 1 or not isinstance(outputs, Tensor) or not torch.equal(outputs.flatten(), calls[0][1].flatten()):
                raise ConfigurationError(
                    f"the outputs of the network must be those of {name!r}, which SNGP() made a Gaussian process, but it was "
                    f"called {len(calls)} times, or other operations follow; name the last layer by a pattern"
                )
            features, outputs = posterior.features(calls[0][0]).flatten(0, -2).double(), calls[0][1].flatten(0, -2).double()
            of_examples = weights[0].double() if weights and weights[0] is not None else features.new_ones(len(y))
            of_rows = of_examples.repeat_interleave(len(features) // len(y))
            targets = y.reshape(outputs.shape).double() if y.numel() == outputs.numel() else y.flatten()
            yield _Rows(features, outputs, of_rows.unsqueeze(1), targets)
    finally:
        handle.remove()


def _normal(rows: _Rows, likelihood: Gaussian) -> Tensor:
    return likelihood.std.double().square().reciprocal().expand(rows.outputs.shape)


def _categorical(rows: _Rows, likelihood: Categorical) -> Tensor:
    p = (rows.outputs / likelihood.temperature).softmax(-1)
    return (rows.targets != likelihood.ignore_index).unsqueeze(1) * p * (1 - p) / likelihood.temperature**2


def _bernoulli(rows: _Rows, likelihood: Bernoulli) -> Tensor:
    p = rows.outputs.sigmoid()
    return p * (1 - p)


def _poisson(rows: _Rows, likelihood: Poisson) -> Tensor:
    return (rows.outputs + likelihood.log_scale.double()).exp()


_CURVATURES: dict[type, Callable[[_Rows, Any], Tensor]] = {
    Gaussian: _normal,
    Categorical: _categorical,
    Bernoulli: _bernoulli,
    Poisson: _poisson,
}


def _curvature(likelihood: Likelihood) -> Callable[[_Rows, Any], Tensor]:
    """The function that gives the negative second derivatives of log likelihoods in their outputs, (R, K)."""
    if type(likelihood) not in _CURVATURES:
        raise ConfigurationError(
            f"SNGP() knows the likelihoods {', '.join(kind.__name__ for kind in _CURVATURES)}, got {type(likelihood).__name__}; "
            "use one of them, or another method such as SWAG()"
        )
    return _CURVATURES[type(likelihood)]

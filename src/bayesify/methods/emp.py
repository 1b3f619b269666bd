r"""Ensemble model patching: several components of a few layers, one of them drawn per pass.

Chang, Yao, Williams-King & Lipson, *Ensemble model patching: a parameter-efficient variational Bayesian neural network* (2019).

A patched layer has K components $M_k$ (weight and bias), mixed with probabilities p; the others are shared. EMP (equation 4) draws
one component per layer and draw, for weight, bias and the whole batch; ECMP (equation 5) one per element:

$$W = M_z, \quad z \sim \mathrm{Cat}(p) \qquad\text{or}\qquad W_j = M_{Z_j, j}, \quad Z_j \sim \mathrm{Cat}(p)$$

With the prior $N(0, \tau^{-1})$ on weights, $N(0, \rho^{-1})$ on biases, the KL is (equation 6)

$$\sum_{i\,\text{patched}}\sum_k p_{ik}\Bigl(\frac{\tau}{2}\lVert M_{ik}\rVert^2 + \frac{\rho}{2}\lVert m_{ik}\rVert^2\Bigr)
  + \sum_{i\,\text{shared}}\Bigl(\frac{\tau}{2}\lVert M_i\rVert^2 + \frac{\rho}{2}\lVert m_i\rVert^2\Bigr)
  + \sum_{i\,\text{patched}} n_i\,\mathrm{KL}(p_i \Vert \mathrm{uniform}),$$

where n is 1 for EMP and the number of elements for ECMP, up to a constant that diverges as the components' width goes to 0. The
last term is from the entropy of the choices, for components that do not overlap.

Dropout, DropConnect and explicit ensembles are of the same family (table 2): `MCDropout` mixes each input's weights with zero,
`DropConnect` each weight, and an explicit ensemble is EMP on all layers with one z for the whole network.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_integer, check_positive, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError, NothingRandomError
from bayesify.formatting import listing
from bayesify.functional import at_least_float32

__all__ = ["ECMP", "EMP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EMP(Method):
    r"""Several components of some layers, one drawn per layer and draw.

    `bayesify(net, EMP())` patches the layers of `where`; all other layers become point estimates under the prior unless it is flat.
    Layers that a pattern names, as in `{"head": EMP(), "features.*": MCDropout()}`, are patched regardless of `where`; in the same
    way groups of layers get different priors. The components replace `weight` and `bias`: load a plain checkpoint first.

    Args:
        components: K; 1 is a shared layer, a point estimate.
        where: the layers to patch, joined by "+": "bn" (all normalization layers), "out" (the last linear layer or convolution in
            module order), "in" (the first, or an embedding), or name patterns such as "layer4.*".
        spread: initial standard deviation of the components around the network's weights, in units of 1/sqrt(fan-in). With 0 the
            components diverge only by the different batches they are trained on.
        prior_std: standard deviation of the normal prior on weights, $\tau^{-1/2}$; None for a flat prior, which has no KL.
        bias_prior_std: that on biases, $\rho^{-1/2}$; "same" for `prior_std`.
        decay: "mixture" weights the squares of component k with its probability (equation 6), "plain" all of them with 1: one
            weight decay for all parameters, as in the paper's experiments, which is K times the precision for uniform mixtures.
        probabilities: p, K positive numbers that add up to 1; None for 1/K each.
        learn_probabilities: learn p, one per layer, starting from `probabilities`. With `elbo` its score-function gradient is
            unbiased; use several draws per step, which serve as each other's baseline.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        >>> print(summary(bayesify(net, EMP(components=4, prior_std=None))))
        layer  type         method  parameters  overhead  ensemble
        ----------------------------------------------------------
        0      Linear       -               32     +0.0%         1
        1      BatchNorm1d  EMP             64   +300.0%         4
        3      Linear       EMP             36   +300.0%         4
        ----------------------------------------------------------
        total                              132   +131.6%        16
        2 of 3 layers are random; KL 0.0 nats
        not converted:
          0 (Linear): EMP leaves it as it is
    """

    family: ClassVar[str] = "Ensembles"
    paper: ClassVar[str] = "Chang et al. 2019, arXiv 1905.09453"

    per_element: ClassVar[bool] = False

    components: int = 5
    where: str = "bn+out"
    spread: float = 0.1
    prior_std: float | None = 1.0
    bias_prior_std: float | Literal["same"] | None = "same"
    decay: Literal["mixture", "plain"] = "mixture"
    probabilities: tuple[float, ...] | None = None
    learn_probabilities: bool = False

    def __post_init__(self) -> None:
        check_integer("components", self.components)
        check_choice("decay", self.decay, ("mixture", "plain"))
        if not isinstance(self.where, str) or not all(self._terms()):
            raise ConfigurationError(f'where must be a string such as "bn+out" or "layer4.*", got {self.where!r}')
        if self.spread != 0:
            check_scale("spread", self.spread)
        for name in ("prior_std", "bias_prior_std"):
            value = getattr(self, name)
            if value == math.inf:  # for TOML, which has no null
                object.__setattr__(self, name, None)
            elif value is not None and (name, value) != ("bias_prior_std", "same"):
                check_scale(name, value)
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", tuple(self.probabilities))
            for p in self.probabilities:
                check_positive("probabilities", p)
            if len(self.probabilities) != self.components or abs(sum(self.probabilities) - 1) > 1e-6:
                raise ConfigurationError(
                    f"probabilities must be {self.components} numbers that add up to 1, got {self.probabilities!r}"
                )

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        patched = self._patched(layers)
        if not any(self.precisions()):
            return dict.fromkeys(patched, self)
        shared = self.replace(components=1, probabilities=None, learn_probabilities=False)
        return {name: self if name in patched else shared for name in layers}

    def build(self, layer: BayesianLayer) -> Posterior:
        return PatchPosterior(self, layer)

    @property
    def is_random(self) -> bool:
        return self.components > 1

    def precisions(self) -> tuple[float, float]:
        """Precisions of the priors on weights and on biases; 0 where the prior is flat."""
        bias_std = self.prior_std if self.bias_prior_std == "same" else self.bias_prior_std
        return _precision(self.prior_std), _precision(bias_std)

    def _terms(self) -> list[str]:
        return [term.strip() for term in self.where.split("+")]

    def _patched(self, layers: Mapping[str, nn.Module]) -> list[str]:
        """Names of the layers of `where`, in module order."""
        # also layers that cannot be patched: then bayesify reports why
        kinds = {name: kind_of(layer) for name, layer in layers.items()}
        contracting = [name for name, kind in kinds.items() if kind.contracts]
        entries = [name for name, layer in layers.items() if kinds[name].contracts or isinstance(layer, nn.Embedding)]
        groups = {"bn": [name for name, kind in kinds.items() if kind.normalizes], "in": entries[:1], "out": contracting[-1:]}
        chosen: set[str] = set()
        for term in self._terms():
            names = groups[term] if term in groups else [name for name in layers if fnmatchcase(name, term)]
            if not names and term not in groups:
                raise ConfigurationError(f"{term!r} in where={self.where!r} matches no layer; the layers are {_names(layers)}")
            chosen.update(names)
        if not chosen:
            raise NothingRandomError(
                f"{type(self).__name__}(where={self.where!r}) matches no layer; the layers are {_names(layers)}"
            )
        return [name for name in layers if name in chosen]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ECMP(EMP):
    """Ensemble cross model patching: like `EMP`, with an independent choice of component for every element of weight and bias.

    Example:
        >>> bnn = bayesify(nn.Linear(2, 1), ECMP(components=3))
        >>> round(math.exp(summary(bnn).log_ensemble))  # 3 to the power of 3 elements
        27
    """

    per_element: ClassVar[bool] = True


class PatchPosterior(Posterior):
    """K components of weight and bias, (K, *weight_shape) and (K, *bias_shape); with K = 1 those of the layer."""

    means = ("weight", "bias")

    weight: Tensor | None
    bias: Tensor | None
    logits: Tensor | None

    def __init__(self, method: EMP, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.is_random = patched = method.components > 1
        for name in ("weight", "bias"):
            center: Tensor | None = getattr(layer, name)
            components = _spread(center, layer, method) if patched and center is not None else None
            self.register_parameter(name, components)
            if components is not None:
                setattr(layer, name, None)
        learned = patched and method.learn_probabilities
        self.register_parameter("logits", nn.Parameter(torch.tensor(_probabilities(method)).log()) if learned else None)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self._components(layer)
        if self.weight is None:
            return weight.expand(samples, *weight.shape[1:]), None if bias is None else bias.expand(samples, *bias.shape[1:])
        if not self.method.per_element:
            z = self._choose(layer, (samples,))
            return weight.index_select(0, z), None if bias is None else bias.index_select(0, z)
        weight = weight.gather(0, self._choose(layer, (samples, *weight.shape[1:])))
        return weight, None if bias is None else bias.gather(0, self._choose(layer, (samples, *bias.shape[1:])))

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        return layer.prepared_op(x, layer.weight, layer.bias) if self.weight is None else super().forward(layer, x)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        if self.weight is None:
            return layer.weight, layer.bias
        weight, bias = self._components(layer)
        p = self._probabilities(weight).to(weight)
        return torch.tensordot(p, weight, 1), None if bias is None else torch.tensordot(p, bias, 1)

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        for components, mean in ((self.weight, weight), (self.bias, bias)):
            if components is not None and mean is not None:
                components.copy_(_spread(mean, layer, self.method))

    def kl(self, layer: BayesianLayer) -> Tensor:
        method = self.method
        weight, bias = self._components(layer)
        total, p = at_least_float32(weight.new_zeros(())), None
        if self.logits is not None or method.probabilities is not None:
            p = self._probabilities(weight)
            choices = _elements(layer) if method.per_element else 1
            total = choices * (p * (p * len(p)).log()).sum()
        for components, precision in zip((weight, bias), method.precisions(), strict=True):
            if components is None or not precision:
                continue
            squares = at_least_float32(components).square()
            if p is None or method.decay == "plain":
                share = 1 if method.decay == "plain" else len(weight)
                total = total + precision / (2 * share) * squares.sum()
            else:
                total = total + precision / 2 * (squares.flatten(1).sum(1) @ p)
        return total

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        return math.log(self.method.components) * (_elements(layer) if self.method.per_element else 1)

    def _components(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """(K, *weight_shape) and (K, *bias_shape)."""
        if self.weight is not None:
            return self.weight, self.bias
        return layer.weight.unsqueeze(0), None if layer.bias is None else layer.bias.unsqueeze(0)

    def _probabilities(self, like: Tensor) -> Tensor:
        """p (K,), at least float32."""
        if self.logits is not None:
            return at_least_float32(self.logits).softmax(0)
        return torch.tensor(_probabilities(self.method), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)

    def _choose(self, layer: BayesianLayer, shape: tuple[int, ...]) -> Tensor:
        """Independent component indices of a shape (S, ...)."""
        method, device = self.method, next(self.parameters()).device
        if self.logits is None:
            if method.probabilities is None:
                return torch.randint(method.components, shape, device=device)
            return _categorical(shape, itertools.accumulate(method.probabilities[:-1]), device)
        log_p = at_least_float32(self.logits).log_softmax(0)
        z = _categorical(shape, log_p.detach().exp().cumsum(0)[:-1].unbind(), device)
        layer.forward_pass.choose(log_p.index_select(0, z.flatten()).reshape(shape[0], -1).sum(1))
        return z


def _spread(center: Tensor, layer: BayesianLayer, method: EMP) -> nn.Parameter:
    """K components around a weight or bias; the padding vector of an embedding stays zero."""
    noise = torch.randn(method.components, *center.shape, dtype=center.dtype, device=center.device)
    noise = noise * (method.spread / math.sqrt(layer.fan_in))
    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
        noise[:, layer.padding_idx] = 0
    return nn.Parameter(center.detach() + noise)  # trained even where the layer is frozen: else the draws would stay noise


def _categorical(shape: tuple[int, ...], bounds: Iterable[float | Tensor], device: torch.device) -> Tensor:
    """Categories 0, 1, ...: the number of bounds (cumulative probabilities, without the last) that uniform noise exceeds."""
    u, z = torch.rand(shape, device=device), torch.zeros(shape, dtype=torch.long, device=device)
    for bound in bounds:
        z = z + (u >= bound)
    return z


def _precision(std: float | None) -> float:
    return 0.0 if std is None else std**-2


def _probabilities(method: EMP) -> tuple[float, ...]:
    return method.probabilities or (1 / method.components,) * method.components


def _elements(layer: BayesianLayer) -> int:
    return math.prod(layer.weight_shape) + (0 if layer.bias_shape is None else math.prod(layer.bias_shape))


def _names(layers: Mapping[str, nn.Module]) -> str:
    return listing(f"{name!r} ({type(layer).__name__})" for name, layer in layers.items()) or "none"

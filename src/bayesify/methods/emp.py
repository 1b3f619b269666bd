r"""Ensemble model patching: a few copies of a few layers, one of them drawn per pass.

Chang, Yao, Williams-King & Lipson, *Ensemble model patching: a parameter-efficient variational Bayesian neural network* (2019).

A patched layer has K components $M_k$ (weight and bias), mixed with probabilities p; the others are shared. EMP (equation 4) draws
one component per layer and draw, for weight, bias and the whole batch; ECMP (equation 5) one per element:

$$W = M_z, \quad z \sim \mathrm{Cat}(p) \qquad\text{or}\qquad W_j = M_{Z_j, j}, \quad Z_j \sim \mathrm{Cat}(p)$$

With the prior $N(0, \tau^{-1})$ on weights, $N(0, \rho^{-1})$ on biases, the KL's part that the means decide is (equation 6)

$$\sum_{i\,\text{patched}}\sum_k p_{ik}\Bigl(\frac{\tau}{2}\lVert M_{ik}\rVert^2 + \frac{\rho}{2}\lVert m_{ik}\rVert^2\Bigr)
  + \sum_{i\,\text{shared}}\Bigl(\frac{\tau}{2}\lVert M_i\rVert^2 + \frac{\rho}{2}\lVert m_i\rVert^2\Bigr)
  + \sum_{i\,\text{patched}} n_i\,\mathrm{KL}(p_i \Vert \mathrm{uniform}),$$

where n is 1 for EMP and the number of elements for ECMP. The last term is what the entropy of the choices adds where components do
not overlap; the rest of the KL is a constant that grows without limit as their width goes to 0, and is left out.

Dropout, DropConnect and the explicit ensemble are of the same family (table 2): `MCDropout` mixes each input's weights with zero,
`DropConnect` each weight, and an explicit ensemble is EMP on all layers with one z for the whole net, which is K nets.
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

from bayesify.core.checks import check_choice, check_integer, check_positive
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.method import Method
from bayesify.errors import NothingRandomError
from bayesify.functional import at_least_float32

__all__ = ["ECMP", "EMP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EMP(Method):
    """Several components of some layers, one drawn per layer and draw.

    `bayesify(net, EMP())` patches what `where` says and, unless the prior is flat, puts it on all other layers as well; one that a
    pattern names, as in `{"head": EMP(), "features.*": MCDropout()}`, is patched in any case. Give a group of layers precisions of
    its own in the same way. The components take the place of `weight` and `bias`: load a plain checkpoint first.

    Args:
        components: K; 1 is a shared layer, a point estimate.
        where: the layers to patch, joined by "+": "bn" (all normalisation layers), "out" and "in" (the last layer that sums over
            inputs, and the first or an embedding, in the order they have in the net), or name patterns such as "layer4.*".
        spread: standard deviation of the components around the weights the net has when it is converted, in units of
            1/sqrt(fan-in); with 0, only the different batches they meet would separate them.
        tau: precision of the prior on weights; 0 for a flat one, without a part in the KL.
        rho: precision of the prior on biases; None for that on weights.
        decay: "mixture" weighs the squares of component k by its probability (equation 6), "plain" all of them by 1: one weight
            decay for all parameters, as in the paper's experiments, which is K times the precision for uniformly mixed layers.
        probabilities: p, K positive numbers that add up to 1; None for 1/K each.
        learn_probabilities: learn p, one per layer, from there on. Its gradient is unbiased, by the score function, for losses made
            with `elbo`; take several draws per step, which are each other's baseline.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        >>> print(summary(bayesify(net, EMP(components=4, tau=0.0))))
        layer  type         method  parameters  overhead  ensemble
        ----------------------------------------------------------
        0      Linear       -               32     +0.0%         1
        1      BatchNorm1d  EMP             64   +300.0%         4
        3      Linear       EMP             36   +300.0%         4
        ----------------------------------------------------------
        total                              132   +131.6%        16
        2 of 3 layers are random; KL 0.0 nats
        left as they were:
          0 (Linear): EMP leaves it as it is
    """

    per_element: ClassVar[bool] = False

    components: int = 5
    where: str = "bn+out"
    spread: float = 0.1
    tau: float = 1.0
    rho: float | None = None
    decay: Literal["mixture", "plain"] = "mixture"
    probabilities: tuple[float, ...] | None = None
    learn_probabilities: bool = False

    def __post_init__(self) -> None:
        check_integer("components", self.components)
        check_choice("decay", self.decay, ("mixture", "plain"))
        if not isinstance(self.where, str) or not all(self._terms()):
            raise ValueError(f'where must be text such as "bn+out" or "layer4.*", got {self.where!r}')
        for name, value in (("spread", self.spread), ("tau", self.tau), ("rho", self.tau if self.rho is None else self.rho)):
            if value != 0:
                check_positive(name, value)
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", tuple(self.probabilities))
            for p in self.probabilities:
                check_positive("probabilities", p)
            if len(self.probabilities) != self.components or abs(sum(self.probabilities) - 1) > 1e-6:
                raise ValueError(f"probabilities must be {self.components} numbers that add up to 1, got {self.probabilities!r}")

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
        """Those of the prior on weights and on biases."""
        return self.tau, self.tau if self.rho is None else self.rho

    def _terms(self) -> list[str]:
        return [term.strip() for term in self.where.split("+")]

    def _patched(self, layers: Mapping[str, nn.Module]) -> list[str]:
        """The names that `where` says, in the net's order."""
        # a subclass that cannot be patched is still the output layer: bayesify says why it stays as it is
        kinds = {name: kind_of(layer) for name, layer in layers.items()}
        contracting = [name for name, kind in kinds.items() if kind.contracts]
        entries = [name for name, layer in layers.items() if kinds[name].contracts or isinstance(layer, nn.Embedding)]
        groups = {"bn": [name for name, kind in kinds.items() if kind.normalizes], "in": entries[:1], "out": contracting[-1:]}
        chosen: set[str] = set()
        for term in self._terms():
            names = groups[term] if term in groups else [name for name in layers if fnmatchcase(name, term)]
            if not names and term not in groups:
                raise ValueError(f"no layer matches {term!r} in where={self.where!r}; the layers are {_listing(layers)}")
            chosen.update(names)
        if not chosen:
            raise NothingRandomError(
                f"{type(self).__name__} leaves all layers as they are: where={self.where!r} is none of {_listing(layers)}"
            )
        return [name for name in layers if name in chosen]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ECMP(EMP):
    """Ensemble cross model patching: as `EMP`, but every element of weight and bias is drawn from a component of its own.

    Example:
        >>> bnn = bayesify(nn.Linear(2, 1), ECMP(components=3))
        >>> round(math.exp(summary(bnn).log_ensemble))  # 3 to the power of 3 elements
        27
    """

    per_element: ClassVar[bool] = True


class PatchPosterior(Posterior):
    """K components of weight and bias, (K, *weight_shape) and (K, *bias_shape); a single one is the layer's own."""

    means = ("weight", "bias")

    weight: Tensor | None
    bias: Tensor | None
    logits: Tensor | None

    def __init__(self, method: EMP, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.is_random = patched = method.components > 1
        for name in ("weight", "bias"):
            own: Tensor | None = getattr(layer, name)
            components = _spread(own, layer, method) if patched and own is not None else None
            self.register_parameter(name, components)
            if components is not None:
                setattr(layer, name, None)
        learned = patched and method.learn_probabilities
        self.register_parameter("logits", nn.Parameter(torch.tensor(_shares(method)).log()) if learned else None)

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
        return torch.tensor(_shares(self.method), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)

    def _choose(self, layer: BayesianLayer, shape: tuple[int, ...]) -> Tensor:
        """Component numbers of that shape (S, ...), independent."""
        method, device = self.method, next(self.parameters()).device
        if self.logits is None:
            if method.probabilities is None:
                return torch.randint(method.components, shape, device=device)
            return _categorical(shape, itertools.accumulate(method.probabilities[:-1]), device)
        log_p = at_least_float32(self.logits).log_softmax(0)
        z = _categorical(shape, log_p.detach().exp().cumsum(0)[:-1].unbind(), device)
        layer.forward_pass.choose(log_p.index_select(0, z.flatten()).reshape(shape[0], -1).sum(1))
        return z


def _spread(own: Tensor, layer: BayesianLayer, method: EMP) -> nn.Parameter:
    """K components around a weight or bias; the padding vector of an embedding stays zero."""
    noise = torch.randn(method.components, *own.shape, dtype=own.dtype, device=own.device)
    noise = noise * (method.spread / math.sqrt(layer.fan_in))
    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
        noise[:, layer.padding_idx] = 0
    return nn.Parameter(own.detach() + noise, own.requires_grad)


def _categorical(shape: tuple[int, ...], bounds: Iterable[float | Tensor], device: torch.device) -> Tensor:
    """Numbers from 0 on, by the bounds (the cumulated probabilities, all but the last) that uniform noise exceeds."""
    u, z = torch.rand(shape, device=device), torch.zeros(shape, dtype=torch.long, device=device)
    for bound in bounds:
        z = z + (u >= bound)
    return z


def _shares(method: EMP) -> tuple[float, ...]:
    return method.probabilities or (1 / method.components,) * method.components


def _elements(layer: BayesianLayer) -> int:
    return math.prod(layer.weight_shape) + (0 if layer.bias_shape is None else math.prod(layer.bias_shape))


def _listing(layers: Mapping[str, nn.Module]) -> str:
    return ", ".join(f"{name!r} ({type(layer).__name__})" for name, layer in layers.items()) or "none"

r"""Ensemble model patching: several components of a few layers, one of which is used in a draw.

Chang, Yao, Williams-King & Lipson, *Ensemble model patching: a parameter-efficient variational Bayesian neural network* (2019).

A patched layer has K components $M_k$ (weight) and $m_k$ (bias) with probabilities p; all other layers are shared. In every draw,
EMP (equation 4) chooses one component per layer, for weight, bias and the whole batch; ECMP (equation 5) chooses one per element:

$$W = M_z, \quad z \sim \mathrm{Cat}(p) \qquad\text{or}\qquad W_j = M_{Z_j, j}, \quad Z_j \sim \mathrm{Cat}(p)$$

With the priors $N(0, \tau^{-1})$ on weights and $N(0, \rho^{-1})$ on biases, the KL is (equation 6)

$$\sum_{i\,\text{patched}}\sum_k p_{ik}\Bigl(\frac{\tau}{2}\lVert M_{ik}\rVert^2 + \frac{\rho}{2}\lVert m_{ik}\rVert^2\Bigr)
  + \sum_{i\,\text{shared}}\Bigl(\frac{\tau}{2}\lVert M_i\rVert^2 + \frac{\rho}{2}\lVert m_i\rVert^2\Bigr)
  + \sum_{i\,\text{patched}} n_i\,\mathrm{KL}(p_i \Vert \mathrm{uniform}),$$

up to a constant that diverges as the width of the components goes to 0, with $n_i = 1$ for EMP and the number of elements for ECMP.
The last term comes from the entropy of the choices, for components that do not overlap.

With `component_std`, sigma > 0, weights are drawn from the normals around components and shared weights (equations 1 and 3):

$$W = M_z + \sigma\epsilon,$$

which adds $\tfrac12 \sum_j(\tau\sigma^2 - 1 - \log\tau\sigma^2)$ to the KL, over all elements j of one component (with $\rho$ for
biases). This is the KL of weights and choices together, an upper bound on that of the weights: it is too large by at most log K
per choice, and with uniform p exact where all components are equal.

Dropout, DropConnect and explicit ensembles belong to the same family (table 2): `MCDropout` mixes the weights of each input with
zero, `DropConnect` each weight, and an explicit ensemble is EMP on all layers with one z for the whole network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from torch import nn

from bayesify.core.checks import check_choice, check_integer, check_positive, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.method import Method
from bayesify.core.output_layer import last_layer
from bayesify.errors import ConfigurationError, NothingRandomError
from bayesify.formatting import listing
from bayesify.methods._patches import PatchPosterior

__all__ = ["ECMP", "EMP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EMP(Method):
    r"""Ensemble model patching: several components of some layers, one chosen per layer and draw.

    `bayesify(net, EMP())` patches the layers of `where`. All other layers become point estimates with the same prior, or normals
    with `component_std`; with a flat prior they stay as they are. If a patched layer precedes a batch normalization, the running
    averages fit no single draw; `fit` warns, and `bayesify.train.ensemble_of_draws` gives better predictions. Layers that a
    pattern names, as in `{"head": EMP(), "features.*": MCDropout()}`, are patched regardless of `where`; patterns also give groups
    of layers different priors. The components replace `weight` and `bias`: load a plain checkpoint first.

    Args:
        components: K; 1 is a shared layer, a point estimate.
        where: the layers to patch, joined by "+": "bn" (all normalization layers), "out" (the last linear layer or convolution in
            module order), "in" (the first, or an embedding), or name patterns such as "layer4.*".
        spread: initial standard deviation of the components around the network's weights, in units of 1/sqrt(fan-in). With 0,
            components of `EMP` differ only through the batches that they are trained on.
        prior_std: standard deviation of the normal prior on weights, $\tau^{-1/2}$; None for a flat prior, which has no KL.
        bias_prior_std: that on biases, $\rho^{-1/2}$; "same" for `prior_std`.
        decay: "mixture" weights the squares of component k with its probability (equation 6); "plain" weights all with 1, as the
            paper's experiments do (one weight decay for all parameters). For uniform p this is K times the precision.
        probabilities: p, K positive numbers that add up to 1; None for 1/K each.
        component_std: sigma, standard deviation of the normals around components and shared weights; 0 for points, as in the
            paper's experiments.
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
    advice: ClassVar[str] = "Pretrained networks with batch normalization: components of a few layers, the rest stays."
    cost: ClassVar[str] = "1.2, 1.0; S passes"

    per_element: ClassVar[bool] = False

    components: int = 5
    where: str = "bn+out"
    spread: float = 0.1
    prior_std: float | None = 1.0
    bias_prior_std: float | Literal["same"] | None = "same"
    decay: Literal["mixture", "plain"] = "mixture"
    probabilities: tuple[float, ...] | None = None
    learn_probabilities: bool = False
    component_std: float = 0.0

    def __post_init__(self) -> None:
        check_integer("components", self.components)
        check_choice("decay", self.decay, ("mixture", "plain"))
        if not isinstance(self.where, str) or not all(self._terms()):
            raise ConfigurationError(f'where must be a string such as "bn+out" or "layer4.*", got {self.where!r}')
        if self.spread != 0:
            check_scale("spread", self.spread)
        if self.component_std != 0:
            check_scale("component_std", self.component_std)
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
        if not any(self.precisions()) and not self.component_std:
            return dict.fromkeys(patched, self)
        shared = self.replace(components=1, probabilities=None, learn_probabilities=False)
        return {name: self if name in patched else shared for name in layers}

    def output_layer(self, layers: Mapping[str, nn.Module]) -> str | None:
        return last_layer(layers) if "out" in self._terms() else None

    def build(self, layer: BayesianLayer) -> Posterior:
        return PatchPosterior(self, layer)

    @property
    def is_random(self) -> bool:
        return self.components > 1 or self.component_std > 0

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
        last = last_layer(layers)
        entries = [name for name, layer in layers.items() if kinds[name].contracts or isinstance(layer, nn.Embedding)]
        groups = {
            "bn": [name for name, kind in kinds.items() if kind.normalizes],
            "in": entries[:1],
            "out": [] if last is None else [last],
        }
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

    Args:
        components, where, spread, prior_std, bias_prior_std, decay, probabilities, component_std, learn_probabilities: as for
            `EMP`.

    Example:
        >>> bnn = bayesify(nn.Linear(2, 1), ECMP(components=3))
        >>> round(math.exp(summary(bnn).log_ensemble))  # 3 to the power of 3 elements
        27
    """

    advice: ClassVar[str] = "As EMP, with far more combinations of components."
    cost: ClassVar[str] = "1.2, 1.0; S passes"

    per_element: ClassVar[bool] = True


def _precision(std: float | None) -> float:
    return 0.0 if std is None else std**-2


def _names(layers: Mapping[str, nn.Module]) -> str:
    return listing(f"{name!r} ({type(layer).__name__})" for name, layer in layers.items()) or "none"

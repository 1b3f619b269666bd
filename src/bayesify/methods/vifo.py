r"""VIFO: variational inference on the final-layer output of a network, in one pass.

The net's last layer yields mean and standard deviation of its own outputs z, which are random; the weights are not:

$$q(z \mid x) = N(\mu(x), \mathrm{diag}(s(x)^2)), \qquad
\min \sum_x \mathrm{E}_q[-\log p(y \mid z)] + \eta R(x) + \eta_\mathrm{aux} R(x_\mathrm{aux})$$

R is the KL from a prior of z whose parameters are given or learned (`bayesify.functional.vifo_mean` and its like). It is paid once
per example and not divided by the size of the data set: `Draws.local_kl`, with `Draws.kl` zero.

Source: *Variational inference on the final-layer output of neural networks*, sections 2, B and C. The softplus of the second half
of the outputs is a standard deviation, not a variance (as in its theorem 4.5 and its code).
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesify.core.checks import check_choice, check_fraction, check_integer, check_positive
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.generators import noise_of_rank, own_noise
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.modes import can_compare, modes_kept
from bayesify.core.noise_free import NoiseFree
from bayesify.core.outputs import Draws, NormalOutputs
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

__all__ = ["VIFO", "RandomOutputs"]

_SMALLEST_STD = 1e-6
_INVERSE_GAMMA = {"mean-variance": (0.5, 0.01), "empirical-bayes": (4.4798, 10.0)}  # the paper's a and b, appendix D.2
_REGULARIZERS = ("naive", "mean", "mean-variance", "empirical-bayes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VIFO(Method):
    """Random outputs: the last layer gets a second half for their standard deviations, all other layers stay deterministic.

    `fit` weighs the regulariser with `eta` and, where `eta_aux` is above zero, also pays it at auxiliary inputs, one per example:
    uniform draws from the training data's ranges, half as wide again on both sides, or inputs of your own (`fit(auxiliary=...)`).
    Where the likelihood is Gaussian, `fit` takes the expected log likelihood in closed form and draws nothing.

    Args:
        regularizer: which parameters of the prior are learned: none, its mean, mean and variances, one variance; for every example
            by itself or ("-all") for the whole data set, from running averages.
        eta: weight of the regulariser; 1 gives the evidence lower bound, 0.1 is the paper's. Choose it on held-out data: too large
            a weight makes a net unsure of everything. On MNIST and Fashion-MNIST 0.003 was best (`experiments/vifo`).
        eta_aux: its weight at auxiliary inputs.
        prior_variance: of "naive".
        gamma, alpha: variances of "mean": of the outputs around the prior's mean, and of that mean.
        a, b: shape and scale of the inverse gamma prior of "mean-variance" and "empirical-bayes"; None for the paper's.
        delta: of "mean-variance", how strongly means are drawn to zero, in (0, 1).
        head: name of the last layer; None for the last linear layer or convolution in the net's order of modules.
        shared: whether mean and standard deviation share all layers but the last; False trains a second network for the latter,
            which starts as a copy.
        initial_std: standard deviation of the outputs at the start.
        link: what makes standard deviations positive.
        momentum: of the running averages: the weight of a batch, once 1 / momentum batches have been seen.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(4, 3), VIFO())
        >>> draws = bnn(torch.zeros(5, 4), samples=10)
        >>> draws.outputs.shape, draws.kl, draws.local_kl.shape
        (torch.Size([10, 5, 3]), tensor(0.), torch.Size([5]))
    """

    has_root: ClassVar[bool] = True

    regularizer: Literal[
        "naive", "mean", "mean-variance", "empirical-bayes", "mean-all", "mean-variance-all", "empirical-bayes-all"
    ] = "mean"
    eta: float = 0.1
    eta_aux: float = 0.0
    prior_variance: float = 1.0
    gamma: float = 0.3
    alpha: float = 5.7
    a: float | None = None
    b: float | None = None
    delta: float = 0.1
    head: str | None = None
    shared: bool = True
    initial_std: float = 0.5
    link: Literal["softplus", "exp"] = "softplus"
    momentum: float = 0.01

    def __post_init__(self) -> None:
        check_choice("regularizer", self.regularizer, (*_REGULARIZERS, *(f"{name}-all" for name in _REGULARIZERS[1:])))
        check_choice("link", self.link, ("softplus", "exp"))
        for name in ("eta", "eta_aux"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
        for name in ("prior_variance", "gamma", "alpha", "a", "b", "delta", "initial_std", "momentum"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_fraction("delta", self.delta)
        if self.momentum > 1:
            raise ValueError(f"momentum must be in (0, 1], got {self.momentum!r}")
        if self.initial_std <= _SMALLEST_STD:
            raise ValueError(f"initial_std must be above {_SMALLEST_STD}, got {self.initial_std!r}")

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        # a subclass that cannot be made random is still the last layer: bayesify says why it stays as it is
        outputs = [name for name, layer in layers.items() if kind_of(layer).contracts]
        if self.head is None:
            return dict.fromkeys(outputs[-1:], self)
        if self.head not in outputs:
            raise ValueError(
                f"head={self.head!r} is no linear layer or convolution; there are {', '.join(map(repr, outputs)) or 'none'}"
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
            return vifo_naive(mean, std, self.prior_variance)
        if kind == "mean":
            variances = self.gamma, self.alpha
            return vifo_mean(mean, std, *variances) if averages is None else vifo_mean_all(mean, std, averages[0], *variances)
        a, b = (given if given is not None else usual for given, usual in zip((self.a, self.b), _INVERSE_GAMMA[kind], strict=True))
        if kind == "mean-variance":
            if averages is None:
                return vifo_mean_variance(mean, std, a, b, self.delta)
            return vifo_mean_variance_all(mean, std, averages[1], averages[2], a, b, self.delta)
        if averages is None:
            return vifo_empirical_bayes(mean, std, a, b)
        return vifo_empirical_bayes_all(mean, std, averages[1], averages[2], a, b)

    def initial_bias(self) -> float:
        """What the link turns into `initial_std`."""
        std = self.initial_std - _SMALLEST_STD
        return math.log(std) if self.link == "exp" else std + math.log(-math.expm1(-std))

    def std(self, raw: Tensor) -> Tensor:
        """Standard deviations of at least 1e-6, from what the layer's second half says."""
        raw = at_least_float32(raw)
        return _SMALLEST_STD + (raw.exp() if self.link == "exp" else F.softplus(raw))


class _MomentsPass(ForwardPass):
    """A pass whose last layer returns its means and then what becomes the standard deviations, or `factor` times its means."""

    def __init__(self, batch_dim: int, factor: float | None = None) -> None:
        super().__init__()
        self.batch_dim, self.factor = batch_dim, factor


class OutputPosterior(Posterior):
    """The last layer: its weights are certain, and a second half of them says how uncertain its outputs are.

    Within a pass of `RandomOutputs` the layer returns twice as many rows: the means, then what becomes the standard deviations. So
    whatever follows it (pooling, reshaping, moving classes last) treats both alike. The second half starts constant, so that
    uncertainty does not depend on the input before training.
    """

    means = ("weight",)

    def __init__(self, layer: BayesianLayer, method: VIFO) -> None:
        super().__init__()
        self.weight, self.bias = None, None
        if method.shared:
            self.weight = nn.Parameter(torch.zeros_like(layer.weight))
            self.bias = nn.Parameter(torch.full_like(self.weight[:1].flatten()[:1].expand(width(layer)), method.initial_bias()))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return at_least_float32(layer.weight.new_zeros(()))

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        x = layer.prepare(x)
        mean = layer.op(x, *self.mean(layer))
        asked = layer.forward_pass
        if not isinstance(asked, _MomentsPass):
            return mean
        if asked.factor is not None:
            return asked.factor * mean
        return mean if self.weight is None else torch.cat([mean, layer.op(x, self.weight, self.bias)], asked.batch_dim)


class RandomOutputs(Bayesian):
    """Root of a network with normal outputs, of which any number of draws takes one pass.

    With `coherent=True` a draw has the same noise for every example and position: $z_s(x) = \\mu(x) + s(x) \\epsilon_s$.

    Attributes:
        averages: (3, K), running averages over the training data of mean, mean ** 2 and std ** 2, where the regulariser has them.
    """

    one_pass = True
    averages: Tensor | None
    batches: Tensor

    def __init__(self, net: nn.Module, method: VIFO) -> None:
        super().__init__(net)
        self.method = method
        self.head_is_last = False
        self.local_beta, self.auxiliary_beta = method.eta, method.eta_aux
        self.second: nn.Module | None = None
        sites = [layer for _, layer in self.random_layers()]
        if len(sites) != 1:
            raise ValueError("VIFO needs all layers but the last deterministic, and stands alone in a bayesify call")
        if not method.shared:
            self.second = copy.deepcopy(net, {id(sites[0].passes): sites[0].passes})
            last = next(module for module in self.second.modules() if isinstance(module, BayesianLayer))
            with torch.no_grad():
                last.weight.zero_()
                last.bias = nn.Parameter(last.weight.new_full((width(last),), method.initial_bias()))
        averages = last_batches = None
        if method.regularizer.endswith("-all"):
            averages = at_least_float32(sites[0].weight.new_zeros(3, width(sites[0])))
            last_batches = averages.new_zeros(())
        self.register_buffer("averages", averages)
        self.register_buffer("batches", last_batches)

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        check_integer("samples", samples)
        with noise_of_rank(self.net, self.training):
            return self._draws(inputs, kwargs, samples, coherent)

    def _draws(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], samples: int, coherent: bool) -> Draws:
        mean, std = self._moments(inputs, kwargs)
        shape = (samples, *(1 for _ in mean.shape[:-1]), mean.shape[-1]) if coherent else (samples, *mean.shape)
        if coherent and mean.dim() == 1:
            shape = (samples, 1)
        noise = torch.randn(shape, dtype=mean.dtype, device=mean.device)
        outputs = mean + std.to(mean.dtype) * noise
        return Draws(outputs, self.kl_of_pass({}), self._penalty(mean, std), local_beta=self.local_beta)

    def normal_outputs(self, *inputs: Any, **kwargs: Any) -> NormalOutputs:
        mean, std = self._moments(inputs, kwargs)
        return NormalOutputs(at_least_float32(mean), std, self.kl(), self._penalty(mean, std), self.local_beta)

    def function(self, seed: int) -> Callable[..., Any]:
        check_integer("seed", seed, least=0)

        def apply(*inputs: Any, **kwargs: Any) -> Tensor:
            mean, std = self._moments(inputs, kwargs)
            # No PyTorch generator, which torch.func.vmap would have to split
            numbers = random.Random(seed)
            noise = [numbers.gauss(0.0, 1.0) for _ in range(mean.shape[-1] if mean.dim() > 1 else 1)]
            return mean + std.to(mean.dtype) * torch.tensor(noise, dtype=mean.dtype, device=mean.device)

        return DrawnFunction(self, apply)

    def regularizer(self, *inputs: Any, **kwargs: Any) -> Tensor:
        with _running_statistics_kept(self):
            mean, std = self._moments(inputs, kwargs)
        return self.method.penalty(mean, std, self.averages)

    def _moments(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the outputs, (B, ...) both."""
        self._check_head(inputs, kwargs)
        if self.second is not None:
            mean, raw = (self._pass(net, inputs, kwargs) for net in (self.net, self.second))
            return mean, self.method.std(raw)
        both = self._pass(self.net, inputs, kwargs)
        batch = self.inputs_of(inputs, kwargs).batch
        if both.shape[0] != 2 * batch:
            raise ValueError(
                f"the net's output has {both.shape[0]} rows in dimension {self.batch_dim} for {batch} examples and should keep "
                f"the {2 * batch} rows of its last layer, the means and then the standard deviations; with VIFO(shared=False) a "
                "network of its own says the latter"
            )
        mean, raw = both.unflatten(0, (2, batch)).unbind(0)
        return mean, self.method.std(raw)

    def _pass(self, net: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], factor: float | None = None) -> Tensor:
        y = self.passes.run(_MomentsPass(self.batch_dim, factor), net, inputs, kwargs)
        if not isinstance(y, Tensor) or y.dim() <= self.batch_dim:
            got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise TypeError(f"VIFO needs a net that returns one tensor with the batch in dimension {self.batch_dim}, got {got}")
        return y.movedim(self.batch_dim, 0)

    def _check_head(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The first time, see that only reshaping and averages follow the last layer: means and raw standard deviations pass both.

        Raises:
            ValueError: the output is not proportional to what the last layer returns.
        """
        if self.head_is_last or not can_compare(self.net):
            return
        self.passes.check_free()
        call = self.inputs_of(inputs, kwargs)
        few = min(call.batch, 3) if call.can_be_cut else call.batch
        args, rest = call.map(lambda x: x.narrow(self.batch_dim, 0, few))
        with torch.no_grad(), own_noise(self.net.parameters()), modes_kept(self.net.modules()), NoiseFree(), _shifted(self.net):
            self.net.eval()
            one, two = (self._pass(self.net, args, rest, factor) for factor in (1.0, 2.0))
        error, scale = float((two - 2 * one).abs().max()), float(two.abs().max())
        if error > 0.02 * scale:
            raise ValueError(
                "something follows the last layer that does more than reshape or average (softmax, normalisation, a skip "
                "connection), but VIFO's random outputs are those of the last layer: let the net return its logits, or name the "
                "layer that makes the output, VIFO(head=...)"
            )
        self.head_is_last = True

    def _penalty(self, mean: Tensor, std: Tensor) -> Tensor:
        if self.averages is not None and self.training:
            self._observe(mean.detach(), std.detach())
        return self.method.penalty(mean, std, self.averages)

    def _observe(self, mean: Tensor, std: Tensor) -> None:
        """Bring the running averages up to date: plain averages of the batches so far, then exponential ones."""
        assert self.averages is not None
        if mean.shape[-1] != self.averages.shape[1]:
            raise ValueError(
                f"{self.method.regularizer!r} averages over the {self.averages.shape[1]} outputs of the last layer, but the net "
                f"returned {tuple(mean.shape)}; they must be its last dimension, or choose another regularizer"
            )
        mean, std = (at_least_float32(x).reshape(-1, x.shape[-1]) for x in (mean, std))
        batch = torch.stack([mean.mean(0), mean.square().mean(0), std.square().mean(0)]).to(self.averages.dtype)
        self.batches.add_(1)
        self.averages.add_((batch - self.averages) * self.batches.reciprocal().clamp_min(self.method.momentum))


def width(layer: Any) -> int:
    """How many outputs a linear layer or convolution has at every position."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


@contextmanager
def _shifted(net: nn.Module) -> Iterator[None]:
    """Running means are three standard deviations off inside, so that batch normalisation is not the identity before training."""
    norms = [norm for norm in net.modules() if isinstance(norm, _NormBase) and norm.running_mean is not None]
    kept = [norm._buffers["running_mean"] for norm in norms]
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm._buffers["running_mean"] = norm.running_mean - 3 * norm.running_var.sqrt()
    try:
        yield
    finally:
        for norm, mean in zip(norms, kept, strict=True):
            norm._buffers["running_mean"] = mean


@contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Normalise by the running statistics inside, and leave them as they are."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase) and part.training and part.track_running_stats]
    with modes_kept(norms):
        for norm in norms:
            norm.training = False
        yield

r"""Variational structured dropout: Gaussian dropout with noise that learned Householder reflections correlate.

Nguyen, Nguyen, Nguyen, Than, Bui & Ho, *Structured dropout variational inference for Bayesian neural networks* (2021).

$$y = (x \circ \xi)\,\Theta + b, \qquad \xi = 1 + U(\sqrt\alpha \circ \epsilon) \sim N(1, U\,\mathrm{diag}(\alpha)\,U^\top),
  \qquad U = H_T \cdots H_1,$$

with one draw of the K noise variables per example; $\Theta$ and b are point estimates. The Householder vectors come from a small
network, $v_{t+1} = \mathrm{FC}_t(v_t)$ with a free $v_1$. The KL (`vsd_kl`) does not depend on $\Theta$:

$$\mathrm{KL} = \frac{Q}{2} \sum_{i=1}^K \log\frac{1 + S_i}{\alpha_i}, \qquad S_i = \sum_k \alpha_k U_{ik}^2,
  \qquad Q = \text{weights per noise variable}.$$

The posterior is singular: K random numbers move a matrix of K x Q weights within the K-dimensional subspace
$\{\mathrm{diag}(\xi)\,\Theta\}$, with or without U, which only shapes the noise in it (unlike the paper claims). For Q > 1 its KL
from any normal prior is infinite, as is the mutual information of its columns that the paper's objective (5) adds back. The KL here
is that of the product of the columns' marginals, normals with full covariance matrices. So the objective is not a bound on the
evidence of the original prior; nor is that prior fixed, its precisions follow the weights (empirical Bayes).

With `hierarchical`, $y = (x \circ z \circ \xi)\,\Theta + b$ with $z_i \sim \mathrm{LogNormal}(g_i, d_i)$, and
$\frac Q2\sum_i(e^{g_i + d_i/2} - g_i - 1) + \sum_i\mathrm{KL}(q(z_i) \Vert p(z_i))$ is added to the KL (section 3.3).

The factor Q makes this KL large: Q times that of the noise alone, which is the KL of ARD variational dropout (appendix F). The
paper weights it with 0.1 to 0.5 in classification and 1e-5 to 1e-2 in regression (`beta` of `elbo` and `fit`). At the full weight
and with a prior on $\Theta$, weights may vanish: on two moons (`experiments/posterior/moons`) all predictions are then 0.5, and
with 0.1 they are close to those of the posterior. The KL does not limit the size of $\Theta$, so networks overfit small data sets:
`prior_std` gives $\Theta$ and b a normal prior, whose negative log density (without the constant) is added to the KL.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bayesify.core.checks import check_choice, check_integer, check_open_fraction, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.core.modes import without_autocast
from bayesify.functional import (
    CompactForm,
    at_least_float32,
    compact_form,
    dropout_kl,
    standard_normal,
    structured_noise,
    structured_noise_and_kl,
    vsd_hierarchical_kl,
    vsd_kl,
)
from bayesify.native.reflections import Connection

__all__ = ["VSD"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VSD(Method):
    r"""Variational structured dropout, for linear layers and convolutions.

    Args:
        transforms: T, the number of Householder reflections, up to 3. The paper finds larger T better, and recommends 1 or 2. 0 is
            independent noise, ARD variational dropout: $\mathrm{KL} = \frac Q2 \sum_i \log(1 + 1 / \alpha_i)$, and with
            `hierarchical` its form with a prior hierarchy (figure 2).
        rank: hidden units of the networks between successive vectors (K to rank, ReLU, rank to K), which cost O(rank K); None for
            full linear maps with K^2 parameters. The paper finds 2 to 10 equally good (table 8). No effect for T below 2.
        hierarchical: scale the noise by a log-normal z per noise variable, drawn once per sample for the whole batch (section 3.3).
        hyperprior: prior of z, "inverse-gamma", "gamma" or "half-cauchy".
        concentration: a of the hyperprior; no effect for the half-Cauchy.
        rate: b of the hyperprior; its mode is b / (a + 1) (inverse gamma) or (a - 1) / b (gamma), its median 1 / b (half-Cauchy).
        conv_noise: what a noise variable of a convolution multiplies, per example and the same at every position: "kernel" for one
            output channel before the bias, as in $W_{ijk} = \xi_k \Theta_{ijk}$ with k the kernel (section 3.4), or "input" for one
            input channel, as in linear layers (images have only one or three). "The number of channels" of appendix D may mean
            either.
        p: initial dropout rate in (0, 1): alpha starts at p / (1 - p). Unlike in variational dropout, alpha is not bounded.
        initial_scale_std: initial standard deviation of log z; z starts around 1.
        prior_std: standard deviation of a normal prior on Theta and b, which `beta` also weights; None for none, as in the paper.

    The paper puts no noise on the input of a network with a single input (appendix G.3); patterns leave layers out, as in
    `bayesify(net, {"2": VSD()})`.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(3, 2), VSD(transforms=1, p=0.5))
        >>> bnn(torch.ones(4, 3), samples=5).outputs.shape
        torch.Size([5, 4, 2])
        >>> bnn.kl()  # alpha = 1 in every direction, so U does not matter: 3 log 2
        tensor(2.0794, grad_fn=<SumBackward0>)
    """

    family: ClassVar[str] = "Dropout"
    paper: ClassVar[str] = "Nguyen et al. 2021, arXiv 2102.07927"
    advice: ClassVar[str] = (
        "Correlated dropout noise; the best RMSE of the dropouts on five of seven UCI tables. Choose beta on held-out rows."
    )
    cost: ClassVar[str] = "1.5, 1.2; S passes"

    transforms: Literal[0, 1, 2, 3] = 2
    rank: int | None = 10
    hierarchical: bool = False
    hyperprior: Literal["inverse-gamma", "gamma", "half-cauchy"] = "inverse-gamma"
    concentration: float = 2.0
    rate: float = 2.0
    conv_noise: Literal["kernel", "input"] = "kernel"
    p: float = 0.2
    initial_scale_std: float = 0.1
    prior_std: float | None = None

    def __post_init__(self) -> None:
        check_integer("transforms", self.transforms, least=0)
        check_choice("transforms", self.transforms, (0, 1, 2, 3))
        if self.rank is not None:
            check_integer("rank", self.rank)
        check_choice("hierarchical", self.hierarchical, (False, True))
        check_choice("hyperprior", self.hyperprior, ("inverse-gamma", "gamma", "half-cauchy"))
        check_choice("conv_noise", self.conv_noise, ("kernel", "input"))
        for name in ("concentration", "rate", "initial_scale_std"):
            check_scale(name, getattr(self, name))
        if self.prior_std is not None:
            check_scale("prior_std", self.prior_std)
        check_open_fraction("p", self.p, "; for no noise use Deterministic()")

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return StructuredDropoutPosterior(self, layer) if layer.contracts else None


class StructuredDropoutPosterior(Posterior):
    """The layer's weight times noise on its input channels or kernels; the parameters are those of the noise."""

    first_vector: Tensor | None
    log_scale_mean: Tensor
    log_scale_log_std: Tensor

    def __init__(self, method: VSD, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.of_kernels = isinstance(layer, _ConvNd) and method.conv_noise == "kernel"
        channels = layer.out_channels if isinstance(layer, _ConvNd) and self.of_kernels else layer.input_channels
        self.columns = math.prod(layer.weight_shape) // channels
        self.log_alpha = nn.Parameter(torch.full((channels,), math.log(method.p) - math.log1p(-method.p)))
        self.register_parameter("first_vector", nn.Parameter(torch.randn(1, channels)) if method.transforms else None)
        self.connections = nn.ModuleList(_connection(channels, method.rank) for _ in range(method.transforms - 1))
        if method.hierarchical:
            self.log_scale_mean = nn.Parameter(torch.zeros(channels))
            self.log_scale_log_std = nn.Parameter(torch.full((channels,), math.log(method.initial_scale_std)))

    def vectors(self) -> Tensor:
        """Householder vectors (T, K)."""
        if self.first_vector is None:
            return self.log_alpha.new_zeros(0, len(self.log_alpha))
        vectors: list[Tensor] = [self.first_vector]
        for connection in self.connections:
            vectors.append(connection(vectors[-1]))
        return torch.cat(vectors) if self.connections else self.first_vector

    def _connected_vectors(self) -> tuple[Tensor, list[Connection]]:
        """The first Householder vectors and the low-rank connections to the others."""
        if self.first_vector is None or self.method.rank is None:
            return self.vectors(), []
        pairs = ((inner, outer) for inner, _, outer in self.connections)  # pyright: ignore[reportGeneralTypeIssues]
        return self.first_vector, [(inner.weight, inner.bias, outer.weight, outer.bias) for inner, outer in pairs]

    def noise(self, layer: BayesianLayer, rows: int) -> Tensor:
        """xi (rows, K), in the parameters' dtype also under autocast, so that U is that of the KL.

        Reports the KL to passes that want it, which shares the reflections.
        """
        eps = standard_normal(rows, len(self.log_alpha), like=self.log_alpha)
        with without_autocast(self.log_alpha.device):
            wants_kl, kl = layer.forward_pass.wants_kl(), None
            if wants_kl and not self.method.hierarchical:
                vectors, connections = self._connected_vectors()
                noise, kl = structured_noise_and_kl(self.log_alpha, vectors, eps, self.columns, connections)
            else:
                form = compact_form(self.vectors())
                noise = structured_noise(self.log_alpha, form, eps)
                kl = self._kl_of_noise(form) if wants_kl else None
            if kl is not None:
                layer.forward_pass.kl(self, self._with_prior(layer, kl))
            return noise

    def scale(self, samples: int) -> Tensor:
        """z (samples, K)."""
        eps = standard_normal(samples, len(self.log_alpha), like=self.log_alpha)
        return torch.exp(self.log_scale_mean + self.log_scale_log_std.exp() * eps)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        factor = self.noise(layer, samples).to(layer.weight.dtype)
        if self.method.hierarchical:
            factor = factor * self.scale(samples)
        bias = None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)
        return layer.weight * self._over_weight(factor, layer), bias

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        if not self.method.hierarchical:
            return layer.weight, layer.bias
        factor = torch.exp(self.log_scale_mean + 0.5 * torch.exp(2 * self.log_scale_log_std))
        return layer.weight * self._over_weight(factor, layer), layer.bias

    def kl(self, layer: BayesianLayer) -> Tensor:
        return self._with_prior(layer, self._kl_of_noise(compact_form(self.vectors())))

    def _with_prior(self, layer: BayesianLayer, kl: Tensor) -> Tensor:
        if self.method.prior_std is None:
            return kl
        return kl + dropout_kl(layer.weight, layer.bias, 0.0, self.method.prior_std)

    def _kl_of_noise(self, form: CompactForm) -> Tensor:
        if not self.method.hierarchical:
            return vsd_kl(self.log_alpha, form, self.columns)
        variance = torch.exp(2 * at_least_float32(self.log_scale_log_std))
        hyperprior = (self.method.concentration, self.method.rate, self.method.hyperprior)
        return vsd_hierarchical_kl(self.log_alpha, form, self.columns, self.log_scale_mean, variance, *hyperprior)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        factor = self.noise(layer, x.shape[0])
        if self.method.hierarchical:
            z = layer.forward_pass.once(self, self.scale)  # one per pass, also if the module is used twice in it
            factor = (factor.unflatten(0, (len(z), -1)) * z.unsqueeze(1)).flatten(0, 1)
        if self.of_kernels:
            return layer.scaled(layer.op(x, layer.weight, None), factor, layer.bias)
        return layer.op_of_scaled(x, factor, layer.weight, layer.bias)

    def _over_weight(self, v: Tensor, layer: BayesianLayer) -> Tensor:
        """Shape v (..., K) to multiply the weight."""
        return layer.over_weight_outputs(v) if self.of_kernels else layer.over_weight(v)


def _connection(channels: int, rank: int | None) -> nn.Module:
    """FC, the map from one Householder vector to the next."""
    if rank is None:
        return _Affine(channels, channels)
    return nn.Sequential(_Affine(channels, rank), nn.ReLU(), _Affine(rank, channels))


class _Affine(nn.Module):
    """A linear map that policies for `nn.Linear` (FSDP, quantization) do not match."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear
        nn.init.uniform_(self.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

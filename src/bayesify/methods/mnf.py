r"""MNF: normal weights whose means are multiplied by random scales, with the distribution of a normalizing flow.

$$q(W \mid z) = \prod_{ij} N(W_{ij} \mid z_i M_{ij}, \sigma_{ij}^2), \qquad z = f_T(z_0), \quad z_0 \sim N(\mu_0, \sigma_0^2),$$

with one z per input of a linear layer, or per output channel (kernel) of a convolution, and masked flows f (`masked_flow`). The
marginal q(W) has no closed form. With an auxiliary distribution r(z | W), the KL has the bound

$$\mathrm{KL}(q(W) \Vert p(W)) \le \mathrm{E}_{q(W, z)}\bigl[\mathrm{KL}(q(W \mid z) \Vert p(W)) + \log q(z)
  - \log r(z \mid W)\bigr],$$

which `kl` estimates without bias from one draw. The bound exceeds the KL by
$\mathrm{E}_{q(W)} \mathrm{KL}(q(z \mid W) \Vert r(z \mid W))$. Here

$$\log q(z) = \log N(z_0 \mid \mu_0, \sigma_0^2) - \log|\det J_f|, \qquad
  \log r(z \mid W) = \log N(g(z) \mid \tilde\mu(W), \tilde\sigma^2(W)) + \log|\det J_g|,$$

with other masked flows g, and $\tilde\mu = a_1 + b_1 t$, $\log\tilde\sigma = a_2 + b_2 t$ for the number
$t = \mathrm{mean}_j \tanh(c^\top W_{\cdot j})$. Given z, the $c^\top W_{\cdot j}$ are independent normals, and are drawn as such.

Source: Louizos & Welling, *Multiplicative normalizing flows for variational Bayesian neural networks*
([arXiv:1703.01961](https://arxiv.org/abs/1703.01961), 2017). Where this differs:

- The determinant of g enters with a plus sign, because g maps z to the normal variable, and that of f with a minus sign.
- a is new: without it, r is centered on zero where W is uninformative, but z is near one.
- Masks alternate between the elements of z; the paper draws them at random. Biases are independent normals.
- Flows start as $z \mapsto \sigma z + 1 - \sigma$ with constant gates, which keeps the mean of W that of the network.
- Transposed convolutions have one z per input channel.
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
from bayesify.functional import at_least_float32, gaussian_kl_sum, local_reparameterization, masked_flow, standard_normal

__all__ = ["MNF"]

_KL_DRAWS = 8  # of z, in an estimate of the KL
_MEAN_PAIRS = 2**12  # antithetic pairs of draws of z, for the posterior mean
_OPEN_GATE = 3.0  # initial logit of the gates


@dataclasses.dataclass(frozen=True, kw_only=True)
class MNF(Method):
    r"""Normal weights with multiplicative scales from normalizing flows, for linear layers and convolutions.

    z is drawn per example, the same at every position of a sequence or image, and the weights with the local reparameterization.

    Args:
        flows: number of masked flows of q(z), and as many of r(z | W).
        flow_units: hidden units of the network in each flow.
        prior_std: standard deviation of the normal prior on weights and biases.
        initial_std: initial posterior standard deviation given z, in units of $1/\sqrt{\text{fan-in}}$.
        initial_z_std: initial standard deviation of $z_0$, whose mean starts at 1.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(3, 2), MNF())
        >>> bnn(torch.ones(4, 3), samples=5).outputs.shape
        torch.Size([5, 4, 2])
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Louizos & Welling 2017, arXiv 1703.01961"
    advice: ClassVar[str] = "A flexible posterior for small networks; slow, and its KL is a bound."
    cost: ClassVar[str] = "5.0, 2.9; S passes"

    flows: int = 2
    flow_units: int = 50
    prior_std: float = 1.0
    initial_std: float = 0.1
    initial_z_std: float = 0.1

    def __post_init__(self) -> None:
        check_integer("flows", self.flows)
        check_integer("flow_units", self.flow_units)
        for name in ("prior_std", "initial_std", "initial_z_std"):
            check_scale(name, getattr(self, name))

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return FlowPosterior(self, layer) if layer.contracts else None


class FlowPosterior(Posterior):
    """q(W | z), q(z) and r(z | W); M and the mean of the bias are the layer's own weight and bias."""

    bias_log_std: Tensor | None

    def __init__(self, method: MNF, layer: BayesianLayer) -> None:
        super().__init__()
        self.prior_std = method.prior_std
        self.of_kernels = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        self.axis = 0 if self.of_kernels else _input_axis(layer)
        size, log_std = layer.weight_shape[self.axis], math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        self.weight_log_std = nn.Parameter(torch.full(layer.weight_shape, log_std))
        bias_log_std = None if layer.bias_shape is None else nn.Parameter(torch.full(layer.bias_shape, log_std))
        self.register_parameter("bias_log_std", bias_log_std)
        self.z_mean = nn.Parameter(torch.ones(size))
        self.z_log_std = nn.Parameter(torch.full((size,), math.log(method.initial_z_std)))
        self.flows = MaskedFlows(size, method.flows, method.flow_units)
        self.auxiliary_flows = MaskedFlows(size, method.flows, method.flow_units)
        self.direction = nn.Parameter(torch.randn(size) / math.sqrt(size))  # c
        # a, b of the mean of r, then of its log standard deviation
        self.auxiliary_offset = nn.Parameter(torch.stack([self.z_mean.detach(), self.z_log_std.detach()]))
        self.auxiliary_slope = nn.Parameter(torch.zeros(2, size))

    def draw_z(self, samples: int, eps: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw z (S, K), from eps (S, K) if given; return it with eps and the log-determinants (S,), of at least float32."""
        mean, log_std = at_least_float32(self.z_mean), at_least_float32(self.z_log_std)
        if eps is None:
            eps = standard_normal(samples, mean.shape[0], like=mean)
        z, log_det = self.flows(torch.addcmul(mean, log_std.exp(), eps))
        return z, eps, log_det

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        mean = self._scaled(layer.weight, self.draw_z(samples)[0])
        eps = standard_normal(*mean.shape, like=mean)
        weight = torch.addcmul(mean, self.weight_log_std.exp(), eps)
        if layer.bias is None or self.bias_log_std is None:
            return weight, None
        eps = standard_normal(samples, *layer.bias.shape, like=layer.bias)
        return weight, torch.addcmul(layer.bias, self.bias_log_std.exp(), eps)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        z, squares = self.draw_z(x.shape[0])[0], layer.square(x)
        if self.of_kernels:
            y = layer.scaled(layer.op(x, layer.weight, None), z, layer.bias)
        else:
            y = layer.op_of_scaled(x, z, layer.weight, layer.bias)
        bias_variance = None if self.bias_log_std is None else torch.exp(2 * self.bias_log_std)
        return local_reparameterization(y, layer.op(squares, torch.exp(2 * self.weight_log_std), bias_variance))

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """The posterior mean, with the average of 8,192 fixed draws of z."""
        generator, like = torch.Generator().manual_seed(0), at_least_float32(self.z_mean)
        eps = torch.randn(_MEAN_PAIRS, like.shape[0], generator=generator, dtype=like.dtype, device="cpu").to(like.device)
        z, _, _ = self.draw_z(2 * _MEAN_PAIRS, torch.cat([eps, -eps]))
        return self._scaled(layer.weight, z.mean(0, keepdim=True)).squeeze(0), layer.bias

    def kl(self, layer: BayesianLayer) -> Tensor:
        """An unbiased estimate of the bound, with 8 draws of z."""
        weight, log_std = (at_least_float32(v).movedim(self.axis, 0).flatten(1) for v in (layer.weight, self.weight_log_std))
        z, eps, log_det = self.draw_z(_KL_DRAWS)
        # KL(q(W | z) || p): its mean parts are z^2 |M_i|^2 instead of |M_i|^2
        shifts = (z.square() @ weight.square().sum(1)).mean() / (2 * self.prior_std**2)
        total = gaussian_kl_sum(torch.zeros_like(log_std), log_std, 0.0, self.prior_std) + shifts
        # log q(z) - log r(z | W); the constants of the two normals cancel
        total = total - (0.5 * eps.square().sum(1) + log_det).mean() - at_least_float32(self.z_log_std).sum()
        c = at_least_float32(self.direction)
        variance = (torch.exp(2 * log_std) * c.square().unsqueeze(1)).sum(0)
        projected = (z * c) @ weight
        t = torch.tanh(local_reparameterization(projected, variance.expand_as(projected))).mean(1)
        offset, slope = at_least_float32(self.auxiliary_offset), at_least_float32(self.auxiliary_slope)
        mean, log_scale = (offset + t[:, None, None] * slope).unbind(1)
        base, auxiliary_log_det = self.auxiliary_flows(z)
        log_r = auxiliary_log_det - (log_scale + 0.5 * ((base - mean) * torch.exp(-log_scale)).square()).sum(1)
        total = total - log_r.mean()
        if layer.bias is None or self.bias_log_std is None:
            return total
        return total + gaussian_kl_sum(at_least_float32(layer.bias), at_least_float32(self.bias_log_std), 0.0, self.prior_std)

    def _scaled(self, weight: Tensor, z: Tensor) -> Tensor:
        """The weight times z (S, K), along its axis: (S, *weight_shape)."""
        shape = [n if i == self.axis else 1 for i, n in enumerate(weight.shape)]
        return weight * z.reshape(-1, *shape).to(weight.dtype)


class MaskedFlows(nn.Module):
    """T masked flows of K variables; each keeps every other variable, and the next one those that it changes."""

    def __init__(self, size: int, flows: int, units: int) -> None:
        super().__init__()
        self.hidden_weight = nn.Parameter(torch.randn(flows, units, size) / math.sqrt(size))
        self.hidden_bias = nn.Parameter(torch.zeros(flows, units))
        self.shift_weight = nn.Parameter(torch.zeros(flows, size, units))
        self.shift_bias = nn.Parameter(torch.ones(flows, size))
        self.gate_weight = nn.Parameter(torch.zeros(flows, size, units))
        self.gate_bias = nn.Parameter(torch.full((flows, size), _OPEN_GATE))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z (S, K) of at least float32 to its image (S, K), with log-determinants (S,)."""
        log_det, index = z.new_zeros(z.shape[0]), torch.arange(z.shape[1], device=z.device)
        layers = (self.hidden_weight, self.hidden_bias, self.shift_weight, self.shift_bias, self.gate_weight, self.gate_bias)
        for t, weights in enumerate(zip(*(layer.to(z.dtype) for layer in layers), strict=True)):
            z, each = masked_flow(z, ((index + t) % 2).to(z.dtype), weights[:2], weights[2:4], weights[4:])
            log_det = log_det + each
        return z, log_det


def _input_axis(layer: BayesianLayer) -> int:
    """The dimension of the weight that belongs to its input channels."""
    shape = layer.over_weight(torch.ones(layer.input_channels)).shape
    return next(i for i, (n, m) in enumerate(zip(shape, layer.weight_shape, strict=True)) if n == m == layer.input_channels)

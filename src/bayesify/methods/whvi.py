r"""Walsh-Hadamard variational inference (WHVI): the posterior of a D x D weight with O(D) parameters.

$$W = S_1 H \mathrm{diag}(g) H S_2, \qquad q(g) = N(\mu, \Sigma), \quad p(g) = N(0, \lambda I),$$

with the unnormalized Hadamard matrix H and optimized diagonal matrices $S_1$, $S_2$. By default every example has its own g:

$$y_b = S_1 H (g_b \circ H S_2 x_b),$$

which is the exact distribution of $W x_b$ (the paper's local reparameterization) at the cost of two fast transforms. Other shapes
are stacks of square blocks, cut to size (algorithm 1); vectors are reshaped into a square, with O(sqrt D) parameters.

Rossi, Marmin & Filippone, *Walsh-Hadamard variational inference for Bayesian deep learning* (2020). Details that the paper omits or
has wrong:

- $S_1$ and $S_2$ have no KL, so their scale and that of g are exchangeable: $\lambda$ only affects the initial W. g is stored in
  units of the prior's standard deviation, which keeps all parameters of the order of one.
- Blocks that share q(g) also share its draw; otherwise the KL would count once per block.
- With flows, $q(g)$ is the distribution of the last variable, and the KL has no closed form: it is the mean over $q_0$ of
  $\log q_0(z_0)$, less $\sum_k\log|\det J_k|$ and $\log p(z_K)$, and is estimated without bias.
- The distribution of W is not a matrix normal (`hadamard_second_moments`) and is never drawn as one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_integer, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.core.vector_distribution import VectorDistribution
from bayesify.errors import ConfigurationError, warn
from bayesify.functional import (
    Structure,
    at_least_float32,
    gaussian_kl_sum,
    hadamard_blocks,
    hadamard_product,
    hadamard_second_moments,
    standard_normal,
)
from bayesify.methods._hadamard_factors import projected_factors, random_factors
from bayesify.methods._square_blocks import SquareBlocks
from bayesify.native import hadamard_layer, runs_fused

__all__ = ["WHVI"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WHVI(Method):
    r"""Walsh-Hadamard structured weights for linear layers and convolutions, which replace the layer's weight.

    Linear layers draw g per example, the same at every position of a sequence. Convolutions and `noise="shared"` draw W once per
    sample for the whole batch, as are all biases (their noise is small, and a draw per example as expensive as that of g).

    Args:
        prior_std: $\sqrt\lambda$ of the prior on g.
        covariance: covariance of q(g), "diagonal" or "full" (Cholesky, $D(D + 1)/2$ parameters).
        flows: number of planar flows on g; 0 for a normal q(g).
        structure: structure of W, as in the paper's table 2.
        scales: "optimized" $S_1$, $S_2$, or "variational": normal and independent, with prior scales of their initial size.
        blocks: of a rectangular weight: each with its own g ("independent"), or all with the same ("tied", as in the paper).
        vectors: whether weights with a single row or column are a "square" (reshaped) or a "stack" of blocks.
        noise: "local" for one draw per example, "shared" for one per sample.
        initial: "random" for random signs and g, at the scale of He et al. (2015), without regard to the layer's weight;
            "pretrained" for the projection of that weight, whose relative error `summary` reports.
        initial_std: initial posterior standard deviation of g, in units of the prior's; of biases, in units of
            $1/\sqrt{\text{fan-in}}$.
        bias_prior_std: standard deviation of the normal prior on biases, whose posterior is an independent normal.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(128, 128, bias=False), WHVI())
        >>> sum(p.numel() for p in bnn.parameters()), bnn(torch.zeros(4, 128), samples=3).outputs.shape
        (512, torch.Size([3, 4, 128]))
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Rossi, Marmin & Filippone 2020, arXiv 1905.11248"
    advice: ClassVar[str] = "Very wide linear layers and little memory: a few vectors instead of a weight."
    cost: ClassVar[str] = "1.3, 1.4; S passes"

    prior_std: float = math.sqrt(1e-5)
    covariance: Literal["diagonal", "full"] = "diagonal"
    flows: int = 0
    structure: Structure = "S1HGHS2"
    scales: Literal["optimized", "variational"] = "optimized"
    blocks: Literal["independent", "tied"] = "independent"
    vectors: Literal["square", "stack"] = "square"
    noise: Literal["local", "shared"] = "local"
    initial: Literal["random", "pretrained"] = "random"
    initial_std: float = 0.03
    bias_prior_std: float = 1.0

    def __post_init__(self) -> None:
        check_choice("covariance", self.covariance, ("diagonal", "full"))
        check_choice("structure", self.structure, get_args(Structure))
        check_choice("scales", self.scales, ("optimized", "variational"))
        check_choice("blocks", self.blocks, ("independent", "tied"))
        check_choice("vectors", self.vectors, ("square", "stack"))
        check_choice("noise", self.noise, ("local", "shared"))
        check_choice("initial", self.initial, ("random", "pretrained"))
        check_integer("flows", self.flows, least=0)
        for name in ("prior_std", "initial_std", "bias_prior_std"):
            check_scale(name, getattr(self, name))
        if self.initial == "pretrained" and (self.structure != "S1HGHS2" or self.flows):
            raise ConfigurationError(
                f'initial="pretrained" requires structure="S1HGHS2" and flows=0, got structure={self.structure!r} and '
                f"flows={self.flows!r}"
            )

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return HadamardPosterior(self, layer) if layer.contracts else None


class HadamardPosterior(Posterior):
    """s1, s2 (K, D) of K blocks of size D, q(g), and log standard deviations of the bias, whose mean is the layer's own."""

    means = ("s1", "s2", "g.mean")

    s1: Tensor | None
    s2: Tensor | None
    s1_log_std: Tensor | None
    s2_log_std: Tensor | None
    bias_log_std: Tensor | None
    residual: Tensor | None

    def __init__(self, method: WHVI, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        rows, columns = layer.weight_shape[0], math.prod(layer.weight_shape[1:])
        self.blocks = SquareBlocks(rows, columns, reshaped=min(rows, columns) == 1 and method.vectors == "square")
        if method.initial == "pretrained":
            s1, s2, g, residual = projected_factors(method, self.blocks, layer.weight)
        else:
            s1, s2, g, residual = random_factors(method, self.blocks, layer.fan_in)
        self.register_buffer("residual", residual, persistent=residual is not None)
        self.drops_weights = method.initial == "random"
        self.g = VectorDistribution(g, method.initial_std, full=method.covariance == "full", flows=method.flows)
        for name, value, is_used in (("s1", s1, method.structure != "GH"), ("s2", s2, "S2" in method.structure)):
            self.register_parameter(name, nn.Parameter(value) if is_used else None)
            noisy = is_used and method.scales == "variational"
            log_std = math.log(method.initial_std) + value.abs().mean().clamp_min(1e-12).log()
            self.register_parameter(f"{name}_log_std", nn.Parameter(log_std.expand_as(value).clone()) if noisy else None)
            self.register_buffer(f"{name}_prior_std", value.square().mean().sqrt().clamp_min(1e-12) if noisy else None)
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        bias_log_std = None if layer.bias is None else nn.Parameter(torch.full_like(layer.bias.detach(), log_std))
        self.register_parameter("bias_log_std", bias_log_std)
        layer.weight = None  # replaced by this posterior
        has_default_options = method.structure == "S1HGHS2" and method.scales == "optimized" and method.covariance == "diagonal"
        is_stacked = not self.blocks.reshaped and len(g) == self.blocks.count
        self.is_fusible = has_default_options and not method.flows and is_stacked  # for the native operator

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        if self.method.structure != "S1HGHS2" or self.method.flows:
            warn(
                f"WHVI(structure={self.method.structure!r}, flows={self.method.flows}) cannot start from given weights: a layer "
                "keeps its random initial values and ignores the weight of the checkpoint"
            )
            return
        s1, s2, g, residual = projected_factors(self.method, self.blocks, weight)
        self.g.mean.copy_(g)
        for name, value in (("s1", s1), ("s2", s2)):
            getattr(self, name).copy_(value)
            if getattr(self, f"{name}_prior_std") is not None:
                getattr(self, f"{name}_prior_std").copy_(value.square().mean().sqrt().clamp_min(1e-12))
        self.residual = residual

    def remark(self) -> str:
        if self.residual is None:
            return "initialized at random, without regard to its previous weight"
        return "" if self.residual.is_meta else f"projected from its weight, relative error {float(self.residual):.1%}"

    def _scales(self, samples: int) -> tuple[Tensor | None, Tensor | None]:
        """s1 and s2, (K, D) if deterministic and (S, K, D) if random."""
        if self.method.scales == "optimized":
            return self.s1, self.s2
        pairs = ((self.s1, self.s1_log_std), (self.s2, self.s2_log_std))
        s1, s2 = (None if s is None else _draw(s, log_std, samples) for s, log_std in pairs)
        return s1, s2

    def weight(self, s1: Tensor | None, g: Tensor, s2: Tensor | None, layer: BayesianLayer) -> Tensor:
        """Weights (S, *weight_shape) of g (S, K or 1, D) and scales (K, D) or (S, K, D), linear in each of the three."""
        blocks = hadamard_blocks(g * self.method.prior_std, s1, s2, self.method.structure, *self.blocks.used)
        return self.blocks.join(blocks).reshape(-1, *layer.weight_shape)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        (s1, s2), (g, _) = self._scales(samples), self.g.draw(samples)
        bias = None if layer.bias is None else _draw(layer.bias, self.bias_log_std, samples)
        return self.weight(s1, g, s2, layer), bias

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        if self.method.noise == "shared" or not isinstance(layer, OutputMajorLinear):
            return super().forward(layer, x)
        y = self._fused(layer, x)
        if y is not None:
            return y
        bias = layer.bias
        bias = None if bias is None else _drawn(bias, self.bias_log_std, self._noise_of_bias(layer, bias))
        (s1, s2), (g, _) = self._scales(x.shape[0]), self.g.draw(x.shape[0])
        y = self._reshaped(x, s1, g, s2, layer) if self.blocks.reshaped else self._stacked(x, s1, g, s2)
        return y if bias is None else self._with_bias(y, bias)

    def _noise_of_bias(self, layer: BayesianLayer, bias: Tensor) -> Tensor:
        """The standard normal noise (S, O) of the bias of this pass."""
        return layer.forward_pass.once(self, lambda samples: standard_normal(samples, *bias.shape, like=bias))

    def _with_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        """Add a bias (S, O) to y (S*B, ..., O)."""
        bias = bias.to(y.dtype)
        if len(bias) == 1:
            return y + bias[0]
        return (y.unflatten(0, (len(bias), -1)) + bias.reshape(len(bias), *[1] * (y.dim() - 1), -1)).flatten(0, 1)

    def _reshaped(self, x: Tensor, s1: Tensor | None, g: Tensor, s2: Tensor | None, layer: BayesianLayer) -> Tensor:
        """W x with W materialized per example, for vectors; x (R, ..., I), scales (K, D) or (R, K, D)."""
        rows = x.reshape(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])
        return torch.bmm(rows, self.weight(s1, g, s2, layer).mT).reshape(*x.shape[:-1], self.blocks.rows)

    def _stacked(self, x: Tensor, s1: Tensor | None, g: Tensor, s2: Tensor | None) -> Tensor:
        """W x by fast transforms; x (R, ..., I), scales (K, D) or (R, K, D)."""
        positions, unit = (1,) * (x.dim() - 2), self.method.prior_std
        # scale by lambda where it takes the fewest products
        s1, g = (None, g * unit) if s1 is None else (_over(s1 * unit, positions), g)
        s2 = None if s2 is None else _over(s2, positions)
        x = self.blocks.pad_inputs(x).unsqueeze(-2)
        return self.blocks.join_outputs(hadamard_product(x, _over(g, positions), s1, s2, self.method.structure))

    def _fused(self, layer: BayesianLayer, x: Tensor) -> Tensor | None:
        """W x + b (R, O) by the native operator, with the noise that `_stacked` draws; None where it cannot be used."""
        if not self.is_fusible or x.dim() != 2 or x.shape[1] != self.blocks.columns:
            return None
        own: dict[str, Any] = self._parameters  # the attributes of a module take eight times as long to find
        modules: dict[str, Any] = self._modules
        bias = layer.bias
        try:
            g = modules["g"]._parameters
            parameters = own["s1"], own["s2"], g["mean"], g["log_std"]
            of_bias = () if bias is None else (bias, own["bias_log_std"])
        except KeyError:  # computed from others, as by `torch.nn.utils.parametrize`
            return None
        if not runs_fused(x, *parameters, *of_bias):
            return None
        if bias is not None:
            of_bias = *of_bias, self._noise_of_bias(layer, bias)
        y, kl = hadamard_layer(x, *parameters, None, of_bias, self.method.prior_std, self.blocks.rows, self.method.bias_prior_std)
        if kl is not None and layer.forward_pass.wants_kl():
            layer.forward_pass.kl(self, kl)
        return y

    def kl(self, layer: BayesianLayer) -> Tensor:
        total = self.g.kl()
        for s, log_std, prior_std in ((self.s1, "s1_log_std", "s1_prior_std"), (self.s2, "s2_log_std", "s2_prior_std")):
            if s is not None and self.method.scales == "variational":
                unit = at_least_float32(getattr(self, prior_std))
                total = total + gaussian_kl_sum(at_least_float32(s) / unit, at_least_float32(getattr(self, log_std)) - unit.log())
        if layer.bias is None:
            return total
        assert self.bias_log_std is not None
        mean, log_std = at_least_float32(layer.bias), at_least_float32(self.bias_log_std)
        return total + gaussian_kl_sum(mean, log_std, 0.0, self.method.bias_prior_std)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """The posterior mean: exact without flows, otherwise an average of 2 x 8,192 fixed draws."""
        return self.weight(self.s1, self.g.average().unsqueeze(0), self.s2, layer)[0], layer.bias

    def second_moments(self) -> tuple[Tensor, Tensor]:
        """Marginal second moments of rows and columns of every square block, before it is cut: `hadamard_second_moments`.

        Returns:
            U and V, (K, D, D).

        Raises:
            ConfigurationError: no closed form for this structure, scales or flows.
        """
        if self.method.structure != "S1HGHS2" or self.method.flows or self.method.scales != "optimized":
            raise ConfigurationError(f'second moments require structure="S1HGHS2", optimized scales, no flows, got {self.method}')
        assert self.s1 is not None
        assert self.s2 is not None
        factor = self.g.factor()
        return hadamard_second_moments(self.s1, self.s2, self.method.prior_std**2 * factor @ factor.mT)


def _draw(mean: Tensor, log_std: Tensor | None, samples: int) -> Tensor:
    return _drawn(mean, log_std, standard_normal(samples, *mean.shape, like=mean))


def _drawn(mean: Tensor, log_std: Tensor | None, eps: Tensor) -> Tensor:
    assert log_std is not None
    return torch.addcmul(mean, log_std.exp(), eps)


def _over(v: Tensor, positions: tuple[int, ...]) -> Tensor:
    """Insert dimensions for positions, (R, K, D) to (R, 1..., K, D); (K, D) is unchanged."""
    return v if v.dim() == 2 else v.reshape(v.shape[0], *positions, *v.shape[1:])

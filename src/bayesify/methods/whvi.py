r"""Walsh-Hadamard variational inference (WHVI): the posterior of a D x D weight with O(D) parameters.

$$W = S_1 H \mathrm{diag}(g) H S_2, \qquad q(g) = N(\mu, \Sigma), \quad p(g) = N(0, \lambda I),$$

with the unnormalised Hadamard matrix H and optimised diagonal matrices $S_1$, $S_2$. By default every example has a g of its own,

$$y_b = S_1 H (g_b \circ H S_2 x_b),$$

which is the exact law of $W x_b$ (the paper's local reparameterisation) at the price of two fast transforms. Other shapes are
stacks of square blocks, cut to size (algorithm 1); weights that are vectors are reshaped into a square, with O(sqrt D) parameters.

Rossi, Marmin & Filippone, *Walsh-Hadamard variational inference for Bayesian deep learning* (2020). Where the paper is silent or
wrong:

- $S_1$ and $S_2$ have no KL, so their scale and that of g are one: W depends on $\lambda$ only through where training starts. g
  is held in units of the prior's standard deviation, which keeps all parameters of the order of one.
- Blocks that share q(g) share its draw too, or the KL would have to be paid once per block.
- With flows, $q(g)$ is the law of the end of the chain, and $\mathrm{KL} = \mathrm{E}_{q_0}[\log q_0(z_0) - \sum_k\log|\det J_k| -
  \log p(z_K)]$ has no closed form: it is estimated, without bias.
- The law of W is no matrix normal distribution (`hadamard_second_moments`), and is never drawn as one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_integer, check_positive
from bayesify.core.posterior import Method, Posterior
from bayesify.core.sites import Site
from bayesify.functional import (
    at_least_float32,
    fwht,
    gaussian_kl_sum,
    hadamard_core,
    hadamard_matrix,
    hadamard_projection,
    hadamard_second_moments,
    planar_flow,
    planar_identity,
)

__all__ = ["WHVI"]

_KL_DRAWS = 8  # of the estimate with flows: vectors, next to the batch's matrices
_MEAN_PAIRS = 2**13


@dataclasses.dataclass(frozen=True, kw_only=True)
class WHVI(Method):
    r"""Walsh-Hadamard structured weights for linear layers and convolutions; the layer's own weight goes.

    Linear layers draw g per example, the same at every position of a sequence. Convolutions and `noise="shared"` draw W once per
    sample for the whole batch.

    Args:
        prior_variance: $\lambda$ of the prior on g.
        covariance: of q(g), "diagonal" or "full" (Cholesky, $D(D + 1)/2$ parameters).
        flows: K planar flows on g, 0 for a normal q(g).
        structure: of W, after the paper's table 2.
        scales: "optimised" $S_1$, $S_2$, or "variational" ones with independent normals and a standard normal prior in units of
            their initial size.
        blocks: the square blocks of a rectangular weight have their "own" g, or one that is "shared" (the paper's).
        vectors: weights with a single row or column are a "square" (reshaped) or a "stack" of blocks.
        noise: "local" is one draw per example, "shared" one per sample.
        initial: "random" starts from random signs and g, at the scale of He et al. (2015), whatever weight the layer has;
            "pretrained" from the projection of its weight, whose relative error `summary` reports.
        initial_std: posterior standard deviation of g to start from, in units of the prior's; of biases, in units of
            $1/\sqrt{\text{fan-in}}$.
        bias_prior_variance: of the normal prior on biases, whose posterior is normal and independent.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(128, 128, bias=False), WHVI())
        >>> sum(p.numel() for p in bnn.parameters()), bnn(torch.zeros(4, 128), samples=3).outputs.shape
        (512, torch.Size([3, 4, 128]))
    """

    prior_variance: float = 1e-5
    covariance: Literal["diagonal", "full"] = "diagonal"
    flows: int = 0
    structure: Literal["S1HGHS2", "S1HGHS2H", "SHGH", "GH"] = "S1HGHS2"
    scales: Literal["optimised", "variational"] = "optimised"
    blocks: Literal["own", "shared"] = "own"
    vectors: Literal["square", "stack"] = "square"
    noise: Literal["local", "shared"] = "local"
    initial: Literal["random", "pretrained"] = "random"
    initial_std: float = 0.1
    bias_prior_variance: float = 1.0

    def __post_init__(self) -> None:
        check_choice("covariance", self.covariance, ("diagonal", "full"))
        check_choice("structure", self.structure, ("S1HGHS2", "S1HGHS2H", "SHGH", "GH"))
        check_choice("scales", self.scales, ("optimised", "variational"))
        check_choice("blocks", self.blocks, ("own", "shared"))
        check_choice("vectors", self.vectors, ("square", "stack"))
        check_choice("noise", self.noise, ("local", "shared"))
        check_choice("initial", self.initial, ("random", "pretrained"))
        check_integer("flows", self.flows, least=0)
        for name in ("prior_variance", "initial_std", "bias_prior_variance"):
            check_positive(name, getattr(self, name))
        if self.initial == "pretrained" and (self.structure != "S1HGHS2" or self.flows):
            raise ValueError(
                f'initial="pretrained" projects onto structure="S1HGHS2" without flows, got structure={self.structure!r} and '
                f"flows={self.flows!r}"
            )

    def build(self, layer: Site) -> Posterior | None:
        return HadamardPosterior(self, layer) if layer.contracts else None


class HadamardPosterior(Posterior):
    """K blocks of size D; s1, s2 (K, D), g in units of its prior's standard deviation (K or 1, D)."""

    s1: Tensor | None
    s2: Tensor | None
    g_tril: Tensor | None
    flow_u: Tensor | None
    flow_w: Tensor | None
    flow_b: Tensor | None
    s1_log_std: Tensor | None
    s2_log_std: Tensor | None
    bias_log_std: Tensor | None
    residual: Tensor | None

    def __init__(self, method: WHVI, layer: Site) -> None:
        super().__init__()
        self.method = method
        self.rows, self.columns = layer.weight_shape[0], math.prod(layer.weight_shape[1:])
        self.square = min(self.rows, self.columns) == 1 and method.vectors == "square"
        if self.square:
            self.size, self.count = _power_of_two(math.isqrt(self.rows * self.columns - 1) + 1), 1
        else:
            self.size = _power_of_two(self.columns)
            self.count = -(-self.rows // self.size)
        pretrained = method.initial == "pretrained" and not layer.weight.is_meta
        s1, s2, g = self._project(layer.weight) if pretrained else self._random(layer.fan_in)
        self.has_s1, self.has_s2 = method.structure != "GH", method.structure in ("S1HGHS2", "S1HGHS2H")
        for name, value, there in (("s1", s1, self.has_s1), ("s2", s2, self.has_s2)):
            self.register_parameter(name, nn.Parameter(value) if there else None)
            noisy = there and method.scales == "variational"
            log_std = math.log(method.initial_std) + value.abs().mean().clamp_min(1e-12).log()
            self.register_parameter(f"{name}_log_std", nn.Parameter(log_std.expand_as(value).clone()) if noisy else None)
            self.register_buffer(f"{name}_prior_std", value.square().mean().sqrt().clamp_min(1e-12) if noisy else None)
        self.g_mean = nn.Parameter(g)
        self.g_log_std = nn.Parameter(torch.full_like(g, math.log(method.initial_std)))
        below = g.new_zeros(len(g), self.size * (self.size - 1) // 2)
        self.register_parameter("g_tril", nn.Parameter(below) if method.covariance == "full" else None)
        self._add_flows(method.flows, g)
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        bias_log_std = None if layer.bias is None else nn.Parameter(torch.full_like(layer.bias.detach(), log_std))
        self.register_parameter("bias_log_std", bias_log_std)
        layer.weight = None  # pyright: ignore[reportAttributeAccessIssue] # the posterior takes its place

    def _random(self, fan_in: int) -> tuple[Tensor, Tensor, Tensor]:
        """Random signs, standard normal g: entries of W have variance 2 / fan-in, rows of a block are orthogonal on average."""
        method, shape = self.method, (self.count, self.size)
        # the variance of an entry, by powers of the variances of s1, s2, of lambda and of the sums in H
        scales, sums = {"S1HGHS2": (2, 1), "S1HGHS2H": (2, 2), "SHGH": (1, 1), "GH": (0, 0)}[method.structure]
        wanted = 2 / (fan_in * method.prior_variance * self.size**sums)
        scale = wanted ** (0.5 / scales) if scales else 1.0
        s1, s2 = (scale * (2 * torch.randint(0, 2, shape).float() - 1) for _ in range(2))
        g = torch.randn(self.count if method.blocks == "own" else 1, self.size)
        return s1, s2, g if scales else g * math.sqrt(wanted)

    def _project(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From the projection of a weight, with g of mean square 1."""
        blocks, kept = self._blocks(weight.detach()), self._blocks(torch.ones_like(weight.detach())) > 0
        s1, s2, g, residual = hadamard_projection(blocks, kept, shared=self.method.blocks == "shared")
        self.register_buffer("residual", residual)
        unit = g.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-30)
        root = unit.sqrt() * self.method.prior_variance**-0.25
        return s1 * root, s2 * root, g / unit

    def _add_flows(self, flows: int, g: Tensor) -> None:
        """Flows that are the identity to start with."""
        w = torch.randn(flows, *g.shape, device=g.device) / math.sqrt(self.size) if flows else None
        self.register_parameter("flow_w", None if w is None else nn.Parameter(w))
        self.register_parameter("flow_u", None if w is None else nn.Parameter(planar_identity(w)))
        self.register_parameter("flow_b", None if w is None else nn.Parameter(torch.zeros(flows, len(g), device=g.device)))

    def _blocks(self, weight: Tensor) -> Tensor:
        """A weight as square blocks, padded with zeros: (K, D, D)."""
        if self.square:
            return F.pad(weight.flatten(), (0, self.size**2 - weight.numel())).reshape(1, self.size, self.size)
        padding = (0, self.size - self.columns, 0, self.count * self.size - self.rows)
        return F.pad(weight.reshape(self.rows, self.columns), padding).reshape(self.count, self.size, self.size)

    def remark(self) -> str:
        if "residual" not in self._buffers or self.residual is None:
            return ""
        return f"its weight was projected, with a relative error of {float(self.residual):.1%}"

    def draw_g(self, samples: int, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """g (S, K or 1, D) in units of the prior's standard deviation, and the log-determinants of its flows (S,)."""
        mean, std = self.g_mean, self.g_log_std.exp()
        eps = torch.randn(samples, *mean.shape, dtype=mean.dtype, device=mean.device) if noise is None else noise
        if self.g_tril is None:
            z = torch.addcmul(mean, std, eps)
        else:
            z = mean + std * eps + torch.einsum("kij,skj->ski", self._strict_tril(), eps)
        log_det = z.new_zeros(samples)
        if self.flow_u is not None:
            assert self.flow_w is not None
            assert self.flow_b is not None
            for u, w, b in zip(self.flow_u, self.flow_w, self.flow_b, strict=True):
                z, each = planar_flow(z, u, w, b)
                log_det = log_det + each.sum(-1)
        return z, log_det

    def _strict_tril(self) -> Tensor:
        """The Cholesky factor below its diagonal: (K, D, D)."""
        assert self.g_tril is not None
        i, j = torch.tril_indices(self.size, self.size, -1, device=self.g_tril.device)
        zeros = self.g_tril.new_zeros(len(self.g_tril), self.size, self.size)
        return zeros.index_put((torch.arange(len(zeros), device=zeros.device).unsqueeze(-1), i, j), self.g_tril)

    def _scales(self, samples: int) -> tuple[Tensor | None, Tensor | None]:
        """s1 and s2: (K, D), or (S, K, D) where they are random."""
        if self.method.scales == "optimised":
            return self.s1, self.s2
        pairs = ((self.s1, self.s1_log_std), (self.s2, self.s2_log_std))
        s1, s2 = (None if s is None else _draw(s, log_std, samples) for s, log_std in pairs)
        return s1, s2

    def weight(self, s1: Tensor | None, g: Tensor, s2: Tensor | None, layer: Site) -> Tensor:
        """Weights (S, *weight_shape) of g (S, K or 1, D) and scales (K, D) or (S, K, D), linear in each of the three."""
        g = g * math.sqrt(self.method.prior_variance)
        structure = self.method.structure
        columns = self.columns if not self.square and structure != "S1HGHS2H" else self.size
        rows = min(self.size, self.rows) if not self.square else -(-self.rows * self.columns // self.size)
        if structure == "GH":
            blocks = g[..., :rows, None] * hadamard_matrix(self.size, dtype=g.dtype, device=g.device)[:rows, :columns]
        else:
            blocks = hadamard_core(g, rows, columns)
        if s2 is not None:
            blocks = blocks * s2[..., None, :columns]
        if structure == "S1HGHS2H":
            blocks = fwht(blocks)
        if s1 is not None:
            blocks = blocks * s1[..., :rows, None]
        samples = g.shape[0]
        blocks = blocks.expand(samples, self.count, *blocks.shape[-2:])
        if self.square:
            return blocks.reshape(samples, -1)[:, : self.rows * self.columns].reshape(samples, *layer.weight_shape)
        return blocks.reshape(samples, -1, blocks.shape[-1])[:, : self.rows, : self.columns].reshape(samples, *layer.weight_shape)

    def sample(self, layer: Site, samples: int) -> tuple[Tensor, Tensor | None]:
        (s1, s2), (g, _) = self._scales(samples), self.draw_g(samples)
        return self.weight(s1, g, s2, layer), self._draw_bias(layer, samples)

    def _draw_bias(self, layer: Site, samples: int) -> Tensor | None:
        return None if layer.bias is None else _draw(layer.bias, self.bias_log_std, samples)

    def forward(self, layer: Site, x: Tensor) -> Tensor:
        if self.method.noise == "shared" or not isinstance(layer, nn.Linear):
            return super().forward(layer, x)
        examples, positions = x.shape[0], (1,) * (x.dim() - 2)
        (s1, s2), (g, _) = self._scales(examples), self.draw_g(examples)
        bias = self._draw_bias(layer, examples)
        if self.square:
            rows = x.reshape(examples, math.prod(x.shape[1:-1]), x.shape[-1])
            y = torch.bmm(rows, self.weight(s1, g, s2, layer).mT).reshape(*x.shape[:-1], self.rows)
        else:
            s1, s2 = (None if s is None else _over(s, positions) for s in (s1, s2))
            y = self._transform(x, s1, _over(g, positions), s2)
        return y if bias is None else y + bias.reshape(examples, *positions, -1).to(y.dtype)

    def _transform(self, x: Tensor, s1: Tensor | None, g: Tensor, s2: Tensor | None) -> Tensor:
        """W x by fast transforms; x (R, ..., I), the others (K, D) or (R, ..., K, D)."""
        x = F.pad(x, (0, self.size - self.columns)) if self.size > self.columns else x
        if self.method.structure in ("S1HGHS2H", "SHGH", "GH"):
            x = fwht(x)
        x = x.unsqueeze(-2)
        if s2 is not None:
            x = fwht(x * s2.to(x.dtype))
        y = x * (g * math.sqrt(self.method.prior_variance)).to(x.dtype)
        if s1 is not None:
            y = fwht(y)
            y = y * s1.to(y.dtype)
        y = y.expand(*y.shape[:-2], self.count, self.size).flatten(-2)
        return y[..., : self.rows]

    def kl(self, layer: Site) -> Tensor:
        total = self._kl_g()
        for s, log_std, prior_std in ((self.s1, "s1_log_std", "s1_prior_std"), (self.s2, "s2_log_std", "s2_prior_std")):
            if s is not None and self.method.scales == "variational":
                unit = at_least_float32(getattr(self, prior_std))
                total = total + gaussian_kl_sum(at_least_float32(s) / unit, at_least_float32(getattr(self, log_std)) - unit.log())
        if layer.bias is None:
            return total
        assert self.bias_log_std is not None
        mean, log_std = at_least_float32(layer.bias), at_least_float32(self.bias_log_std)
        return total + gaussian_kl_sum(mean, log_std, 0.0, math.sqrt(self.method.bias_prior_variance))

    def _kl_g(self) -> Tensor:
        """In units of the prior's standard deviation, which leave a KL as it is."""
        mean, log_std = at_least_float32(self.g_mean), at_least_float32(self.g_log_std)
        if self.flow_u is None:
            below = 0.0 if self.g_tril is None else 0.5 * at_least_float32(self.g_tril).square().sum()
            return gaussian_kl_sum(mean, log_std) + below
        z, log_det = self.draw_g(_KL_DRAWS)
        z, log_det = at_least_float32(z), at_least_float32(log_det)
        # E log q0 exactly; -log p by the draws; the constants of the two normals cancel
        return 0.5 * z.square().sum() / _KL_DRAWS - log_det.mean() - (log_std + 0.5).sum()

    def mean(self, layer: Site) -> tuple[Tensor, Tensor | None]:
        """Exact but for flows, where it is the average of 2 x 8,192 fixed draws."""
        g = self.g_mean
        if self.flow_u is not None:
            generator = torch.Generator().manual_seed(0)
            eps = torch.randn(_MEAN_PAIRS, *g.shape, generator=generator, dtype=g.dtype).to(g.device)
            g = self.draw_g(2 * _MEAN_PAIRS, torch.cat([eps, -eps]))[0].mean(0)
        return self.weight(self.s1, g.unsqueeze(0), self.s2, layer)[0], layer.bias

    def second_moments(self) -> tuple[Tensor, Tensor]:
        """Marginal second moments of rows and columns of every square block before it is cut: `hadamard_second_moments`.

        Returns:
            U and V, (K, D, D).

        Raises:
            ValueError: another structure, or a q(g) with flows, whose covariance has no closed form.
        """
        if self.method.structure != "S1HGHS2" or self.flow_u is not None or self.method.scales != "optimised":
            raise ValueError(f'second moments need structure="S1HGHS2", optimised scales and no flows, got {self.method}')
        assert self.s1 is not None
        assert self.s2 is not None
        factor = torch.diag_embed(self.g_log_std.exp())
        if self.g_tril is not None:
            factor = factor + self._strict_tril()
        return hadamard_second_moments(self.s1, self.s2, self.method.prior_variance * factor @ factor.mT)


def _draw(mean: Tensor, log_std: Tensor | None, samples: int) -> Tensor:
    assert log_std is not None
    eps = torch.randn(samples, *mean.shape, dtype=mean.dtype, device=mean.device)
    return torch.addcmul(mean, log_std.exp(), eps)


def _over(v: Tensor, positions: tuple[int, ...]) -> Tensor:
    """One per example, the same at all positions: (R, K, D) to (R, 1..., K, D)."""
    return v if v.dim() == 2 else v.reshape(v.shape[0], *positions, *v.shape[1:])


def _power_of_two(n: int) -> int:
    """The smallest that is not below n."""
    return 1 << (n - 1).bit_length()

r"""SLANG: a Gaussian with low-rank plus diagonal precision, trained by natural gradients of single examples.

Mishkin, Kunstner, Nielsen, Schmidt & Khan, *SLANG: fast structured covariance approximations for Bayesian deep learning with
natural gradient* (2018, arXiv 1811.04504), algorithm 1. The P weights of a layer, its bias included, have

$$q(\theta) = N\bigl(m,\ (U U^\top + \mathrm{diag}\,d)^{-1}\bigr), \qquad U \in \mathbb{R}^{P \times L}.$$

With the negative log likelihood $\ell_i$ of example i, the effective sample size $\lambda = n/\beta$, a prior $N(0, s^2)$ and a
batch of B examples, a step of rate $\alpha$ is

$$g_i = \nabla\ell_i(\theta), \quad \theta \sim q, \qquad
  M = (1 - \rho)\,U U^\top + \frac{\rho\lambda}{B}\sum_i g_i g_i^\top$$
$$U U^\top \leftarrow \text{the L largest eigenvalues of } M \text{ and their vectors}, \qquad
  d \leftarrow (1 - \rho)\,d + \frac{\rho}{s^2} + \mathrm{diag}(M - U U^\top)$$
$$g \leftarrow \beta_1 g + \frac{1 - \beta_1}{B}\sum_i g_i, \qquad
  m \leftarrow m - \alpha\,\Bigl(\frac{U U^\top + \mathrm{diag}\,d}{\lambda} + \gamma I\Bigr)^{-1}
  \Bigl(\frac{g}{1 - \beta_1^t} + \frac{m}{\lambda s^2}\Bigr)$$

so that the precision has the diagonal that it would have without the truncation. With $W = \mathrm{diag}(d)^{-1/2} U$ and the
Cholesky factor C of $I + W^\top W$, a draw is

$$\theta = m + \mathrm{diag}(d)^{-1/2}\,(I - W K W^\top)\,\epsilon, \qquad K = C^{-\top}(I + C)^{-1}, \quad \epsilon \sim N(0, I),$$

in time O(P L), as $(I - W K W^\top)(I - W K W^\top)^\top = (I + W W^\top)^{-1}$. The K of the authors' code
(github.com/aaronpmishkin/SLANG, `low_rank.py`) needs the inverse of a Cholesky factor of $W^\top W$; this one exists for dependent
columns of U and for U = 0.

If the model is right, the mean of $\sum_i g_i g_i^\top$ is the curvature, but the products between different outputs of a layer
average out only over many rows. With more outputs than rows, U fits these products, and draws of different outputs are correlated.

Differences from the authors' code: layers are independent, each with its own U, while theirs has one U for all parameters of the
network; there is a damping $\gamma$. As in their code, the momentum $\beta_1$ does not include the term of the prior.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_fraction, check_integer, check_rate, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.core.modes import without_autocast
from bayesify.core.natural import NaturalPosterior, NaturalStep
from bayesify.core.per_example import Record, per_example_gradients
from bayesify.core.stored import add_where_trained, gradients_of, layer_parts, layer_vector
from bayesify.errors import DivergenceError
from bayesify.functional import at_least_float32, identity_plus_gram_root, standard_normal

__all__ = ["SLANG"]

_INITIAL_SHARE = 0.01  # of U in the initial precision: at 0, an ordinary optimizer would never move it
_EXACT = 256  # vectors up to which the eigendecomposition is exact
_EXTRA, _ITERATIONS = 8, 4  # vectors and rounds of subspace iteration beyond


@dataclasses.dataclass(frozen=True, kw_only=True)
class SLANG(Method):
    r"""Normal weights whose precision is low-rank plus diagonal within a layer, trained by the method's own optimizer.

    Trained as `IVON`. A step costs a second backward pass, and the gradients of single examples: S*B*P numbers per layer, in memory
    at once. Normalization layers are not made random.

    Args:
        rank: L, at most the number of weights of a layer.
        prior_std: s, the standard deviation of the prior.
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$. The smaller it is, the smaller are
            the first steps.
        momentum: $\beta_1$, of the gradients of means.
        hessian_rate: $\rho$, the weight of a step in the average of precisions, in (0, 1].
        damping: $\gamma$, which makes steps of the means smaller, and has no effect on the spread.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), SLANG())
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.05, accelerator="cpu")
        >>> history.loss[-1] < history.loss[0]
        True
    """

    family: ClassVar[str] = "Weights, natural gradients"
    paper: ClassVar[str] = "Mishkin et al. 2018, arXiv 1811.04504"
    advice: ClassVar[str] = "Small networks on small tables, where correlations within a layer matter."
    cost: ClassVar[str] = "13, 155; S passes"

    rank: int = 8
    prior_std: float = 1.0
    initial_std: float = 0.1
    momentum: float = 0.9
    hessian_rate: float = 0.01
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_integer("rank", self.rank)
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)
        check_fraction("momentum", self.momentum)
        check_rate("hessian_rate", self.hessian_rate)
        if self.damping != 0:
            check_scale("damping", self.damping)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return None if layer.normalizes else PrecisionPosterior(self, layer)


class PrecisionPosterior(NaturalPosterior):
    """Normal around the layer's own weight and bias.

    Attributes:
        log_diagonal: log d, (P,).
        factor: U, (P, L).
    """

    observes = needs_calls = True
    stacks = True

    def __init__(self, method: SLANG, layer: BayesianLayer) -> None:
        super().__init__()
        self.method, self.rate = method, method.hessian_rate
        size = len(layer_vector(layer))
        rank, precision = min(method.rank, size), layer.fan_in / method.initial_std**2
        self.log_diagonal = nn.Parameter(torch.full((size,), math.log(precision * (1 - _INITIAL_SHARE))))
        self.factor = nn.Parameter((precision * _INITIAL_SHARE / rank) ** 0.5 * torch.randn(size, rank))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        mean, diagonal, factor = self._parts(layer)
        z = standard_normal(samples, len(mean), like=mean)
        with without_autocast(mean.device):
            scaled = factor / diagonal.sqrt().unsqueeze(1)
            root = identity_plus_gram_root(scaled)
            shifted = root + torch.eye(len(root), dtype=root.dtype, device=root.device)
            y = torch.linalg.solve_triangular(shifted, (z @ scaled).mT, upper=False)
            y = torch.linalg.solve_triangular(root.mT, y, upper=True)
            return layer_parts(layer, mean + (z - (scaled @ y).mT) / diagonal.sqrt())

    def kl(self, layer: BayesianLayer) -> Tensor:
        mean, diagonal, factor = self._parts(layer)
        s = self.method.prior_std
        with without_autocast(mean.device):
            root = identity_plus_gram_root(factor / diagonal.sqrt().unsqueeze(1))
            removed = torch.linalg.solve_triangular(root, (factor / diagonal.unsqueeze(1)).mT, upper=False).square().sum()
        trace = (1 / diagonal).sum() - removed  # of the covariance
        log_det = 0.5 * diagonal.log().sum() + root.diagonal().log().sum()  # of the root of the precision
        return 0.5 * ((trace + mean.square().sum()) / s**2 - len(mean)) + log_det + len(mean) * math.log(s)

    def observe(self, layer: BayesianLayer, record: Record) -> dict[str, Tensor]:
        parts = [part.flatten(1) for part in per_example_gradients(layer, record) if part is not None]
        return {"gradients": torch.cat(parts, 1) / record.rows**0.5}

    def update(self, layer: BayesianLayer, step: NaturalStep) -> None:
        method, state = self.method, step.state(self.log_diagonal)
        mean, diagonal, factor = self._parts(layer)
        prior = method.prior_std**-2
        before = torch.where(self.ess > 0, self.ess, step.n)
        likelihood = (diagonal - prior) * (step.ess / before)  # its part of d at the present lambda
        diagonal = (likelihood + prior).clamp_min(0.01 * prior)
        factor = factor * (step.ess / before).sqrt()
        gradients = step.observed.get("gradients")
        if gradients is not None and self.log_diagonal.requires_grad and self.factor.requires_grad:
            rate = method.hessian_rate
            vectors = torch.cat([(1 - rate) ** 0.5 * factor, (rate * step.ess) ** 0.5 * gradients.to(factor).mT], 1)
            factor = _leading(vectors, factor.shape[1])
            truncated = (vectors.square().sum(1) - factor.square().sum(1)).clamp_min(0)
            diagonal = (1 - rate) * diagonal + rate * prior + truncated
            self.log_diagonal.copy_(diagonal.log())
            self.factor.copy_(factor)
            self.ess.fill_(step.ess)
        if (parts := gradients_of(layer)) is None:
            return
        gradient = torch.cat([part.flatten() for part in parts if part is not None])
        gradient = gradient.to(mean) - step.kl_weight * prior * mean
        if not state:
            state["step"], state["momentum"] = 0, torch.zeros_like(gradient)
        state["step"] += 1
        state["momentum"].lerp_(gradient, 1 - method.momentum)
        average = state["momentum"] / (1 - method.momentum ** state["step"])
        change = _solved(diagonal / step.ess + method.damping, factor / step.ess**0.5, average + prior / step.ess * mean)
        add_where_trained(layer, *layer_parts(layer, -step.learning_rate * change.unsqueeze(0)))

    def precisions(self, layer: BayesianLayer) -> Tensor | None:
        _, diagonal, factor = self._parts(layer)
        return diagonal + factor.square().sum(1) if self.log_diagonal.requires_grad else None

    def _parts(self, layer: BayesianLayer) -> tuple[Tensor, Tensor, Tensor]:
        """m, d and U, at least float32."""
        return layer_vector(layer), at_least_float32(self.log_diagonal).exp(), at_least_float32(self.factor)


def _solved(diagonal: Tensor, factor: Tensor, vector: Tensor) -> Tensor:
    """(U U^T + diag d)^-1 v, by Woodbury's identity."""
    scaled = factor / diagonal.unsqueeze(1)
    inner = torch.cholesky_solve((scaled.mT @ vector).unsqueeze(1), identity_plus_gram_root(factor / diagonal.sqrt().unsqueeze(1)))
    return vector / diagonal - (scaled @ inner).squeeze(1)


def _leading(vectors: Tensor, rank: int) -> Tensor:
    """V (P, L) such that V V^T has the L largest eigenvalues of F F^T, F (P, R), and their vectors; V V^T <= F F^T in any case."""
    size, count = vectors.shape
    if size <= count and size <= _EXACT:
        values, directions = _eigh(vectors @ vectors.mT)
        return directions[:, -rank:] * values[-rank:].clamp_min(0).sqrt()
    if count <= _EXACT:
        return vectors @ _eigh(vectors.mT @ vectors)[1][:, -rank:]
    generator = torch.Generator(vectors.device).manual_seed(0)  # equal in all processes
    start = torch.randn(count, rank + _EXTRA, dtype=vectors.dtype, device=vectors.device, generator=generator)
    for _ in range(_ITERATIONS):
        start = torch.linalg.qr(vectors.mT @ (vectors @ start)).Q
    images = vectors @ start
    return images @ _eigh(images.mT @ images)[1][:, -rank:]


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order, and eigenvectors."""
    if not bool(gram.isfinite().all()):
        raise DivergenceError(
            "the gradients of examples, or their squares, are not finite: inputs are too large, or training diverged. Standardize "
            "inputs, lower learning_rate, or raise damping"
        )
    values, vectors = torch.linalg.eigh(gram)
    return values, vectors

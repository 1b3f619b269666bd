"""Predictive distribution for regression: a mixture of normal distributions per row and output.

Shapes: S draws, N rows, D outputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesify.core.checks import check_fraction
from bayesify.errors import ConfigurationError, DataError
from bayesify.functional import at_least_float32
from bayesify.predictive.base import Predictive, align_targets, sum_from

__all__ = ["GaussianPredictive", "normal_log_density"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GaussianPredictive(Predictive):
    r"""Equal-weight mixture of S normal distributions per row and output.

    $$\mathrm{Var}\,y = \underbrace{\tfrac1S\sum_s \sigma_s^2}_{\text{aleatoric}} +
    \underbrace{\tfrac1S\sum_s (\mu_s - \bar\mu)^2}_{\text{epistemic}}$$

    The epistemic part divides by S, not S - 1: it is the variance of this mixture. Cumulative probabilities, quantiles and scores
    are those of the mixture, not of a normal distribution with its moments.

    Args:
        means: (S, N) or (S, N, D).
        stds: standard deviations of the noise, above 0, broadcastable to `means` without copies.

    Example:
        >>> p = GaussianPredictive(torch.tensor([[-1.0], [1.0]]), torch.tensor(2.0))
        >>> p.aleatoric, p.epistemic, p.variance
        (tensor([4.]), tensor([1.]), tensor([5.]))
    """

    means: Tensor
    stds: Tensor

    missing: ClassVar[tuple[str, ...]] = (
        "probs",
        "entropy",
        "expected_entropy",
        "mutual_information",
        "prediction",
        "log_probs",
    )
    hint: ClassVar[str] = "it is for regression; use mean, std, interval(0.95), aleatoric or epistemic"

    def __post_init__(self) -> None:
        means, stds = at_least_float32(self.means), at_least_float32(self.stds)
        stds = stds.reshape((1,) * (means.dim() - stds.dim()) + stds.shape)
        if means.dim() < 2 or any(size not in (1, full) for size, full in zip(stds.shape, means.shape, strict=True)):
            raise DataError(f"stds {tuple(self.stds.shape)} must broadcast to means (S, N, ...), got {tuple(means.shape)}")
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "stds", stds)

    @property
    def samples(self) -> int:
        return self.means.shape[0]

    def __len__(self) -> int:
        return self.means.shape[1]

    @property
    def mean(self) -> Tensor:
        return self.means.mean(0)

    @property
    def aleatoric(self) -> Tensor:
        return self.stds.square().mean(0).expand(self.means.shape[1:])

    @property
    def epistemic(self) -> Tensor:
        return self.means.var(0, correction=0)

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """The square root of `variance`."""
        return self.variance.sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean density of y (N,) or (N, D): (N,) nats, joint over the outputs."""
        log_density = normal_log_density(align_targets(y, self.mean.shape), self.means, self.stds.log())
        return torch.logsumexp(sum_from(log_density, 2), 0) - math.log(self.samples)

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) per output, shaped like `mean`."""
        return _normal_cdf((align_targets(y, self.mean.shape) - self.means) / self.stds).mean(0)

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture per output, q in (0, 1), shaped like `mean`, to the precision of its dtype."""
        if not 0 < q < 1:
            raise ConfigurationError(f"q must be a number in (0, 1), got {q!r}")
        # mirror the upper half, as small tail probabilities keep their digits
        sign = 1 if q <= 0.5 else -1
        return torch.cat([sign * _quantile(sign * p.means, p.stds, min(q, 1 - q)) for p, _ in self._blocks()])

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval that contains y with probability `level`: lower and upper, each shaped like `mean`."""
        check_fraction("level", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def crps(self, y: Tensor) -> Tensor:
        r"""Continuous ranked probability score of y per output, in the unit of y, shaped like `mean`; smaller is better.

        $$\mathrm{E}|Y - y| - \tfrac12 \mathrm{E}|Y - Y'| = \frac1S\sum_s A(y - \mu_s, \sigma_s^2) -
        \frac1{2S^2}\sum_{s,t} A(\mu_s - \mu_t, \sigma_s^2 + \sigma_t^2)$$

        Source: Grimit, Gneiting, Berrocal & Johnson (2006), equation (5); A(m, v) is the mean of |N(m, v)|.
        """
        y = align_targets(y, self.mean.shape)
        return torch.cat([_crps(y[rows], p.means, p.stds.expand_as(p.means)) for p, rows in self._blocks()])

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> GaussianPredictive:
        """Predictive distribution of mean + std * y, to undo a standardization; mean and std are numbers or one per output (D,)."""
        shift = torch.as_tensor(mean, dtype=self.means.dtype, device=self.means.device)
        scale = torch.as_tensor(std, dtype=self.means.dtype, device=self.means.device)
        allowed = ((), (1,), tuple(self.means.shape[2:])[-1:])
        if shift.shape not in allowed or scale.shape not in allowed or not (scale > 0).all():
            raise ConfigurationError(f"mean and std must be numbers or one per output, std above 0, got {mean} and {std}")
        return GaussianPredictive(shift + scale * self.means, scale * self.stds)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One target per draw, noise included: shaped like `means`."""
        noise = torch.randn(self.means.shape, dtype=self.means.dtype, device=self.means.device, generator=generator)
        return self.means + self.stds * noise

    def mix(self, *others: Any) -> Self:
        self._check_same(others, "rows")
        return self._join((self, *others), 0)

    def cat(self, *others: Any) -> Self:
        self._check_same(others, "samples")
        return self._join((self, *others), 1)

    def _join(self, parts: tuple[Self, ...], dim: int) -> Self:
        stds = self.stds
        if any(p.stds.shape[dim] > 1 or not torch.equal(p.stds, stds) for p in parts):
            shape = [max(sizes) for sizes in zip(*(p.stds.shape for p in parts), strict=True)]
            stds = torch.cat([p.stds.expand(*shape[:dim], p.means.shape[dim], *shape[dim + 1 :]) for p in parts], dim)
        return dataclasses.replace(self, means=torch.cat([p.means for p in parts], dim), stds=stds)

    def _blocks(self) -> Iterator[tuple[GaussianPredictive, slice]]:
        """Blocks of rows, small enough that temporaries stay in the cache."""
        size = max(1, 2**17 * len(self) // max(1, self.means.numel()))
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield GaussianPredictive(self.means[:, rows], self.stds if self.stds.shape[1] == 1 else self.stds[:, rows]), rows


def normal_log_density(y: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of y under N(mean, exp(log_std)^2), elementwise, nats."""
    return -0.5 * ((y - mean) * torch.exp(-log_std)).square() - log_std - 0.5 * math.log(2 * math.pi)


def _normal_cdf(z: Tensor) -> Tensor:
    # torch.special.ndtr uses 1 + erf, which has no digits left in the lower tail
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z)


def _quantile(means: Tensor, stds: Tensor, q: float) -> Tensor:  # (S, N, ...) -> (N, ...)
    # The mixture's quantile is between the smallest and largest of its components'. Newton steps within this bracket; bisection
    # where they leave it or shrink too slowly, as the density vanishes between two distant modes.
    ends = means + NormalDist().inv_cdf(q) * stds
    low, high = ends.amin(0), ends.amax(0)
    x, last = (low + high) / 2, high - low
    precision = 4 * torch.finfo(x.dtype).eps
    converged = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(200):
        u = (x - means) / stds
        excess = _normal_cdf(u).mean(0) - q
        density = (torch.exp(-0.5 * u.square()) / (stds * math.sqrt(2 * math.pi))).mean(0)
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        newton = x - excess / density
        take = (newton > low) & (newton < high) & ((newton - x).abs() < 0.5 * last)
        converged = converged | (excess.abs() <= precision * (q + density * x.abs()))  # rounding of q and x
        new = torch.where(converged, x, torch.where(take, newton, (low + high) / 2))
        x, last = new, (new - x).abs()
        if (last <= precision * x.abs()).all():
            break
    return x


def _crps(y: Tensor, means: Tensor, stds: Tensor) -> Tensor:
    draws = means.shape[0]
    # a draw paired with itself has A(0, 2 sigma^2) = 2 sigma / sqrt(pi); all other pairs occur twice
    pairs = stds.sum(0) / math.sqrt(math.pi)
    for s in range(draws - 1):
        spread = torch.hypot(stds[s], stds[s + 1 :])
        pairs = pairs + _mean_absolute(means[s] - means[s + 1 :], spread).sum(0)
    return _mean_absolute(y - means, stds).mean(0) - pairs / draws**2


def _mean_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of a normal X."""
    z = mean / std
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z * math.sqrt(0.5))

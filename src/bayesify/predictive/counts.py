"""Predictive distribution for counts: a mixture of Poisson or negative binomial distributions per row and output.

Shapes: S draws, N rows, D outputs. Probabilities are computed in float64, as log-gamma functions of large counts cancel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesify.core.values import may_look_at
from bayesify.errors import DataError
from bayesify.functional import at_least_float32, incomplete_beta
from bayesify.predictive.base import NumericPredictive, align_targets, check_level, sum_from
from bayesify.predictive.targets import check_counts

__all__ = ["CountPredictive", "count_cdf", "count_log_prob"]

_NODES = 1024  # of the sum over whole numbers in the CRPS, if there are more
_TAIL = 1e-7  # probability beyond the ends of this sum
_SEED = 271_828_183  # of the noise in `pit`, which must differ from that of the targets
_ELEMENTS = 2**22  # of a block of rows in the CRPS
_LEAST_DISPERSION = 1e-5  # with which a negative binomial stands for a Poisson distribution


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CountPredictive(NumericPredictive):
    r"""Mixture of S draws per row and output, each a Poisson or a negative binomial distribution of a count.

    $$\mathrm{Var}\,y = \underbrace{\tfrac1S\sum_s (\mu_s + \alpha_s\mu_s^2)}_{\text{aleatoric}} +
    \underbrace{\tfrac1S\sum_s (\mu_s - \bar\mu)^2}_{\text{epistemic}}$$

    with the mean $\mu_s$ and the dispersion $\alpha_s$ of draw s, which is 0 for Poisson. Cumulative probabilities, quantiles and
    scores are those of the mixture. Quantiles are whole numbers, so the probability of a central interval is at least its level.

    Args:
        means: (S, N) or (S, N, D), at least 0.
        dispersions: of negative binomials, above 0, broadcastable to `means`; None for Poisson.

    Raises:
        DataError: another shape, or means below 0 or NaN.

    Example:
        >>> p = CountPredictive(torch.tensor([[1.0], [3.0]]))
        >>> p.aleatoric, p.epistemic, p.quantile(0.9)
        (tensor([2.]), tensor([1.]), tensor([4.]))
    """

    means: Tensor
    dispersions: Tensor | None = None

    missing: ClassVar[tuple[str, ...]] = (*NumericPredictive.missing, "rescale", "stds")
    integers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        means = at_least_float32(self.means)
        if means.dim() < 2:
            raise DataError(f"means must be draws (S, N) or (S, N, D), got {tuple(means.shape)}")
        if may_look_at(means) and not (means >= 0).all():
            raise DataError(f"means of counts must be at least 0 and not NaN, got {means.min().item()} as the smallest")
        object.__setattr__(self, "means", means)
        if self.dispersions is not None:
            try:
                object.__setattr__(self, "dispersions", at_least_float32(self.dispersions).expand_as(means))
            except RuntimeError as error:
                shape = tuple(self.dispersions.shape)
                raise DataError(f"dispersions {shape} must broadcast to means (S, N, ...), got {tuple(means.shape)}") from error

    @classmethod
    def from_residuals(cls, mean: Tensor, y: Tensor, fitted: Tensor) -> Self:
        r"""One draw with the given means, and per output the dispersion of residuals, $\sum[(y - \mu)^2 - \mu] / \sum\mu^2$.

        Args:
            mean: of the N rows, (N,) or (N, D), at least 0.
            y, fitted: counts and their means in other rows, (n,) or (n, D); without overdispersion the result is Poisson.
        """
        least = 0.5 / len(y)  # no count is impossible
        fitted = fitted.clamp_min(least)
        dispersion = ((y - fitted).square() - fitted).sum(0) / fitted.square().sum(0)
        return cls(mean.clamp_min(least).unsqueeze(0), dispersion.clamp_min(_LEAST_DISPERSION) if (dispersion > 0).any() else None)

    @property
    def samples(self) -> int:
        return len(self.means)

    def __len__(self) -> int:
        return self.means.shape[1]

    @property
    def mean(self) -> Tensor:
        return self.means.mean(0)

    @property
    def draw_means(self) -> Tensor:
        return self.means

    @property
    def aleatoric(self) -> Tensor:
        return (self.means if self.dispersions is None else self.means + self.dispersions * self.means.square()).mean(0)

    @property
    def epistemic(self) -> Tensor:
        return self.means.var(0, correction=0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean probability of the counts y (N,) or (N, D): (N,) nats, joint over the outputs.

        Raises:
            DataError: another shape, or targets that are not whole numbers of at least 0.
        """
        y = align_targets(y, tuple(self.mean.shape))
        check_counts(y)
        log_probs = sum_from(count_log_prob(y, self.means.double().log(), self.dispersions), 2)
        return (torch.logsumexp(log_probs, 0) - math.log(self.samples)).to(self.means.dtype)

    def cdf(self, y: Tensor) -> Tensor:
        return self._cdf(align_targets(y, tuple(self.mean.shape))).to(self.means.dtype)

    def pit(self, y: Tensor) -> Tensor:
        """Randomized probability integral transform: uniform between P(Y < y) and P(Y <= y), with the same noise in every call.

        Source: Smith (1985); Czado, Gneiting & Held, *Predictive model assessment for count data* (2009), section 2.1.
        """
        y = align_targets(y, tuple(self.mean.shape))
        generator = torch.Generator(self.means.device).manual_seed(_SEED)
        share = torch.rand(self.mean.shape, dtype=torch.float64, device=self.means.device, generator=generator)
        return torch.lerp(self._cdf(y - 1), self._cdf(y), share).to(self.means.dtype)

    def quantile(self, q: float) -> Tensor:
        """The q-quantile per output, shaped like `mean`: the smallest count whose `cdf` is at least q.

        Raises:
            ConfigurationError: q is not in (0, 1).
        """
        check_level(q)
        return self._quantile(q).to(self.means.dtype)

    def crps(self, y: Tensor) -> Tensor:
        r"""Continuous ranked probability score of y per output, in counts, shaped like `mean`; smaller is better.

        $$\sum_{k=0}^\infty (F(k) - 1[y \le k])^2 = \mathrm{E}|Y - y| - \sum_{k=0}^\infty F(k) (1 - F(k))$$

        Where the sum has more than 1,024 terms, probabilities are interpolated between as many of them, evenly spaced in $k^{1/8}$.

        Source: Wei & Held, *Calibration tests for count data* (2014), section 2; for E|Y - y| the first moment up to y.
        """
        y = align_targets(y, tuple(self.mean.shape)).to(self.means.device, torch.float64)
        p = dataclasses.replace(self, means=self.means.double().flatten(1), dispersions=self._flat_dispersions())
        mean, partial = p.mean, _partial_means(y.flatten(), p.means, p.dispersions).mean(0)
        distance = mean - y.flatten() + 2 * (y.flatten() * p._cdf(y.flatten()) - partial)
        low, high = p._quantile(_TAIL) - 1, p._quantile(1 - _TAIL)
        nodes = min(_NODES, int((high - low).max()) + 1)
        rows = max(1, _ELEMENTS // (nodes * self.samples))
        sums = [part._spread(a, b, nodes) for part, a, b in zip(p._split(rows), low.split(rows), high.split(rows), strict=True)]
        return (distance - torch.cat(sums)).view(y.shape).to(self.means.dtype)

    def output(self, index: int) -> CountPredictive:
        """The marginal distribution of one of D outputs: means (S, N)."""
        dispersions = None if self.dispersions is None else self.dispersions[..., index]
        return CountPredictive(self.means[..., index], dispersions)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.rand(self.means.shape, dtype=torch.float64, device=self.means.device, generator=generator)
        means = self.means.double()
        variances = means if self.dispersions is None else means + self.dispersions * means.square()
        drawn = _smallest(lambda k: count_cdf(k, means, self.dispersions), means, variances.sqrt(), uniform)
        return drawn.to(self.means.dtype)

    def mix(self, *others: Any, weights: Sequence[float] | None = None) -> Self:
        if weights is not None:
            raise NotImplementedError(f"draws of a {type(self).__name__} have equal weights; leave weights out")
        self._check_same(others, "rows")
        return self._join((self, *others), 0)

    def cat(self, *others: Any) -> Self:
        self._check_same(others, "samples")
        return self._join((self, *others), 1)

    def average(self, *others: Any) -> Self:
        """Average with predictives of the same draws and rows for other inputs: the distribution if the inputs are uncertain.

        Every draw becomes a negative binomial with the mean and variance of the mixture. What the inputs add is aleatoric.
        Predictives of another type, of other rows or of other draws raise a TypeError or a `DataError`.
        """
        parts = (self, *others)
        self._check_same(others, "rows")
        self._check_same(others, "samples")
        means = torch.stack([p.means for p in parts])
        excess = torch.stack([p._all_dispersions * p.means.square() for p in parts]).mean(0) + means.var(0, correction=0)
        mean = means.mean(0)
        return dataclasses.replace(self, means=mean, dispersions=(excess / mean.square()).clamp_min(_LEAST_DISPERSION))

    def select(self, rows: Tensor | slice) -> Self:
        dispersions = None if self.dispersions is None else self.dispersions[:, rows]
        return dataclasses.replace(self, means=self.means[:, rows], dispersions=dispersions)

    def _join(self, parts: tuple[Self, ...], dim: int) -> Self:
        joined = None
        if any(p.dispersions is not None for p in parts):
            joined = torch.cat([p._all_dispersions for p in parts], dim)
        return dataclasses.replace(self, means=torch.cat([p.means for p in parts], dim), dispersions=joined)

    @property
    def _all_dispersions(self) -> Tensor:
        return torch.full_like(self.means, _LEAST_DISPERSION) if self.dispersions is None else self.dispersions

    def _cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y), float64, for y shaped like `mean`, or with further dimensions in front."""
        return count_cdf(y.unsqueeze(-self.means.dim()), self.means.double(), self.dispersions).mean(-self.means.dim())

    def _quantile(self, q: float) -> Tensor:
        level = torch.full(self.mean.shape, q, dtype=torch.float64, device=self.means.device)
        return _smallest(self._cdf, self.mean.double(), self.double().std, level)

    def _flat_dispersions(self) -> Tensor | None:
        return None if self.dispersions is None else self.dispersions.double().flatten(1)

    def _split(self, rows: int) -> list[CountPredictive]:
        means = self.means.split(rows, 1)
        dispersions = [None] * len(means) if self.dispersions is None else self.dispersions.split(rows, 1)
        return [CountPredictive(m, a) for m, a in zip(means, dispersions, strict=True)]

    def _spread(self, low: Tensor, high: Tensor, nodes: int) -> Tensor:
        """Sum of F (1 - F) over the whole numbers from `low` to `high`, each (N,), at most `nodes` of which are evaluated."""
        low = low.clamp_min(0)
        steps = torch.arange(nodes, dtype=torch.float64, device=low.device).unsqueeze(1)  # (G, 1)
        spaced = torch.lerp(low**0.125, high**0.125, steps / max(1, nodes - 1)).pow(8).round()  # closer where a peak at 0 may be
        k = torch.where(high - low < nodes, (low + steps).minimum(high), spaced)
        log_probs = count_log_prob(k.unsqueeze(1), self.means.log(), self.dispersions)  # (G, S, N)
        probs = log_probs.exp().mean(1)
        below, up_to_last = self._cdf(k[0] - 1), self._cdf(k[-1])
        up_to = torch.cat([torch.zeros_like(probs[:1]), _sums(k, probs).cumsum(0)]) + probs
        cdf = below + (up_to_last - below) * up_to / up_to[-1]  # the quotient corrects the interpolation
        value = cdf * (1 - cdf)
        return _sums(k, value).sum(0) + value[-1]


def _sums(k: Tensor, value: Tensor) -> Tensor:
    """Sums (G - 1, N) of a function over the whole numbers from each node (G, N) to before the next; linear in between."""
    return 0.5 * (k.diff(dim=0) * (value[1:] + value[:-1]) - value.diff(dim=0))


def count_log_prob(y: Tensor, log_mean: Tensor, dispersion: Tensor | None) -> Tensor:
    r"""Log probability of counts y under Poisson, or negative binomial distributions, elementwise, nats, float64.

    $$\log p(y) = y\log\mu - \mu - \log y!, \qquad
    \log p(y) = \log\frac{\Gamma(y + r)}{\Gamma(r)\,y!} + y\log\frac{\alpha\mu}{1 + \alpha\mu} - r\log(1 + \alpha\mu), \quad
    r = \frac1\alpha$$

    Args:
        y, log_mean, dispersion: y, $\log\mu$ and $\alpha$, broadcastable; without dispersion it is Poisson.
    """
    y, log_mean = y.double(), log_mean.double()
    if dispersion is None:
        return torch.where(y > 0, y * log_mean, 0) - log_mean.exp() - torch.lgamma(y + 1)  # 0 log 0 = 0
    dispersion = dispersion.double()
    r, log_odds = 1 / dispersion, log_mean + dispersion.log()
    log_miss = -torch.nn.functional.softplus(log_odds)
    combinations = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
    return combinations + torch.where(y > 0, y * (log_odds + log_miss), 0) + r * log_miss


def count_cdf(y: Tensor, mean: Tensor, dispersion: Tensor | None) -> Tensor:
    """P(Y <= y) of Poisson, or negative binomial distributions, elementwise and broadcast, float64."""
    count = y.double().floor()
    whole = count.clamp_min(0)
    if dispersion is None:
        value = torch.special.gammaincc(whole + 1, mean.double())
    else:
        dispersion = dispersion.double()
        value = incomplete_beta(1 / dispersion, whole + 1, 1 / (1 + dispersion * mean))
    return torch.where(count < 0, 0, value)


def _partial_means(y: Tensor, mean: Tensor, dispersion: Tensor | None) -> Tensor:
    """E[Y; Y <= y], by k p(k) = mean p'(k - 1), with p' = p (Poisson), or with one success more (negative binomial)."""
    if dispersion is None:
        return mean * count_cdf(y - 1, mean, None)
    more = dispersion / (1 + dispersion)  # 1 / (r + 1)
    return mean * count_cdf(y - 1, mean * dispersion / more, more)


def _smallest(cdf: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, q: Tensor) -> Tensor:
    """The smallest counts with a `cdf` of q or more, by bisection; the lower bound is that of Cantelli's inequality."""
    tolerance = 4 * torch.finfo(torch.float64).eps  # of the rounding of the cdf
    low = (mean - std * ((1 - q) / q).sqrt()).nan_to_num(neginf=-1).floor().sub(1).clamp_min(-1)
    high = (mean + std).ceil()
    q = q * (1 - tolerance)
    while bool((short := cdf(high) < q).any()):
        low, high = torch.where(short, high, low), torch.where(short, 2 * high + 1, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        reached = cdf(middle) >= q
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high

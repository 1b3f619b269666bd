"""Predictive distribution for regression: a mixture of normal distributions per row and output.

Shapes: S draws, M components per draw, N rows, D outputs.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bayesify.core.checks import check_open_fraction
from bayesify.core.values import may_look_at
from bayesify.errors import ConfigurationError, DataError
from bayesify.functional import at_least_float32
from bayesify.predictive.base import NumericPredictive, align_targets, sum_from
from bayesify.predictive.mixtures import mixture_crps, mixture_quantile, normal_cdf, normal_log_density

__all__ = ["GaussianPredictive"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GaussianPredictive(NumericPredictive):
    r"""Mixture of S draws per row, each a normal distribution of every output, or a mixture of M.

    $$\mathrm{Var}\,y = \underbrace{\tfrac1S\sum_s \sigma_s^2}_{\text{aleatoric}} +
    \underbrace{\tfrac1S\sum_s (\mu_s - \bar\mu)^2}_{\text{epistemic}}$$

    with the mean and variance $\mu_s, \sigma_s^2$ of draw s; draws have the weights $1/S$ or those given. The epistemic part
    divides by S, not S - 1: it is the variance of this mixture. Cumulative probabilities, quantiles and scores are those of the
    mixture, not of a normal distribution with its moments.

    Args:
        means: (S M, N) or (S M, N, D), the M components of a draw after each other.
        stds: standard deviations of the noise, above 0, broadcastable to `means` without copies.
        weights: of the components, (S M, N), at least 0, with the sum 1 over the S M; None for equal weights. All outputs of a row
            have the same, so that a component is a joint distribution of the outputs.
        components: M.

    Raises:
        DataError: shapes that do not match, or standard deviations that are not above 0.

    Example:
        >>> p = GaussianPredictive(torch.tensor([[-1.0], [1.0]]), torch.tensor(2.0))
        >>> p.aleatoric, p.epistemic, p.variance
        (tensor([4.]), tensor([1.]), tensor([5.]))
    """

    means: Tensor
    stds: Tensor
    weights: Tensor | None = None
    components: int = 1

    def __post_init__(self) -> None:
        means, stds = at_least_float32(self.means), at_least_float32(self.stds)
        stds = stds.reshape((1,) * (means.dim() - stds.dim()) + stds.shape)
        if means.dim() < 2 or any(size not in (1, full) for size, full in zip(stds.shape, means.shape, strict=True)):
            raise DataError(f"stds {tuple(self.stds.shape)} must broadcast to means (S, N, ...), got {tuple(means.shape)}")
        if self.weights is not None and self.weights.shape != means.shape[:2]:
            raise DataError(f"weights must be one per component and row, {tuple(means.shape[:2])}, got {tuple(self.weights.shape)}")
        if self.components < 1 or len(means) % self.components:
            raise DataError(f"means {tuple(means.shape)} must have components={self.components} for every draw")
        if may_look_at(stds) and not (stds > 0).all():
            raise DataError(f"stds must be above 0 and not NaN, got {stds.min().item()} as the smallest")
        bound = math.sqrt(torch.finfo(means.dtype).max)
        if means.numel() and may_look_at(means, stds) and not (means.abs().max() < bound and stds.max() < bound):
            raise DataError(
                f"means and stds must not be NaN, and below {bound:.1e} in magnitude, so that {means.dtype} holds the variance; "
                "training diverged, or targets need another unit"
            )
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "stds", stds)

    @property
    def samples(self) -> int:
        return len(self.means) // self.components

    def __len__(self) -> int:
        return self.means.shape[1]

    @property
    def mean(self) -> Tensor:
        return self._average(self.means)

    @property
    def draw_means(self) -> Tensor:
        return self._by_draw(self._shares * self.means) / self._draw_shares

    @property
    def aleatoric(self) -> Tensor:
        within = self.stds.square()
        if self.components > 1:
            within = within + (self.means - self.draw_means.repeat_interleave(self.components, 0)).square()
        return self._average(within).expand(self.means.shape[1:])

    @property
    def epistemic(self) -> Tensor:
        if self.weights is None:
            return self.draw_means.var(0, correction=0)
        return (self._draw_shares * (self.draw_means - self.mean).square()).sum(0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean density of y (N,) or (N, D): (N,) nats, joint over the outputs."""
        log_density = sum_from(normal_log_density(align_targets(y, self.mean.shape), self.means, self.stds.log()), 2)
        if self.weights is not None:
            return torch.logsumexp(log_density + self.weights.log(), 0)
        return torch.logsumexp(log_density, 0) - math.log(len(self.means))

    def cdf(self, y: Tensor) -> Tensor:
        return self._average(normal_cdf((align_targets(y, self.mean.shape) - self.means) / self.stds))

    def pit(self, y: Tensor) -> Tensor:
        return self.cdf(y)

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture per output, q in (0, 1), shaped like `mean`, to the precision of its dtype.

        Raises:
            ConfigurationError: q is not in (0, 1).
        """
        check_open_fraction("q", q)
        # mirror the upper half, as small tail probabilities keep their digits
        sign, tail = (1, q) if q <= 0.5 else (-1, 1 - q)
        return torch.cat([sign * mixture_quantile(sign * p.means, p.stds, p._shares, tail) for p, _ in self._blocks()])

    def crps(self, y: Tensor) -> Tensor:
        r"""Continuous ranked probability score of y per output, in the unit of y, shaped like `mean`; smaller is better.

        $$\mathrm{E}|Y - y| - \tfrac12 \mathrm{E}|Y - Y'| = \sum_c w_c A(y - \mu_c, \sigma_c^2) -
        \tfrac12\sum_{c,d} w_c w_d A(\mu_c - \mu_d, \sigma_c^2 + \sigma_d^2)$$

        with sums over the components of all draws, and the mean A(m, v) of |N(m, v)|.

        Source: Grimit, Gneiting, Berrocal & Johnson (2006), equation (5).
        """
        y = align_targets(y, self.mean.shape)
        return torch.cat([mixture_crps(y[rows], p.means, p.stds.expand_as(p.means), p._shares) for p, rows in self._blocks()])

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> GaussianPredictive:
        """Predictive distribution of mean + std * y, to undo a standardization; mean and std are numbers or one per output (D,).

        Raises:
            ConfigurationError: neither one number nor one per output, or std is not above 0.
        """
        shift = torch.as_tensor(mean, dtype=self.means.dtype, device=self.means.device)
        scale = torch.as_tensor(std, dtype=self.means.dtype, device=self.means.device)
        allowed = ((), (1,), tuple(self.means.shape[2:])[-1:])
        if shift.shape not in allowed or scale.shape not in allowed or not (scale > 0).all():
            raise ConfigurationError(f"mean and std must be numbers or one per output, std above 0, got {mean} and {std}")
        return dataclasses.replace(self, means=shift + scale * self.means, stds=scale * self.stds)

    def output(self, index: int) -> GaussianPredictive:
        """The marginal distribution of one of D outputs: means (S M, N)."""
        stds = self.stds[..., min(index, self.stds.shape[-1] - 1)]
        return dataclasses.replace(self, means=self.means[..., index], stds=stds)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        means, stds = self.means, self.stds
        if self.weights is not None or self.components > 1:
            chosen = self._choose(generator)
            chosen = chosen.reshape(chosen.shape + (1,) * (means.dim() - 2))
            means, stds = (x.expand(self.means.shape).take_along_dim(chosen, 0) for x in (means, stds))
        return means + stds * torch.randn(means.shape, dtype=means.dtype, device=means.device, generator=generator)

    def _choose(self, generator: torch.Generator | None) -> Tensor:
        """S of the components for every row, by weight, (S, N); of draws with equal weights, one of each.

        Draws are chosen by systematic resampling: Douc & Cappe, *Comparison of resampling schemes for particle filtering* (2005).
        """
        weights = self._all_weights.unflatten(0, (-1, self.components))  # (S, M, N)
        ends = weights.sum(1, dtype=torch.float64).cumsum(0).T.contiguous()  # (N, S)
        start = torch.rand(len(self), 1, dtype=ends.dtype, device=ends.device, generator=generator)
        levels = (torch.arange(self.samples, device=ends.device) + start) / self.samples
        levels = levels.clamp_max(1 - torch.finfo(ends.dtype).eps) * ends[:, -1:]  # below the end also after rounding
        draws = torch.searchsorted(ends, levels, right=True).T  # (S, N)
        of_draws = weights.take_along_dim(draws.unsqueeze(1), 0).movedim(1, -1)  # (S, N, M)
        components = torch.multinomial(of_draws.flatten(0, 1), 1, generator=generator).view(draws.shape)
        return draws * self.components + components

    def mix(self, *others: Any, weights: Sequence[float] | None = None) -> Self:
        self._check_same(others, "rows")
        shares = self._check_weights(others, weights)
        most = max(p.components for p in (self, *others))
        parts = [p._padded(most) for p in (self, *others)]
        if weights is None and all(p.weights is None for p in parts):
            return self._join(parts, 0, None)
        return self._join(parts, 0, torch.cat([p._all_weights * share for p, share in zip(parts, shares, strict=True)]))

    def cat(self, *others: Any) -> Self:
        self._check_same(others, "samples")
        parts = (self, *others)
        if any(p.components != self.components for p in parts):
            raise DataError(f"predictives must have equally many components, got {[p.components for p in parts]}")
        weighted = any(p.weights is not None for p in parts)
        return self._join(parts, 1, torch.cat([p._all_weights for p in parts], 1) if weighted else None)

    def average(self, *others: Any) -> Self:
        """Average with predictives of the same draws and rows for other inputs: the distribution if the inputs are uncertain.

        Every component gets the mean weight, and the mean and variance of the mixture of its distributions. What the inputs add
        to the variance is aleatoric.

        Raises:
            TypeError, DataError: predictives of another type, or of other rows or draws.
        """
        parts = (self, *others)
        self._check_same(others, "rows")
        self._check_same(others, "samples")
        weights = torch.stack([p._shares.expand(p.means.shape) for p in parts])
        # a component without weight gets the moments of equal shares, because a standard deviation of 0 has no density
        shares = torch.where(weights.sum(0) > 0, weights / weights.sum(0), 1 / len(parts))
        means = torch.stack([p.means for p in parts])
        mean = (shares * means).sum(0)
        within = torch.stack([p.stds.expand(p.means.shape) for p in parts]).square()
        variance = (shares * (within + (means - mean).square())).sum(0)
        mixed = None if all(p.weights is None for p in parts) else torch.stack([p._all_weights for p in parts]).mean(0)
        return dataclasses.replace(self, means=mean, stds=variance.sqrt(), weights=mixed)

    def select(self, rows: Tensor | slice) -> Self:
        weights = None if self.weights is None else self.weights[:, rows]
        stds = self.stds if self.stds.shape[1] == 1 else self.stds[:, rows]
        return self._changed(means=self.means[:, rows], stds=stds, weights=weights)

    def _changed(self, **fields: Any) -> Self:
        """A copy with other valid fields, whose values are not looked at again."""
        changed = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(changed, name, value)
        return changed

    def _join(self, parts: Sequence[Self], dim: int, weights: Tensor | None) -> Self:
        """Concatenate means and standard deviations along a dimension."""
        first, stds = parts[0], parts[0].stds
        if any(p.stds.shape[dim] > 1 or not torch.equal(p.stds, stds) for p in parts):
            shape = [max(sizes) for sizes in zip(*(p.stds.shape for p in parts), strict=True)]
            stds = torch.cat([p.stds.expand(*shape[:dim], p.means.shape[dim], *shape[dim + 1 :]) for p in parts], dim)
        return first._changed(means=torch.cat([p.means for p in parts], dim), stds=stds, weights=weights)

    def _padded(self, components: int) -> Self:
        """The same distribution with more components per draw, of weight 0."""
        if components == self.components:
            return self
        index = torch.arange(len(self.means), device=self.means.device).view(-1, self.components)
        copies = index[:, -1:].expand(-1, components - self.components)  # of the last component, as values must be finite
        rows = torch.cat([index, copies], 1).flatten()
        weights = self._all_weights[rows].unflatten(0, (-1, components))
        weights[:, self.components :] = 0
        stds = self.stds if len(self.stds) == 1 else self.stds[rows]
        return dataclasses.replace(self, means=self.means[rows], stds=stds, weights=weights.flatten(0, 1), components=components)

    @property
    def _all_weights(self) -> Tensor:
        """The weights of the components, (S M, N)."""
        if self.weights is not None:
            return self.weights
        return self.means.new_full(self.means.shape[:2], 1 / len(self.means))

    @property
    def _shares(self) -> Tensor:
        """The weights of the components, broadcastable to `means`."""
        if self.weights is None:
            return self.means.new_full((1,) * self.means.dim(), 1 / len(self.means))
        return self.weights.reshape(self.weights.shape + (1,) * (self.means.dim() - 2))

    @property
    def _draw_shares(self) -> Tensor:
        """The weights of the draws, broadcastable to `draw_means`; those of impossible draws are above 0, for a quotient."""
        if self.weights is None:
            return self.means.new_full((1,) * self.means.dim(), 1 / self.samples)
        return self._by_draw(self._shares).clamp_min(torch.finfo(self.means.dtype).tiny)

    def _by_draw(self, x: Tensor) -> Tensor:
        """Sum over the components of every draw: (S M, ...) -> (S, ...)."""
        return x if self.components == 1 else x.unflatten(0, (-1, self.components)).sum(1)

    def _average(self, x: Tensor) -> Tensor:
        """The mean over all components: (S M, N, ...) -> (N, ...)."""
        return x.mean(0) if self.weights is None else (self._shares * x).sum(0)

    def _blocks(self) -> Iterator[tuple[GaussianPredictive, slice]]:
        """Blocks of rows, small enough that temporaries stay in the cache."""
        size = max(1, 2**17 * len(self) // max(1, self.means.numel()))
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield self.select(rows), rows

"""Mixtures of normal distributions: densities, cumulative probabilities, quantiles and scores.

Shapes: C components, N rows, * outputs. Weights are broadcastable to (C, N, *) and sum to 1 over C.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

__all__ = ["mixture_crps", "mixture_quantile", "normal_cdf", "normal_log_density"]


def normal_log_density(y: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of y under N(mean, exp(log_std)^2), elementwise, nats."""
    return -0.5 * ((y - mean) * torch.exp(-log_std)).square() - log_std - 0.5 * math.log(2 * math.pi)


def normal_cdf(z: Tensor) -> Tensor:
    """P(Z <= z) of a standard normal Z, elementwise."""
    # torch.special.ndtr uses 1 + erf, which has no digits left in the lower tail
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z)


def mixture_quantile(means: Tensor, stds: Tensor, weights: Tensor, q: float) -> Tensor:
    """The q-quantile, (N, *), of mixtures (C, N, *)."""
    # The mixture's quantile is between the smallest and largest of its components'. Newton steps within this bracket; bisection
    # where they leave it or shrink too slowly, as the density vanishes between two distant modes.
    ends = means + NormalDist().inv_cdf(q) * stds
    low, high = ends.amin(0), ends.amax(0)
    x, last = (low + high) / 2, high - low
    precision = 4 * torch.finfo(x.dtype).eps
    converged = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(200):
        u = (x - means) / stds
        excess = _average(normal_cdf(u), weights) - q
        density = _average(torch.exp(-0.5 * u.square()) / (stds * math.sqrt(2 * math.pi)), weights)
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        newton = x - excess / density
        take = (newton > low) & (newton < high) & ((newton - x).abs() < 0.5 * last)
        converged = converged | (excess.abs() <= precision * (q + density * x.abs()))  # rounding of q and x
        new = torch.where(converged, x, torch.where(take, newton, (low + high) / 2))
        x, last = new, (new - x).abs()
        if (last <= precision * x.abs()).all():
            break
    return x


def mixture_crps(y: Tensor, means: Tensor, stds: Tensor, weights: Tensor) -> Tensor:
    """The continuous ranked probability score, (N, *), of mixtures (C, N, *) at y (N, *)."""
    weights = weights.expand_as(means)
    # a component paired with itself has A(0, 2 sigma^2) = 2 sigma / sqrt(pi); all other pairs occur twice
    pairs = (weights.square() * stds).sum(0) / math.sqrt(math.pi)
    for c in range(len(means) - 1):
        spread = torch.hypot(stds[c], stds[c + 1 :])
        pairs = pairs + weights[c] * (weights[c + 1 :] * _mean_absolute(means[c] - means[c + 1 :], spread)).sum(0)
    return (weights * _mean_absolute(y - means, stds)).sum(0) - pairs


def _average(x: Tensor, weights: Tensor) -> Tensor:
    # a single weight is that of all components, and a mean is faster than a product
    return x.mean(0) if len(weights) == 1 < len(x) else (weights * x).sum(0)


def _mean_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of a normal X."""
    z = mean / std
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z * math.sqrt(0.5))

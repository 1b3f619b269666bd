"""Diagnostics of Markov chains: convergence and effective number of draws.

Shapes: C chains, S draws per chain, * further dimensions, each diagnosed on its own.

Source: Gelman, Carlin, Stern, Dunson, Vehtari & Rubin, *Bayesian data analysis* (third edition, 2013), sections 11.4 and 11.5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesify.errors import DataError

__all__ = ["effective_sample_size", "split_r_hat"]


def split_r_hat(chains: Tensor) -> Tensor:
    r"""Potential scale reduction of chains that are split into halves: 1 if all halves have one mean and variance.

    $$\hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}}$$

    with the mean variance W within a half of n draws and n times the variance B of the halves' means. Values above about 1.05
    say that the chains have not mixed.

    Args:
        chains: (C, S, *), S at least 4.

    Returns:
        (*), NaN where nothing varies.

    Raises:
        DataError: fewer than two dimensions, or fewer than 4 draws.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <...>
        >>> bool((split_r_hat(torch.randn(4, 500)) - 1).abs() < 0.02)
        True
    """
    _, _, mean, within = _moments(_halves(chains))
    n = chains.shape[1] // 2
    return ((n - 1) / n + mean.var(0) / within).sqrt()


def effective_sample_size(chains: Tensor) -> Tensor:
    r"""Number of independent draws whose mean has the variance of the chains' mean.

    $$S_\text{eff} = \frac{mn}{1 + 2 \sum_t \hat\rho_t}, \qquad
      \hat\rho_t = 1 - \frac{W - \hat c_t}{W (n - 1) / n + B / n}$$

    for m halves of chains, n draws each, with the mean autocovariance $\hat c_t$ at lag t. The sum ends where a pair
    $\hat\rho_{2k} + \hat\rho_{2k+1}$ is not positive, and pairs do not increase (Geyer's initial monotone sequence). Of chains
    whose successive draws alternate, it is at most mn log10(mn), as in Stan: the sum is too noisy to tell more.

    Args:
        chains: (C, S, *), S at least 4.

    Returns:
        (*), NaN where nothing varies.

    Raises:
        DataError: fewer than two dimensions, or fewer than 4 draws.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <...>
        >>> bool((effective_sample_size(torch.randn(4, 500)) / 2000 - 1).abs() < 0.2)
        True
    """
    halves = _halves(chains)
    m, n, mean, within = _moments(halves)
    total = within * (n - 1) / n + mean.var(0)
    centered = (halves - mean.unsqueeze(1)).movedim(1, -1)
    spectrum = torch.fft.rfft(centered, n=2 * n).abs().square()
    covariance = torch.fft.irfft(spectrum, n=2 * n)[..., :n].mean(0).movedim(-1, 0) / n  # (n, *)
    rho = 1 - (within - covariance * n / (n - 1)) / total
    rho[0] = 1
    pairs = rho[: n // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    pairs = pairs.cummin(0).values.clamp(min=0)  # once not positive, all that follow are zero
    return m * n / (2 * pairs.sum(0) - 1).clamp_min(1 / math.log10(m * n))


def _halves(chains: Tensor) -> Tensor:
    """Both halves of every chain, (2C, S // 2, *); the draw in the middle of an odd number is left out."""
    if chains.dim() < 2 or len(chains) == 0 or chains.shape[1] < 4:
        raise DataError(f"chains must be (C, S, *) with at least 4 draws S, got shape {tuple(chains.shape)}")
    n = chains.shape[1] // 2
    return torch.cat([chains[:, :n], chains[:, -n:]])


def _moments(halves: Tensor) -> tuple[int, int, Tensor, Tensor]:
    """Number and length of the halves, their means (m, *), and the mean variance within them (*)."""
    return *halves.shape[:2], halves.mean(1), halves.var(1).mean(0)  # pyright: ignore[reportReturnType] # a Size is unpacked

"""Kernel density estimates of particles, with the gradient that lets particles repel each other."""

import math

import torch
from torch import Tensor

__all__ = ["log_kernel_density", "median_bandwidth"]


def median_bandwidth(particles: Tensor) -> Tensor:
    r"""Bandwidth by the median heuristic.

    $$\ell^2 = \frac{\mathrm{median}_{i<j}\lVert w_i - w_j\rVert^2}{2\log(M + 1)}$$

    Args:
        particles: (M, D).

    Returns:
        $\ell$, a scalar without gradient; 0 for a single particle or equal ones.

    Source: Liu & Wang, *Stein variational gradient descent* (2016, arXiv 1608.04471), section 5, with log(M + 1) for log M.

    Example:
        >>> round(float(median_bandwidth(torch.tensor([[0.0], [2.0]])) ** 2 * 2 * math.log(3)), 4)
        4.0
    """
    m = len(particles)
    if m == 1:
        return particles.new_zeros(())
    first, second = torch.triu_indices(m, m, offset=1, device=particles.device)
    squares = _square_distances(particles.detach())[first, second]
    return (squares.sort().values[(len(squares) - 1) // 2] / (2 * math.log(m + 1))).sqrt()


def log_kernel_density(particles: Tensor, bandwidth: float | Tensor) -> Tensor:
    r"""Logarithm of the kernel density estimate at each particle, up to the constant of the normal kernel.

    $$\log\frac1M\sum_j k(w_i, w_j), \qquad k(w, w') = \exp\Bigl(-\frac{\lVert w - w'\rVert^2}{2\ell^2}\Bigr)$$

    The gradient is that with respect to $w_i$ alone, with the estimate held fixed:
    $\sum_j \nabla_{w_i} k(w_i, w_j) / \sum_j k(w_i, w_j)$. Descending it drives particles apart.

    Args:
        particles: (M, D).
        bandwidth: $\ell$, a positive number, or a tensor such as `median_bandwidth` returns, through which no gradient flows.

    Returns:
        (M,), nats.

    Source: D'Angelo & Fortuin, *Repulsive deep ensembles are Bayesian* (2021, arXiv 2106.11642), section 4, of the kernel density
    estimate of the Wasserstein gradient flow.

    Example:
        >>> log_kernel_density(torch.tensor([[0.0], [1000.0]]), 1.0)  # log 1/2, as the other particle is far away
        tensor([-0.6931, -0.6931])
    """
    tiny = torch.finfo(particles.dtype).tiny ** 0.5
    variance = torch.as_tensor(bandwidth, dtype=particles.dtype, device=particles.device).detach().square().clamp_min(tiny)
    exponent = -_square_distances(particles) / (2 * variance)
    return exponent.logsumexp(1) - math.log(len(particles))


def _square_distances(particles: Tensor) -> Tensor:
    """(M, M), with gradients of the first particle of a pair; by products, as the M^2 differences may not fit into memory."""
    centered = particles - particles.detach().mean(0)  # or the products lose the digits of small distances
    fixed = centered.detach()
    norms = centered.square().sum(1, keepdim=True) + fixed.square().sum(1)
    squares = (norms - 2 * centered @ fixed.T).clamp_min(0)
    return squares.masked_fill(torch.eye(len(particles), dtype=torch.bool, device=particles.device), 0)

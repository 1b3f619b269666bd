"""Moments of rectified normal variables, in closed form."""

import math

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError

__all__ = ["relu_covariance", "relu_moments"]


def relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of max(a, 0) for normal a.

    With $a \sim N(m, s^2)$ and $\alpha = m / s$,

    $$\mathrm{E} = s\,(\varphi(\alpha) + \alpha\Phi(\alpha)), \qquad
      \mathrm{Var} = s^2\,\bigl(\Phi + \alpha^2\,\Phi\,(1 - \Phi) + \alpha\varphi\,(1 - 2\Phi) - \varphi^2\bigr)$$

    Args:
        mean, variance: m and $s^2 \ge 0$, of one shape.

    Returns:
        Mean and variance, of that shape.

    Source: Wu et al., *Deterministic variational inference for robust Bayesian neural networks* (2019, arXiv 1810.03958), section
    3; the variance here without the cancellation of second moments.

    Example:
        >>> relu_moments(torch.tensor(0.0), torch.tensor(1.0))
        (tensor(0.3989), tensor(0.3408))
    """
    std, alpha = _standardized(mean, variance)
    density, above, below = _density(alpha), _probability(alpha), _probability(-alpha)
    relative = above + alpha.square() * above * below + alpha * density * (below - above) - density.square()
    return mean * above + std * density, std.square() * relative.clamp_min(0)


def relu_covariance(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and covariance matrix of max(a, 0) for jointly normal a.

    The covariance of two elements with standard deviations s, t, $\alpha = m / s$, $\beta = n / t$ and correlation $\rho$ is

    $$s\,t\,\Bigl[\rho\,\Phi(\alpha)\,\Phi(\beta)
      + \int_0^\rho (\rho - r)\,\varphi_2(\alpha, \beta; r)\,dr\Bigr], \qquad
      \varphi_2(\alpha, \beta; r)
      = \frac{1}{2\pi\sqrt{1 - r^2}}\exp\Bigl(-\frac{\alpha^2 - 2r\alpha\beta + \beta^2}{2(1 - r^2)}\Bigr),$$

    by Price's theorem: its derivative in $\rho$ is the probability that both are positive. The integral is a Gauss-Legendre sum
    over the arcsine of r. Wu et al. (2019), section 3, approximate it by an expansion instead.

    Args:
        mean: (..., H).
        covariance: (..., H, H), positive semidefinite.

    Returns:
        Mean (..., H) and covariance (..., H, H); memory is some multiples of the latter. The error is below 1e-5 s t.

    Raises:
        ConfigurationError: the shapes do not match.

    Example:
        >>> mean, covariance = relu_covariance(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
        >>> covariance
        tensor([[0.3408, 0.1453],
                [0.1453, 0.3408]])
    """
    if covariance.shape != (*mean.shape, mean.shape[-1]):
        raise ConfigurationError(
            f"covariance must be {(*mean.shape, mean.shape[-1])} to match mean {tuple(mean.shape)}, got {tuple(covariance.shape)}"
        )
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    center, variance = relu_moments(mean, diagonal)
    std, alpha = _standardized(mean, diagonal)
    scale = std.unsqueeze(-1) * std.unsqueeze(-2)
    own = torch.eye(mean.shape[-1], dtype=torch.bool, device=mean.device)
    rho = (covariance / scale).masked_fill(own, 0).clamp(-_LARGEST, _LARGEST)
    above = _probability(alpha)
    first, second = alpha.unsqueeze(-1), alpha.unsqueeze(-2)
    angle, gap, product = rho.asin(), (first - second).square(), first * second
    total = rho * above.unsqueeze(-1) * above.unsqueeze(-2)
    for node, weight in _NODES:
        r = (node * angle).sin()
        # 1 - r^2 without cancellation; the exponent is a sum of the square of the difference and a product
        exponent = (0.5 * gap + product * (1 - r)) / (node * angle).cos().square()
        total = total + (weight / (2 * math.pi)) * angle * (rho - r) * torch.exp(-exponent)
    return center, torch.where(own, torch.diag_embed(variance), scale * total)


_LARGEST = 1 - 1e-6  # the arcsine has an infinite slope at 1
_FAR = 1e3  # standard deviations


def _standardized(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """s and m / s; a point mass has a very small s, and m / s is bounded where nothing depends on it any more."""
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny ** 0.5).sqrt()
    return std, (mean / std).clamp(-_FAR, _FAR)


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)


def _probability(x: Tensor) -> Tensor:
    """P(X <= x) of a standard normal X; `torch.special.ndtr` is 1 + erf, which has no digits in the lower tail."""
    return 0.5 * torch.erfc(-math.sqrt(0.5) * x)


def _gauss_legendre(n: int) -> list[tuple[float, float]]:
    """Nodes and weights on [0, 1], by the eigenvalues of the Jacobi matrix (Golub & Welsch)."""
    k = torch.arange(1, n, dtype=torch.float64, device="cpu")
    offdiagonal = k / (4 * k.square() - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(offdiagonal, 1) + torch.diag(offdiagonal, -1))
    return list(zip(((values + 1) / 2).tolist(), vectors[0].square().tolist(), strict=True))


_NODES = _gauss_legendre(10)

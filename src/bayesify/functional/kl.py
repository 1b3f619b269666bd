"""Kullback-Leibler divergences in nats.

They are elementwise, in the broadcast shape of their arguments, unless stated otherwise.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bayesify.functional.low_rank import identity_plus_gram_root
from bayesify.functional.nodes import Node

__all__ = [
    "at_least_float32",
    "dropout_kl",
    "gaussian_kl",
    "gaussian_kl_and_spread",
    "gaussian_kl_sum",
    "low_rank_gaussian_kl",
    "matrix_normal_kl",
    "radial_kl",
]


def at_least_float32(x: Tensor) -> Tensor:
    """Convert `x` to float32 unless it is wider; half precision cannot represent sums over millions of terms.

    Example:
        >>> [at_least_float32(torch.ones(2, dtype=dtype)).dtype for dtype in (torch.bfloat16, torch.float64)]
        [torch.float32, torch.float64]
    """
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.promote_types(x.dtype, torch.float32))


def gaussian_kl(mean: Tensor, log_std: Tensor, prior_mean: Tensor | float = 0.0, prior_std: Tensor | float = 1.0) -> Tensor:
    r"""KL between two normal distributions, elementwise.

    $$\mathrm{KL}(N(\mu, \sigma^2) \,\|\, N(m, s^2)) = \log\frac{s}{\sigma} + \frac{\sigma^2 + (\mu - m)^2}{2 s^2} - \frac12$$

    Args:
        mean: $\mu$, any shape.
        log_std: $\log\sigma$, broadcastable to `mean`.
        prior_mean: $m$.
        prior_std: $s > 0$, a standard deviation.

    Returns:
        Nats per element, nonnegative, zero for equal distributions.

    Source: Kingma & Welling, *Auto-encoding variational Bayes* (2014), appendix B, for a general prior.

    Example:
        >>> gaussian_kl(torch.tensor(0.0), torch.tensor(0.0))
        tensor(0.)
        >>> gaussian_kl(torch.tensor(1.0), torch.tensor(0.0))
        tensor(0.5000)
    """
    log_ratio = log_std - (prior_std.log() if isinstance(prior_std, Tensor) else math.log(prior_std))
    return 0.5 * (torch.expm1(2 * log_ratio) + ((mean - prior_mean) / prior_std) ** 2) - log_ratio


def gaussian_kl_sum(mean: Tensor, log_std: Tensor, prior_mean: Tensor | float = 0.0, prior_std: float = 1.0) -> Tensor:
    r"""`gaussian_kl`, summed over all elements with fewer memory accesses.

    Args:
        mean, log_std: tensors of one shape.
        prior_mean: a number, or a tensor of the same shape.
        prior_std: a standard deviation, one for all elements.

    Returns:
        Nats, a scalar.

    Example:
        >>> gaussian_kl_sum(torch.ones(4), torch.zeros(4))
        tensor(2.)
    """
    return gaussian_kl_and_spread(mean, log_std, prior_mean, prior_std)[0]


def gaussian_kl_and_spread(
    mean: Tensor, log_std: Tensor, prior_mean: Tensor | float = 0.0, prior_std: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    r"""`gaussian_kl_sum`, together with standard deviations and variances, which a forward pass needs too.

    Args:
        mean, log_std, prior_mean, prior_std: as for `gaussian_kl_sum`.

    Returns:
        The KL in nats, a scalar; $\sigma$ and $\sigma^2$ in the shape of `log_std`.

    Example:
        >>> gaussian_kl_and_spread(torch.ones(2), torch.zeros(2))
        (tensor(1.), tensor([1., 1.]), tensor([1., 1.]))
    """
    shift = mean - prior_mean if isinstance(prior_mean, Tensor) or prior_mean else mean
    if torch.compiler.is_compiling():  # which merges the passes itself, and may turn prior_std into an input of the graph
        std = log_std.exp()
        variance = std.square()
        return _gaussian_kl(shift, log_std, variance, prior_std), std, variance
    return _GaussianKL.call(shift, log_std, prior_std)


def _gaussian_kl(shift: Tensor, log_std: Tensor, variance: Tensor, prior_std: float) -> Tensor:
    squares = variance.sum() + shift.square().sum()
    return squares / (2 * prior_std**2) - log_std.sum() + shift.numel() * (math.log(prior_std) - 0.5)


def low_rank_gaussian_kl(mean: Tensor, log_std: Tensor, factor: Tensor, prior_std: float = 1.0) -> Tensor:
    r"""KL of a normal with low-rank plus diagonal covariance from an isotropic one, in time O(n r^2).

    $$\mathrm{KL}\bigl(N(\mu, D + VV^\top) \,\|\, N(0, s^2 I)\bigr)
      = \frac{\mathrm{tr} D + \lVert V \rVert^2 + \lVert\mu\rVert^2}{2s^2} - \frac n2 + n\log s
      - \frac12\log\det D - \frac12\log\det(I_r + V^\top D^{-1} V), \qquad D = \mathrm{diag}(\sigma^2)$$

    Args:
        mean: $\mu$, (n,).
        log_std: $\log\sigma$, (n,), or one element for all.
        factor: $V^\top$, (r, n).
        prior_std: s.

    Returns:
        Nats, a scalar.

    Source: Tomczak, Swaroop & Turner (2020); the determinant by the matrix determinant lemma.

    Example:
        >>> low_rank_gaussian_kl(torch.zeros(2), torch.zeros(2), torch.ones(1, 2))  # (2 - log 3) / 2
        tensor(0.4507)
    """
    log_std = log_std.expand_as(mean)
    whitened = factor * torch.exp(-log_std)
    low_rank = identity_plus_gram_root(whitened.mT).diagonal().log().sum()
    return gaussian_kl_sum(mean, log_std, 0.0, prior_std) + factor.square().sum() / (2 * prior_std**2) - low_rank


def matrix_normal_kl(mean: Tensor, row_log_std: Tensor, column_log_std: Tensor, prior_std: float = 1.0) -> Tensor:
    r"""KL of a matrix normal with diagonal covariances from independent normals of one variance.

    $$\mathrm{KL} = \frac{\sum_i u_i^2 \sum_j v_j^2 + \lVert M \rVert^2}{2s^2} - C\sum_i\log u_i - R\sum_j\log v_j
      + RC\Bigl(\log s - \frac12\Bigr)$$

    Args:
        mean: M, (R, C).
        row_log_std: $\log u$, (R,).
        column_log_std: $\log v$, (C,).
        prior_std: s.

    Returns:
        Nats, a scalar.

    Source: Louizos & Welling (2016), for diagonal covariances.

    Example:
        >>> matrix_normal_kl(torch.ones(2, 3), torch.zeros(2), torch.zeros(3))
        tensor(3.)
    """
    rows, columns = mean.shape
    squares = torch.exp(2 * row_log_std).sum() * torch.exp(2 * column_log_std).sum() + mean.square().sum()
    log_stds = columns * row_log_std.sum() + rows * column_log_std.sum()
    return squares / (2 * prior_std**2) - log_stds + mean.numel() * (math.log(prior_std) - 0.5)


def radial_kl(mean: Tensor, log_std: Tensor, prior_std: float = 1.0) -> Tensor:
    r"""KL of a radial distribution $\mu + \sigma\circ|\rho|\,\epsilon / \lVert\epsilon\rVert$ from independent normals.

    $$\mathrm{KL} = \frac{\lVert\mu\rVert^2 + \sum_i \sigma_i^2 / n}{2s^2} + n\log s + \tfrac n2\log 2\pi
      - \sum_i\log\sigma_i - H_n,$$

    with the entropy $H_n = \frac12\log(2\pi e) + \log\pi^{n/2} - \log\Gamma(n/2) - (n - 1)(\gamma + \log 2) / 2$ of the noise.

    Args:
        mean: $\mu$, (n,).
        log_std: $\log\sigma$, (n,).
        prior_std: s.

    Returns:
        Nats, a scalar, positive for n > 1.

    Source: Farquhar, Osborne & Gal (2020), which omits the entropy of the noise; derived in `bayesify.methods.radial`.

    Example:
        >>> radial_kl(torch.ones(1), torch.zeros(1))  # in one dimension, that of normals
        tensor(0.5000)
    """
    n = mean.numel()
    sphere = 0.5 * n * math.log(math.pi) - math.lgamma(0.5 * n)
    entropy = 0.5 * math.log(2 * math.pi * math.e) + sphere - (n - 1) * _MINUS_MEAN_LOG_DISTANCE
    constant = n * (math.log(prior_std) + 0.5 * math.log(2 * math.pi)) - entropy
    squares = mean.square().sum() + torch.exp(2 * log_std).sum() / n
    return squares / (2 * prior_std**2) - log_std.sum() + constant


_MINUS_MEAN_LOG_DISTANCE = (0.5772156649015329 + math.log(2)) / 2  # of a standard normal, with Euler's constant


class _GaussianKL(Node):
    """Value and gradient with as few memory accesses as possible, which dominate the time of wide linear layers."""

    @staticmethod
    def forward(shift: Tensor, log_std: Tensor, prior_std: float) -> tuple[Tensor, Tensor, Tensor]:
        std = log_std.exp()
        variance = std.square()
        return _gaussian_kl(shift, log_std, variance, prior_std), std, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
        shift, _, ctx.prior_std = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(shift, *output[1:])

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, by_kl: Tensor | None, by_std: Tensor | None, by_variance: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        shift, std, variance = ctx.saved_tensors
        by_shift = by_log = None
        if by_kl is not None:
            share = by_kl / ctx.prior_std**2
            by_shift, by_log = share * shift, -by_kl
            by_variance = 0.5 * share if by_variance is None else by_variance + 0.5 * share
        if by_variance is not None:
            by_log = torch.addcmul(std.new_zeros(()) if by_log is None else by_log, by_variance, variance, value=2)
        if by_std is not None:
            by_log = by_std * std if by_log is None else torch.addcmul(by_log, by_std, std)
        return by_shift, by_log, None


def dropout_kl(weight: Tensor, bias: Tensor | None, p: float | Tensor, prior_std: float | None) -> Tensor:
    r"""KL of Bernoulli dropout from a normal prior, up to a constant in the weights: weight decay.

    $$\mathrm{KL} = \frac{1}{2 s^2}\Bigl(\frac{\lVert W \rVert^2}{1 - p} + \lVert b \rVert^2\Bigr) + \mathrm{const},$$

    because the second moment of a weight, which is scaled by $1 / (1 - p)$ or dropped, is $W_{ij}^2 / (1 - p)$.

    Args:
        weight: W, any shape.
        bias: b, without noise, or None.
        p: the dropout probability, in [0, 1); 0 gives the penalty of point estimates (MAP).
        prior_std: s, a standard deviation; None for a flat prior.

    Returns:
        Nats, summed, a scalar of at least float32; zero for a flat prior.

    Source: Gal & Ghahramani, *Dropout as a Bayesian approximation* (2016), appendix, proposition 1.

    Example:
        >>> dropout_kl(torch.ones(3), torch.ones(1), p=0.5, prior_std=1.0)
        tensor(3.5000)
    """
    weight = at_least_float32(weight)
    if prior_std is None:
        return weight.new_zeros(())
    total = weight.square().sum() / (1 - p)
    if bias is not None:
        total = total + at_least_float32(bias).square().sum()
    return total / (2 * prior_std**2)

"""Poisson and negative binomial distributions: probabilities, ranges and quantiles, in float64.

Log-gamma functions of large counts would cancel in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayesify.functional import incomplete_beta

__all__ = ["count_cdf", "count_log_prob", "count_quantile", "count_range"]

_FAR = 1e6  # counts beyond this times (1 + r)^1.5 are large, of a negative binomial with 1 / r as dispersion


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
    log_hit, log_miss = logsigmoid(log_odds), logsigmoid(-log_odds)  # softplus drops exp(-20), which counts of 1e9 multiply
    # where digits of large log-gamma functions cancel: Tricomi & Erdelyi (1951), about the middle of both arguments
    far = y > _FAR * (1 + r).pow(1.5)
    near = torch.where(far, 1, y)
    ratio = torch.where(far, (r - 1) * (y + r / 2).log(), torch.lgamma(near + r) - torch.lgamma(near + 1))
    return ratio - torch.lgamma(r) + torch.where(y > 0, y * log_hit, 0) + r * log_miss


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


def count_range(mean: Tensor, dispersion: Tensor | None, tail: float) -> tuple[Tensor, Tensor]:
    """Whole numbers below and above which a draw's count is with a probability of at most exp(-tail): Chernoff's bounds."""
    scale = 1 if dispersion is None else 1 + dispersion * mean
    width = (2 * tail * mean * scale).sqrt()
    return (mean - width).floor().clamp_min(0), (mean + width + tail * scale).ceil()


def count_quantile(cdf: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, q: Tensor) -> Tensor:
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

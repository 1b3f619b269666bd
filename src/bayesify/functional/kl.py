"""Kullback-Leibler divergences in nats.

Those of single numbers come elementwise, in the broadcast shape of their arguments; summing is the caller's business, because a KL
is a sum over parameters, never a mean. Those that say so are sums.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bayesify.functional.nodes import signed

__all__ = [
    "at_least_float32",
    "dropout_kl",
    "gaussian_kl",
    "gaussian_kl_and_spread",
    "gaussian_kl_sum",
    "log_uniform_kl",
    "log_uniform_kl_cubic",
    "log_uniform_kl_sigmoid",
]


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or as it is if it is wider: a KL is a sum over millions of terms, which half precision cannot hold."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def gaussian_kl(mean: Tensor, log_std: Tensor, prior_mean: Tensor | float = 0.0, prior_std: Tensor | float = 1.0) -> Tensor:
    r"""KL between two normal distributions, elementwise.

    $$\mathrm{KL}(N(\mu, \sigma^2) \,\|\, N(m, s^2)) = \log\frac{s}{\sigma} + \frac{\sigma^2 + (\mu - m)^2}{2 s^2} - \frac12$$

    Args:
        mean: $\mu$, any shape.
        log_std: $\log\sigma$, broadcastable to `mean`.
        prior_mean: $m$.
        prior_std: $s > 0$, a standard deviation.

    Returns:
        Nats per element, never negative, zero where the two distributions agree.

    Source: Kingma & Welling, *Auto-encoding variational Bayes* (2014), appendix B, for a general prior.

    Example:
        >>> gaussian_kl(torch.tensor(0.0), torch.tensor(0.0))
        tensor(0.)
        >>> gaussian_kl(torch.tensor(1.0), torch.tensor(0.0))
        tensor(0.5000)
    """
    log_ratio = log_std - (prior_std.log() if isinstance(prior_std, Tensor) else math.log(prior_std))
    return 0.5 * (torch.exp(2 * log_ratio) + ((mean - prior_mean) / prior_std) ** 2 - 1) - log_ratio


def gaussian_kl_sum(mean: Tensor, log_std: Tensor, prior_mean: Tensor | float = 0.0, prior_std: float = 1.0) -> Tensor:
    r"""`gaussian_kl`, summed over all elements: the same number in fewer passes over memory.

    Args:
        mean, log_std: of one shape.
        prior_mean: a number or a tensor of that shape.
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
    r"""`gaussian_kl_sum`, with the standard deviations and variances that it meets on its way: a pass needs one of them too.

    Args:
        mean, log_std, prior_mean, prior_std: as there.

    Returns:
        The KL in nats, a scalar; $\sigma$ and $\sigma^2$ in the shape of `log_std`.

    Example:
        >>> gaussian_kl_and_spread(torch.ones(2), torch.zeros(2))
        (tensor(1.), tensor([1., 1.]), tensor([1., 1.]))
    """
    shift = mean - prior_mean if isinstance(prior_mean, Tensor) or prior_mean else mean
    return _GaussianKL.apply(shift, log_std, prior_std)


class _GaussianKL(torch.autograd.Function):
    """Value and gradient in as few passes over the weights as there can be: these are what takes the time in wide linear layers."""

    generate_vmap_rule = True

    @staticmethod
    @signed
    def forward(shift: Tensor, log_std: Tensor, prior_std: float) -> tuple[Tensor, Tensor, Tensor]:
        std = log_std.exp()
        variance = std.square()
        squares = variance.sum() + shift.square().sum()
        kl = squares / (2 * prior_std**2) - log_std.sum() + shift.numel() * (math.log(prior_std) - 0.5)
        return kl, std, variance

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


def dropout_kl(weight: Tensor, bias: Tensor | None, p: float, prior_std: float | None) -> Tensor:
    r"""KL of Bernoulli dropout from a normal prior, up to a constant in the weights: weight decay.

    $$\mathrm{KL} = \frac{1}{2 s^2}\Bigl(\frac{\lVert W \rVert^2}{1 - p} + \lVert b \rVert^2\Bigr) + \mathrm{const},$$

    as a kept weight is scaled by $1 / (1 - p)$, which makes the second moment of a weight $W_{ij}^2 / (1 - p)$.

    Args:
        weight: W, any shape.
        bias: b, without noise, or None.
        p: the probability of a zero, in [0, 1).
        prior_std: s, a standard deviation; None for a flat prior.

    Returns:
        Nats, summed: a scalar of at least float32, zero for a flat prior.

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


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    r"""Exact KL of a dropout posterior from the log-uniform prior, elementwise and differentiable, for every alpha.

    $$\mathrm{KL}(\alpha) = -\tfrac12\log\alpha + \mathrm{E}\log|\epsilon| + \tfrac12(\gamma + \log 2) = 2\int_0^u D(t)\,dt,
    \qquad \epsilon \sim N(1, \alpha),\; u = (2\alpha)^{-1/2},$$

    with Dawson's function $D$. The prior is improper, so the constant is a convention: here $\mathrm{KL}(\infty) = 0$, which makes
    the value positive and decreasing in alpha. For $\log\alpha \in [-20, 12]$ value and gradient are right to 1e-10 in float64
    and to 2e-6 in float32.

    Args:
        log_alpha: $\log\alpha$, any shape; alpha is the variance of the multiplicative noise, $p/(1-p)$ for a dropout rate p.

    Returns:
        Nats per element, same shape and dtype.

    Source: Kingma, Salimans & Welling (2015), appendix C. The paper fits a cubic to this function (`log_uniform_kl_cubic`), valid
    for alpha in about [0.05, 1] only.

    Example:
        >>> log_uniform_kl(torch.tensor([0.0, 50.0], dtype=torch.float64)).round(decimals=6)
        tensor([0.4267, 0.0000], dtype=torch.float64)
    """
    if not log_alpha.is_floating_point():
        raise TypeError(f"log_alpha must be a floating point tensor, got {log_alpha.dtype}; convert it with .float() or .double()")
    return _LogUniformKL.apply(at_least_float32(log_alpha))[0].to(log_alpha.dtype)


# KL(alpha) = softplus(-log alpha) / 2 + (1 - s)^2 P(s) / Q(s), s = 2 alpha / (1 + 2 alpha): the first term has the logarithm at
# alpha = 0, the second is smooth on [0, 1]. Rational fit by tools/fit_log_uniform_kl.py, largest error 1.5e-12 for log alpha in
# [-20, 12]. It takes a tenth of the time of summing the series of Dawson's integral, which matters with one alpha per weight.
_P = (
    0.63518142273081799, -7.7890939658416778, 213.02197996481912, -400.65133191411105, 19374.67505897522, 97504.75684569111,
    1186925.1612358834, 8350496.4071097662, 47729306.694667089, 188032750.76787881, 770227163.81950913, -436870074.15170571,
    64091954.853333861, -8945720.5679131303,
)  # fmt: skip
_Q = (
    1.0, -13.475609493738188, 351.27372348204698, -1048.8121194373045, 31600.629661557806, 116288.17664339362,
    1713101.6088518774, 11136027.55142961, 59816727.713470948, 253800045.31354545, 589593827.97645767, 632501539.80349707,
    -728105932.95467614, 130276722.00926748,
)  # fmt: skip
_DP = (*(k * c for k, c in enumerate(_P) if k), 0.0)
_DQ = (*(k * c for k, c in enumerate(_Q) if k), 0.0)
_FEW = 2**14


def _polynomials(s: Tensor, *coefficients: tuple[float, ...]) -> tuple[Tensor, ...]:
    """Polynomials of one degree at s, all at once."""
    table = torch.tensor(coefficients, dtype=s.dtype, device=s.device)
    if s.numel() <= _FEW:  # a product with the powers of s: a handful of operations, whose number is all that counts here
        powers = s.unsqueeze(-1).expand(*s.shape, table.shape[1] - 1).cumprod(-1)
        return torch.matmul(powers, table[:, 1:].T).add(table[:, 0]).unbind(-1)
    highest, *others = table.T.reshape(table.shape[1], -1, *[1] * s.dim()).flip(0)
    value = highest.expand(-1, *s.shape)
    for row in others:  # Horner's rule
        value = torch.addcmul(row, value, s)
    return value.unbind(0)


def _value_and_slope(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """The KL and its derivative by log alpha."""
    shifted = log_alpha + math.log(2)
    s, rest = torch.sigmoid(shifted), torch.sigmoid(-shifted)
    p, q, dp, dq = _polynomials(s, _P, _Q, _DP, _DQ)
    ratio, square = p / q, rest * rest
    value = torch.nn.functional.softplus(-log_alpha) / 2 + square * ratio
    # d/ds of (1 - s)^2 P / Q, times ds / d log alpha = s (1 - s)
    return value, s * square * (rest * (dp - ratio * dq) / q - 2 * ratio) - torch.sigmoid(-log_alpha) / 2


class _LogUniformKL(torch.autograd.Function):
    """One node of the graph instead of the fit's thirty; the slope comes with the value, only second derivatives redo it."""

    generate_vmap_rule = True

    @staticmethod
    @signed
    def forward(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
        return _value_and_slope(log_alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        log_alpha, slope = ctx.saved_tensors
        return grad * (_value_and_slope(log_alpha)[1] if torch.is_grad_enabled() else slope)


def log_uniform_kl_cubic(log_alpha: Tensor) -> Tensor:
    r"""The paper's cubic approximation of the log-uniform KL, for comparison: use `log_uniform_kl`.

    $$\mathrm{KL}(\alpha) \approx c - \tfrac12\log\alpha - c_1\alpha - c_2\alpha^2 - c_3\alpha^3$$

    The constant c makes it agree with the exact KL at alpha = 1. It is within 0.0102 nats for alpha in [0.05, 1], off by up to
    0.037 below, and runs to minus infinity above 1.

    Args:
        log_alpha: $\log\alpha$, any shape.

    Returns:
        Nats per element, same shape.

    Source: Kingma, Salimans & Welling (2015), section 3.3 and appendix C.

    Example:
        >>> log_uniform_kl_cubic(torch.tensor([0.0, 2.0])).round(decimals=2)  # the exact values are 0.43 and 0.07
        tensor([   0.4300, -163.4300])
    """
    alpha = log_alpha.exp()
    return _CUBIC_AT_ONE - 0.5 * log_alpha - alpha * (_CUBIC[0] + alpha * (_CUBIC[1] + alpha * _CUBIC[2]))


_CUBIC = (1.161451241083230, -1.502041176441722, 0.586299206427007)
_CUBIC_AT_ONE = float(log_uniform_kl(torch.zeros((), dtype=torch.float64))) + sum(_CUBIC)


def log_uniform_kl_sigmoid(log_alpha: Tensor) -> Tensor:
    r"""The sigmoid approximation of the log-uniform KL, for comparison: use `log_uniform_kl`.

    $$\mathrm{KL}(\alpha) \approx k_1 - k_1 \,\mathrm{sigmoid}(k_2 + k_3\log\alpha) + \tfrac12\log(1 + \alpha^{-1})$$

    Within 0.0094 nats for every alpha; its gradient is off by up to 0.014.

    Args:
        log_alpha: $\log\alpha$, any shape.

    Returns:
        Nats per element, same shape.

    Source: Molchanov, Ashukha & Vetrov, *Variational dropout sparsifies deep neural networks* (2017), equation (14).

    Example:
        >>> log_uniform_kl_sigmoid(torch.tensor([0.0])).round(decimals=3)
        tensor([0.4310])
    """
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    return k1 * torch.sigmoid(-(k2 + k3 * log_alpha)) + 0.5 * torch.nn.functional.softplus(-log_alpha)

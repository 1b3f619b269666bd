"""KL of Gaussian dropout from the log-uniform prior, in nats, elementwise: exact, and the approximations of two papers."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesify.functional.kl import at_least_float32
from bayesify.functional.nodes import Node
from bayesify.native.dropout import evaluates_natively, log_uniform_kl_and_slope
from bayesify.native.operators import is_eager

__all__ = ["LOG_UNIFORM_TABLE", "log_uniform_kl", "log_uniform_kl_cubic", "log_uniform_kl_sigmoid"]


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    r"""Exact KL of a dropout posterior from the log-uniform prior, elementwise.

    $$\mathrm{KL}(\alpha) = -\tfrac12\log\alpha + \mathrm{E}\log|\epsilon| + \tfrac12(\gamma + \log 2) = 2\int_0^u D(t)\,dt,
    \qquad \epsilon \sim N(1, \alpha),\; u = (2\alpha)^{-1/2},$$

    with Dawson's function $D$. The prior is improper, so the constant is a convention: here $\mathrm{KL}(\infty) = 0$, and the
    value is positive and decreasing in alpha. For $\log\alpha \in [-20, 12]$ the error of value and gradient is below 1e-10 in
    float64 and 2e-6 in float32.

    Args:
        log_alpha: $\log\alpha$, any shape; alpha is the variance of the multiplicative noise, $p/(1-p)$ for a dropout rate p.

    Returns:
        Nats per element, same shape and dtype.

    Raises:
        TypeError: `log_alpha` is not floating point.

    Source: Kingma, Salimans & Welling (2015), appendix C. The paper approximates it by a cubic (`log_uniform_kl_cubic`), valid only
    for alpha in about [0.05, 1].

    Example:
        >>> log_uniform_kl(torch.tensor([0.0, 50.0], dtype=torch.float64)).round(decimals=6)
        tensor([0.4267, 0.0000], dtype=torch.float64)
    """
    if not log_alpha.is_floating_point():
        raise TypeError(f"log_alpha must be a floating point tensor, got {log_alpha.dtype}; convert it with .float() or .double()")
    return _LogUniformKL.call(at_least_float32(log_alpha))[0].to(log_alpha.dtype)


# KL(alpha) = softplus(-log alpha) / 2 + (1 - s)^2 P(s) / Q(s), s = 2 alpha / (1 + 2 alpha): the first term contains the logarithm
# at alpha = 0, the second is smooth on [0, 1]. Rational fit by tools/fit_log_uniform_kl.py, with an error up to 1.5e-12 for log
# alpha in [-20, 12]; ten times faster than the series of Dawson's integral.
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
LOG_UNIFORM_TABLE = torch.tensor([_P, _Q], dtype=torch.float64, device="cpu")
_DP = (*(k * c for k, c in enumerate(_P) if k), 0.0)
_DQ = (*(k * c for k, c in enumerate(_Q) if k), 0.0)
_COEFFICIENTS = _P, _Q, _DP, _DQ
_FEW = 2**14


def _polynomials(s: Tensor) -> tuple[Tensor, ...]:
    """P, Q and their derivatives at s. It has no matrix product, which autocast would compute in half precision."""
    table = _table_of(s)
    if s.numel() <= _FEW:  # sums of the powers of s: few operations, whose number determines the time for small s
        powers = s.unsqueeze(-1).expand(*s.shape, table.shape[1] - 1).cumprod(-1)
        return (powers.unsqueeze(-2) * table[:, 1:]).sum(-1).add(table[:, 0]).unbind(-1)
    highest, *others = table.T.reshape(table.shape[1], -1, *[1] * s.dim()).flip(0)
    value = highest.expand(-1, *s.shape)
    for row in others:  # Horner's rule
        value = torch.addcmul(row, value, s)
    return value.unbind(0)


def _table_of(s: Tensor) -> Tensor:
    """The coefficients in the dtype of s and on its device: of a GPU copied once, which waits for it and cannot be captured."""
    if s.is_cuda and is_eager():
        return _on_device(s.dtype, s.device)
    return torch.tensor(_COEFFICIENTS, dtype=s.dtype, device=s.device)


@cache
def _on_device(dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False):  # for passes with gradients, too
        return torch.tensor(_COEFFICIENTS, dtype=dtype, device=device)


def _value_and_slope(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """The KL and its derivative with respect to log alpha."""
    shifted = log_alpha + math.log(2)
    s, rest = torch.sigmoid(shifted), torch.sigmoid(-shifted)
    p, q, dp, dq = _polynomials(s)
    ratio, square = p / q, rest * rest
    value = torch.nn.functional.softplus(-log_alpha) / 2 + square * ratio
    # d/ds of (1 - s)^2 P / Q, times ds / d log alpha = s (1 - s)
    return value, s * square * (rest * (dp - ratio * dq) / q - 2 * ratio) - torch.sigmoid(-log_alpha) / 2


class _LogUniformKL(Node):
    """One node of the graph instead of thirty; the slope is computed with the value, and again for second derivatives only."""

    @staticmethod
    def forward(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
        if evaluates_natively(log_alpha):
            return log_uniform_kl_and_slope(log_alpha, LOG_UNIFORM_TABLE)
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
    r"""Cubic approximation of `log_uniform_kl`, for comparison.

    $$\mathrm{KL}(\alpha) \approx c - \tfrac12\log\alpha - c_1\alpha - c_2\alpha^2 - c_3\alpha^3$$

    The constant c makes it exact at alpha = 1. The error is up to 0.0102 nats for alpha in [0.05, 1] and up to 0.037 below; above
    1 the approximation tends to minus infinity.

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
_CUBIC_AT_ONE = float(_value_and_slope(torch.zeros((), dtype=torch.float64, device="cpu"))[0]) + sum(_CUBIC)


def log_uniform_kl_sigmoid(log_alpha: Tensor) -> Tensor:
    r"""Sigmoid approximation of `log_uniform_kl`, for comparison.

    $$\mathrm{KL}(\alpha) \approx k_1 - k_1 \,\mathrm{sigmoid}(k_2 + k_3\log\alpha) + \tfrac12\log(1 + \alpha^{-1})$$

    The error is up to 0.0094 nats, and up to 0.014 in the gradient.

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

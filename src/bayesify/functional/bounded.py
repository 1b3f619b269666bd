r"""A Lipschitz Gaussian loss and link, for which Rademacher complexity bounds the risk of VIFO (theorem 4.5).

Source: *Variational inference on the final-layer output of neural networks*, appendix A.1, with a minimum in the
link instead of the printed maximum, which is not Lipschitz.
"""

import math

from torch import Tensor

__all__ = ["bounded_exp", "bounded_gaussian_nll"]


def bounded_exp(x: Tensor, bound: float) -> Tensor:
    r"""$\min(e^x, B)$, elementwise; positive and B-Lipschitz.

    Example:
        >>> bounded_exp(torch.tensor([0.0, 100.0]), 5.0)
        tensor([1., 5.])
    """
    return x.clamp_max(math.log(bound)).exp()


def bounded_gaussian_nll(y: Tensor, mean: Tensor, log_variance: Tensor, error_bound: float, precision_bound: float) -> Tensor:
    r"""Negative log density of a normal distribution with bounded error and precision, elementwise, in nats.

    $$\tfrac12\min\{(y - m)^2, B_m^2\}\min\{e^{-l}, B_l\} + \tfrac12 l + \tfrac12\log 2\pi$$

    It is $B_m B_l$-Lipschitz in m and $(\tfrac12 + \tfrac12 B_m^2 B_l)$-Lipschitz in l. The paper omits the constant.

    Args:
        y, mean, log_variance: y, m and l, broadcastable.
        error_bound: $B_m$, in the unit of y.
        precision_bound: $B_l$, in the unit of $y^{-2}$.

    Example:
        >>> bounded_gaussian_nll(torch.tensor(9.0), torch.tensor(0.0), torch.tensor(0.0), error_bound=1.0, precision_bound=1.0)
        tensor(1.4189)
    """
    error = (y - mean).square().clamp_max(error_bound**2)
    return 0.5 * (error * bounded_exp(-log_variance, precision_bound) + log_variance + math.log(2 * math.pi))

r"""Log-normal posteriors of a positive scale under gamma and inverse gamma priors, and the KL of a hierarchy built on them.

A log-normal $z = e^{g + \sqrt d\,\epsilon}$ has parameters g (mean) and d (variance, not standard deviation) of $\log z$.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from bayesify.functional.householder import CompactForm, vsd_kl
from bayesify.functional.kl import at_least_float32

__all__ = ["kl_lognormal_gamma", "kl_lognormal_inverse_gamma", "vsd_hierarchical_kl"]


def kl_lognormal_inverse_gamma(mean: Tensor, variance: Tensor, concentration: Tensor | float, rate: Tensor | float) -> Tensor:
    r"""KL of a log-normal from an inverse gamma distribution, elementwise.

    $$\mathrm{KL}(\mathrm{LogN}(g, d) \,\|\, \mathrm{IG}(a, b))
      = a g + b\, e^{-g + d/2} - a \log b + \log\Gamma(a) - \tfrac12 (1 + \log 2\pi d)$$

    The density is $p(z) = b^a z^{-a-1} e^{-b/z} / \Gamma(a)$. What the paper prints in appendix C is minus this KL.

    Args:
        mean: g, the mean of log z, any shape.
        variance: d > 0, the variance of log z, broadcastable to `mean`.
        concentration: a > 0.
        rate: b > 0, which multiplies 1/z.

    Returns:
        Nats per element, never negative.

    Raises:
        ValueError: concentration or rate is a number that is not above 0.

    Source: Nguyen et al. (2021), appendix C, with the sign and the rate corrected.

    Example:
        >>> kl_lognormal_inverse_gamma(torch.tensor(0.0), torch.tensor(0.01), 2.0, 2.0)
        tensor(1.5074)
    """
    return kl_lognormal_gamma(-mean, variance, concentration, rate)  # 1/z is log-normal with mean -g, and gamma a priori


def kl_lognormal_gamma(mean: Tensor, variance: Tensor, concentration: Tensor | float, rate: Tensor | float) -> Tensor:
    r"""KL of a log-normal from a gamma distribution, elementwise.

    $$\mathrm{KL}(\mathrm{LogN}(g, d) \,\|\, \mathrm{Gamma}(a, b))
      = -a g + b\, e^{g + d/2} - a \log b + \log\Gamma(a) - \tfrac12 (1 + \log 2\pi d)$$

    The density is $p(z) = b^a z^{a-1} e^{-b z} / \Gamma(a)$, with the rate b, not a scale.

    Args:
        mean: g, the mean of log z, any shape.
        variance: d > 0, the variance of log z, broadcastable to `mean`.
        concentration: a > 0.
        rate: b > 0, which multiplies z.

    Returns:
        Nats per element, never negative.

    Raises:
        ValueError: concentration or rate is a number that is not above 0.

    Source: Nguyen et al. (2021), appendix C, for the gamma distribution the text mentions.

    Example:
        >>> kl_lognormal_gamma(torch.tensor(0.0), torch.tensor(0.01), 2.0, 2.0)
        tensor(1.5074)
    """
    for name, value in (("concentration", concentration), ("rate", rate)):
        if not isinstance(value, Tensor) and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    if isinstance(concentration, Tensor) or isinstance(rate, Tensor):
        a, b = torch.as_tensor(concentration).to(mean), torch.as_tensor(rate).to(mean)
        constant = torch.lgamma(a) - a * torch.log(b)
    else:
        a, b = concentration, rate
        constant = math.lgamma(a) - a * math.log(b)
    entropy = mean + 0.5 * torch.log(variance) + 0.5 * (1 + math.log(2 * math.pi))
    return constant - (a - 1) * mean + b * torch.exp(mean + variance / 2) - entropy


def vsd_hierarchical_kl(
    log_alpha: Tensor,
    vectors: Tensor | CompactForm,
    columns: int,
    mean: Tensor,
    variance: Tensor,
    concentration: Tensor | float,
    rate: Tensor | float,
    hyperprior: Literal["inverse-gamma", "gamma"] = "inverse-gamma",
) -> Tensor:
    r"""KL of variational structured dropout with a random scale per noise variable, in closed form.

    With $z \sim q = \mathrm{LogN}(g, d)$, $q(W_{:j} \mid z) = N(z \circ \Theta_{:j}, V_j U\,\mathrm{diag}(\alpha)\,U^\top V_j)$,
    $V_j = \mathrm{diag}(z \circ \Theta_{:j})$, and the prior $p(W_{ij} \mid z) = N(0, z_i / \beta_{ij})$, $p(z)$ (inverse) gamma,

    $$\mathrm{E}_q\, \mathrm{KL}(W \mid z) + \mathrm{KL}(z)
      = \frac{Q}{2} \sum_i \Bigl[ e^{g_i + d_i/2} - g_i - 1 + \log\frac{1 + S_i}{\alpha_i} \Bigr]
      + \sum_i \mathrm{KL}(\mathrm{LogN}(g_i, d_i) \,\|\, p(z_i)).$$

    Both terms are paid: the brackets of the paper's equation (14) give back the second one, and its equation (15) has the sign of
    the logarithm reversed. Beta is the paper's choice $1 / (\Theta_{ij}^2 (1 + S_i))$, which is the optimum without z. Given z the
    optimum would be that over z, and z would drop out of the first term; under q it would be that over $\mathrm{E} z$.

    Args:
        log_alpha: (K,), $\log\alpha$.
        vectors: (T, K) or their `compact_form`, see `householder`.
        columns: Q, the number of weights that share one noise variable.
        mean: g (K,), of log z.
        variance: d (K,) > 0, of log z.
        concentration: of the hyperprior.
        rate: of the hyperprior.
        hyperprior: "inverse-gamma" or "gamma".

    Returns:
        Nats, a scalar of at least float32.

    Raises:
        ValueError: the shapes do not fit, or there is no such hyperprior.

    Source: Nguyen et al. (2021), section 3.3 and appendix C, corrected as said above.

    Example:
        >>> log_alpha, vectors, g, d = torch.zeros(3), torch.randn(1, 3), torch.zeros(3), torch.full((3,), 0.01)
        >>> vsd_hierarchical_kl(log_alpha, vectors, 2, g, d, concentration=2.0, rate=2.0)
        tensor(6.6166)
    """
    if hyperprior not in _HYPERPRIORS:
        raise ValueError(f"hyperprior must be one of {', '.join(map(repr, _HYPERPRIORS))}, got {hyperprior!r}")
    if not mean.shape == variance.shape == log_alpha.shape:
        shapes = f"{tuple(mean.shape)} and {tuple(variance.shape)}"
        raise ValueError(f"mean and variance must be {tuple(log_alpha.shape)} as log_alpha, got {shapes}")
    mean, variance = at_least_float32(mean), at_least_float32(variance)
    of_weights = 0.5 * columns * (torch.exp(mean + variance / 2) - mean - 1)
    of_scale = _HYPERPRIORS[hyperprior](mean, variance, concentration, rate)
    return vsd_kl(log_alpha, vectors, columns) + (of_weights + of_scale).sum()


_HYPERPRIORS = {"inverse-gamma": kl_lognormal_inverse_gamma, "gamma": kl_lognormal_gamma}

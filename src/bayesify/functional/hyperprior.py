r"""KL of log-normal posteriors of a positive scale from gamma, inverse gamma and half-Cauchy priors.

A log-normal $z = e^{g + \sqrt d\,\epsilon}$ has parameters g (mean) and d (variance, not standard deviation) of $\log z$.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError
from bayesify.functional.kl import at_least_float32
from bayesify.functional.reflections import CompactForm, vsd_kl

__all__ = ["kl_lognormal_gamma", "kl_lognormal_half_cauchy", "kl_lognormal_inverse_gamma", "vsd_hierarchical_kl"]


def kl_lognormal_inverse_gamma(mean: Tensor, variance: Tensor, concentration: Tensor | float, rate: Tensor | float) -> Tensor:
    r"""KL of a log-normal from an inverse gamma distribution, elementwise.

    $$\mathrm{KL}(\mathrm{LogN}(g, d) \,\|\, \mathrm{IG}(a, b))
      = a g + b\, e^{-g + d/2} - a \log b + \log\Gamma(a) - \tfrac12 (1 + \log 2\pi d)$$

    The density is $p(z) = b^a z^{-a-1} e^{-b/z} / \Gamma(a)$. The paper prints the negative of this KL in appendix C.

    Args:
        mean: g, the mean of log z, any shape.
        variance: d > 0, the variance of log z, broadcastable to `mean`.
        concentration: a > 0.
        rate: b > 0, which multiplies 1/z.

    Returns:
        Nats per element, nonnegative.

    Raises:
        ConfigurationError: `concentration` or `rate` is a number that is not above 0.

    Source: Nguyen et al. (2021), appendix C, with the sign and the rate corrected.

    Example:
        >>> kl_lognormal_inverse_gamma(torch.tensor(0.0), torch.tensor(0.01), 2.0, 2.0)
        tensor(1.5074)
    """
    return kl_lognormal_gamma(-mean, variance, concentration, rate)  # 1/z is log-normal with mean -g, and has a gamma prior


def kl_lognormal_gamma(mean: Tensor, variance: Tensor, concentration: Tensor | float, rate: Tensor | float) -> Tensor:
    r"""KL of a log-normal from a gamma distribution, elementwise.

    $$\mathrm{KL}(\mathrm{LogN}(g, d) \,\|\, \mathrm{Gamma}(a, b))
      = -a g + b\, e^{g + d/2} - a \log b + \log\Gamma(a) - \tfrac12 (1 + \log 2\pi d)$$

    The density is $p(z) = b^a z^{a-1} e^{-b z} / \Gamma(a)$, with the rate b instead of a scale.

    Args:
        mean, variance, concentration: as for `kl_lognormal_inverse_gamma`.
        rate: b > 0, which multiplies z.

    Returns:
        Nats per element, nonnegative.

    Raises:
        ConfigurationError: `concentration` or `rate` is a number that is not above 0.

    Source: Nguyen et al. (2021), appendix C, for the gamma distribution that the text mentions.

    Example:
        >>> kl_lognormal_gamma(torch.tensor(0.0), torch.tensor(0.01), 2.0, 2.0)
        tensor(1.5074)
    """
    for name, value in (("concentration", concentration), ("rate", rate)):
        if not isinstance(value, Tensor) and not 0 < value < math.inf:
            raise ConfigurationError(f"{name} must be a finite number above 0, got {value!r}")
    if isinstance(concentration, Tensor) or isinstance(rate, Tensor):
        a, b = torch.as_tensor(concentration).to(mean), torch.as_tensor(rate).to(mean)
        constant = torch.lgamma(a) - a * torch.log(b)
    else:
        a, b = concentration, rate
        constant = math.lgamma(a) - a * math.log(b)
    entropy = mean + 0.5 * torch.log(variance) + 0.5 * (1 + math.log(2 * math.pi))
    return constant - (a - 1) * mean + b * torch.exp(mean + variance / 2) - entropy


def kl_lognormal_half_cauchy(mean: Tensor, variance: Tensor, rate: Tensor | float = 1.0) -> Tensor:
    r"""KL of a log-normal from a half-Cauchy distribution, elementwise.

    $$\mathrm{KL}(\mathrm{LogN}(g, d) \,\|\, C^+(1/b))
      = \mathrm{E}\log\bigl(1 + b^2 e^{2g + 2\sqrt d\,\epsilon}\bigr) - \log\frac{2b}{\pi} - g - \tfrac12 (1 + \log 2\pi d)$$

    The density is $p(z) = 2b / (\pi (1 + b^2 z^2))$, with the median 1/b. The expectation over the standard normal $\epsilon$ is a
    trapezoidal sum, with an error below 1e-6 for standard deviations of log z up to 2, and 1e-3 up to 5.

    Args:
        mean, variance: as for `kl_lognormal_inverse_gamma`.
        rate: b > 0, which multiplies z; broadcastable to `mean`.

    Returns:
        Nats per element, nonnegative.

    Raises:
        ConfigurationError: `rate` is a number that is not above 0.

    Source: the half-Cauchy hyperprior that Nguyen et al. (2021), section 3.3, mention; derived here.

    Example:
        >>> kl_lognormal_half_cauchy(torch.tensor(0.0), torch.tensor(0.01))
        tensor(2.0334)
    """
    if not isinstance(rate, Tensor) and not 0 < rate < math.inf:
        raise ConfigurationError(f"rate must be a finite number above 0, got {rate!r}")
    log_rate = torch.log(torch.as_tensor(rate, dtype=mean.dtype, device=mean.device))
    eps = torch.arange(-32, 33, dtype=mean.dtype, device=mean.device) / 4
    weights = torch.softmax(-0.5 * eps.square(), 0)
    exponent = 2 * ((mean + log_rate).unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * eps)
    expected = torch.logaddexp(exponent, torch.zeros_like(exponent)) @ weights
    entropy = mean + 0.5 * torch.log(variance) + 0.5 * (1 + math.log(2 * math.pi))
    return expected - math.log(2 / math.pi) - log_rate - entropy


def vsd_hierarchical_kl(
    log_alpha: Tensor,
    vectors: Tensor | CompactForm,
    columns: int,
    mean: Tensor,
    variance: Tensor,
    concentration: Tensor | float,
    rate: Tensor | float,
    hyperprior: Literal["inverse-gamma", "gamma", "half-cauchy"] = "inverse-gamma",
) -> Tensor:
    r"""KL of variational structured dropout with a random scale per noise variable, in closed form.

    With $z \sim q = \mathrm{LogN}(g, d)$, $q(W_{:j} \mid z) = N(z \circ \Theta_{:j}, V_j U\,\mathrm{diag}(\alpha)\,U^\top V_j)$,
    $V_j = \mathrm{diag}(z \circ \Theta_{:j})$, and the prior $p(W_{ij} \mid z) = N(0, z_i / \beta_{ij})$, $p(z)$ one of three,

    $$\mathrm{E}_q\, \mathrm{KL}(W \mid z) + \mathrm{KL}(z)
      = \frac{Q}{2} \sum_i \Bigl[ e^{g_i + d_i/2} - g_i - 1 + \log\frac{1 + S_i}{\alpha_i} \Bigr]
      + \sum_i \mathrm{KL}(\mathrm{LogN}(g_i, d_i) \,\|\, p(z_i)).$$

    The paper's equation (14) subtracts the second term in its brackets, and its equation (15) reverses the sign of the logarithm.
    Here both are corrected. $\beta_{ij} = 1 / (\Theta_{ij}^2 (1 + S_i))$ as in the paper, which is the optimum without z. The
    optimum given z is this value divided by z, which removes z from the first term; under q, this value divided by $\mathrm{E} z$.

    Args:
        log_alpha: (K,), $\log\alpha$.
        vectors: (T, K) or their `compact_form`, see `householder`.
        columns: Q, the number of weights that share one noise variable.
        mean: g (K,), the means of log z.
        variance: d (K,) > 0, the variances of log z.
        concentration, rate: parameters of the hyperprior; the half-Cauchy has only a rate.
        hyperprior: "inverse-gamma", "gamma" or "half-cauchy".

    Returns:
        Nats, a scalar of at least float32.

    Raises:
        ConfigurationError: the shapes do not match, or the hyperprior is unknown.

    Source: Nguyen et al. (2021), section 3.3 and appendix C, corrected.

    Example:
        >>> log_alpha, vectors, g, d = torch.zeros(3), torch.randn(1, 3), torch.zeros(3), torch.full((3,), 0.01)
        >>> vsd_hierarchical_kl(log_alpha, vectors, 2, g, d, concentration=2.0, rate=2.0)
        tensor(6.6166)
    """
    if hyperprior not in _HYPERPRIORS:
        raise ConfigurationError(f"hyperprior must be one of {', '.join(map(repr, _HYPERPRIORS))}, got {hyperprior!r}")
    if not mean.shape == variance.shape == log_alpha.shape:
        shapes = f"{tuple(mean.shape)} and {tuple(variance.shape)}"
        raise ConfigurationError(f"mean and variance must be {tuple(log_alpha.shape)} to match log_alpha, got {shapes}")
    mean, variance = at_least_float32(mean), at_least_float32(variance)
    of_weights = 0.5 * columns * (torch.exp(mean + variance / 2) - mean - 1)
    of_scale = _HYPERPRIORS[hyperprior](mean, variance, concentration, rate)
    return vsd_kl(log_alpha, vectors, columns) + (of_weights + of_scale).sum()


_HYPERPRIORS = {
    "inverse-gamma": kl_lognormal_inverse_gamma,
    "gamma": kl_lognormal_gamma,
    "half-cauchy": lambda mean, variance, concentration, rate: kl_lognormal_half_cauchy(mean, variance, rate),
}

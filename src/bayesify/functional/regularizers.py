r"""Regularizers of a network's outputs: KL of $q(z \mid x) = N(\mu, \mathrm{diag}(s^2))$ from a prior of z.

Shapes: B batch, K outputs, * further dimensions (tokens) with one z per position. All functions take `mean` and `std` (B, *, K), or
(B,) for one output, and return nats (B,), summed over outputs and positions, of at least float32.

The functions `*_all` learn the prior from the whole data set. They take averages over it (K,), such as running means, as constants,
and are bounds for every value of the averages. If the averages are exact, the mean over the data set has the value and the gradient
of the paper's form.

Source: *Variational inference on the final-layer output of neural networks*, sections 2.2, B and C; Tomczak et al. (2021); Wu et
al. (2019).
"""

import math

from torch import Tensor

from bayesify.errors import ConfigurationError
from bayesify.functional.kl import at_least_float32

__all__ = [
    "vifo_empirical_bayes",
    "vifo_empirical_bayes_all",
    "vifo_mean",
    "vifo_mean_all",
    "vifo_mean_variance",
    "vifo_mean_variance_all",
    "vifo_naive",
]


_PRIOR_STD, _MEAN_PRIOR_STD = math.sqrt(0.3), math.sqrt(5.7)  # these defaults, a and b are those of the paper, appendix D.2


def vifo_naive(mean: Tensor, std: Tensor, prior_std: float = 1.0) -> Tensor:
    r"""$\mathrm{KL}(q \,\|\, N(0, \sigma^2 I))$ for a fixed prior standard deviation $\sigma$.

    Example:
        >>> vifo_naive(torch.zeros(2, 3), torch.ones(2, 3))
        tensor([0., 0.])
    """
    mean, std = _outputs(mean, std)
    return _sum((mean.square() + std.square()) / (2 * prior_std**2) - std.log() + math.log(prior_std) - 0.5)


def vifo_mean(mean: Tensor, std: Tensor, prior_std: float = _PRIOR_STD, mean_prior_std: float = _MEAN_PRIOR_STD) -> Tensor:
    r"""KL with the mean of the prior learned for every x: $z \sim N(m, \gamma I)$, $m \sim N(0, \alpha I)$, equation (6).

    $$\min_{q(m)} \mathrm{E}_{q(m)} \mathrm{KL}(q \,\|\, p(z \mid m)) + \mathrm{KL}(q(m) \,\|\, p(m)) =
    \sum_k \frac{s_k^2}{2\gamma} + \frac{\mu_k^2}{2(\gamma + \alpha)} - \log s_k + \tfrac12\log(\gamma + \alpha) - \tfrac12$$

    Args:
        prior_std, mean_prior_std: $\sqrt\gamma$ and $\sqrt\alpha$. By default the paper's
            $\alpha_\mathrm{reg} = \gamma / (\gamma + \alpha)$ is 0.05.

    Example:
        >>> vifo_mean(torch.zeros(1, 1), torch.ones(1, 1), prior_std=1.0, mean_prior_std=0.0)
        tensor([0.])
    """
    mean, std = _outputs(mean, std)
    gamma, alpha = prior_std**2, mean_prior_std**2
    quadratic = std.square() / (2 * gamma) + mean.square() / (2 * (gamma + alpha))
    return _sum(quadratic - std.log() + 0.5 * (math.log(gamma + alpha) - 1))


def vifo_mean_variance(mean: Tensor, std: Tensor, a: float = 0.5, b: float = 0.01, delta: float = 0.1) -> Tensor:
    r"""KL with prior means and variances learned per x: $z \sim N(m, v)$, $m \sim N(0, v/t)$, $v \sim \mathrm{IG}(a, b)$, (19).

    $$\sum_k (a + \tfrac12)\log B_k - \log s_k + c, \qquad B_k = b + \tfrac\delta2\mu_k^2 + \tfrac12 s_k^2, \quad
    c = \log\frac{\Gamma(a)}{\Gamma(a + 1/2)} - a\log b - \tfrac12\log\delta - \tfrac12$$

    The paper omits c in (19) and includes it in (29).

    Args:
        a, b: shape and scale of the inverse gamma prior of every variance.
        delta: t / (1 + t), in (0, 1).

    Example:
        >>> std = torch.tensor([[0.1], [0.02 ** 0.5], [0.2]])  # at mean 0 the minimum is at a variance of b / a
        >>> int(vifo_mean_variance(torch.zeros(3, 1), std).argmin())
        1
    """
    mean, std = _outputs(mean, std)
    scale = b + 0.5 * delta * mean.square() + 0.5 * std.square()
    return _sum((a + 0.5) * scale.log() - std.log() + _inverse_gamma_constant(a, b, delta))


def vifo_empirical_bayes(mean: Tensor, std: Tensor, a: float = 4.4798, b: float = 10.0) -> Tensor:
    r"""KL with the optimal prior variance for every x: $z \sim N(0, vI)$, $v \sim \mathrm{IG}(a, b)$, equation (20).

    $$\mathrm{KL}(q \,\|\, N(0, v^* I)), \qquad v^* = \frac{\lVert\mu\rVert^2 + \lVert s\rVert^2 + 2b}{K + 2a + 2}$$

    $v^*$ minimizes the KL minus the log prior of v, which the paper and this function omit. The gradient includes that of $v^*$.

    Example:
        >>> std = torch.tensor([[1.0], [(10 / 5.4798) ** 0.5], [2.0]])  # at mean 0 the minimum is at b / (a + 1)
        >>> int(vifo_empirical_bayes(torch.zeros(3, 1), std).argmin())
        1
    """
    mean, std = _outputs(mean, std)
    squares = mean.square() + std.square()
    variance = (squares.sum(-1, keepdim=True) + 2 * b) / (mean.shape[-1] + 2 * a + 2)
    return _sum(0.5 * (squares / variance + variance.log() - 1) - std.log())


def vifo_mean_all(
    mean: Tensor, std: Tensor, average_mean: Tensor, prior_std: float = _PRIOR_STD, mean_prior_std: float = _MEAN_PRIOR_STD
) -> Tensor:
    r"""`vifo_mean` with one prior mean for the whole data set, equation (22), last line.

    $$\mathrm{E}_{q^*} \mathrm{KL}(q \,\|\, N(m, \gamma I)) + \mathrm{KL}(q^* \,\|\, N(0, \alpha I)), \qquad
    q^* = N\Bigl(\frac{\alpha}{\alpha + \gamma}\bar\mu, \frac{\alpha\gamma}{\alpha + \gamma} I\Bigr)$$

    Args:
        average_mean: $\bar\mu$, the average of `mean` over the data set, (K,).

    Example:
        >>> mean, std = torch.ones(1, 2), torch.ones(1, 2)
        >>> torch.allclose(vifo_mean_all(mean, std, mean[0]), vifo_mean(mean, std))  # a data set of one
        True
    """
    mean, std = _outputs(mean, std)
    gamma, alpha = prior_std**2, mean_prior_std**2
    center = alpha / (alpha + gamma) * average_mean.detach()
    quadratic = (std.square() + (mean - center).square()) / gamma
    prior = center.square() / alpha if alpha else 0.0
    return _sum(0.5 * (quadratic + prior + math.log(gamma + alpha) - 1) - std.log())


def vifo_mean_variance_all(
    mean: Tensor,
    std: Tensor,
    average_square: Tensor,
    average_variance: Tensor,
    a: float = 0.5,
    b: float = 0.01,
    delta: float = 0.1,
) -> Tensor:
    r"""`vifo_mean_variance` with variances for the whole data set, their means still for every x, equations (28) and (29).

    $$\sum_k (a + \tfrac12)\Bigl(\log\bar B_k + \frac{B_k - \bar B_k}{\bar B_k}\Bigr) - \log s_k + c$$

    Args:
        average_square, average_variance: the averages of `mean ** 2` and `std ** 2` over the data set, (K,).

    Example:
        >>> mean, std = torch.ones(1, 2), torch.ones(1, 2)
        >>> torch.allclose(vifo_mean_variance_all(mean, std, mean[0], std[0]), vifo_mean_variance(mean, std))
        True
    """
    mean, std = _outputs(mean, std)
    scale = b + 0.5 * delta * mean.square() + 0.5 * std.square()
    average = b + 0.5 * delta * average_square.detach() + 0.5 * average_variance.detach()
    return _sum((a + 0.5) * (average.log() + scale / average - 1) - std.log() + _inverse_gamma_constant(a, b, delta))


def vifo_empirical_bayes_all(
    mean: Tensor, std: Tensor, average_square: Tensor, average_variance: Tensor, a: float = 4.4798, b: float = 10.0
) -> Tensor:
    r"""`vifo_empirical_bayes` with one variance for the whole data set, section C.3.

    $$\mathrm{KL}(q \,\|\, N(0, \bar v I)) +
    \tfrac12\Bigl(\frac K{\bar v} - \frac{\bar u}{\bar v^2}\Bigr)\frac{u - \bar u}{K + 2a + 2},
    \qquad \bar v = \frac{\bar u + 2b}{K + 2a + 2}$$

    with $u = \lVert\mu\rVert^2 + \lVert s\rVert^2$ and its average $\bar u$. The second term has mean zero over the data set, and
    the gradient through $\bar v$.

    Args:
        average_square, average_variance: the averages of `mean ** 2` and `std ** 2` over the data set, (K,).

    Example:
        >>> mean, std = torch.ones(1, 2), torch.ones(1, 2)
        >>> torch.allclose(vifo_empirical_bayes_all(mean, std, mean[0], std[0]), vifo_empirical_bayes(mean, std))
        True
    """
    mean, std = _outputs(mean, std)
    squares, outputs = mean.square() + std.square(), mean.shape[-1]
    average = (average_square + average_variance).detach().expand(outputs).sum()
    variance = (average + 2 * b) / (outputs + 2 * a + 2)
    slope = 0.5 * (outputs / variance - average / variance.square()) / (outputs + 2 * a + 2)
    kl = 0.5 * (squares / variance + variance.log() - 1) - std.log()
    return _sum(kl + slope * (squares - average / outputs))


def _inverse_gamma_constant(a: float, b: float, delta: float) -> float:
    return math.lgamma(a) - math.lgamma(a + 0.5) - a * math.log(b) - 0.5 * math.log(delta) - 0.5


def _outputs(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Both (B, *, K), at least float32."""
    if mean.dim() == 0 or mean.shape != std.shape:
        raise ConfigurationError(f"mean and std must both be (B, ..., K), got {tuple(mean.shape)} and {tuple(std.shape)}")
    mean, std = at_least_float32(mean), at_least_float32(std)
    return (mean.unsqueeze(-1), std.unsqueeze(-1)) if mean.dim() == 1 else (mean, std)


def _sum(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(-1)

r"""Regularisers of a network's outputs: KL terms of $q(z \mid x) = N(\mu, \mathrm{diag}(s^2))$ from a prior of z.

Shapes: B batch, K outputs, * any further dimensions (tokens), each position of which has a z of its own. All take `mean` and `std`
(B, *, K), or (B,) for one output, and return nats (B,), summed over outputs and positions, at least float32.

The last three learn the prior from the whole data set. They take averages over it (K,), such as running means, as constants. Each
is a bound for every value of the averages, has the value of the paper's data-set-wide form in the mean over the data set where the
averages are exact, and then also its gradient.

Source: *Variational inference on the final-layer output of neural networks*, sections 2.2, B and C; Tomczak et al. (2021); Wu et
al. (2019).
"""

import math

from torch import Tensor

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


def vifo_naive(mean: Tensor, std: Tensor, prior_variance: float = 1.0) -> Tensor:
    r"""$\mathrm{KL}(q \,\|\, N(0, vI))$ for a fixed prior variance v.

    Example:
        >>> vifo_naive(torch.zeros(2, 3), torch.ones(2, 3))
        tensor([0., 0.])
    """
    mean, std = _outputs(mean, std)
    return _sum((mean.square() + std.square()) / (2 * prior_variance) - std.log() + 0.5 * (math.log(prior_variance) - 1))


def vifo_mean(mean: Tensor, std: Tensor, gamma: float = 0.3, alpha: float = 5.7) -> Tensor:
    r"""The prior's mean learned for every x: $z \sim N(m, \gamma I)$, $m \sim N(0, \alpha I)$, equation (6).

    $$\min_{q(m)} \mathrm{E}_{q(m)} \mathrm{KL}(q \,\|\, p(z \mid m)) + \mathrm{KL}(q(m) \,\|\, p(m)) =
    \sum_k \frac{s_k^2}{2\gamma} + \frac{\mu_k^2}{2(\gamma + \alpha)} - \log s_k + \tfrac12\log(\gamma + \alpha) - \tfrac12$$

    Args:
        gamma, alpha: variances; the paper's $\alpha_\mathrm{reg}$ is gamma / (gamma + alpha), 0.05 here.

    Example:
        >>> vifo_mean(torch.zeros(1, 1), torch.ones(1, 1), gamma=1.0, alpha=0.0)
        tensor([0.])
    """
    mean, std = _outputs(mean, std)
    quadratic = std.square() / (2 * gamma) + mean.square() / (2 * (gamma + alpha))
    return _sum(quadratic - std.log() + 0.5 * (math.log(gamma + alpha) - 1))


def vifo_mean_variance(mean: Tensor, std: Tensor, a: float = 0.5, b: float = 0.01, delta: float = 0.1) -> Tensor:
    r"""The prior's mean and variances learned for every x: $z \sim N(m, v)$, $m \sim N(0, v/t)$, $v \sim \mathrm{IG}(a, b)$, (19).

    $$\sum_k (a + \tfrac12)\log B_k - \log s_k + c, \qquad B_k = b + \tfrac\delta2\mu_k^2 + \tfrac12 s_k^2, \quad
    c = \log\frac{\Gamma(a)}{\Gamma(a + 1/2)} - a\log b - \tfrac12\log\delta - \tfrac12$$

    The paper leaves out c in (19), and has it in (29).

    Args:
        a, b: shape and scale of the inverse gamma prior of every variance.
        delta: t / (1 + t), in (0, 1).

    Example:
        >>> std = torch.tensor([[0.1], [0.02 ** 0.5], [0.2]])  # at mean 0 a variance of b / a is the best
        >>> int(vifo_mean_variance(torch.zeros(3, 1), std).argmin())
        1
    """
    mean, std = _outputs(mean, std)
    scale = b + 0.5 * delta * mean.square() + 0.5 * std.square()
    return _sum((a + 0.5) * scale.log() - std.log() + _inverse_gamma_constant(a, b, delta))


def vifo_empirical_bayes(mean: Tensor, std: Tensor, a: float = 4.4798, b: float = 10.0) -> Tensor:
    r"""The prior's one variance at its best value for every x: $z \sim N(0, vI)$, $v \sim \mathrm{IG}(a, b)$, equation (20).

    $$\mathrm{KL}(q \,\|\, N(0, v^* I)), \qquad v^* = \frac{\lVert\mu\rVert^2 + \lVert s\rVert^2 + 2b}{K + 2a + 2}$$

    $v^*$ minimises the KL minus the log prior of v, which itself is left out, as in the paper. The gradient passes through it.

    Example:
        >>> std = torch.tensor([[1.0], [(10 / 5.4798) ** 0.5], [2.0]])  # at mean 0 a variance of b / (a + 1) is the best
        >>> int(vifo_empirical_bayes(torch.zeros(3, 1), std).argmin())
        1
    """
    mean, std = _outputs(mean, std)
    squares = mean.square() + std.square()
    variance = (squares.sum(-1, keepdim=True) + 2 * b) / (mean.shape[-1] + 2 * a + 2)
    return _sum(0.5 * (squares / variance + variance.log() - 1) - std.log())


def vifo_mean_all(mean: Tensor, std: Tensor, average_mean: Tensor, gamma: float = 0.3, alpha: float = 5.7) -> Tensor:
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
    centre = alpha / (alpha + gamma) * average_mean.detach()
    quadratic = (std.square() + (mean - centre).square()) / gamma
    prior = centre.square() / alpha if alpha else 0.0
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

    with $u = \lVert\mu\rVert^2 + \lVert s\rVert^2$ and its average $\bar u$. The second term, zero in the mean over the data set,
    carries the gradient through $\bar v$.

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
        raise ValueError(f"mean and std must both be (B, ..., K), got {tuple(mean.shape)} and {tuple(std.shape)}")
    mean, std = at_least_float32(mean), at_least_float32(std)
    return (mean.unsqueeze(-1), std.unsqueeze(-1)) if mean.dim() == 1 else (mean, std)


def _sum(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(-1)

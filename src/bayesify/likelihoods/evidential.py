"""Evidential likelihoods: the network predicts a distribution of the parameters of the target's distribution.

One deterministic network (`Deterministic`) then reports an epistemic uncertainty. It is not identified by the data. The likelihoods
depend on the predicted distribution only through a mean (classification) or through three of its four parameters (regression), so
what decides the epistemic part is the penalty and its weight: it need not fall as data are added, and need not be large far from
the data. Use it as a score, such as for out-of-distribution detection, not as a posterior (Meinert, Gawlikowski & Lavin, 2022,
arXiv 2205.10060; Bengs, Huellermeier & Waegeman, 2022, arXiv 2203.06102).

`fit` and the integrations subtract the penalties, weighted by `beta`, so that `beta=LinearWarmup()` anneals them. In a loop of
your own, give `elbo` the value `likelihood.log_prob(outputs, y) - beta * likelihood.penalty(outputs, y)`.

Shapes: S draws, B batch, K classes, D outputs, * any further dimensions (tokens).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.core.checks import check_nonnegative
from bayesify.errors import DataError
from bayesify.functional import at_least_float32
from bayesify.likelihoods.base import Likelihood, check_draws
from bayesify.predictive.base import align_targets, sum_from, without_single
from bayesify.predictive.discrete import DirichletPredictive
from bayesify.predictive.student import StudentTPredictive, student_log_density
from bayesify.predictive.targets import check_labels, check_numbers

__all__ = ["EvidentialCategorical", "EvidentialGaussian"]

_LEAST = 1e-3  # of degrees of freedom above 2, and of evidence


class EvidentialCategorical(Likelihood):
    r"""One of K classes per example, with a Dirichlet distribution of the class probabilities that the network predicts.

    $$\alpha = 1 + \mathrm{softplus}(f), \qquad \log p(y) = \log\int p_y\,\mathrm{Dir}(p \mid \alpha)\,dp =
    \log\frac{\alpha_y}{\alpha_0}, \qquad \alpha_0 = \sum_k\alpha_k$$

    The penalty of an example is $\lambda\,\mathrm{KL}(\mathrm{Dir}(\tilde\alpha) \,\|\, \mathrm{Dir}(1, \dots, 1))$, where
    $\tilde\alpha$ is $\alpha$ with 1 for the true class. It removes evidence for wrong classes, and alone bounds the evidence: the
    likelihood depends on $\alpha / \alpha_0$ only.

    Outputs are (S, B, K) or (S, B, *, K), targets integers (B,) or (B, *).

    Args:
        weight: $\lambda$, at least 0, times the weight `beta` of `fit`.
        ignore_index: a label whose targets are ignored (padding).

    Raises:
        ConfigurationError: a negative or infinite weight.

    Source: Sensoy, Kaplan & Kandemir (2018), arXiv 1806.01768, equation (3) (type II maximum likelihood) and section 4. The paper
    prefers the expected squared error, its equation (5), which is no likelihood, and a ReLU, which leaves classes without gradient.

    Example:
        >>> likelihood = EvidentialCategorical()
        >>> likelihood.log_prob(torch.zeros(1, 2, 4), torch.tensor([3, 0])).exp()
        tensor([[0.2500, 0.2500]])
    """

    def __init__(self, weight: float = 1.0, ignore_index: int = -100) -> None:
        check_nonnegative("weight", weight)
        super().__init__(weight=weight, ignore_index=ignore_index)
        self.weight, self.ignore_index = weight, ignore_index
        self._without_penalty = 0 if weight else None

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 3, "(S, B, K) or (S, B, ..., K), classes last")
        if outputs.shape[-1] < 2:
            raise DataError(f"EvidentialCategorical needs at least 2 classes in the last dimension, got {tuple(outputs.shape)}")

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(outputs.shape[1:-1])

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_labels(y[y != self.ignore_index], None if outputs is None else outputs.shape[-1])

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        valid, labels = self._labels(y, outputs)
        alpha = _concentrations(outputs)
        log_prob = alpha.gather(-1, labels).squeeze(-1).log() - alpha.sum(-1).log()
        return torch.where(valid, log_prob, 0).to(outputs.dtype)

    def penalty(self, outputs: Tensor, y: Tensor) -> Tensor:
        self._without_penalty = None
        outputs = at_least_float32(outputs)
        valid, labels = self._labels(align_targets(y, self.target_shape(outputs)), outputs)
        alpha = _concentrations(outputs).scatter(-1, labels, 1.0)
        total, classes = alpha.sum(-1), alpha.shape[-1]
        kl = torch.lgamma(total) - math.lgamma(classes) - torch.lgamma(alpha).sum(-1)
        kl = kl + ((alpha - 1) * (torch.digamma(alpha) - torch.digamma(total).unsqueeze(-1))).sum(-1)
        return self.weight * sum_from(torch.where(valid, kl, 0), 2).to(outputs.dtype)

    def mixture(self, outputs: Tensor) -> DirichletPredictive:
        return DirichletPredictive.from_concentrations(_concentrations(outputs).to(outputs.dtype), self.ignore_index)

    def _labels(self, y: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Which targets count, (B, *), and indices of classes (S, B, *, 1)."""
        if y.is_floating_point():
            raise TypeError(f"y must have integer class labels, got {y.dtype}; use y.long() if they are whole numbers")
        valid = y != self.ignore_index
        return valid, torch.where(valid, y, 0).long().expand(outputs.shape[:-1]).unsqueeze(-1)


class EvidentialGaussian(Likelihood):
    r"""Normal noise whose mean and variance have a normal-inverse-gamma distribution that the network predicts.

    $$\mu \sim N(\gamma, \sigma^2 / \nu), \quad \sigma^2 \sim \mathrm{IG}(\alpha, \beta), \qquad
    p(y) = \mathrm{St}\Bigl(y;\ \gamma,\ \frac{\beta (1 + \nu)}{\nu\alpha},\ 2\alpha\Bigr)$$

    The penalty of an example is $\lambda |y - \gamma| (2\nu + \alpha)$, summed over outputs: less evidence where errors are large.
    The density has three parameters, and $\beta (1 + \nu) / \nu$ enters it only as a whole: $\nu$, the ratio of aleatoric and
    epistemic variance, is determined by the penalty alone.

    Outputs are (S, B, 4D): D values $\gamma$, then D each from which softplus makes $\nu$, $\alpha - 1$ and $\beta$. Targets are
    (B,) or (B, 1) where D = 1, else (B, D).

    Args:
        weight: $\lambda$, at least 0, in nats per unit of the targets, times the weight `beta` of `fit`.

    Raises:
        ConfigurationError: a negative or infinite weight.

    Source: Amini, Schwarting, Soleimany & Rus (2020), arXiv 1910.02600, equations (6) to (9).

    Example:
        >>> EvidentialGaussian().log_prob(torch.zeros(1, 5, 4), torch.zeros(5)).shape
        torch.Size([1, 5])
    """

    def __init__(self, weight: float = 0.01) -> None:
        check_nonnegative("weight", weight)
        super().__init__(weight=weight)
        self.weight = weight
        self._without_penalty = 0 if weight else None

    def check_outputs(self, outputs: Tensor) -> None:
        check_draws(outputs, 3, "(S, B, 4D)")
        if outputs.shape[-1] % 4:
            raise DataError(f"outputs must have four numbers per target, (S, B, 4D), got {tuple(outputs.shape)}")

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return (*outputs.shape[1:-1], outputs.shape[-1] // 4)

    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        check_numbers(y)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        gamma, nu, alpha, beta = _normal_inverse_gamma(outputs.double())
        return student_log_density(y, gamma, _scale(nu, alpha, beta), 2 * alpha).to(outputs.dtype)

    def penalty(self, outputs: Tensor, y: Tensor) -> Tensor:
        self._without_penalty = None
        outputs = at_least_float32(outputs)
        gamma, nu, alpha, _ = _normal_inverse_gamma(outputs)
        y = align_targets(y, self.target_shape(outputs)).to(outputs.dtype)
        return self.weight * sum_from((y - gamma).abs() * (2 * nu + alpha), 2)

    def mixture(self, outputs: Tensor) -> StudentTPredictive:
        gamma, nu, alpha, beta = _normal_inverse_gamma(outputs)
        return StudentTPredictive(*map(without_single, (gamma, _scale(nu, alpha, beta), 2 * alpha, nu)))


def _concentrations(outputs: Tensor) -> Tensor:
    return 1 + F.softplus(outputs.double())  # functions of large ones cancel in float32


def _normal_inverse_gamma(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gamma, nu, alpha and beta, (S, B, D) each."""
    gamma, nu, alpha, beta = outputs.chunk(4, -1)
    return gamma, F.softplus(nu) + _LEAST, 1 + F.softplus(alpha) + _LEAST, F.softplus(beta) + _LEAST**2


def _scale(nu: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return (beta * (1 + nu) / (nu * alpha)).sqrt()

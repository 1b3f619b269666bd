r"""Noisy Adam: a mean-field Gaussian whose precision is Adam's average of squared gradients.

Zhang, Sun, Duvenaud & Grosse, *Noisy natural gradient as variational inference* (2018, arXiv 1712.02390), algorithm 1. With the
gradient $\hat g$ of the negative log likelihood per example at drawn weights, the effective sample size $\lambda = n/\beta$, a
prior $N(m_0, s^2)$, the intrinsic damping $\delta = 1/(\lambda s^2)$ and the extrinsic damping $\gamma$,

$$f \leftarrow f + \rho\,(\hat g^2 - f), \qquad g \leftarrow \beta_1 g + (1 - \beta_1)\,\hat g$$
$$m \leftarrow m - \alpha\,\frac{g/(1 - \beta_1^t) + \delta\,(m - m_0)}{f + \delta + \gamma}, \qquad
  \sigma^2 = \frac{1}{\lambda\,(f + \delta)}$$

Unlike in Adam, steps are divided by f, not by its square root. $\hat g$ is the gradient of a batch, and its square has the mean

$$\mathrm{E}\,\hat g^2 = \tfrac1B\,\mathrm{E}\,g_i^2 + \bigl(1 - \tfrac1B\bigr)\,\mathrm{E}\,\bar g^2,$$

with gradients $g_i$ of single examples and $\bar g$ of all data, which nearly vanishes at the optimum. The derivation of the
algorithm calls for $\mathrm{E}\,g_i^2$. So the spread of the posterior is right only for batches of one example, and grows with B:
in linear regression on 100 rows, batches of 10 lead to more than four times the variance of the best independent weights
(`tests/methods/test_linear_model_posteriors.py`). `VOGN` uses the gradients of single examples, for any B.

Differences from the paper: the term of the prior uses the mean of the weights instead of their draw, which is the same in
expectation, and is not part of the momentum. $\rho$ is the paper's $1 - \beta_2$.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.methods._natural_gaussian import GaussianFields, Gradients, NaturalGaussian

__all__ = ["NoisyAdam"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyAdam(GaussianFields, Method):
    r"""Independent normal weights and biases, trained by noisy Adam: the precision is an average of squared gradients of batches.

    Trained as `IVON`. The spread depends on the batch size.

    Args:
        prior: "normal", or "sequential": a normal that `update_prior` replaces by the posterior.
        prior_std: s, the standard deviation of the prior.
        prior_mean: $m_0$, "zero" or "pretrained" (the network's weights at conversion).
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$. The smaller it is, the larger is
            the initial f, and the smaller are the first steps.
        momentum: $\beta_1$, of the gradients of means.
        hessian_rate: $\rho$, the weight of a step in the average of squared gradients, in (0, 1]. Few steps need
            a larger rate, as for `IVON`.
        damping: $\gamma$, added to $f + \delta$ in the step of m.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), NoisyAdam())
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.05, accelerator="cpu")
        >>> history.loss[-1] < history.loss[0]
        True
    """

    family: ClassVar[str] = "Weights, natural gradients"
    paper: ClassVar[str] = "Zhang et al. 2018, arXiv 1712.02390"
    advice: ClassVar[str] = "As IVON, with squared gradients of batches for the curvature; prefer IVON."
    cost: ClassVar[str] = "1.8, 1.6; S passes"

    def build(self, layer: BayesianLayer) -> Posterior:
        return AdamPosterior(self, layer)


class AdamPosterior(NaturalGaussian):
    """Normal distribution, with the Hessian from squared gradients of batches."""

    def hessian(self, gradients: Gradients) -> Tensor | None:
        return None if gradients.mean is None else gradients.mean.square()

r"""VOGN: a mean-field Gaussian whose precision follows the squared gradients of single examples.

Khan, Nielsen, Tangkaratt, Lin, Gal & Srivastava, *Fast and scalable Bayesian deep learning by weight-perturbation in Adam* (2018,
arXiv 1806.04854), section 3; Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan, *Practical deep learning with Bayesian
principles* (2019, arXiv 1906.02506), with momentum and damping $\gamma$. With the negative log likelihood $\ell_i$ of example i,
the effective sample size $\lambda = n/\beta$, a prior $N(m_0, s^2)$, $\delta = 1/(\lambda s^2)$ and a batch of B examples,

$$\hat g = \frac1B\sum_i \nabla\ell_i(\theta), \qquad \hat h = \frac1B\sum_i \bigl(\nabla\ell_i(\theta)\bigr)^2, \qquad
  \theta \sim N(m, \sigma^2)$$
$$h \leftarrow h + \rho\,(\hat h - h), \qquad g \leftarrow \beta_1 g + (1 - \beta_1)\,\hat g$$
$$m \leftarrow m - \alpha\,\frac{g/(1 - \beta_1^t) + \delta\,(m - m_0)}{h + \delta + \gamma}, \qquad
  \sigma^2 = \frac{1}{\lambda\,(h + \delta)}$$

$\hat h$ is the empirical Fisher estimate of the Hessian's diagonal, which the first paper calls generalized Gauss-Newton. Much
published code squares the gradient of the batch, $\hat g^2$, instead. That is the estimate of Vadam and of `NoisyAdam`, and about B
times smaller where gradients of examples differ. Differences from the second paper: the momentum is bias-corrected and does not
include the term of the prior; normalization layers stay deterministic.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.core.per_example import Record, squared_gradients
from bayesify.methods._natural_gaussian import GaussianFields, Gradients, NaturalGaussian

__all__ = ["VOGN"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VOGN(GaussianFields, Method):
    r"""Independent normal weights and biases, trained by variational online Gauss-Newton with gradients of single examples.

    Trained as `IVON`. A step costs a second backward pass, and the gradients of single examples in convolutions. A layer that is
    used several times in a pass adds its squared gradients, without their products. Normalization layers are not made random.

    Args:
        prior: "normal", or "sequential": a normal that `update_prior` replaces by the posterior.
        prior_std: s, the standard deviation of the prior.
        prior_mean: $m_0$, "zero" or "pretrained" (the network's weights at conversion).
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$. The smaller it is, the larger is
            the initial h, and the smaller are the first steps.
        momentum: $\beta_1$, of the gradients of means.
        hessian_rate: $\rho$, the weight of a step in the average of squared gradients, in (0, 1]. Few steps need
            a larger rate, as for `IVON`.
        damping: $\gamma$, added to $h + \delta$ in the step of m.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), VOGN())
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.05, accelerator="cpu")
        >>> history.loss[-1] < history.loss[0]
        True
    """

    family: ClassVar[str] = "Weights, natural gradients"
    paper: ClassVar[str] = "Khan et al. 2018, arXiv 1806.04854; Osawa et al. 2019, arXiv 1906.02506"
    advice: ClassVar[str] = "Small networks: the variational Gauss-Newton method with gradients of single examples."
    cost: ClassVar[str] = "3.9, 41; S passes"

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return None if layer.normalizes else GaussNewtonPosterior(self, layer)


class GaussNewtonPosterior(NaturalGaussian):
    """Normal distribution, with the Hessian from squared gradients of examples."""

    observes = needs_calls = True

    def observe(self, layer: BayesianLayer, record: Record) -> dict[str, Tensor]:
        weight, bias = squared_gradients(layer, record)
        return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}

    def hessian(self, gradients: Gradients) -> Tensor | None:
        return gradients.observed

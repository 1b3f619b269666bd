r"""IVON: a mean-field Gaussian whose optimizer takes Newton-like natural-gradient steps.

Shen, Daheim, Cong, Nickl, Marconi, Bazan, Yokota, Gurevych, Cremers, Khan & Möllenhoff, *Variational learning is effective for
large deep networks* (2024, arXiv 2402.17641), algorithm 1. With the negative log likelihood per example $\bar\ell$, the effective
sample size $\lambda = n/\beta$, a prior $N(m_0, s^2)$, $\delta = 1/(\lambda s^2)$ and $q = N(m, \sigma^2)$, a step of rate
$\alpha$ is

$$\hat g = \nabla\bar\ell(\theta), \qquad \hat h = \hat g\,(\theta - m)/\sigma^2, \qquad \theta \sim q$$
$$g \leftarrow \beta_1 g + (1 - \beta_1)\,\hat g, \qquad
  h \leftarrow h + \rho\,(\hat h - h) + \tfrac12\rho^2\,(\hat h - h)^2 / (h + \delta)$$
$$m \leftarrow m - \alpha\,\frac{g/(1 - \beta_1^t) + \delta\,(m - m_0)}{h + \delta}, \qquad
  \sigma^2 = \frac{1}{\lambda\,(h + \delta)}$$

The last term of h is a Riemannian correction, which keeps $h + \delta$ positive. $\hat h$ is the reparameterization estimate of the
Hessian's diagonal: $\hat g\,(\theta - m)$ is the gradient with respect to $\log\sigma$, which the backward pass gives. So it is
averaged over draws, accumulated batches and processes like any gradient, and local reparameterization (`noise="local"`) makes it
less noisy.

Differences from the paper: the prior is given as `prior_std` s instead of the weight decay $\delta$, and the initial spread
$\sigma_0$ as `initial_std` instead of $h_0 = 1/(n\sigma_0^2) - 1/(n s^2)$. $\rho$, the paper's $1 - \beta_2$, is 1e-5 there, for
runs with many more steps than tables need.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from torch import Tensor

from bayesify.core.checks import check_choice
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.methods._natural_gaussian import GaussianFields, Gradients, NaturalGaussian

__all__ = ["IVON"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IVON(GaussianFields, Method):
    r"""Independent normal weights and biases, trained by the variational online Newton method of its own optimizer.

    `fit`, the estimators and the integrations use that optimizer; a training loop gets it from `bnn.optimizer(likelihood)`.
    `learning_rate` is that of natural-gradient steps; 1 is a Newton step. Any other optimizer maximizes the same ELBO by ordinary
    gradients.

    Args:
        prior: "normal", or "sequential": a normal that `update_prior` replaces by the posterior.
        prior_std: s, the standard deviation of the prior.
        prior_mean: $m_0$, "zero" or "pretrained" (the network's weights at conversion).
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$. The smaller it is, the larger is
            the initial Hessian, and the smaller are the first steps.
        momentum: $\beta_1$, of the gradients of means.
        hessian_rate: $\rho$, the weight of a step in the average of Hessians, in (0, 1]. After T steps $(1-\rho)^T$ of the initial
            Hessian is left, and `fit` warns where that is most of the precision: few steps need a larger rate.
        damping: added to $h + \delta$ in the step of m; 0 in the paper.
        noise: "shared" draws weights once per sample, as in the paper; "local" draws outputs per example (less gradient noise).

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), IVON())
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.05, accelerator="cpu")
        >>> history.loss[-1] < history.loss[0]
        True
    """

    family: ClassVar[str] = "Weights, natural gradients"
    paper: ClassVar[str] = "Shen et al. 2024, arXiv 2402.17641"
    advice: ClassVar[str] = "MeanField's posterior for large networks, somewhat faster; its learning rate must be chosen."
    cost: ClassVar[str] = "1.7, 1.6; S passes"

    noise: Literal["shared", "local"] = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("noise", self.noise, ("shared", "local"))

    def build(self, layer: BayesianLayer) -> Posterior:
        return NewtonPosterior(self, layer)


class NewtonPosterior(NaturalGaussian):
    """Normal distribution, with the Hessian from the gradient of the log standard deviations."""

    method: IVON

    def __init__(self, method: IVON, layer: BayesianLayer) -> None:
        super().__init__(method, layer)
        self.has_moments = method.noise == "local"

    def hessian(self, gradients: Gradients) -> Tensor | None:
        return None if gradients.spread is None else gradients.spread / gradients.variance

    def moved(self, scale: Tensor, change: Tensor) -> Tensor:
        return scale + change + 0.5 * change.square() / scale

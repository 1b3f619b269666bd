r"""SGLD and SG-HMC: Markov chains by stochastic gradients, whose noise makes them draw from the posterior.

Welling & Teh, *Bayesian learning via stochastic gradient Langevin dynamics* (2011); Chen, Fox & Guestrin, *Stochastic gradient
Hamiltonian Monte Carlo* (2014, arXiv 1402.4102).

Let $\bar U = U / N$ be the negative log posterior per example, whose minibatch estimate is the loss of training, and r the learning
rate of gradient descent on it. SG-HMC (equation 15 of the second paper, with $\eta = r / N$ and no estimate of the gradient noise)

$$v \leftarrow (1 - \alpha) v - r \nabla \bar U(\theta) + \sqrt{2 \alpha r T / N}\, z, \qquad \theta \leftarrow \theta + v,
  \qquad z \sim N(0, I),$$

is gradient descent with momentum $1 - \alpha$ and noise; with $\alpha = 1$ it is SGLD (equation 4 of the first paper with
$\epsilon = 2 r / N$). The stationary distribution is $\propto \exp(-U / T)$ up to errors that vanish with r: steps of finite
length, and the noise of minibatch gradients, which is not corrected. For a quadratic U with curvature h per example, full batches
and SGLD, the variance is $T / (N h (1 - r h / 2))$.

C chains run at once, by `torch.func.vmap`, after training to a point estimate. Parameters of the likelihood keep their trained
values, and a weight or bias that is frozen keeps its own, unless its whole layer is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad, vmap

from bayesify.core.checks import check_integer, check_rate, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.errors import DivergenceError
from bayesify.functional import standard_normal
from bayesify.methods._draws import DrawsPosterior, store_chains
from bayesify.methods._weight_density import WeightDensity, check_density, endless

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["SGHMC", "SGLD"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGLD(Method):
    """Stochastic gradient Langevin dynamics: gradient descent with noise, after training, whose iterates are draws.

    Check R-hat and the effective sample size in `summary`. Steps that are too large widen the
    distribution of the draws; with smaller ones more steps are needed.

    Args:
        prior_std: standard deviation of the normal prior on weights and biases.
        step_size: r, the learning rate of gradient descent on the mean loss.
        draws: number of draws kept per chain.
        chains: number of chains; all start at the trained weights.
        burn_in: steps before the first draw.
        thinning: steps per kept draw.
        temperature: T; 1 for the posterior, below 1 for a narrower (cold) one.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), SGLD(draws=10, burn_in=100, thinning=5))
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.01, accelerator="cpu")
        >>> bool((predict(bnn, x, Gaussian(std=0.1), samples=30, seed=0).epistemic > 0).all())
        True
    """

    family: ClassVar[str] = "Sampling"
    paper: ClassVar[str] = "Welling & Teh 2011"
    advice: ClassVar[str] = "Samples of the posterior from minibatches, for small networks; step size and length must be chosen."
    cost: ClassVar[str] = "1.2, 1.0, and many more steps after training; S passes"

    prior_std: float = 1.0
    step_size: float = 1e-3
    draws: int = 25
    chains: int = 4
    burn_in: int = 1000
    thinning: int = 50
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("prior_std", "step_size", "temperature"):
            check_scale(name, getattr(self, name))
        check_integer("draws", self.draws, least=4)
        check_integer("burn_in", self.burn_in, least=0)
        for name in ("chains", "thinning"):
            check_integer(name, getattr(self, name))

    @property
    def decay(self) -> float:
        """The part of the velocity that a step loses."""
        return 1.0

    def build(self, layer: BayesianLayer) -> Posterior:
        return DrawsPosterior(self, self.prior_std)

    def check_completion(self, likelihood: Likelihood, weighted: bool) -> None:
        check_density(likelihood)

    def complete(
        self,
        bnn: Bayesian,
        names: Sequence[str],
        batches: Iterable[Any],
        likelihood: Likelihood,
        scale: float,
        advance: Callable[[float], object],
    ) -> None:
        density = WeightDensity(bnn, names, likelihood, scale, self.prior_std, keeps_frozen=True)
        rows = sum(len(density.moved(batch)[1]) for batch in batches)
        n = scale * rows  # the prior counts as 1 / n of an example in the mean loss

        def loss(vector: Tensor, inputs: Any, y: Tensor, weights: Tensor | None) -> Tensor:
            """The negative log posterior per example, estimated from a minibatch."""
            return density.prior_energy(vector) / n - density.log_likelihood(vector, inputs, y, weights) / (scale * len(y))

        gradient = vmap(grad(loss), in_dims=(0, None, None, None))
        theta = density.start.repeat(self.chains, 1)
        velocity = torch.zeros_like(theta)
        noise = (2 * self.decay * self.step_size * self.temperature / n) ** 0.5
        kept: list[Tensor] = []
        for step, batch in enumerate(endless(batches), start=1):
            force = self.step_size * gradient(theta, *density.moved(batch))
            velocity = (1 - self.decay) * velocity - force + noise * standard_normal(*theta.shape, like=theta)
            theta = theta + velocity
            advance(1 / (self.burn_in + self.draws * self.thinning))
            if step > self.burn_in and (step - self.burn_in) % self.thinning == 0:
                kept.append(theta)
                if len(kept) == self.draws:
                    break
        chains = torch.stack(kept, 1)
        if not chains.isfinite().all():
            raise DivergenceError(f"the chains diverged; lower step_size={self.step_size:g} of {type(self).__name__}")
        store_chains(bnn, names, density, chains, next(iter(batches)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGHMC(SGLD):
    """Stochastic gradient Hamiltonian Monte Carlo: gradient descent with momentum and noise, whose iterates are draws.

    Momentum lets chains move faster than those of `SGLD`, with fewer steps per effective draw.

    Args:
        prior_std, step_size, draws, chains, burn_in, thinning, temperature: as for `SGLD`. With equal step sizes, a chain
            moves 1 / friction times as fast.
        friction: the part of the velocity that a step loses, in (0, 1]; 1 minus the momentum.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), SGHMC(draws=10, burn_in=100, thinning=5))
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.01, accelerator="cpu")
        >>> bool((predict(bnn, x, Gaussian(std=0.1), samples=30, seed=0).epistemic > 0).all())
        True
    """

    paper: ClassVar[str] = "Chen, Fox & Guestrin 2014, arXiv 1402.4102"
    advice: ClassVar[str] = "As SGLD, with momentum, which mixes faster."
    cost: ClassVar[str] = "1.2, 1.0, and many more steps after training; S passes"

    step_size: float = 1e-4
    friction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("friction", self.friction)

    @property
    def decay(self) -> float:
        return self.friction

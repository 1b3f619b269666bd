r"""Hamiltonian Monte Carlo (NUTS): draws from the exact posterior of the weights, as the reference for all approximations.

Hoffman & Gelman, *The no-U-turn sampler: adaptively setting path lengths in Hamiltonian Monte Carlo* (2014, arXiv 1111.4246);
Neal, *Bayesian learning for neural networks* (1996).

After training to a point estimate, C chains start near it. Every step integrates the Hamiltonian dynamics of

$$H(\theta, v) = U(\theta) + \tfrac12 v^\top M^{-1} v, \qquad U = -\log p(\theta) - \sum_i \log p(y_i \mid x_i, \theta)$$

along a path whose length adapts, and picks a state of the path such that the posterior stays invariant. Step size and diagonal M
are learned in the warm-up. A chain samples the weights of all layers jointly, in float64, on the full data set. Parameters of the
likelihood, such as the noise of `Gaussian`, keep their trained values, and a weight or bias that is frozen keeps its own, unless
its whole layer is. The sampler is that of `pyro-ppl`.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bayesify.core.checks import check_integer, check_open_fraction, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.errors import MissingDependencyError
from bayesify.methods._draws import DrawsPosterior, store_chains
from bayesify.methods._weight_density import WeightDensity, check_density

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["HMC"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HMC(Method):
    """Draws from the exact posterior by the no-U-turn sampler, after training: a reference for small networks and data sets.

    Training needs `bayesify[mcmc]`; predictions need only PyTorch. A chain costs (warmup + draws * thinning) steps of up to
    2^max_tree_depth forward and backward passes over all data. Check R-hat and the effective sample size in `summary`.

    Args:
        prior_std: standard deviation of the normal prior on weights and biases.
        draws: number of draws kept per chain.
        chains: number of chains; each starts at the trained weights plus normal noise of standard deviation `spread`.
        warmup: steps per chain in which step size and mass matrix are learned; they are not kept.
        thinning: steps per kept draw.
        spread: standard deviation of the starting points, in units of `prior_std`.
        max_tree_depth: maximum number of doublings of a path.
        target_accept: acceptance probability that the step size aims at.

    Example:
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> bnn = bayesify(nn.Linear(1, 1), HMC(draws=20, chains=2, warmup=20))
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=5, accelerator="cpu")  # doctest: +SKIP
    """

    family: ClassVar[str] = "Sampling"
    paper: ClassVar[str] = "Hoffman & Gelman 2014, arXiv 1111.4246"
    advice: ClassVar[str] = "The reference for small networks and tables; check that its chains mixed."
    cost: ClassVar[str] = "thousands of passes over all data; S passes"

    prior_std: float = 1.0
    draws: int = 100
    chains: int = 4
    warmup: int = 200
    thinning: int = 1
    spread: float = 0.1
    max_tree_depth: int = 8
    target_accept: float = 0.8

    def __post_init__(self) -> None:
        check_scale("prior_std", self.prior_std)
        check_integer("draws", self.draws, least=4)
        for name in ("chains", "warmup", "thinning", "max_tree_depth"):
            check_integer(name, getattr(self, name))
        check_scale("spread", self.spread)
        check_open_fraction("target_accept", self.target_accept)

    def build(self, layer: BayesianLayer) -> Posterior:
        return DrawsPosterior(self, self.prior_std)

    def check_completion(self, likelihood: Likelihood, weighted: bool) -> None:
        check_density(likelihood)
        _sampler()

    def rehearse(self, bnn: Bayesian, names: Sequence[str], batch: Any, likelihood: Likelihood) -> None:
        density = WeightDensity(bnn, names, likelihood, 1.0, self.prior_std, torch.float64)
        density.trial(density.moved(batch)[0])

    def complete(
        self,
        bnn: Bayesian,
        names: Sequence[str],
        batches: Iterable[Any],
        likelihood: Likelihood,
        scale: float,
        advance: Callable[[float], object],
    ) -> None:
        mcmc = _sampler()
        density = WeightDensity(bnn, names, likelihood, scale, self.prior_std, torch.float64, keeps_frozen=True)
        data = [density.moved(batch) for batch in batches]
        density.trial(data[0][0])

        def energy(parameters: dict[str, Tensor]) -> Tensor:
            vector = parameters["weights"]
            return density.prior_energy(vector) - torch.stack([density.log_likelihood(vector, *batch) for batch in data]).sum()

        chains: list[Tensor] = []
        for _ in range(self.chains):
            start = density.start + self.spread * self.prior_std * torch.randn_like(density.start)
            kernel = mcmc.NUTS(potential_fn=energy, max_tree_depth=self.max_tree_depth, target_accept_prob=self.target_accept)
            sampler = mcmc.MCMC(
                kernel,
                num_samples=self.draws * self.thinning,
                warmup_steps=self.warmup,
                initial_params={"weights": start},
                disable_progbar=True,
                hook_fn=lambda *_: advance(1 / (self.chains * (self.warmup + self.draws * self.thinning))),
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # Pyro reads gradients of tensors that are no leaves
                sampler.run()
            chains.append(sampler.get_samples()["weights"][self.thinning - 1 :: self.thinning])
        store_chains(bnn, names, density, torch.stack(chains), data[0])


def _sampler() -> Any:
    """Pyro's module of samplers."""
    try:
        return importlib.import_module("pyro.infer.mcmc")
    except ImportError as error:
        raise MissingDependencyError("sampling by HMC()", "pyro-ppl", extra="mcmc") from error

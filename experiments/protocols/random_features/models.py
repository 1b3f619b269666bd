r"""Three approximations of one Gaussian process: WHVI and mean field on random features, and inducing points (gpytorch).

The kernel is $v \exp(-\sum_d (x_d - x'_d)^2 / 2\ell_d^2)$; v, the length scales and, at the end of training, the noise are learned.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesify import WHVI, Gaussian, MeanField, Method, bayesify, elbo, predict

__all__ = ["Data", "Fit", "features_of", "inducing_of", "sparse_process", "variational", "whvi_parameters"]

_BATCH = 256


class Data(NamedTuple):
    """Inputs (N, D) in [0, 1] and standardized targets (N,)."""

    x: Tensor
    y: Tensor


class Fit(NamedTuple):
    """How a model is trained.

    Attributes:
        steps: of Adam; the noise is fixed in the first `fixed`.
        learning_rate: of Adam.
        noise: initial standard deviation of the noise.
        full: whether the covariance of the approximation is full, not diagonal.
    """

    steps: int
    fixed: int
    learning_rate: float
    noise: float
    full: bool


class Predictions(NamedTuple):
    """Mean and variance of the targets (N,), and the number of variational parameters."""

    mean: Tensor
    variance: Tensor
    parameters: int


class Features(nn.Module):
    """Random Fourier features (B, D) -> (B, n) with learned length scales and variance."""

    frequencies: Tensor
    phases: Tensor

    def __init__(self, inputs: int, n: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(inputs, n))
        self.register_buffer("phases", 2 * math.pi * torch.rand(n))
        self.log_lengths = nn.Parameter(torch.full((inputs,), 0.5 * math.log(inputs / 2)))
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.cos((x * torch.exp(-self.log_lengths)) @ self.frequencies + self.phases)
        return torch.exp(0.5 * self.log_variance) * math.sqrt(2 / len(self.phases)) * waves


def variational(
    name: str, n: int, data: Data, new: Tensor, fit: Fit, seed: int, progress: Callable[[float], object]
) -> Predictions:
    """A process on n random features by "WHVI" or "mean-field"."""
    torch.manual_seed(seed)
    method: Method = _whvi(fit.full) if name == "WHVI" else MeanField(prior_std=1.0)
    bnn = bayesify(nn.Sequential(Features(data.x.shape[1], n), nn.Linear(n, 1, bias=False)), {"1": method})
    likelihood = Gaussian(std=fit.noise, learn=True)
    optimizer = torch.optim.Adam([*bnn.parameters(), *likelihood.parameters()], lr=fit.learning_rate)
    for step in range(fit.steps):
        likelihood.requires_grad_(step >= fit.fixed)
        rows = torch.randint(len(data.x), (_BATCH,))
        optimizer.zero_grad()
        draws = bnn(data.x[rows])
        (-elbo(draws, likelihood.log_prob(draws.outputs, data.y[rows]), n=len(data.x))).backward()
        optimizer.step()
        progress((step + 1) / fit.steps)
    p = predict(bnn, new, likelihood, samples=64, seed=seed, progress=False)
    return Predictions(p.mean, p.variance, sum(q.numel() for q in dict(bnn.random_layers())["1"].parameters()))


def sparse_process(inducing: int, data: Data, new: Tensor, fit: Fit, seed: int, progress: Callable[[float], object]) -> Predictions:
    """gpytorch's stochastic variational process with whitened inducing values, whose inputs are learned."""
    gp: Any = importlib.import_module("gpytorch")
    torch.manual_seed(seed)
    dimensions = data.x.shape[1]
    kernel = gp.kernels.ScaleKernel(gp.kernels.RBFKernel(ard_num_dims=dimensions))
    kernel.base_kernel.lengthscale, kernel.outputscale = math.sqrt(dimensions / 2), 1.0
    family = gp.variational.CholeskyVariationalDistribution if fit.full else gp.variational.MeanFieldVariationalDistribution
    values, start = family(inducing), data.x[torch.randperm(len(data.x))[:inducing]].clone()

    class Process(gp.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(gp.variational.VariationalStrategy(self, start, values, learn_inducing_locations=True))
            self.kernel = kernel

        def forward(self, x: Tensor) -> Any:
            return gp.distributions.MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))

    process, likelihood = Process(), gp.likelihoods.GaussianLikelihood(noise_constraint=gp.constraints.GreaterThan(1e-6))
    likelihood.noise = fit.noise**2
    objective = gp.mlls.VariationalELBO(likelihood, process, num_data=len(data.x))
    optimizer = torch.optim.Adam([*process.parameters(), *likelihood.parameters()], lr=fit.learning_rate)
    for step in range(fit.steps):
        likelihood.requires_grad_(step >= fit.fixed)
        rows = torch.randint(len(data.x), (_BATCH,))
        optimizer.zero_grad()
        (-objective(process(data.x[rows]), data.y[rows])).backward()
        optimizer.step()
        progress((step + 1) / fit.steps)
    process.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(process(rows)) for rows in new.split(5000)]
    mean, variance = torch.cat([p.mean for p in parts]), torch.cat([p.variance for p in parts])
    return Predictions(mean, variance, inducing * dimensions + _of_values(inducing, fit.full))


def whvi_parameters(n: int, full: bool) -> int:
    """Variational parameters of WHVI for the weights of n features."""
    bnn = bayesify(nn.Sequential(nn.Identity(), nn.Linear(n, 1, bias=False)), {"1": _whvi(full)})
    return sum(q.numel() for q in bnn.parameters())


def _whvi(full: bool) -> WHVI:
    return WHVI(prior_std=1.0, covariance="full" if full else "diagonal")


def features_of(parameters: int) -> int:
    """The number of random features of mean field, with two parameters each, rounded up."""
    return -(-parameters // 2)


def inducing_of(parameters: int, dimensions: int, full: bool) -> int:
    """The least number of inducing points with at least this number of parameters."""
    count = 1
    while count * dimensions + _of_values(count, full) < parameters:
        count += 1
    return count


def _of_values(count: int, full: bool) -> int:
    """Parameters of the distribution of inducing values: means, and a triangle or a diagonal."""
    return count + (count * (count + 1) // 2 if full else count)

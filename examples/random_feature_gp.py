"""Gaussian process regression with random Fourier features by WHVI and mean field (WHVI paper, section D.4).

    python examples/random_feature_gp.py  # with `pip install gpytorch`, also a sparse Gaussian process

f(x) = phi(x) w with w ~ N(0, I) and n features phi approximates a Gaussian process with a squared exponential kernel, whose
posterior is exact. WHVI has O(sqrt n) variational parameters for the n weights, reshaped to a square matrix; mean field has 2 n.
Mean field is also run with fewer features, for a similar number of parameters. With the defaults, WHVI with 128 parameters is
nearly as accurate as mean field with 2,048, and far more accurate than mean field or a sparse process with as few; a sparse
process with 2,400 parameters is close to the exact one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesify import WHVI, Gaussian, MeanField, Method, bayesify, elbo, predict


class Features(nn.Module):
    """Random Fourier features (B, I) -> (B, n); phi(x) . phi(y) approximates the kernel exp(-|x - y|^2 / (2 l^2))."""

    frequencies: Tensor
    phases: Tensor

    def __init__(self, inputs: int, n: int, length: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(inputs, n) / length)
        self.register_buffer("phases", 2 * math.pi * torch.rand(n))

    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(2 / self.phases.numel()) * torch.cos(x @ self.frequencies + self.phases)


def function(x: Tensor) -> Tensor:
    """A smooth function of four inputs in [0, 1]."""
    return torch.sin(5 * x[:, 0]) + 2 * (x[:, 1] - 0.5) ** 2 + torch.cos(4 * x[:, 2] * x[:, 3])


def exact_gp(x: Tensor, y: Tensor, at: Tensor, length: float, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of the exact posterior at new inputs."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(a, b).square() / (2 * length**2))

    root = torch.linalg.cholesky(kernel(x, x) + noise**2 * torch.eye(len(x), dtype=x.dtype))
    cross = torch.linalg.solve_triangular(root, kernel(x, at), upper=False)
    mean = cross.T @ torch.linalg.solve_triangular(root, y[:, None], upper=False)
    return mean[:, 0], 1 - cross.square().sum(0)


def variational(method: Method, n: int, data: tuple[Tensor, Tensor], at: Tensor, length: float, noise: float, steps: int) -> tuple:
    """Mean and variance at new inputs, and the number of variational parameters."""
    torch.manual_seed(1)
    x, y = data
    net = nn.Sequential(Features(x.shape[1], n, length), nn.Linear(n, 1, bias=False))
    bnn = bayesify(net, {"1": method})
    likelihood = Gaussian(std=noise)
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        optimizer.zero_grad()
        draws = bnn(x[rows])
        (-elbo(draws, likelihood.log_prob(draws.outputs, y[rows]), n=len(x))).backward()
        optimizer.step()
        schedule.step()
    p = predict(bnn, at, likelihood, samples=100, seed=0, progress=False)
    return p.mean, p.epistemic, sum(q.numel() for q in bnn.parameters())


def sparse_gp(x: Tensor, y: Tensor, at: Tensor, length: float, noise: float, inducing: int, steps: int) -> tuple:
    """Mean and variance at new inputs of gpytorch's stochastic variational process, and the number of parameters.

    Kernel and noise are fixed; inducing inputs and the distribution of their values are learned.
    """
    gp: Any = importlib.import_module("gpytorch")
    torch.manual_seed(1)
    kernel = gp.kernels.RBFKernel()
    kernel.lengthscale = length
    kernel.requires_grad_(False)
    values = gp.variational.CholeskyVariationalDistribution(inducing)

    class Process(gp.models.ApproximateGP):
        def __init__(self) -> None:
            inducing_inputs = x[torch.randperm(len(x))[:inducing]].clone()
            super().__init__(gp.variational.VariationalStrategy(self, inducing_inputs, values, learn_inducing_locations=True))

        def forward(self, x: Tensor) -> Any:
            return gp.distributions.MultivariateNormal(x.new_zeros(len(x)), kernel(x))

    model, likelihood = Process(), gp.likelihoods.GaussianLikelihood()
    likelihood.noise = noise**2
    elbo = gp.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        optimizer.zero_grad()
        (-elbo(model(x[rows]), y[rows])).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        posterior = model(at)
    # the lower triangle of the Cholesky factor of the covariance is learned
    count = inducing * x.shape[1] + inducing + inducing * (inducing + 1) // 2
    return posterior.mean, posterior.variance, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--inducing", type=int, nargs="*", default=[8, 64], help="numbers of inducing points")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    noise, length = 0.1, 0.7
    x, at = torch.rand(arguments.rows, 4), torch.rand(500, 4)
    y, truth = function(x), function(at)
    shift, scale = y.mean(), y.std()
    y, truth = (y - shift) / scale + noise * torch.randn(len(y)), (truth - shift) / scale

    whvi = WHVI(prior_std=1.0, initial_std=0.05)
    few = 2 * math.isqrt(arguments.features)
    rows = {"exact GP": (*exact_gp(x.double(), y.double(), at.double(), length, noise), 0)}
    for name, method, n in (
        ("WHVI", whvi, arguments.features),
        ("WHVI, full covariance", whvi.replace(covariance="full"), arguments.features),
        ("mean field", MeanField(), arguments.features),
        ("mean field, fewer features", MeanField(), few),
    ):
        rows[name] = variational(method, n, (x, y), at, length, noise, arguments.steps)
    if importlib.util.find_spec("gpytorch") is not None:
        for inducing in arguments.inducing:
            name = f"sparse GP, {inducing} inducing points"
            rows[name] = sparse_gp(x, y, at, length, noise, inducing, arguments.steps)
    print(f"{'weights':28} {'parameters':>10} {'RMSE':>8} {'log-likelihood':>15}")
    for name, (mean, variance, count) in rows.items():
        total = variance.double().clamp_min(0) + noise**2
        squares = (mean.double() - truth.double()).square()
        # expected over noisy observations of the truth
        density = -0.5 * (torch.log(2 * math.pi * total) + (squares + noise**2) / total)
        print(f"{name:28} {count:10,} {squares.mean().sqrt():8.4f} {density.mean():15.3f}")


if __name__ == "__main__":
    main()

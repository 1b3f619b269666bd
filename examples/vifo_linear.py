r"""Equality of weight-space and output-space ELBO for linear models: theorem 3.1 of the VIFO paper.

    python examples/vifo_linear.py

For a linear model $y \sim p(y \mid \theta^\top x)$ with prior $N(m_0, S_0)$ and $q(\theta) = N(m, S)$, the joint outputs of all N
data points have $q(z \mid X) = N(X m, X S X^\top)$ and the prior $N(X m_0, X S_0 X^\top)$. Both have rank d < N, so inverses and
determinants are taken on the range, and the dimension in the KL is d (the paper prints N and calls the difference a constant).
The bounds are equal.
"""

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

NOISE = 0.5


def expected_log_likelihood(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Sum over the data of E log N(y | z, NOISE^2), z ~ N(mean, variance), which depends only on marginals."""
    return torch.distributions.Normal(mean, NOISE).log_prob(y).sum() - variance.sum() / (2 * NOISE**2)


def weight_space(x: Tensor, y: Tensor, q: MultivariateNormal, prior: MultivariateNormal) -> Tensor:
    """ELBO in nats, with the KL of the weights."""
    variance = (x @ q.covariance_matrix * x).sum(1)
    return expected_log_likelihood(y, x @ q.mean, variance) - kl_divergence(q, prior)


def output_space(x: Tensor, y: Tensor, q: MultivariateNormal, prior: MultivariateNormal) -> Tensor:
    """ELBO in nats, with the KL of the joint outputs: degenerate normal distributions of rank d."""
    covariance, prior_covariance = x @ q.covariance_matrix @ x.T, x @ prior.covariance_matrix @ x.T
    rank = torch.linalg.matrix_rank(prior_covariance)
    inverse = torch.linalg.pinv(prior_covariance, hermitian=True, rtol=1e-10)
    shift = x @ (q.mean - prior.mean)
    log_ratio = _log_pseudo_determinant(covariance, int(rank)) - _log_pseudo_determinant(prior_covariance, int(rank))
    kl = 0.5 * ((inverse @ covariance).trace() - log_ratio + shift @ inverse @ shift - rank)
    return expected_log_likelihood(y, x @ q.mean, covariance.diagonal()) - kl


def _log_pseudo_determinant(matrix: Tensor, rank: int) -> Tensor:
    return torch.linalg.eigvalsh(matrix)[-rank:].log().sum()


def problem(n: int, d: int) -> tuple[Tensor, Tensor, MultivariateNormal, MultivariateNormal]:
    """Random inputs, targets, posterior and prior."""
    x, y = torch.randn(n, d, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    roots = torch.randn(2, d, d, dtype=torch.float64)
    covariances = roots @ roots.mT + 0.5 * torch.eye(d, dtype=torch.float64)
    q, prior = (MultivariateNormal(torch.randn(d, dtype=torch.float64), covariance) for covariance in covariances)
    return x, y, q, prior


def main() -> None:
    torch.manual_seed(0)
    for n, d in ((20, 3), (50, 8)):
        case = problem(n, d)
        print(f"N={n:3d} d={d}: weights {weight_space(*case):.6f}  outputs {output_space(*case):.6f} nats")


if __name__ == "__main__":
    main()

"""Whether vectors are draws from a normal distribution."""

import torch
from scipy import stats
from torch import Tensor

__all__ = ["assert_normal"]


def assert_normal(y: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Rows of y (n, D) are draws from N(mean, covariance): means, covariances and marginals, within 5 standard errors."""
    n, variance = len(y), covariance.diag()
    assert ((y.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    error = 5 * torch.sqrt((variance[:, None] * variance + covariance**2) / n)
    assert ((torch.cov(y.T) - covariance).abs() < error).all()
    for column, m, v in zip(y.T, mean, variance, strict=True):
        assert stats.kstest(column.numpy(), "norm", (m.item(), v.sqrt().item())).pvalue > 1e-4

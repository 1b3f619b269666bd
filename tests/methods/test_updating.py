"""The posterior as the prior of further data, against the exact posterior of all data."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesify import MCDropout, MeanField, bayesify, update_prior
from bayesify.errors import ConfigurationError
from bayesify.likelihoods import Gaussian
from bayesify.train import fit

F64 = torch.float64


def test_the_kl_is_that_from_the_former_posterior() -> None:
    bnn = bayesify(nn.Linear(3, 2).double(), MeanField(prior="sequential"))
    for parameter in bnn.parameters():
        nn.init.normal_(parameter, -0.5, 0.5)
    layer: Any = next(layer for _, layer in bnn.random_layers())
    former = [p.detach().clone() for p in (layer.weight, layer.posterior.weight_log_std, layer.bias, layer.posterior.bias_log_std)]
    update_prior(bnn)
    assert bnn.kl().item() == pytest.approx(0, abs=1e-12)
    for parameter in bnn.parameters():
        nn.init.normal_(parameter, -0.2, 0.7)
    expected = sum(
        kl_divergence(Normal(mean, log_std.exp()), Normal(former_mean, former_log_std.exp())).sum()
        for mean, log_std, former_mean, former_log_std in (
            (layer.weight, layer.posterior.weight_log_std, *former[:2]),
            (layer.bias, layer.posterior.bias_log_std, *former[2:]),
        )
    )
    torch.testing.assert_close(bnn.kl(), expected, rtol=1e-12, atol=0)


@pytest.mark.extended
def test_two_updates_give_the_exact_posterior_of_all_data() -> None:
    """Linear regression with orthogonal columns: the posterior is a product of normals, which mean field contains."""
    torch.manual_seed(0)
    noise, prior_std, weights = 0.5, 0.8, torch.tensor([1.0, -0.5, 0.3], dtype=F64)
    precision, shift = torch.full((3,), prior_std**-2, dtype=F64), torch.zeros(3, dtype=F64)
    bnn = bayesify(nn.Linear(3, 1, bias=False).double(), MeanField(prior="sequential", prior_std=prior_std))
    for rows in (12, 24):
        x = torch.linalg.qr(torch.randn(rows, 3, dtype=F64))[0] * rows**0.5 * 0.5
        y = x @ weights + noise * torch.randn(rows, dtype=F64)
        precision += x.square().sum(0) / noise**2
        shift += x.T @ y / noise**2
        settings = {"epochs": 700, "batch_size": rows, "samples": 8, "learning_rate": 0.05, "accelerator": "cpu", "progress": False}
        fit(bnn, (x, y), Gaussian(std=noise).double(), scheduler=partial(CosineAnnealingLR, T_max=700), **settings)
        if rows == 12:
            update_prior(bnn)
    layer: Any = next(layer for _, layer in bnn.random_layers())
    # without the first data, the standard deviations would be 15 % larger
    assert torch.allclose(layer.posterior.weight_log_std.exp().squeeze(0), precision.rsqrt(), rtol=0.05)
    assert torch.allclose(layer.weight.squeeze(0), shift / precision, atol=0.03)


@pytest.mark.parametrize("method", [MeanField(), MCDropout()])
def test_fixed_priors_are_refused(method) -> None:
    with pytest.raises(ConfigurationError, match="sequential"):
        update_prior(bayesify(nn.Linear(2, 1), method))

"""Spectral norms and stable ranks against singular values."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from bayesify import VSD, MeanField, bayesify, spectrum

# layer, and its weight as a matrix with one row per output channel
LAYERS: dict[str, Callable[[], tuple[nn.Module, Callable[[np.ndarray], np.ndarray]]]] = {
    "Linear": lambda: (nn.Linear(7, 4), lambda w: w),
    "Linear, narrow": lambda: (nn.Linear(1, 5), lambda w: w),
    "Conv2d": lambda: (nn.Conv2d(4, 6, 3, groups=2), lambda w: w.reshape(6, 18)),
    "ConvTranspose1d": lambda: (nn.ConvTranspose1d(3, 5, 2), lambda w: w.transpose(1, 0, 2).reshape(5, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("random", [False, True])
def test_spectrum_agrees_with_singular_values(name: str, random: bool) -> None:
    layer, matrix = LAYERS[name]()
    values = np.linalg.svd(matrix(layer.weight.detach().double().numpy()), compute_uv=False)
    net = nn.Sequential(nn.Identity(), layer, nn.ReLU())
    (row,) = spectrum(bayesify(net, MeanField()) if random else net)
    assert (row.name, row.layer) == ("1", name.split(",")[0])
    assert row.spectral_norm == pytest.approx(values[0], rel=1e-10)
    assert row.stable_rank == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-10)


def test_the_posterior_mean_counts() -> None:
    layer = nn.Linear(3, 3, bias=False)
    nn.init.eye_(layer.weight)
    bnn = bayesify(layer, VSD(hierarchical=True))
    nn.init.constant_(layer.posterior.log_scale_mean, math.log(2.0))
    nn.init.constant_(layer.posterior.log_scale_log_std, -30.0)
    (row,) = spectrum(bnn)  # and nothing of the linear layers inside the posterior
    assert row.spectral_norm == pytest.approx(2.0, rel=1e-6)
    assert row.stable_rank == pytest.approx(3.0, rel=1e-6)


def test_rank_one_and_zero() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.outer(torch.arange(4.0), torch.ones(3)))
        net[1].weight.zero_()
    first, second = spectrum(net)
    assert first.stable_rank == pytest.approx(1.0, rel=1e-6)
    assert second.spectral_norm == 0.0
    assert math.isnan(second.stable_rank)


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"net must be a torch\.nn\.Module, got list"):
        spectrum([])
    with pytest.raises(ValueError, match="no linear layer or convolution"):
        spectrum(nn.LayerNorm(3))

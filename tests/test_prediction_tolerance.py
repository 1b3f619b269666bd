"""Prediction that stops when the answer has settled: `predict(..., tolerance=...)`."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from bayesify import Categorical, DeepEnsemble, Gaussian, MCDropout, MeanField, bayesify, predict

F64 = torch.float64


def regression(spread: float) -> Any:
    """One weight of standard deviation `spread`: the mean prediction of S draws has the standard error spread * |x| / sqrt(S)."""
    torch.manual_seed(0)
    return bayesify(nn.Linear(1, 1, bias=False).double(), MeanField(initial_std=spread))


X = torch.tensor([[0.1], [0.5], [1.0], [0.2], [0.3]], dtype=F64)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("tolerance", [0.1, 0.05])
@pytest.mark.default("0.1-*")
def test_it_stops_near_the_number_of_draws_that_theory_asks_for(tolerance: float, batch_size: int) -> None:
    """Doubling overshoots by up to two, and the largest of few noisy estimates by some more."""
    counts = [
        predict(regression(1.0), X, Gaussian(), 100_000, tolerance=tolerance, batch_size=batch_size, seed=seed).samples
        for seed in range(8)
    ]
    wanted = (1.0 / tolerance) ** 2
    assert wanted / 2 <= sum(counts) / len(counts) <= 5 * wanted


@pytest.mark.extended
def test_the_error_is_what_was_asked_for() -> None:
    errors = [
        float(predict(regression(1.0), X, Gaussian(), 100_000, tolerance=0.05, seed=seed).mean.flatten()[2]) for seed in range(60)
    ]
    truth = float(regression(1.0).net.weight.detach())
    rms = math.sqrt(sum((error - truth) ** 2 for error in errors) / len(errors))
    assert rms < 0.06


def test_draws_are_the_first_of_those_without_a_tolerance() -> None:
    bnn, x = regression(1.0), X
    early = predict(bnn, x, Gaussian(), 100_000, tolerance=0.1, chunk=4, batch_size=2, seed=3)
    assert early.samples < 100_000
    full = predict(bnn, x, Gaussian(), early.samples, chunk=4, batch_size=2, seed=3)
    torch.testing.assert_close(early.mean, full.mean)
    torch.testing.assert_close(early.variance, full.variance)


def test_never_more_draws_than_asked_for() -> None:
    p = predict(regression(1.0), X, Gaussian(), 40, tolerance=1e-6, seed=0)
    assert p.samples == 40
    assert predict(regression(1.0), X, Gaussian(), 7, tolerance=10.0, seed=0).samples == 7


def test_classes_and_ensembles() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(6, 2)
    bnn = bayesify(net, DeepEnsemble(members=3, base=MCDropout(p=0.5)))
    loose, tight = (predict(bnn, x, Categorical(), 3000, tolerance=t, seed=0) for t in (0.05, 0.01))
    assert loose.samples < tight.samples < 3000
    assert all(p.samples % 3 == 0 for p in (loose, tight))


def test_a_certain_net_needs_the_first_draws_alone() -> None:
    p = predict(bayesify(nn.Linear(2, 3), MCDropout(p=0.0)), torch.randn(4, 2), Categorical(), 500, tolerance=1e-3, seed=0)
    assert p.samples == 32


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, "small"])
def test_a_tolerance_is_positive(tolerance: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="tolerance"):
        predict(regression(1.0), X, Gaussian(), 10, tolerance=tolerance)

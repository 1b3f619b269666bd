"""Posteriors whose spreads became huge, in a file or in training: a named error, not NaN later."""

import math

import pytest
import torch
from torch import nn

from bayesify import DVI, ELRG, VMG, VSD, WHVI, Categorical, Gaussian, MeanField, VariationalDropout, bayesify, elbo, predict
from bayesify.errors import DataError, DivergenceError
from bayesify.train import fit

LIKELIHOOD = Gaussian(std=0.1)
METHODS = [MeanField(), ELRG(), VMG(), VSD(), WHVI(), VariationalDropout()]


def network(method=None):
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), method or MeanField())


def data():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1)


def set_spreads(bnn, value):
    with torch.no_grad():
        for name, parameter in bnn.named_parameters():
            if name.endswith("log_std"):
                parameter.fill_(value)
    return bnn


@pytest.mark.parametrize("value", [43.0, math.inf, math.nan])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_checkpoints(method, value):
    bnn = network(method)
    state = {name: x.clone() for name, x in bnn.state_dict().items()}
    name = next(name for name in state if name.endswith(("log_std", "log_alpha")))
    state[name].flatten()[0] = value
    with pytest.raises(
        RuntimeError, match=rf"{name} has a value of {value:g}, but the logarithm of a spread must be at most 34\.5"
    ):
        bnn.load_state_dict(state)
    state[name].flatten()[0] = 34.0  # a standard deviation of 6e14, which single precision can square
    bnn.load_state_dict(state)


@pytest.mark.parametrize("method", [MeanField(), WHVI()], ids=["MeanField", "WHVI"])
def test_the_bound_of_an_infinite_kl(method):
    bnn, (x, _) = set_spreads(network(method), 50.0), data()
    with pytest.raises(DivergenceError, match=r"the KL is (inf|nan)"):
        elbo(bnn(x), torch.zeros(1, 20), n=20)
    set_spreads(bnn, 20.0)
    draws = bnn(x)
    assert elbo(draws, torch.zeros(1, 20), n=20).isfinite()


@pytest.mark.parametrize("log_std", [50.0, math.nan])
@pytest.mark.parametrize("method", [ELRG(), DVI(), DVI(covariance="diagonal")], ids=["ELRG", "DVI", "DVI-diagonal"])
def test_factorizations_in_a_training_loop(method, log_std):
    """A named error where the factorization of a covariance alone would fail without a hint."""
    torch.manual_seed(0)
    bnn = set_spreads(bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), method), log_std)
    with pytest.raises(DivergenceError, match="lower the learning rate, or clip gradients"):
        elbo(bnn(data()[0], samples=2), torch.zeros(2, 20), n=20)


def test_log_probabilities_that_are_nan():
    draws, log_prob = network()(data()[0], samples=2), torch.zeros(2, 20)
    log_prob[1, 3] = -math.inf  # an impossible target is no error
    assert elbo(draws, log_prob, n=20) == -math.inf
    log_prob[1, 4] = math.nan
    with pytest.raises(DivergenceError, match="log_prob has NaN in 1 of 40 values"):
        elbo(draws, log_prob, n=20)


def test_infinite_log_probabilities_have_no_gradient():
    draws = network()(data()[0])
    log_prob = LIKELIHOOD.log_prob(1e25 * draws.outputs, data()[1])
    with pytest.raises(DivergenceError, match=r"log_prob is infinite in .* a posterior are too large"):
        elbo(draws, log_prob, n=20)
    assert elbo(draws, log_prob.detach(), n=20) == -math.inf  # a value may be infinite, a loss not


@pytest.mark.parametrize("method", [MeanField(), ELRG()], ids=["MeanField", "ELRG"])  # the KL of ELRG has a factorization
def test_training(method):
    with pytest.raises(DivergenceError, match=r"of epoch 1.* NaN or infinite: net\.0"):
        fit(set_spreads(network(method), 43.0), data(), LIKELIHOOD, epochs=2, batch_size=10, accelerator="cpu")


def test_training_whose_factorization_fails():
    """With classes, DVI draws outputs; normal targets have a closed form."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), DVI())
    message = r"in batch 2 of epoch 1, DVI's covariance of the outputs.*clip gradients\. NaN or infinite: the KL of 0"
    with pytest.raises(DivergenceError, match=message):
        fit(bnn, (data()[0], torch.arange(20) % 2), Categorical(), epochs=1, batch_size=10, learning_rate=1e6, accelerator="cpu")


def test_predictions_whose_variance_would_be_infinite():
    """Single precision holds the outputs, but not their squares."""
    bnn, (x, _) = set_spreads(network(), 43.0), data()
    with torch.no_grad():
        assert bnn(x).outputs.isfinite().all()
    with pytest.raises(DataError, match=r"below 1\.8e\+19 in magnitude"):
        predict(bnn, x, LIKELIHOOD, samples=4, seed=0)
    bnn = set_spreads(network().double(), 43.0)
    assert predict(bnn, x.double(), LIKELIHOOD, samples=4, seed=0).variance.isfinite().all()

"""Posteriors whose spreads became huge, in a file or in training, and matrices without a factorization: a named error, not NaN."""

import math

import pytest
import torch
from torch import nn

from bayesify import (
    DVI,
    ELRG,
    SLANG,
    SNGP,
    VMG,
    VSD,
    WHVI,
    Categorical,
    Gaussian,
    Laplace,
    MeanField,
    NoisyKFAC,
    Poisson,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    elbo,
    predict,
    spectrum,
)
from bayesify.errors import ConfigurationError, DataError, DivergenceError
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


@pytest.mark.parametrize("rows", [3, 400])  # fewer and more than the weights of a layer
@pytest.mark.parametrize(("method", "scale"), [(SLANG(), 1e100), (SLANG(), 1e150), (NoisyKFAC(), 1e160)])
def test_natural_gradients_whose_squares_are_infinite(method, scale, rows):
    """In a training loop, where `fit` names no batch."""
    bnn = bayesify(nn.Linear(3, 1).double(), method)
    optimizer, x = bnn.optimizer(LIKELIHOOD), scale * torch.randn(rows, 3, dtype=torch.float64)

    def train():
        for _ in range(3):
            draws = bnn(x)
            (-elbo(draws, -0.5 * draws.outputs.squeeze(-1).square(), n=rows)).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(DivergenceError, match=r"diverged|infinite"):
        train()


def test_observing_log_probabilities_without_gradients():
    bnn = bayesify(nn.Linear(3, 1), SLANG())
    bnn.optimizer()
    with pytest.raises(ConfigurationError, match=r"log_prob has no gradient, .* compute it from draws\.outputs"):
        elbo(bnn(data()[0]), torch.zeros(1, 20), n=20)
    with torch.no_grad():
        assert elbo(bnn(data()[0]), torch.zeros(1, 20), n=20).isfinite()


def test_a_gaussian_process_without_a_factorization():
    bnn, (x, _) = network(SNGP(features=16)).double(), data()
    bnn.net[2].posterior.weight.data.fill_(1e4)  # rates of the Poisson distribution overflow
    with pytest.raises(DivergenceError, match=r"SNGP\(\) cannot make a posterior of these weights: .* standardize inputs"):
        bnn.complete([(x.double(), torch.ones(20))], Poisson())


def test_a_laplace_approximation_without_a_factorization():
    pytest.importorskip("laplace", reason="laplace-torch is not installed: see README.md")
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    bnn = bayesify(net, Laplace(structure="full", layers="all"))
    x = 1e120 * data()[0].double()
    with pytest.raises(DivergenceError, match=r"Laplace\(\) cannot make a posterior of these weights: .* standardize inputs"):
        bnn.complete([(x, torch.ones(20))], LIKELIHOOD)


def test_spectra_of_extreme_weights():
    layer = nn.Linear(4, 3).double()
    expected = spectrum(layer)[0]
    with torch.no_grad():
        layer.weight.mul_(2.0**900)
        row = spectrum(layer)[0]
        assert row.spectral_norm == pytest.approx(2.0**900 * expected.spectral_norm, rel=1e-12)
        assert row.stable_rank == pytest.approx(expected.stable_rank, rel=1e-12)
        layer.weight[0, 0] = math.inf
    with pytest.raises(DataError, match="weights of 'the network' have NaN or infinite values"):
        spectrum(layer)


@pytest.mark.parametrize("method", [MeanField(), TensorFactorized()], ids=["MeanField", "TensorFactorized"])
def test_plain_checkpoints_with_nan(method):
    bnn, plain = network(method), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).state_dict()
    plain["2.weight"][0, 1] = math.nan
    with pytest.raises(RuntimeError, match=r"2\.weight has NaN or infinite values; the checkpoint is damaged"):
        bnn.net.load_state_dict(plain)


def test_weights_that_trained_cores_cannot_represent():
    bnn, plain = network(TensorFactorized()), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).state_dict()
    nn.init.zeros_(bnn.net[0].posterior.core_mean)
    with pytest.raises(ConfigurationError, match="have no inverse, so it cannot represent the weights"):
        bnn.net.load_state_dict(plain)

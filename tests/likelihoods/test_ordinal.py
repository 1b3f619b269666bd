"""The ordinal likelihood against quadrature of the logistic density and maximum likelihood, its gradients, errors and saving."""

import copy

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from torch import nn

from bayesify import Deterministic, MeanField, bayesify, fit, predict
from bayesify.likelihoods import Likelihood, Ordinal

S, B, K = 3, 6, 5


@pytest.fixture
def ordinal():
    likelihood = Ordinal(classes=K).double()
    with torch.no_grad():
        likelihood.first_cut.fill_(-0.15)  # parameters are tenths
        likelihood.log_gaps.copy_(torch.tensor([0.2, 1.5, 0.6], dtype=torch.float64).log() / 10)
    return likelihood


def test_probabilities_are_integrals_of_the_logistic_density(ordinal):
    cuts = [-40.0, *np.cumsum([-1.5, 0.2, 1.5, 0.6]), 40.0]
    np.testing.assert_allclose(ordinal.cuts.detach(), cuts[1:-1], rtol=1e-6)
    outputs = torch.tensor([[-3.0, 0.0, 2.5]], dtype=torch.float64)
    probs = ordinal.predictive(outputs).probs
    for n, f in enumerate(outputs[0].tolist()):
        for k in range(K):
            expected = scipy.integrate.quad(lambda z, f=f: scipy.stats.logistic.pdf(z, f), cuts[k], cuts[k + 1])[0]
            assert probs[n, k].item() == pytest.approx(expected, rel=1e-6, abs=1e-10)
    for k in range(K):
        log_prob = ordinal.log_prob(outputs, torch.full((3,), k))
        torch.testing.assert_close(log_prob.exp()[0].detach(), probs[:, k])


def test_tails_keep_their_digits(ordinal):
    log_prob = ordinal.log_prob(torch.tensor([[300.0, -300.0]], dtype=torch.float64), torch.tensor([1, 3]))
    low, high = np.cumsum([-1.5, 0.2, 1.5, 0.6])[[0, 1]], np.cumsum([-1.5, 0.2, 1.5, 0.6])[[2, 3]]
    # the density of the logistic is exp(-|z - f|) there
    expected = [np.log(np.exp(low[1]) - np.exp(low[0])) - 300, np.log(np.exp(-high[0]) - np.exp(-high[1])) - 300]
    np.testing.assert_allclose(log_prob.detach()[0], expected, rtol=1e-8)


def test_draws_are_mixed(ordinal):
    outputs = torch.randn(S, B, 1, dtype=torch.float64)
    p = ordinal.predictive(outputs)
    each = torch.stack([ordinal.predictive(draw.unsqueeze(0)).probs for draw in outputs])
    torch.testing.assert_close(p.probs, each.mean(0))
    np.testing.assert_allclose(p.aleatoric, scipy.stats.entropy(each.numpy(), axis=-1).mean(0), rtol=1e-8)
    y = torch.randint(0, K, (B,))
    torch.testing.assert_close(ordinal.predictive(outputs[:1]).log_prob(y), ordinal.log_prob(outputs[:1], y)[0].detach())


def test_learned_cut_points_are_those_of_the_class_frequencies():
    y = torch.from_numpy(np.random.default_rng(0).choice(4, 1000, p=[0.1, 0.5, 0.1, 0.3]))
    likelihood = Ordinal(classes=4).double()
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -likelihood(torch.zeros(1, 1000, dtype=torch.float64), y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    shares = np.bincount(y, minlength=4).cumsum()[:-1] / 1000
    np.testing.assert_allclose(likelihood.cuts.detach(), scipy.special.logit(shares), atol=1e-3)


def test_gradients_compilation_and_saving(ordinal):
    y = torch.randint(0, K, (B, 7))
    outputs = torch.randn(S, B, 7, dtype=torch.float64, requires_grad=True)
    parameters = list(copy.deepcopy(ordinal).parameters())

    def log_prob(outputs, first_cut, log_gaps):
        values = {"first_cut": first_cut, "log_gaps": log_gaps}
        return torch.func.functional_call(ordinal, values, (outputs, y))

    assert torch.autograd.gradcheck(log_prob, (outputs, *parameters))
    compiled = torch.compile(ordinal.log_prob, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(outputs, y), ordinal.log_prob(outputs, y))
    loaded = Likelihood.from_dict(ordinal.to_dict()).double()
    loaded.load_state_dict(ordinal.state_dict())
    torch.testing.assert_close(loaded.log_prob(outputs, y), ordinal.log_prob(outputs, y))
    assert ordinal.log_prob(outputs, y).shape == (S, B)


def test_network_learns_ordered_classes():
    x = torch.linspace(-3, 3, 300).unsqueeze(1)
    torch.manual_seed(0)
    y = torch.bucketize(2 * x[:, 0], torch.tensor([-3.0, 0.5, 2.0]))
    bnn = bayesify(nn.Linear(1, 1), MeanField())
    likelihood = Ordinal(classes=4)
    fit(bnn, (x, y), likelihood, epochs=60, batch_size=50, learning_rate=0.1, accelerator="cpu", progress=False)
    p = predict(bnn, x, likelihood, samples=20, seed=0)
    assert (p.prediction == y).double().mean() > 0.9


def test_a_class_in_the_middle_becomes_likely_as_soon_as_the_others():
    x = torch.linspace(-3, 3, 300).unsqueeze(1)
    y = torch.bucketize(x[:, 0], torch.tensor([-1.0, 1.0]))
    torch.manual_seed(0)
    net = bayesify(nn.Sequential(nn.Linear(1, 128), nn.SiLU(), nn.Linear(128, 1)), Deterministic())
    likelihood = Ordinal(classes=3)
    fit(net, (x, y), likelihood, epochs=30, batch_size=30, learning_rate=5e-3, accelerator="cpu", progress=False)
    sure = predict(net, x, likelihood, seed=0).probs[torch.arange(300), y]
    # where cut points learn as slowly as single weights, 0.70 for 0.94
    assert sure[y == 1].mean() > 0.9 * sure[y != 1].mean()


def test_two_classes_have_one_cut_point():
    assert Ordinal(classes=2).cuts.tolist() == [0.0]


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: Ordinal(classes=1), ValueError, "classes must be a whole number of at least 2"),
        (lambda: Ordinal(classes=3).check_targets(torch.tensor([0, 3])), ValueError, "from 0 to 2.*got 3"),
        (lambda: Ordinal(classes=3).check_targets(torch.tensor([0.0])), TypeError, "integer class labels"),
        (lambda: Ordinal(classes=3).log_prob(torch.zeros(1, 2), torch.zeros(2)), TypeError, "integer class labels"),
        (lambda: Ordinal(classes=3).log_prob(torch.zeros(1, 2, 3), torch.tensor([0, 1])), ValueError, "y has shape"),
    ],
)
def test_errors(act, error, message):
    with pytest.raises(error, match=message):
        act()

"""Evidential likelihoods against torch.distributions, scipy, quadrature and Monte Carlo, and their training."""

import math
import warnings

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn

from bayesify import Deterministic, LinearWarmup, bayesify, fit, predict
from bayesify.core.outputs import Draws
from bayesify.likelihoods import EvidentialCategorical, EvidentialGaussian, Likelihood
from bayesify.metrics import evaluate
from bayesify.predictive import StudentTPredictive
from bayesify.predictive.discrete import DirichletPredictive
from bayesify.predictive.student import student_log_density
from bayesify.train.batch import Batch
from bayesify.train.objective import Objective

S, B, K = 3, 5, 4


def concentrations(outputs):
    return 1 + F.softplus(outputs)


def normal_inverse_gamma(outputs):
    gamma, nu, alpha, beta = outputs.chunk(4, -1)
    return gamma, F.softplus(nu) + 1e-3, 1.001 + F.softplus(alpha), F.softplus(beta) + 1e-6


def test_class_probability_is_the_mean_of_the_dirichlet():
    torch.manual_seed(0)
    outputs, y = torch.randn(S, B, K, dtype=torch.float64), torch.randint(0, K, (B,))
    drawn = D.Dirichlet(concentrations(outputs)).sample((200_000,)).mean(0)
    expected = drawn.gather(-1, y.expand(S, B).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(EvidentialCategorical().log_prob(outputs, y).exp(), expected, atol=3e-3, rtol=0)


def test_two_classes_match_quadrature_of_the_beta_density():
    outputs = torch.tensor([[[0.7, -0.4]]], dtype=torch.float64)
    a, b = concentrations(outputs)[0, 0].tolist()
    p = EvidentialCategorical().predictive(outputs)

    def mean(function):
        return scipy.integrate.quad(lambda t: function(t) * scipy.stats.beta.pdf(t, a, b), 0, 1)[0]

    assert p.probs[0, 0].item() == pytest.approx(mean(lambda t: t), rel=1e-8)
    entropy = mean(lambda t: scipy.stats.entropy([t, 1 - t]))
    assert p.aleatoric.item() == pytest.approx(entropy, rel=1e-6)
    assert p.epistemic.item() == pytest.approx(scipy.stats.entropy([a, b]) - entropy, rel=1e-5)
    assert p.vacuity.item() == pytest.approx(2 / (a + b))


def test_penalty_is_the_kl_of_the_misleading_evidence():
    outputs, y = torch.randn(S, B, 7, K, dtype=torch.float64), torch.randint(0, K, (B, 7))
    y[0, 3:] = -100
    alpha = concentrations(outputs)
    alpha = torch.where(F.one_hot(y.clamp_min(0), K).bool(), 1.0, alpha)
    kl = D.kl_divergence(D.Dirichlet(alpha), D.Dirichlet(torch.ones(K, dtype=torch.float64)))
    expected = 0.3 * torch.where(y == -100, 0, kl).sum(-1)
    likelihood = EvidentialCategorical(weight=0.3)
    torch.testing.assert_close(likelihood.penalty(outputs, y), expected)
    single = likelihood.log_prob(outputs[:, :1, :3], y[:1, :3])
    torch.testing.assert_close(likelihood.log_prob(outputs[:, :1], y[:1]), single)


@pytest.mark.parametrize("evidence", [-5.0, 1.0, 300.0, 1e4, 1e6])
def test_float32_has_the_digits_of_large_concentrations(evidence):
    outputs = torch.tensor([[[0.5, evidence, 0.7 * evidence]]], requires_grad=True)
    likelihood, y = EvidentialCategorical(), torch.tensor([1])

    def softplus(x):
        return mpmath.log1p(mpmath.exp(x))

    def penalty(*outputs):
        a = [1 + softplus(outputs[0]), mpmath.mpf(1), 1 + softplus(outputs[2])]
        kl = mpmath.loggamma(sum(a)) - mpmath.loggamma(3) - sum(map(mpmath.loggamma, a))
        return kl + sum((x - 1) * (mpmath.digamma(x) - mpmath.digamma(sum(a))) for x in a)

    def log_prob(*outputs):
        a = [1 + softplus(x) for x in outputs]
        return mpmath.log(a[1] / sum(a))

    for function, found in ((penalty, likelihood.penalty(outputs, y)), (log_prob, likelihood.log_prob(outputs, y))):
        slopes = torch.autograd.grad(found, outputs)[0].flatten().tolist()
        with mpmath.workdps(50):
            exact = [mpmath.mpf(x) for x in outputs.flatten().tolist()]
            expected = [function(*exact)]
            for i in range(3):
                order = tuple(int(j == i) for j in range(3))
                expected.append(mpmath.diff(function, tuple(exact), order, h=mpmath.mpf(10) ** -15))
        np.testing.assert_allclose([found.item(), *slopes], [float(x) for x in expected], rtol=1e-4, atol=1e-30)


def test_float32_has_the_digits_of_the_entropy_of_a_concentrated_dirichlet():
    p = DirichletPredictive.from_concentrations(torch.tensor([[[1e5, 1.5, 1.0]]]))
    with mpmath.workdps(50):
        a = [mpmath.mpf(100_000), mpmath.mpf(1.5), mpmath.mpf(1)]
        probs = [x / sum(a) for x in a]
        within = mpmath.digamma(sum(a) + 1) - sum(q * mpmath.digamma(x + 1) for q, x in zip(probs, a, strict=True))
        total = -sum(q * mpmath.log(q) for q in probs)
    assert p.aleatoric.item() == pytest.approx(float(within), rel=1e-6)
    assert p.entropy.item() == pytest.approx(float(total), rel=1e-6)
    assert p.epistemic.item() == pytest.approx(float(total - within), rel=1e-4)


@pytest.mark.parametrize("degrees", [1e-2, 2.5, 59.0, 61.0, 1e4, 1e6, 1e9])
def test_float32_has_the_digits_of_t_distributions_with_many_degrees_of_freedom(degrees):
    inputs = [torch.tensor(x, requires_grad=True) for x in (1.7, 0.2, 0.5, degrees)]

    def exact(y, location, scale, degrees):
        z, half = (y - location) / scale, degrees / 2
        constant = mpmath.loggamma(half + 0.5) - mpmath.loggamma(half) - mpmath.log(degrees * mpmath.pi) / 2 - mpmath.log(scale)
        return constant - (half + 0.5) * mpmath.log1p(z**2 / degrees)

    found = student_log_density(*inputs)
    slopes = [float(x) for x in torch.autograd.grad(found, inputs)]
    with mpmath.workdps(50):
        point = tuple(mpmath.mpf(x.item()) for x in inputs)
        orders = [tuple(int(j == i) for j in range(4)) for i in range(4)]
        expected = [float(mpmath.diff(exact, point, order, h=mpmath.mpf(10) ** -15)) for order in orders]
        assert found.item() == pytest.approx(float(exact(*point)), rel=1e-9)
    np.testing.assert_allclose(slopes, expected, rtol=1e-5)


def test_student_density_is_the_mean_over_means_and_variances():
    outputs = torch.tensor([[[0.3, 0.2, 1.5, -0.5]]], dtype=torch.float64)
    gamma, nu, alpha, beta = (x.item() for x in normal_inverse_gamma(outputs))
    y = 1.1
    variance = scipy.stats.invgamma(alpha, scale=beta)
    density = scipy.integrate.quad(  # of the mean given the variance: N(gamma, v / nu), so y ~ N(gamma, v + v / nu)
        lambda v: scipy.stats.norm.pdf(y, gamma, math.sqrt(v + v / nu)) * variance.pdf(v), 0, np.inf
    )[0]
    likelihood = EvidentialGaussian()
    log_prob = likelihood.log_prob(outputs, torch.tensor([y], dtype=torch.float64))
    assert log_prob.item() == pytest.approx(math.log(density), rel=1e-6)
    p = likelihood.predictive(outputs)
    assert p.log_prob(torch.tensor([y])).item() == pytest.approx(math.log(density), rel=1e-6)
    assert p.aleatoric.item() == pytest.approx(variance.mean(), rel=1e-8)
    assert p.epistemic.item() == pytest.approx(variance.mean() / nu, rel=1e-8)
    expected = 0.01 * abs(y - gamma) * (2 * nu + alpha)
    assert likelihood.penalty(outputs, torch.tensor([y])).item() == pytest.approx(expected, rel=1e-6)


def test_mixture_of_student_t_matches_scipy():
    torch.manual_seed(0)
    outputs = torch.randn(S, B, 4, dtype=torch.float64)
    p = EvidentialGaussian().predictive(outputs)
    parts = [scipy.stats.t(p.degrees[s].numpy(), p.locations[s].numpy(), p.scales[s].numpy()) for s in range(S)]
    y = torch.randn(B, dtype=torch.float64)
    np.testing.assert_allclose(p.cdf(y), np.mean([part.cdf(y.numpy()) for part in parts], 0), rtol=1e-9)
    np.testing.assert_allclose(p.log_prob(y).exp(), np.mean([part.pdf(y.numpy()) for part in parts], 0), rtol=1e-9)
    within = np.mean([part.var() for part in parts], 0)
    np.testing.assert_allclose(p.variance, within + p.locations.var(0, correction=0).numpy(), rtol=1e-8)
    scaled = p.rescale(-40.0, 3.0)
    moved = [scipy.stats.t(p.degrees[s].numpy(), 3 * p.locations[s].numpy() - 40, 3 * p.scales[s].numpy()) for s in range(S)]
    np.testing.assert_allclose(scaled.cdf(3 * y - 40), np.mean([part.cdf(3 * y.numpy() - 40) for part in moved], 0), rtol=1e-9)
    np.testing.assert_allclose(scaled.epistemic, 9 * p.epistemic, rtol=1e-9)
    for q in (0.001, 0.3, 0.975):
        np.testing.assert_allclose(np.mean([part.cdf(p.quantile(q).numpy()) for part in parts], 0), q, rtol=1e-8)
    crps = p.crps(y)
    for n in range(B):

        def squared_error(t, n=n):
            cdf = np.mean([scipy.stats.t.cdf(t, *(x[s, n].item() for x in (p.degrees, p.locations, p.scales))) for s in range(S)])
            return (cdf - (t >= y[n].item())) ** 2

        ends = [(-np.inf, y[n].item()), (y[n].item(), np.inf)]
        expected = sum(scipy.integrate.quad(squared_error, *end, limit=200)[0] for end in ends)
        assert crps[n].item() == pytest.approx(expected, rel=1e-3)
    wide = StudentTPredictive(*(x[:1, :1].expand(1, 20_000) for x in (p.locations, p.scales, p.degrees + 4, p.evidence)))
    drawn = wide.sample(torch.Generator().manual_seed(0))
    exact = scipy.stats.t(wide.degrees[0, 0].item(), p.locations[0, 0].item(), p.scales[0, 0].item())
    assert scipy.stats.kstest(drawn[0].numpy(), exact.cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("locations", "scale", "degrees", "y"),
    [
        ([-1.0, 0.2, 0.5, 1.4, 2.0], 0.05, 5.0, 0.3),
        ([0.0, 50.0], 0.01, 3.0, 0.3),
        ([0.0, 1.0, 1.7], 0.01, 6.0, 0.3),
        ([3.0], 2.0, 2.1, 40.0),
        ([0.0], 1e-4, 9.0, 20.0),
        ([*np.linspace(-1, 1, 99), 30.0], 1e-4, 30.0, 0.001),
    ],
)
def test_crps_of_draws_narrower_than_their_distances(locations, scale, degrees, y):
    """Against the trapezoidal rule with 4,001 nodes per draw."""
    nodes = [m + scale * np.sinh(np.linspace(-12, 12, 4001)) for m in locations]
    t = np.sort(np.concatenate([*nodes, [y - 1e-12, y + 1e-12]]))
    cdf = np.mean([scipy.stats.t.cdf((t - m) / scale, degrees) for m in locations], 0)
    location = torch.tensor(locations, dtype=torch.float64).unsqueeze(1)
    p = StudentTPredictive(location, *(torch.full_like(location, x) for x in (scale, degrees, 1.0)))
    expected = np.trapezoid((cdf - (t >= y)) ** 2, t)
    assert p.crps(torch.tensor([y], dtype=torch.float64)).item() == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize(
    ("likelihood", "width", "y"),
    [(EvidentialCategorical(weight=0.5), K, torch.arange(B) % K), (EvidentialGaussian(weight=0.1), 8, torch.randn(B, 2).double())],
)
def test_gradients_compilation_saving_and_mixing(likelihood, width, y):
    torch.manual_seed(0)
    outputs = torch.randn(S, B, width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda o: likelihood.log_prob(o, y), (outputs,))
    assert torch.autograd.gradcheck(lambda o: likelihood.penalty(o, y), (outputs,))
    compiled = torch.compile(likelihood.penalty, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(outputs, y), likelihood.penalty(outputs, y))
    loaded = Likelihood.from_dict(likelihood.to_dict())
    torch.testing.assert_close(loaded.penalty(outputs, y), likelihood.penalty(outputs, y))
    outputs = outputs.detach()
    p = likelihood.predictive(outputs)
    for both in (
        likelihood.predictive(outputs[:1]).mix(likelihood.predictive(outputs[1:])),
        likelihood.predictive(outputs[:, :2]).cat(likelihood.predictive(outputs[:, 2:])),
    ):
        torch.testing.assert_close(both.log_prob(y), p.log_prob(y))
        torch.testing.assert_close(both.epistemic, p.epistemic)
    torch.testing.assert_close(likelihood.predictive(outputs[:1]).log_prob(y), likelihood.log_prob(outputs[:1], y)[0])


def test_training_weights_the_penalty_by_beta():
    bnn, likelihood = bayesify(nn.Linear(2, K), Deterministic()), EvidentialCategorical(weight=2.0)
    batch = Batch(torch.randn(B, 2), torch.arange(B) % K)
    objective = Objective(bnn, likelihood)
    draws: Draws = bnn(batch.inputs)
    plain, nll, _ = objective(batch, 1, B, 0.0, None)
    weighted, same, kl = objective(batch, 1, B, 0.5, None)
    penalty = likelihood.penalty(draws.outputs, batch.y).mean()
    torch.testing.assert_close(weighted - plain - 0.5 / B * kl, 0.5 * penalty)
    torch.testing.assert_close(nll, -likelihood.log_prob(draws.outputs, batch.y).mean())
    assert nll == same


@pytest.mark.parametrize(("kind", "y"), [(EvidentialCategorical, torch.tensor([1, 0])), (EvidentialGaussian, torch.randn(2))])
def test_training_without_the_penalty_is_noticed_once(kind, y):
    def told(likelihood, weight):
        outputs = torch.randn(1, 2, 4, requires_grad=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(300):
                target = likelihood.log_prob(outputs, y)
                (target - weight * likelihood.penalty(outputs, y) if weight else target).sum().backward()
        return [str(each.message) for each in caught]

    [text] = told(kind(), 0)
    assert f"training leaves out the penalty of {kind.__name__}" in text
    assert not told(kind(), 0.1)
    assert not told(kind(weight=0.0), 0), "the user's choice"
    likelihood = kind()
    for _ in range(300):
        likelihood.log_prob(torch.randn(1, 2, 4), y)  # of predictions


def test_classifier_has_less_evidence_between_the_classes():
    torch.manual_seed(0)
    y = torch.randint(0, 2, (300,))
    x = torch.stack([4.0 * y - 2, torch.zeros(300)], 1) + 0.5 * torch.randn(300, 2)
    bnn = bayesify(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)), Deterministic())
    fit(bnn, (x, y), EvidentialCategorical(), beta=LinearWarmup(), epochs=30, batch_size=50, learning_rate=1e-2, progress=False)
    p = predict(bnn, torch.cat([x, torch.zeros(1, 2)]), EvidentialCategorical(), samples=1, seed=0)
    assert (p.prediction[:300] == y).double().mean() > 0.95
    assert p.vacuity[300] > 1.5 * p.vacuity[:300].median()


@pytest.mark.extended
def test_regression_finds_mean_and_noise():
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 400).unsqueeze(1)
    y = x[:, 0] + 0.2 * torch.randn(400)
    bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 4)), Deterministic())
    fit(bnn, (x, y), EvidentialGaussian(), epochs=60, batch_size=50, learning_rate=1e-2, progress=False)
    scores = evaluate(predict(bnn, x, EvidentialGaussian(), samples=1, seed=0), y)
    assert scores["rmse"] < 0.23
    assert 0.9 < scores["coverage_95"] < 1


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: EvidentialCategorical(weight=-1.0), ValueError, "weight must be a finite number of at least 0"),
        (lambda: EvidentialCategorical().check_outputs(torch.zeros(1, 2, 1)), ValueError, "at least 2 classes"),
        (lambda: EvidentialCategorical().log_prob(torch.zeros(1, 2, 3), torch.zeros(2)), TypeError, "integer class labels"),
        (lambda: EvidentialCategorical().check_targets(torch.tensor([3]), torch.zeros(1, 1, 3)), ValueError, "from 0 to 2"),
        (lambda: EvidentialGaussian().check_outputs(torch.zeros(1, 2, 6)), ValueError, "four numbers per target"),
        (lambda: EvidentialGaussian().check_targets(torch.tensor([math.nan])), ValueError, "finite"),
        (
            lambda: StudentTPredictive(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3), torch.ones(2)),
            ValueError,
            "must all be",
        ),
        (lambda: EvidentialGaussian().predictive(torch.ones(1, 2, 4)).quantile(0.0), ValueError, "q must be"),
    ],
)
def test_errors(act, error, message):
    with pytest.raises(error, match=message):
        act()

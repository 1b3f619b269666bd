"""Count likelihoods and their predictive distributions against scipy, enumeration, quadrature and simulation."""

import copy
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch

from bayesify.conformal import ConformalIntervals
from bayesify.estimators import BayesianRegressor
from bayesify.functional import incomplete_beta
from bayesify.likelihoods import Likelihood, NegativeBinomial, Poisson
from bayesify.metrics import evaluate
from bayesify.persistence import load_model, save_model
from bayesify.predictive import CountPredictive
from bayesify.report import assess
from bayesify.report.calibration_tests import interval_calibration

S, B = 3, 5
COUNTS = torch.tensor([0, 1, 4, 20, 300])
CASES = {
    "poisson": (Poisson(scale=2.0), (S, B), COUNTS),
    "poissons": (Poisson(scale=[0.5, 4.0]), (S, B, 2), torch.stack([COUNTS, COUNTS.flip(0)], 1)),
    "negative binomial": (NegativeBinomial(dispersion=0.7), (S, B, 1), COUNTS),
    "per row": (NegativeBinomial(dispersion=[0.5, 2.0], per_row=True), (S, B, 4), torch.stack([COUNTS, COUNTS], 1)),
}
each = pytest.mark.parametrize("case", CASES)
KINDS = pytest.mark.parametrize("dispersion", [None, 0.02, 0.7, 4.0])


def component(mean, dispersion):
    return scipy.stats.poisson(mean) if dispersion is None else scipy.stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


def mixture(dispersion, scale=8.0):
    means = scale * torch.tensor([[0.3, 2.0, 1.0], [0.5, 0.4, 1.1]], dtype=torch.float64)
    p = CountPredictive(means, None if dispersion is None else torch.tensor(dispersion, dtype=torch.float64))
    return p, [component(m, dispersion) for m in means.numpy()]


def test_incomplete_beta_matches_scipy():
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.uniform(-4, 11, (2, 20_000)))
    x = np.clip(rng.beta(a, b) * np.exp(0.3 * rng.normal(size=len(a))), 0, 1)
    value = incomplete_beta(*map(torch.from_numpy, (a, b, x)))
    np.testing.assert_allclose(value, scipy.special.betainc(a, b, x), atol=1e-9)


def test_incomplete_beta_of_far_parameters_matches_scipy():
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.uniform(-11, 5, 2000)), np.exp(rng.uniform(12, 27, 2000))
    x = rng.beta(a, b)
    value = incomplete_beta(*map(torch.from_numpy, (a, b, x)))
    np.testing.assert_allclose(value, scipy.special.betainc(a, b, x), atol=1e-7)
    edges = incomplete_beta(torch.tensor(2.0), torch.tensor(1e8), torch.tensor([0.0, 1.0]))
    assert edges.tolist() == [0.0, 1.0]


def test_log_prob_matches_scipy():
    outputs = torch.randn(S, B, 2, dtype=torch.float64)
    y = torch.stack([COUNTS, COUNTS.flip(0)], 1)
    means = np.array([0.5, 4.0]) * outputs.exp().numpy()
    log_prob = CASES["poissons"][0].log_prob(outputs, y)
    np.testing.assert_allclose(log_prob, scipy.stats.poisson.logpmf(y.numpy(), means).sum(-1), rtol=1e-6)
    learned = NegativeBinomial(dispersion=[0.5, 3.0]).double()
    expected = scipy.stats.nbinom.logpmf(y.numpy(), [2, 1 / 3], 1 / (1 + np.array([0.5, 3.0]) * outputs.exp().numpy()))
    np.testing.assert_allclose(learned.log_prob(outputs, y).detach(), expected.sum(-1), rtol=1e-6)
    everything = torch.randn(S, B, 4, dtype=torch.float64)
    means, dispersions = everything.exp().numpy()[..., :2], np.array([0.5, 2.0]) * everything.exp().numpy()[..., 2:]
    expected = scipy.stats.nbinom.logpmf(y.numpy(), 1 / dispersions, 1 / (1 + dispersions * means))
    np.testing.assert_allclose(CASES["per row"][0].log_prob(everything, y), expected.sum(-1), rtol=1e-6)


@pytest.mark.parametrize("count", [10, 10**4, 10**6, 10**8])
@pytest.mark.parametrize("std", [1e-4, 1e-2])
def test_expectation_of_poisson_has_its_digits_in_float32_for_large_counts(count, std):
    inputs = torch.tensor([math.log(count), std], requires_grad=True)
    found = Poisson().expected_log_prob(inputs[:1], inputs[1:], torch.tensor([count]))
    with mpmath.workdps(50):
        mean, spread = (mpmath.mpf(x) for x in inputs.tolist())
        rate = mpmath.exp(mean + spread**2 / 2)
        expected = count * mean - rate - mpmath.loggamma(count + 1)
        slopes = float(count - rate), float(-rate * spread)
    assert found.item() == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(torch.autograd.grad(found, inputs)[0], slopes, rtol=1e-5)


def test_negative_binomial_is_a_gamma_mixture_of_poissons():
    mean, dispersion, y = 3.0, 0.4, 5
    gamma = scipy.stats.gamma(1 / dispersion, scale=mean * dispersion)
    expected = scipy.integrate.quad(lambda rate: scipy.stats.poisson.pmf(y, rate) * gamma.pdf(rate), 0, 60)[0]
    outputs = torch.full((1, 1), math.log(mean), dtype=torch.float64)
    log_prob = NegativeBinomial(dispersion=dispersion).log_prob(outputs, torch.tensor([y]))
    assert log_prob.item() == pytest.approx(math.log(expected), rel=1e-6)


def test_expectation_of_poisson_matches_quadrature():
    mean, std = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, 1.2, 0.1], dtype=torch.float64)
    y = torch.tensor([0, 2, 9])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    rates = 2.0 * np.exp(mean.numpy() + std.numpy() * nodes[:, None])
    expected = (weights[:, None] * scipy.stats.poisson.logpmf(y.numpy(), rates)).sum(0) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(Poisson(scale=2.0).expected_log_prob(mean, std, y), expected, rtol=1e-6)


@KINDS
def test_predictive_matches_enumeration(dispersion):
    p, parts = mixture(dispersion)
    k = np.arange(6000)
    pmf = np.mean([part.pmf(k[:, None]) for part in parts], 0)
    mean = (k[:, None] * pmf).sum(0)
    np.testing.assert_allclose(p.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(p.variance, ((k[:, None] - mean) ** 2 * pmf).sum(0), rtol=1e-6)
    np.testing.assert_allclose(p.aleatoric, np.mean([part.var() for part in parts], 0), rtol=1e-10)
    cdf, y = pmf.cumsum(0), torch.tensor([0.0, 7.0, 12.0], dtype=torch.float64)
    np.testing.assert_allclose(p.log_prob(y).exp(), [pmf[int(v), n] for n, v in enumerate(y)], rtol=1e-9)
    np.testing.assert_allclose(p.cdf(y + 0.5), [cdf[int(v), n] for n, v in enumerate(y)], rtol=1e-9)
    assert p.cdf(torch.full((3,), -1.0)).tolist() == [0.0] * 3
    for q in (1e-6, 0.025, 0.5, 0.975, 0.9999):
        assert p.quantile(q).tolist() == (cdf < q * (1 - 1e-12)).sum(0).tolist()
    crps = [((cdf[:, n] - (k >= v.item())) ** 2).sum() for n, v in enumerate(y)]
    np.testing.assert_allclose(p.crps(y), crps, rtol=1e-5)


@pytest.mark.parametrize(("mean", "dispersion"), [(1e4, None), (1e4, 0.5), (1e3, 5.0)])
def test_crps_of_large_counts_is_interpolated(mean, dispersion):
    means = torch.tensor([[mean], [1.2 * mean]], dtype=torch.float64)
    p = CountPredictive(means, None if dispersion is None else torch.tensor(dispersion, dtype=torch.float64))
    k = np.arange(int(mean * (2 if dispersion is None else 100 * dispersion)))
    cdf = np.mean([component(m, dispersion).cdf(k) for m in means[:, 0].numpy()], 0)
    expected = ((cdf - (k >= 0.9 * mean)) ** 2).sum()
    np.testing.assert_allclose(p.crps(torch.tensor([0.9 * mean])).item(), expected, rtol=5e-4)


@pytest.mark.parametrize("mean", [1e5, 1e7, 1e9])
def test_geometric_distribution_of_any_mean(mean):
    y = torch.tensor([0.0, 0.01, 1.0, 3.0], dtype=torch.float64).mul(mean)
    p = CountPredictive(torch.full((1, 4), mean, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    miss = math.log1p(-1 / (1 + mean))
    torch.testing.assert_close(p.log_prob(y), y * miss - math.log1p(mean), atol=1e-9, rtol=0)
    torch.testing.assert_close(p.cdf(y), -torch.expm1((y + 1) * miss), atol=1e-9, rtol=0)
    exponential = y - 2 * mean * (1 - (-y / mean).exp()) + mean / 2  # its limit
    torch.testing.assert_close(p.crps(y), exponential, atol=0, rtol=2e-5)


@pytest.mark.parametrize(("mean", "dispersion"), [(1e6, 1e4), (1e8, 10.0), (1e9, 100.0), (1e9, 1e5)])
def test_crps_of_large_dispersions(mean, dispersion):
    y = int(0.01 * mean)
    p = CountPredictive(torch.full((1, 1), mean, dtype=torch.float64), torch.tensor(dispersion, dtype=torch.float64))
    with mpmath.workdps(40):  # scoringRules, the closed form of Wei & Held (2014)
        r, hit = 1 / mpmath.mpf(dispersion), 1 / (1 + mpmath.mpf(dispersion) * mean)
        odds = (1 - hit) / hit**2
        below = mpmath.betainc(r + 1, y, 0, hit, regularized=True)
        spread = hit * (2 * below - 1) + mpmath.hyp2f1(r + 1, mpmath.mpf(0.5), 2, -4 * odds)
        expected = y * (2 * mpmath.betainc(r, y + 1, 0, hit, regularized=True) - 1) - r * odds * spread
    assert p.crps(torch.tensor([float(y)])).item() == pytest.approx(float(expected), rel=1e-3)


FAR = [10.0, 20, 30, 40, 50, 60, 70, 1e6]  # draws that disagree, of peaks much narrower than their distances


def summed_crps(means, dispersion, y):
    """The sum over all whole numbers."""
    parts = [component(m, dispersion) for m in means]
    k = np.arange(int(max(y, *(part.isf(1e-12) for part in parts))) + 2.0)
    shape = 0 if dispersion is None else 1 / dispersion
    tails = [
        scipy.special.gammaincc(k + 1, m) if not shape else scipy.special.betainc(shape, k + 1, shape / (shape + m)) for m in means
    ]
    return ((np.mean(tails, 0) - (k >= y)) ** 2).sum()


@pytest.mark.parametrize(
    ("means", "dispersion", "y"),
    [
        (FAR, None, 10),
        ([*FAR[:-1], 3e5], None, 10),
        (FAR, 1e-5, 10),
        (FAR, None, 600_000),
        ([10.0, 2e5], None, 10),
        ([5.0, 1e6], None, 2_000_000),
        ([*FAR[:-1], 1e4], 2.0, 0),
        ([2e3], 5.0, 300),
        ([1e5], None, 100_300),
    ],
)
def test_crps_of_draws_that_disagree(means, dispersion, y):
    column = torch.tensor(means, dtype=torch.float64).unsqueeze(1)
    p = CountPredictive(column, None if dispersion is None else torch.tensor(dispersion, dtype=torch.float64))
    assert p.crps(torch.tensor([y])).item() == pytest.approx(summed_crps(means, dispersion, y), rel=1e-4)


def test_crps_of_many_draws_and_rows_of_all_sizes():
    rng = np.random.default_rng(0)
    means = np.exp(rng.uniform(0, math.log(3e4), (200, 4)))
    means[:, 1] = np.r_[np.linspace(10, 70, 199), 3e4]  # one draw is far from all others
    means[:, 2:] = [3.0, 200.0]
    y = np.array([50, 45, 4, 230])
    expected = [summed_crps(means[:, n], None, y[n]) for n in range(4)]
    np.testing.assert_allclose(CountPredictive(torch.from_numpy(means)).crps(torch.from_numpy(y)), expected, rtol=1e-4)


def test_crps_between_and_below_counts_is_the_integral():
    p = CountPredictive(torch.tensor([[3.0, 2e4, 3.0, 2e4]], dtype=torch.float64))
    y = torch.tensor([2.25, 20_040.25, -1.5, -1.5], dtype=torch.float64)
    crps, at_zero = p.crps(y), p.crps(torch.zeros(4))
    torch.testing.assert_close(crps[:2], 0.75 * p.crps(y.floor())[:2] + 0.25 * p.crps(y.floor() + 1)[:2])
    torch.testing.assert_close(crps[2:], at_zero[2:] + 1.5)


@KINDS
def test_samples_and_their_transforms_have_the_predicted_distribution(dispersion):
    p, _ = mixture(dispersion, scale=2.0)
    wide = CountPredictive(p.means[:, :1].expand(2, 20_000), None if p.dispersions is None else p.dispersions[:, :1])
    y = wide.sample(torch.Generator().manual_seed(0))
    for draw, rate in zip(y, p.means[:, 0].tolist(), strict=True):
        part = component(rate, dispersion)
        assert draw.mean().item() == pytest.approx(rate, abs=4 * part.std() / math.sqrt(20_000))
        assert (draw == 0).double().mean().item() == pytest.approx(part.pmf(0), abs=4 * 0.5 / math.sqrt(20_000))
    both = torch.where(torch.rand(20_000, generator=torch.Generator().manual_seed(1)) < 0.5, y[0], y[1])
    assert interval_calibration(wide.pit(both)).p > 0.01
    assert interval_calibration(wide.cdf(both)).p < 0.01


@pytest.mark.default("negative binomial", "poisson")
@each
def test_gradients_compilation_saving_and_copies(case):
    likelihood, shape, y = CASES[case]
    outputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    double = copy.deepcopy(likelihood).double()
    assert torch.autograd.gradcheck(lambda o: double.log_prob(o, y), (outputs,))
    compiled = torch.compile(likelihood.log_prob, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(outputs.float(), y), likelihood.log_prob(outputs.float(), y))
    loaded = Likelihood.from_dict(likelihood.to_dict())
    loaded.load_state_dict(likelihood.state_dict())
    torch.testing.assert_close(loaded.log_prob(outputs, y), likelihood.log_prob(outputs, y))
    likelihood.check_targets(y, outputs)
    half = torch.randn(shape).bfloat16()
    torch.testing.assert_close(likelihood.log_prob(half, y), likelihood.log_prob(half.float(), y))
    one = likelihood.predictive(outputs[:1])
    torch.testing.assert_close(one.log_prob(y), likelihood.log_prob(outputs[:1].detach(), y)[0].detach(), rtol=1e-6, atol=1e-6)


def test_learned_dispersion_is_that_of_maximum_likelihood():
    y = torch.from_numpy(np.random.default_rng(0).negative_binomial(2, 2 / (2 + 6.0), size=4000))
    likelihood, output = NegativeBinomial(scale=6.0).double(), torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([*likelihood.parameters(), output], max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -likelihood(output.expand(1, len(y)), y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    assert likelihood.dispersion.item() == pytest.approx(0.5, rel=0.1)
    assert 6 * output.exp().item() == pytest.approx(y.double().mean().item(), rel=1e-4)


def test_mixtures_join_and_split():
    torch.manual_seed(0)
    outputs = torch.randn(4, B, 4, dtype=torch.float64)
    likelihood, _, y = CASES["per row"]
    p = likelihood.predictive(outputs)
    torch.testing.assert_close(
        likelihood.predictive(outputs[:1]).mix(likelihood.predictive(outputs[1:])).log_prob(y), p.log_prob(y)
    )
    halves = likelihood.predictive(outputs[:, :2]).cat(likelihood.predictive(outputs[:, 2:]))
    torch.testing.assert_close(halves.log_prob(y), p.log_prob(y))
    torch.testing.assert_close(p.output(1).crps(y[:, 1]), p.crps(y)[:, 1], rtol=1e-5, atol=1e-6)
    with pytest.raises(AttributeError, match="it is for regression"):
        _ = p.probs
    both = p.mix(CountPredictive(p.means))  # Poisson draws, as nearly Poisson negative binomials
    torch.testing.assert_close(both.aleatoric, (p.aleatoric + p.mean) / 2, rtol=1e-3, atol=0)
    torch.testing.assert_close(p.select(torch.tensor([2, 0])).log_prob(y[[2, 0]]), p.log_prob(y)[[2, 0]])


def test_average_over_inputs_has_the_moments_of_the_mixture():
    means = torch.tensor([[2.0, 5.0], [3.0, 1.0]], dtype=torch.float64)
    a, b = CountPredictive(means), CountPredictive(means + 4, torch.tensor(0.5, dtype=torch.float64))
    average = a.average(b)
    assert average.samples == 2
    torch.testing.assert_close(average.mean, (means + 2).mean(0))
    # of every draw: the mean of the variances, m and m + m**2 / 2, and the variance of the means, 2**2
    variances = (means + (means + 4) + 0.5 * (means + 4) ** 2) / 2 + 4
    torch.testing.assert_close(average.aleatoric, variances.mean(0), rtol=1e-4, atol=0)
    torch.testing.assert_close(average.epistemic, (means + 2).var(0, correction=0))


def test_dispersion_of_residuals():
    rng = np.random.default_rng(0)
    mean = torch.full((20_000,), 8.0, dtype=torch.float64)
    spread = torch.from_numpy(rng.negative_binomial(4, 4 / 12, 20_000)).double()
    p = CountPredictive.from_residuals(mean, spread, mean)
    assert p.dispersions is not None
    assert p.dispersions[0, 0].item() == pytest.approx(0.25, rel=0.1)
    assert CountPredictive.from_residuals(mean, mean, mean).dispersions is None


def test_conformal_intervals_of_counts_end_at_counts_and_cover():
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.negative_binomial(2, 2 / 8, 2400)).double()
    p = CountPredictive(torch.full((1, 2400), 4.0, dtype=torch.float64))  # wrong mean and spread
    part = [CountPredictive(p.means[:, :400]), CountPredictive(p.means[:, 400:])]
    lower, upper = ConformalIntervals.calibrate(part[0], y[:400]).interval(part[1], 0.9)
    assert bool(((lower == lower.round()) & (upper == upper.round()) & (lower >= 0)).all())
    assert 0.87 < ((lower <= y[400:]) & (y[400:] <= upper)).double().mean().item() < 0.97


@pytest.mark.default("1-poisson", extended=["2-negative-binomial"])
@pytest.mark.parametrize("likelihood", ["poisson", "negative-binomial"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_regressor_of_counts(likelihood, outputs, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    mean = np.exp(3 + 0.7 * X)[:, :outputs]
    y = rng.poisson(mean) if likelihood == "poisson" else rng.negative_binomial(4, 4 / (4 + mean))
    y = y[:, 0] if outputs == 1 else y
    model = BayesianRegressor(method="MCDropout", likelihood=likelihood, epochs=60, samples=10, random_state=0).fit(X, y)
    scores = evaluate(model.predictive(X), torch.from_numpy(y))
    assert np.abs(np.asarray(model.predict(X)).reshape(mean.shape) - mean).mean() < 0.4 * np.abs(mean - mean.mean()).mean()
    assert scores["coverage_95"] > 0.85
    assert (model.predict_interval(X) % 1 == 0).all()
    assert np.shape(model.predict(X)) == y.shape
    save_model(model, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X), model.predict(X))
    assessment = assess(model.predictive(X), torch.from_numpy(y))
    assert assessment.scores["nll"] < assessment.baselines["constant"]["nll"]
    assert "targets at the end of an interval count in part" in assessment.verdict[0].finding


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Poisson().check_targets(torch.tensor([0.5, 1.0])), "counts, whole numbers of at least 0, got 0.5 .*Gaussian"),
        (lambda: NegativeBinomial().check_targets(torch.tensor([-1, 1])), "got -1"),
        (lambda: Poisson().check_targets(torch.tensor([math.nan])), "got nan"),
        (lambda: Poisson(scale=0.0), "scale must be a finite number above 0"),
        (lambda: NegativeBinomial(dispersion=[]), "dispersion must be a number or one per output"),
        (lambda: NegativeBinomial(dispersion=1e-9), "use Poisson for 0"),
        (lambda: Poisson(scale=[1.0, 2.0]).check_outputs(torch.zeros(1, 2, 3)), "scale has 2 values"),
        (lambda: NegativeBinomial(per_row=True).check_outputs(torch.zeros(1, 2, 3)), "a log mean and a log dispersion"),
        (lambda: CountPredictive(torch.ones(3)), r"draws \(S, N\)"),
        (lambda: CountPredictive(torch.ones(2, 3), torch.ones(4)), "must broadcast"),
        (lambda: CountPredictive(torch.ones(2, 3)).quantile(1.0), r"q must be a number in \(0, 1\)"),
        (lambda: CountPredictive(torch.ones(2, 3)).log_prob(torch.tensor([0.5, 1, 2])), "got 0.5"),
        (
            lambda: BayesianRegressor(likelihood="poisson").fit([[0.0], [1.0], [2.0]], [0.5, 1.0, 2.0]),
            "counts.*likelihood='poisson', got 0.5.*choose likelihood='gaussian'",
        ),
    ],
)
def test_errors(act, message):
    with pytest.raises(ValueError, match=message):
        act()

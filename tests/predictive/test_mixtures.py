"""Draws that are mixtures, with weights, against scipy, quadrature and enumeration."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from bayesify.errors import DataError
from bayesify.predictive import GaussianPredictive

S, M, N = 3, 2, 4  # draws, components, rows


@pytest.fixture
def mixture():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(S * M), N).T  # draws have different weights, too
    means, stds = rng.normal(size=(S * M, N)), rng.uniform(0.2, 1.5, (S * M, N))
    return GaussianPredictive(*map(torch.from_numpy, (means, stds, weights)), components=M), weights, means, stds


def test_moments_match_quadrature(mixture):
    p, weights, means, stds = mixture
    for n in range(N):

        def moment(power, center, n=n):
            def integrand(y):
                return (y - center) ** power * (weights[:, n] * scipy.stats.norm.pdf(y, means[:, n], stds[:, n])).sum()

            return scipy.integrate.quad(integrand, -20, 20, points=sorted(means[:, n]), limit=200)[0]

        mean = moment(1, 0.0)
        np.testing.assert_allclose([p.mean[n], p.variance[n]], [mean, moment(2, mean)], rtol=1e-7)


def test_uncertainty_is_split_between_and_within_draws(mixture):
    p, weights, means, stds = mixture
    for n in range(N):
        within, centers, totals = [], [], []
        for s in range(S):
            part = slice(s * M, (s + 1) * M)
            w = weights[part, n] / weights[part, n].sum()
            center = (w * means[part, n]).sum()
            within.append((w * (stds[part, n] ** 2 + means[part, n] ** 2)).sum() - center**2)
            centers.append(center)
            totals.append(weights[part, n].sum())
        mean = np.dot(totals, centers)
        np.testing.assert_allclose(p.draw_means[:, n], centers, rtol=1e-10)
        np.testing.assert_allclose(p.aleatoric[n], np.dot(totals, within), rtol=1e-10)
        np.testing.assert_allclose(p.epistemic[n], np.dot(totals, (np.array(centers) - mean) ** 2), rtol=1e-10)
    assert p.samples == S


def test_density_probabilities_and_quantiles_match_scipy(mixture):
    p, weights, means, stds = mixture
    y = np.linspace(-2, 2, N)
    np.testing.assert_allclose(p.log_prob(torch.from_numpy(y)), np.log((weights * scipy.stats.norm.pdf(y, means, stds)).sum(0)))
    np.testing.assert_allclose(p.cdf(torch.from_numpy(y)), (weights * scipy.stats.norm.cdf(y, means, stds)).sum(0))
    for q in (1e-6, 0.05, 0.5, 0.99):
        np.testing.assert_allclose((weights * scipy.stats.norm.cdf(p.quantile(q), means, stds)).sum(0), q, rtol=1e-9)


def test_crps_matches_quadrature(mixture):
    p, weights, means, stds = mixture
    y = torch.linspace(-2, 2, N, dtype=torch.float64)
    for n in range(N):

        def squared_error(x, n=n):
            return ((weights[:, n] * scipy.stats.norm.cdf(x, means[:, n], stds[:, n])).sum() - (x >= y[n].item())) ** 2

        expected = scipy.integrate.quad(squared_error, -20, 20, points=[y[n].item()], limit=300)[0]
        np.testing.assert_allclose(p.crps(y)[n], expected, rtol=1e-6)


def test_a_component_is_a_joint_distribution_of_the_outputs():
    weights = torch.tensor([[0.3], [0.7]], dtype=torch.float64)
    means = torch.tensor([[[-1.0, -2.0]], [[1.0, 2.0]]], dtype=torch.float64)
    p = GaussianPredictive(means, torch.tensor(0.5, dtype=torch.float64), weights, components=2)
    y = torch.tensor([[1.0, 1.5]], dtype=torch.float64)
    density = sum(w * scipy.stats.multivariate_normal.pdf(y[0], m[0], 0.25) for w, m in zip((0.3, 0.7), means, strict=True))
    np.testing.assert_allclose(p.log_prob(y), np.log(density))
    np.testing.assert_allclose(p.output(1).mean, [0.3 * -2 + 0.7 * 2])


def test_samples_have_the_moments_of_the_mixture():
    weights = torch.tensor([[0.1], [0.4], [0.3], [0.2]], dtype=torch.float64).expand(4, 50_000)
    means = torch.tensor([[-3.0], [0.0], [1.0], [5.0]], dtype=torch.float64).expand(4, 50_000)
    p = GaussianPredictive(means, torch.tensor(0.5), weights, components=2)
    y = p.sample(torch.Generator().manual_seed(0))
    assert y.shape == (2, 50_000)
    np.testing.assert_allclose(y.mean(1), [(0.1 * -3) / 0.5, (0.3 * 1 + 0.2 * 5) / 0.5], atol=0.03)
    np.testing.assert_allclose(y.var(1), [0.25 + 0.2 * 0.8 * 9, 0.25 + 0.6 * 0.4 * 16], rtol=0.05)


def test_samples_follow_the_weights_of_the_draws(mixture):
    """Also of draws without weight, and of draws that have other weights in every row."""
    generator = torch.Generator().manual_seed(0)
    zero, ten = (GaussianPredictive(torch.full((2, 1), mean), torch.tensor(0.1)) for mean in (0.0, 10.0))
    y = torch.stack([zero.mix(ten, weights=[0.9, 0.1]).sample(generator) for _ in range(2000)])
    assert y.shape == (2000, 4, 1)
    np.testing.assert_allclose(y.mean(), 1.0, atol=0.1)
    assert (zero.mix(ten, weights=[0, 1]).sample(generator) > 5).all()
    p, *_ = mixture
    y = torch.stack([p.sample(generator) for _ in range(4000)])
    for level in (0.1, 0.5, 0.9):
        np.testing.assert_allclose((y < p.quantile(level)).double().mean((0, 1)), level, atol=0.02)
    outputs = GaussianPredictive(p.means.unsqueeze(-1) + torch.tensor([0.0, 100.0]), p.stds.unsqueeze(-1), p.weights, components=M)
    y = torch.stack([outputs.sample(generator) for _ in range(4000)])
    np.testing.assert_allclose(y.mean((0, 1)), outputs.mean, atol=0.06)


def test_mixing_and_joining_equal_all_at_once(mixture):
    p, *_ = mixture
    other = GaussianPredictive(p.means + 1, p.stds, components=M)  # equal weights
    mixed, y = p.mix(other), torch.zeros(N, dtype=torch.float64)
    expected = np.log(0.5 * np.exp(p.log_prob(y)) + 0.5 * np.exp(other.log_prob(y)))
    np.testing.assert_allclose(mixed.log_prob(y), expected)
    assert mixed.samples == 2 * S
    np.testing.assert_allclose(p.cat(other).mean, np.concatenate([p.mean, other.mean]))
    np.testing.assert_allclose(p.rescale(3.0, 2.0).quantile(0.2), 3 + 2 * p.quantile(0.2))


def test_parts_that_do_not_fit(mixture):
    p, *_ = mixture
    with pytest.raises(DataError, match=r"weights must be one per component and row, \(6, 4\), got \(6, 1\)"):
        GaussianPredictive(p.means, p.stds, torch.ones(6, 1))
    with pytest.raises(DataError, match="must have components=4 for every draw"):
        GaussianPredictive(p.means, p.stds, components=4)
    with pytest.raises(DataError, match="equally many components"):
        p.cat(GaussianPredictive(p.means[:S], p.stds[:S]))
    with pytest.raises(ValueError, match=r"weights must be 2 numbers of at least 0 with the sum 1, got \[1, 1\]"):
        p.mix(p, weights=[1, 1])


@pytest.mark.parametrize("weights", [None, (0.2, 0.5, 0.3), (0.0, 1.0, 0.0)])
def test_mixing_other_numbers_of_draws_and_components_by_weight(mixture, weights):
    p, *_ = mixture
    single = GaussianPredictive(p.means[:5] + 1, p.stds[:5])  # five draws, one component
    fixed = GaussianPredictive(p.means[:1], torch.tensor(0.3, dtype=torch.float64))
    parts, y = (p, single, fixed), torch.linspace(-2, 2, N, dtype=torch.float64)
    shares = np.array([S, 5, 1]) / (S + 6) if weights is None else np.array(weights)
    mixed = p.mix(single, fixed, weights=weights)
    assert mixed.samples == S + 6
    np.testing.assert_allclose(mixed.log_prob(y).exp(), shares @ [part.log_prob(y).exp().numpy() for part in parts])
    np.testing.assert_allclose(mixed.cdf(y), shares @ [part.cdf(y).numpy() for part in parts])
    np.testing.assert_allclose(mixed.mean, shares @ [part.mean.numpy() for part in parts])
    np.testing.assert_allclose(mixed.aleatoric, shares @ [part.aleatoric.numpy() for part in parts])
    second = shares @ [(part.variance + part.mean**2).numpy() for part in parts]
    np.testing.assert_allclose(mixed.variance, second - mixed.mean.numpy() ** 2)
    np.testing.assert_allclose(mixed.cdf(mixed.quantile(0.1)), 0.1)


def test_average_over_inputs_keeps_the_moments_of_every_draw(mixture):
    p, weights, means, stds = mixture
    rng = np.random.default_rng(1)
    others = rng.dirichlet(np.ones(S * M), N).T, rng.normal(size=(S * M, N)), rng.uniform(0.2, 1.5, (S * M, N))
    average = p.average(GaussianPredictive(*map(torch.from_numpy, (others[1], others[2], others[0])), components=M))
    assert average.samples == S
    for n in range(N):
        w = np.stack([weights[:, n], others[0][:, n]]) / 2  # (input, component), together 1
        m, v = np.stack([means[:, n], others[1][:, n]]), np.stack([stds[:, n], others[2][:, n]]) ** 2
        mean = (w * m).sum()
        np.testing.assert_allclose(average.mean[n], mean)
        np.testing.assert_allclose(average.variance[n], (w * (v + (m - mean) ** 2)).sum())
        by_draw = w.reshape(2, S, M).sum((0, 2))
        draw_means = (w * m).reshape(2, S, M).sum((0, 2)) / by_draw
        np.testing.assert_allclose(average.epistemic[n], (by_draw * (draw_means - mean) ** 2).sum())


def test_average_with_components_of_no_weight():
    """As a mixture of predictives with other numbers of components has them."""
    means, stds = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([[0.5], [1.0], [2.0]]).double()
    one = GaussianPredictive(means[:1], stds[:1]).mix(GaussianPredictive(means, stds, components=3), weights=[0.3, 0.7])
    average = one.average(one)
    y = torch.tensor([0.7]).double()
    for name in ("mean", "variance", "epistemic"):
        assert torch.allclose(getattr(average, name), getattr(one, name), rtol=1e-12)
    for name, argument in (("log_prob", y), ("cdf", y), ("crps", y), ("quantile", 0.3)):
        assert torch.allclose(getattr(average, name)(argument), getattr(one, name)(argument), rtol=1e-12)


def test_average_of_equal_weights_has_equal_weights():
    parts = [GaussianPredictive(torch.tensor([[shift], [shift]]), torch.tensor(0.5)) for shift in (-1.0, 1.0)]
    average = parts[0].average(parts[1])
    assert average.weights is None
    assert torch.allclose(average.variance, torch.tensor([1.25]))
    assert torch.equal(average.epistemic, torch.zeros(1))


def test_selected_rows_are_those_of_the_whole(mixture):
    p, *_ = mixture
    rows = torch.tensor([3, 0, 3])
    selected = p.select(rows)
    assert torch.equal(selected.mean, p.mean[rows])
    assert torch.equal(selected.variance, p.variance[rows])
    shared = GaussianPredictive(p.means, torch.tensor(0.3, dtype=torch.float64)).select(rows)
    assert shared.stds.shape == (1, 1)
    assert len(shared) == 3

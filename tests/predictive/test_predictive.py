"""Predictive distributions against scipy, quadrature, Monte Carlo and enumeration, all in float64."""

import math
import pickle

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch

from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, CountPredictive, GaussianPredictive

S, N, K = 4, 3, 5


def categorical(samples=S, rows=N):
    logits = 3 * torch.randn(samples, rows, K, dtype=torch.float64)
    return CategoricalPredictive.from_logits(logits), logits


def gaussian(samples=S, rows=N, outputs=2, fixed=False):
    means = 2 * torch.randn(samples, rows, outputs, dtype=torch.float64)
    stds = torch.tensor([0.5, 1.5]).double() if fixed else torch.rand(means.shape, dtype=torch.float64) + 0.1
    return GaussianPredictive(means, stds), means.numpy(), np.broadcast_to(stds.numpy(), means.shape)


def test_categorical_uncertainty_matches_scipy():
    p, logits = categorical()
    probs = scipy.special.softmax(logits.numpy(), -1)
    np.testing.assert_allclose(p.probs, probs.mean(0), rtol=1e-12)
    np.testing.assert_allclose(p.entropy, scipy.stats.entropy(probs.mean(0), axis=-1), rtol=1e-10)
    np.testing.assert_allclose(p.aleatoric, scipy.stats.entropy(probs, axis=-1).mean(0), rtol=1e-10)
    # The mutual information of class and draw, as the divergence of their joint distribution from independence.
    np.testing.assert_allclose(
        p.epistemic, scipy.stats.entropy(probs, probs.mean(0)[None].repeat(S, 0), axis=-1).mean(0), rtol=1e-9
    )
    torch.testing.assert_close(p.aleatoric + p.epistemic, p.entropy)
    one_hot = np.eye(K)
    variance = np.einsum("nk,kc->nc", probs.mean(0), one_hot**2) - np.einsum("nk,kc->nc", probs.mean(0), one_hot) ** 2
    np.testing.assert_allclose(p.variance, variance, rtol=1e-10)
    np.testing.assert_array_equal(p.prediction, probs.mean(0).argmax(-1))
    assert (len(p), p.samples, p.mean.shape) == (N, S, (N, K))


def test_categorical_log_prob_is_exact_in_the_tails():
    logits = torch.zeros(2, 1, 2)
    logits[:, :, 1] = -500.0
    p = CategoricalPredictive.from_logits(logits)
    assert p.probs[0, 1] == 0
    assert p.log_prob(torch.tensor([1])).item() == -500
    assert p.mix(p).log_prob(torch.tensor([1])).item() == -500


@pytest.mark.parametrize("lead", [5.0, 12.0, 16.0, 30.0])
@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "mix"])
def test_uncertainty_of_confident_predictions_has_its_digits_in_float32(lead, kind):
    logits = torch.stack([torch.zeros(12), lead + torch.randn(12, generator=torch.Generator().manual_seed(0))], -1)
    if kind == "bernoulli":
        p = BernoulliPredictive.from_logits(logits[:, 1:])
    else:
        p = CategoricalPredictive.from_logits(logits.unsqueeze(1))
    if kind == "mix":
        p = CategoricalPredictive.from_logits(logits[:3, None]).mix(
            CategoricalPredictive.from_logits(logits[3:, None]), weights=[0.25, 0.75]
        )
    with mpmath.workdps(50):
        others = [1 / (1 + mpmath.exp(mpmath.mpf(x))) for x in logits[:, 1].tolist()]
        mean = mpmath.fsum(others) / 12
        total, within = _binary_entropy(mean), mpmath.fsum(map(_binary_entropy, others)) / 12
        expected = [float(x) for x in (mpmath.log1p(-mean), total, within, total - within)]
    found = [float(x) for x in (p.log_probs.max(), p.entropy, p.aleatoric, p.epistemic)]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def _binary_entropy(p):
    return -p * mpmath.log(p) - (1 - p) * mpmath.log1p(-p)


def test_token_level_classes():
    logits = torch.randn(S, N, 7, K, dtype=torch.float64)
    y = torch.randint(0, K, (N, 7))
    y[0, 3:] = -100
    p = CategoricalPredictive.from_logits(logits)
    probs = scipy.special.softmax(logits.numpy(), -1).mean(0)
    expected = [sum(math.log(probs[n, t, y[n, t]]) for t in range(7) if y[n, t] != -100) for n in range(N)]
    np.testing.assert_allclose(p.log_prob(y), expected, rtol=1e-10)
    assert p.entropy.shape == p.prediction.shape == (N, 7)


@pytest.mark.parametrize("shape", [(S, N), (S, N, 1), (S, N, 6)])
def test_bernoulli_is_a_categorical_of_two_classes(shape):
    logits = 3 * torch.randn(shape, dtype=torch.float64)
    p = BernoulliPredictive.from_logits(logits)
    event = shape[2:] if shape[2:] != (1,) else ()
    probs = scipy.special.expit(logits.numpy()).reshape(S, N, *event)
    mean = probs.mean(0)
    np.testing.assert_allclose(p.probs, mean, rtol=1e-12)
    np.testing.assert_allclose(p.entropy, scipy.stats.entropy([mean, 1 - mean]), rtol=1e-10)
    np.testing.assert_allclose(p.aleatoric, scipy.stats.entropy([probs, 1 - probs]).mean(0), rtol=1e-10)
    np.testing.assert_allclose(p.variance, scipy.stats.bernoulli.var(mean), rtol=1e-10)
    np.testing.assert_array_equal(p.prediction, mean > 0.5)
    y = torch.randint(0, 2, (N, *event))
    np.testing.assert_allclose(p.log_prob(y), scipy.stats.bernoulli.logpmf(y.numpy(), mean).reshape(N, -1).sum(-1), rtol=1e-10)


def test_mutual_information_of_draws_that_agree_is_zero_and_never_negative():
    logits = torch.randn(1, 1000, K).expand(50, -1, -1)
    mutual_information = CategoricalPredictive.from_logits(logits).mutual_information
    assert (mutual_information >= 0).all()
    assert mutual_information.max() < 1e-5


@pytest.mark.parametrize("fixed", [True, False])
def test_gaussian_moments_match_quadrature(fixed):
    p, means, stds = gaussian(fixed=fixed)
    for n in range(N):
        for d in range(2):

            def moment(power, center, n=n, d=d):
                def integrand(y):
                    return (y - center) ** power * scipy.stats.norm.pdf(y, means[:, n, d], stds[:, n, d]).mean()

                return scipy.integrate.quad(integrand, -30, 30, points=sorted(means[:, n, d]), limit=200)[0]

            mean = moment(1, 0.0)
            variance = moment(2, mean)
            moments = [p.mean[n, d], p.variance[n, d], p.std[n, d]]
            np.testing.assert_allclose(moments, [mean, variance, variance**0.5], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(p.aleatoric, (stds**2).mean(0), rtol=1e-12)
    np.testing.assert_allclose(p.epistemic, np.var(means, axis=0), rtol=1e-10)


@pytest.mark.parametrize("fixed", [True, False])
def test_gaussian_log_prob_is_joint_over_the_outputs(fixed):
    p, means, stds = gaussian(fixed=fixed)
    y = torch.randn(N, 2, dtype=torch.float64)
    expected = np.log(scipy.stats.norm.pdf(y.numpy(), means, stds).prod(-1).mean(0))
    np.testing.assert_allclose(p.log_prob(y), expected, rtol=1e-10)
    assert p.log_prob(y + 1e3).isfinite().all()  # where every density underflows


def test_cdf_matches_scipy():
    p, means, stds = gaussian()
    y = torch.randn(N, 2, dtype=torch.float64)
    np.testing.assert_allclose(p.cdf(y), scipy.stats.norm.cdf(y.numpy(), means, stds).mean(0), rtol=1e-12)
    np.testing.assert_allclose(p.cdf(y - 30), scipy.stats.norm.cdf(y.numpy() - 30, means, stds).mean(0), rtol=1e-9)


@pytest.mark.parametrize("q", [1e-9, 0.001, 0.025, 0.3, 0.5, 0.975, 0.999])
@pytest.mark.parametrize("fixed", [True, False])
def test_quantile_matches_a_root_finder(q, fixed):
    p, means, stds = gaussian(samples=7, fixed=fixed)
    quantile = p.quantile(q)
    for n in range(N):
        for d in range(2):

            def excess(y, n=n, d=d):
                m, s = means[:, n, d], stds[:, n, d]
                return scipy.stats.norm.cdf(y, m, s).mean() - q if q <= 0.5 else (1 - q) - scipy.stats.norm.sf(y, m, s).mean()

            np.testing.assert_allclose(
                quantile[n, d], scipy.optimize.brentq(excess, -60, 60, xtol=1e-14, rtol=1e-14), rtol=1e-11, atol=1e-12
            )


def test_quantile_of_hard_mixtures():
    # Two narrow modes far apart: the density vanishes between them, and any point there is a median.
    modes = GaussianPredictive(torch.tensor([[-1e6], [1e6]]).double(), torch.tensor(1e-3))
    assert -1e6 <= modes.quantile(0.5).item() <= 1e6
    assert modes.quantile(0.25).item() == pytest.approx(-1e6, abs=1e-8)
    # One draw is a normal distribution; widths that differ by ten orders of magnitude.
    one = GaussianPredictive(torch.tensor([[3.0]]).double(), torch.tensor(2.0).double())
    assert one.quantile(0.9).item() == pytest.approx(scipy.stats.norm.ppf(0.9, 3, 2), rel=1e-14)
    widths = GaussianPredictive(torch.tensor([[0.0], [0.0]]).double(), torch.tensor([[1e-5], [1e5]]).double())
    y = widths.quantile(0.3)
    assert widths.cdf(y).item() == pytest.approx(0.3, rel=1e-10)
    same = GaussianPredictive(torch.zeros(3, 1), torch.tensor(1.0))
    assert same.quantile(0.5).item() == 0


def test_quantile_in_blocks_equals_quantile_of_all_rows():
    p, _, _ = gaussian(samples=100, rows=3000, outputs=1)
    part = GaussianPredictive(p.means[:, 2990:], p.stds[:, 2990:])
    torch.testing.assert_close(p.quantile(0.1)[2990:], part.quantile(0.1))


def test_interval_holds_its_share_of_samples():
    p, _, _ = gaussian(samples=20_000, rows=2)
    lower, upper = p.interval(0.9)
    y = p.sample(torch.Generator().manual_seed(1))
    inside = ((lower <= y) & (y <= upper)).double().mean(0)
    np.testing.assert_allclose(inside, 0.9, atol=0.01)  # 4.7 standard errors; a tail twice as heavy would be off by 0.1
    np.testing.assert_allclose((y < lower).double().mean(0), 0.05, atol=0.008)


@pytest.mark.parametrize("samples", [1, 6])
@pytest.mark.parametrize("fixed", [True, False])
def test_crps_matches_quadrature(samples, fixed):
    p, means, stds = gaussian(samples=samples, fixed=fixed)
    y = torch.randn(N, 2, dtype=torch.float64)
    crps = p.crps(y)
    for n in range(N):
        for d in range(2):

            def cdf(t, n=n, d=d):
                return scipy.stats.norm.cdf(t, means[:, n, d], stds[:, n, d]).mean()

            observed = float(y[n, d])
            left = scipy.integrate.quad(lambda t: cdf(t) ** 2, -40, observed, limit=200, epsabs=1e-11)[0]
            right = scipy.integrate.quad(lambda t: (1 - cdf(t)) ** 2, observed, 40, limit=200, epsabs=1e-11)[0]
            np.testing.assert_allclose(crps[n, d], left + right, rtol=1e-6)


def test_one_output_may_have_a_trailing_dimension_in_the_targets():
    p = GaussianPredictive(torch.randn(S, N), torch.tensor(1.0))
    y = torch.randn(N)
    torch.testing.assert_close(p.log_prob(y.unsqueeze(-1)), p.log_prob(y))
    assert p.crps(y.unsqueeze(-1)).shape == (N,)
    with pytest.raises(ValueError, match="y has shape"):
        p.log_prob(torch.randn(N, N))


def test_rescaling_gives_original_units_and_the_jacobian():
    p, _, _ = gaussian(fixed=True)
    shift, scale = torch.tensor([10.0, -3.0]).double(), torch.tensor([2.0, 0.1]).double()
    r = p.rescale(shift, scale)
    y = torch.randn(N, 2, dtype=torch.float64)
    torch.testing.assert_close(r.log_prob(shift + scale * y), p.log_prob(y) - scale.log().sum())
    torch.testing.assert_close(r.mean, shift + scale * p.mean)
    torch.testing.assert_close(r.variance, scale.square() * p.variance)
    torch.testing.assert_close(r.quantile(0.1), shift + scale * p.quantile(0.1))
    torch.testing.assert_close(r.crps(shift + scale * y), scale * p.crps(y))
    for mean, std in [(0.0, -1.0), (0.0, torch.ones(3)), (torch.zeros(N, 2), 1.0)]:
        with pytest.raises(ValueError, match="mean and std must be numbers or one per output"):
            p.rescale(mean, std)


def test_mixing_discrete_draws_equals_all_at_once():
    logits = torch.randn(9, N, K, dtype=torch.float64)
    for kind, draws in [(CategoricalPredictive, logits), (BernoulliPredictive, logits)]:
        whole = kind.from_logits(draws)
        parts = [kind.from_logits(draws[a:b]) for a, b in [(0, 2), (2, 3), (3, 9)]]
        for mixed in (parts[0].mix(parts[1], parts[2]), parts[0].mix(parts[1]).mix(parts[2])):
            assert mixed.samples == 9
            for name in ("probs", "entropy", "aleatoric", "epistemic"):
                torch.testing.assert_close(getattr(mixed, name), getattr(whole, name))
        rows = kind.from_logits(draws[:, :1]).cat(kind.from_logits(draws[:, 1:]))
        torch.testing.assert_close(rows.probs, whole.probs)
        assert len(rows) == N


def test_mixing_discrete_draws_by_weight():
    a, b = (CategoricalPredictive.from_logits(torch.randn(s, N, K, dtype=torch.float64)) for s in (2, 7))
    mixed = a.mix(b, weights=[0.9, 0.1])
    np.testing.assert_allclose(mixed.probs, 0.9 * a.probs + 0.1 * b.probs)
    np.testing.assert_allclose(mixed.aleatoric, 0.9 * a.aleatoric + 0.1 * b.aleatoric)
    np.testing.assert_allclose(a.mix(b, weights=[0, 1]).probs, b.probs)
    with pytest.raises(NotImplementedError, match="equal weights"):
        CountPredictive(torch.ones(2, N)).mix(CountPredictive(torch.ones(2, N)), weights=[0.5, 0.5])


DISCRETE = {
    "categorical": lambda: categorical()[0],
    "bernoulli": lambda: BernoulliPredictive.from_logits(torch.randn(S, N, dtype=torch.float64)),
}


@pytest.mark.parametrize("make", DISCRETE.values(), ids=DISCRETE)
def test_averages_over_inputs_and_selected_rows_of_discrete_draws(make):
    a, b = make(), make()
    average = a.average(b)
    assert average.samples == S
    np.testing.assert_allclose(average.probs, (a.probs + b.probs) / 2, rtol=1e-12)
    selected = average.select(torch.tensor([2, 0]))
    np.testing.assert_allclose(selected.probs, average.probs[[2, 0]])
    np.testing.assert_allclose(selected.entropy, average.entropy[[2, 0]])


@pytest.mark.parametrize("stds", ["fixed", "per output", "per row", "per draw", "all"])
def test_mixing_and_joining_normals_equals_all_at_once(stds):
    means = torch.randn(6, N, 2, dtype=torch.float64)
    shape = {"fixed": (), "per output": (2,), "per row": (N, 1), "per draw": (6, 1, 1), "all": (6, N, 2)}[stds]
    std = (torch.rand(shape, dtype=torch.float64) + 0.1).expand(6, N, 2)

    def part(draws, rows):
        block = std[draws, rows]
        fixed = block[0, 0, 0] if stds == "fixed" else block[:1, :1] if stds == "per output" else block
        return GaussianPredictive(means[draws, rows], fixed)

    everything = slice(None)
    whole = part(everything, everything)
    y = torch.randn(N, 2, dtype=torch.float64)
    mixed = part(slice(0, 1), everything).mix(part(slice(1, 2), everything), part(slice(2, 6), everything))
    rows = part(everything, slice(0, 1)).cat(part(everything, slice(1, 3)))
    for joined in (mixed, rows):
        assert (joined.samples, len(joined)) == (6, N)
        torch.testing.assert_close(joined.log_prob(y), whole.log_prob(y))
        torch.testing.assert_close(joined.variance, whole.variance)
        if stds in ("fixed", "per output"):
            assert joined.stds.numel() == whole.stds.numel()  # never copied


def test_parts_that_do_not_fit():
    p, _ = categorical()
    with pytest.raises(ValueError, match="same number of rows, got 3 and 2"):
        p.mix(categorical(rows=2)[0])
    with pytest.raises(ValueError, match="same number of samples, got 4 and 5"):
        p.cat(categorical(samples=5)[0])
    with pytest.raises(TypeError, match="cannot combine a CategoricalPredictive with a GaussianPredictive"):
        p.mix(gaussian()[0])


def test_what_does_not_exist_says_what_to_use():
    with pytest.raises(AttributeError, match="has no 'interval': it is for classification; use probs"):
        _ = categorical()[0].interval
    with pytest.raises(AttributeError, match=r"has no 'probs': it is for regression; use mean, std, interval\(0.95\)"):
        _ = gaussian()[0].probs
    with pytest.raises(AttributeError, match=r"^GaussianPredictive has no 'nonsense'$"):
        _ = gaussian()[0].nonsense


@pytest.mark.parametrize("make", [categorical, gaussian])
def test_moves_pickles_and_prints(make):
    p = make()[0]
    for copy in (p.to("cpu"), pickle.loads(pickle.dumps(p))):
        torch.testing.assert_close(copy.mean, p.mean)
        assert copy.samples == p.samples
    assert f"samples={S}" in repr(p)


def test_bad_arguments():
    p, _ = categorical()
    with pytest.raises(ValueError, match="from 0 to 4, as the outputs have 5 classes, got 5"):
        p.log_prob(torch.tensor([0, 1, 5]))
    with pytest.raises(TypeError, match="integer class labels"):
        p.log_prob(torch.tensor([0.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match="zeros and ones"):
        BernoulliPredictive.from_logits(torch.zeros(1, 1)).log_prob(torch.tensor([2]))
    with pytest.raises(ValueError, match=r"must broadcast to means \(S, N, ...\)"):
        GaussianPredictive(torch.zeros(S, N), torch.ones(2))
    g, _, _ = gaussian()
    for q in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"q must be a number in \(0, 1\)"):
            g.quantile(q)
    with pytest.raises(ValueError, match="level"):
        g.interval(95)

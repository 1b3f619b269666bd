"""Conformal intervals: coverage, agreement with other implementations, and what they do at the edges."""

import itertools
import math

import pytest
import torch

from bayesify.conformal import ConformalIntervals, conformal_rank
from bayesify.errors import ConfigurationError, DataError, DivergenceError
from bayesify.predictive import CategoricalPredictive, CountPredictive, GaussianPredictive

np = pytest.importorskip("numpy")
stats = pytest.importorskip("scipy.stats")
optimize = pytest.importorskip("scipy.optimize")


def mixture(rows, draws=7, outputs=None, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shape = (draws, rows) if outputs is None else (draws, rows, outputs)
    means, logs = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    return GaussianPredictive(means, (0.5 * logs - 1).exp())


def rows_of(predictive, rows):
    return GaussianPredictive(predictive.means[:, rows], predictive.stds.expand_as(predictive.means)[:, rows])


@pytest.mark.parametrize(
    ("n", "level", "coverage"),
    [(10, 0.9, 10 / 11), (19, 0.9, 18 / 20), (19, 0.95, 19 / 20), (20, 0.9, 19 / 21), (40, 0.8, 33 / 41)],
)
def test_coverage_is_exact_although_the_model_is_wrong(n, level, coverage):
    """Heteroscedastic data, a model with the wrong mean and scale; 1,000 draws of calibration rows, 20 new rows each.

    Outputs are calibrated independently, so each draw is one output.
    """
    trials, new = 1000, 20
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n + new, trials, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * x) + (0.1 + x) * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    model = GaussianPredictive(torch.stack([x, 0.9 * x]), 0.1 * (2 - x[None]))
    lower, upper = ConformalIntervals.calibrate(rows_of(model, slice(n)), y[:n]).interval(rows_of(model, slice(n, None)), level)
    covered = ((lower <= y[n:]) & (y[n:] <= upper)).double().mean(0)
    # given the calibration rows, coverage has a beta distribution
    spread = math.sqrt((stats.beta.var(coverage * (n + 1), (1 - coverage) * (n + 1)) + 0.25 / new) / trials)
    assert covered.mean().item() == pytest.approx(coverage, abs=4 * spread)
    assert abs(math.floor((n + 1) * coverage - 1) / (n + 1) - coverage) > 4 * spread  # one rank less would be noticed


@pytest.mark.parametrize("outputs", [None, 2])
def test_intervals_are_those_of_the_definition(outputs):
    """Distribution function and quantiles by scipy, of mixtures."""
    cal, new = mixture(60, outputs=outputs), mixture(4, outputs=outputs, seed=1)
    y = 0.7 * torch.randn(cal.mean.shape, dtype=torch.float64)
    lower, upper = ConformalIntervals.calibrate(cal, y).interval(new, 0.8)
    assert lower.shape == new.mean.shape
    for d in range(outputs or 1):
        pick = (lambda p: p) if outputs is None else (lambda p, d=d: p[..., d])
        means, stds, targets = (pick(values).numpy() for values in (cal.means, cal.stds, y))
        scores = np.sort(np.abs(2 * _cdf(targets, means, stds) - 1))
        q = scores[conformal_rank(60, 0.8) - 1]
        for row in range(4):
            m, s = pick(new.means)[:, row].numpy(), pick(new.stds)[:, row].numpy()
            for end, p in ((lower, (1 - q) / 2), (upper, (1 + q) / 2)):
                expected = optimize.brentq(lambda x, m=m, s=s, p=p: _cdf(x, m, s) - p, -50, 50, xtol=1e-13)
                assert pick(end)[row].item() == pytest.approx(expected, abs=1e-6)


def _cdf(x, means, stds):
    std = np.sqrt((stds**2 + (means - means.mean(0)) ** 2).mean(0))
    return 0.99 * stats.norm.cdf(x, means, stds).mean(0) + 0.01 * stats.norm.cdf(x, means.mean(0), std)


@pytest.mark.parametrize("scale", [3.0, 1.0, 0.1, 0.001])
def test_normal_distributions_agree_with_crepes(scale):
    """Residuals divided by the predicted standard deviation; with the smallest scale they are thousands of deviations."""
    crepes = pytest.importorskip("crepes")
    cal, new = mixture(200, draws=1), mixture(30, draws=1, seed=1)
    cal, new = (GaussianPredictive(p.means, scale * p.stds) for p in (cal, new))
    y = cal.mean + 0.5 * torch.randn(200, dtype=torch.float64)
    reference = crepes.ConformalRegressor()
    reference.fit((y - cal.mean).numpy(), sigmas=cal.stds[0].numpy())
    calibration = ConformalIntervals.calibrate(cal, y)
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        expected = reference.predict_int(new.mean.numpy(), sigmas=new.stds[0].numpy(), confidence=level)
        np.testing.assert_allclose(torch.stack(calibration.interval(new, level), -1).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_cross_validation_agrees_with_mapie():
    """Linear models with a constant standard deviation: CV+ with absolute residuals."""
    regression = pytest.importorskip("mapie.regression")
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold

    rng = np.random.default_rng(0)
    x = rng.normal(size=(103, 3))
    y = x @ [1, 2, 3] + rng.normal(size=103) * (1 + np.abs(x[:, 0]))
    new = rng.normal(size=(20, 3))
    splits = list(KFold(5, shuffle=True, random_state=0).split(x))
    models = [LinearRegression().fit(x[train], y[train]) for train, _ in splits]
    by_fold = [normal(model.predict(x[fold])) for model, (_, fold) in zip(models, splits, strict=True)]
    calibration = ConformalIntervals.calibrate(by_fold, [torch.tensor(y[fold]) for _, fold in splits])
    for level in (0.6, 0.9, 0.95):
        reference = regression.CrossConformalRegressor(
            LinearRegression(), confidence_level=level, method="plus", cv=KFold(5, shuffle=True, random_state=0)
        )
        expected = reference.fit_conformalize(x, y).predict_interval(new)[1][..., 0]
        lower, upper = calibration.interval([normal(model.predict(new)) for model in models], level)
        np.testing.assert_allclose(torch.stack([lower, upper], -1), expected, atol=1e-6)


def normal(mean):
    return GaussianPredictive(torch.as_tensor(mean)[None], torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.default("None-1.0", extended=["2-1.0"])
@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize("outputs", [None, 2])
def test_ends_of_folds_are_order_statistics_of_all_ends(outputs, scale):
    """The definition of CV+, with the n lower and n upper ends written out."""
    folds = [mixture(n, outputs=outputs, seed=n) for n in (11, 12, 13)]
    targets = [p.mean + torch.randn(p.mean.shape, dtype=torch.float64) for p in folds]
    new = [mixture(6, outputs=outputs, seed=90 + k) for k in range(3)]
    folds, new = ([GaussianPredictive(p.means, scale * p.stds) for p in part] for part in (folds, new))
    calibration = ConformalIntervals.calibrate(folds, targets)
    for level in (0.3, 0.8, 0.95):
        rank = conformal_rank(36, level)
        lower, upper = calibration.interval(new, level)
        ends = []
        for part, p in zip(calibration.scores, new, strict=True):
            for i in range(len(part)):
                single = ConformalIntervals((part[i : i + 1],))
                ends.append(torch.stack(single.interval(p, 0.5)))  # of one calibration row: the interval of its score
        low, high = torch.stack(ends, 1).sort(1).values
        torch.testing.assert_close(lower, low[36 - rank], rtol=0, atol=1e-6)
        torch.testing.assert_close(upper, high[rank - 1], rtol=0, atol=1e-6)


@pytest.mark.extended
def test_intervals_grow_with_the_level():
    cal, new = mixture(99), mixture(30, seed=1)
    y = 3 * torch.randn(99, dtype=torch.float64)  # many targets outside every central interval
    halves = [rows_of(cal, range(50)), rows_of(cal, range(50, 99))]
    for calibration, predictives in (
        (ConformalIntervals.calibrate(cal, y), new),
        (ConformalIntervals.calibrate(halves, [y[:50], y[50:]]), [new, mixture(30, seed=2)]),
    ):
        ends = [calibration.interval(predictives, level) for level in np.linspace(0.02, 0.98, 17).tolist()]
        for (lower, upper), (wider_lower, wider_upper) in itertools.pairwise(ends):
            assert (wider_lower <= lower + 1e-6).all()
            assert (upper <= wider_upper + 1e-6).all()
        assert all(end.isfinite().all() for pair in ends for end in pair)


def test_intervals_follow_a_change_of_units():
    cal, new = mixture(50), mixture(5, seed=1)
    y = torch.randn(50, dtype=torch.float64)
    lower, upper = ConformalIntervals.calibrate(cal, y).interval(new, 0.9)
    scaled = ConformalIntervals.calibrate(cal.rescale(100.0, 7.0), 100 + 7 * y).interval(new.rescale(100.0, 7.0), 0.9)
    torch.testing.assert_close(torch.stack(scaled), 100 + 7 * torch.stack([lower, upper]), rtol=0, atol=1e-5)


@pytest.mark.extended
def test_gaps_between_modes_are_covered():
    """An ensemble of five that disagrees far beyond its noise: between two members, all probabilities are equal."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 8000, generator=generator, dtype=torch.float64)
    p = GaussianPredictive(means, torch.tensor(1e-4, dtype=torch.float64))
    y = torch.randn(8000, generator=generator, dtype=torch.float64)
    inside = []
    for start in range(0, 8000, 200):
        cal, new = slice(start, start + 50), slice(start + 50, start + 200)
        lower, upper = ConformalIntervals.calibrate(rows_of(p, cal), y[cal]).interval(rows_of(p, new), 0.5)
        inside.append(((lower <= y[new]) & (y[new] <= upper)).double().mean().item())
    assert np.mean(inside) == pytest.approx(26 / 51, abs=4 * math.sqrt((0.25 / 52 + 0.25 / 150) / 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1e-15), (1e9, 1e-9), (0.0, 1e5)])
def test_far_targets_have_finite_intervals(dtype, mean, std):
    """Where probabilities are 0 or 1, and where the standard deviation is lost in the rounding of the mean."""
    p = GaussianPredictive(torch.full((3, 40), mean, dtype=dtype), torch.tensor(std, dtype=dtype))
    y = mean + torch.linspace(-20, 20, 40, dtype=dtype) * max(1.0, 1e-6 * abs(mean))
    lower, upper = ConformalIntervals.calibrate(p, y).interval(p, 0.9)
    assert (lower.isfinite() & upper.isfinite()).all()
    assert ((lower <= y) & (y <= upper)).double().mean() >= 0.9


def test_outputs_are_calibrated_independently():
    cal, new = mixture(40, outputs=3), mixture(5, outputs=3, seed=1)
    y = torch.randn(40, 3, dtype=torch.float64) * torch.tensor([0.1, 1.0, 100.0])
    lower, upper = ConformalIntervals.calibrate(cal, y).interval(new, 0.8)
    for d in range(3):
        one = ConformalIntervals.calibrate(GaussianPredictive(cal.means[..., d], cal.stds[..., d]), y[:, d])
        expected = one.interval(GaussianPredictive(new.means[..., d], new.stds[..., d]), 0.8)
        torch.testing.assert_close((lower[:, d], upper[:, d]), expected, rtol=0, atol=1e-6)


def test_saved_and_restored():
    calibration = ConformalIntervals.calibrate(mixture(30, outputs=2), torch.randn(30, 2, dtype=torch.float64))
    restored = ConformalIntervals.from_dict(calibration.to_dict())
    new = mixture(4, outputs=2, seed=1)
    torch.testing.assert_close(restored.interval(new, 0.8), calibration.interval(new, 0.8), rtol=0, atol=0)


def test_the_guarantee_in_words():
    split = ConformalIntervals((torch.linspace(0, 1, 200),))
    assert split.guarantee(0.95).startswith("Intervals contain the target of at least 95% of new rows on average")
    assert "200 calibration rows" in split.guarantee(0.95)
    folds = ConformalIntervals((torch.linspace(0, 1, 200),) * 5)
    assert "about 95%, and at least 89.2% in the worst case" in folds.guarantee(0.95)


def test_bad_input_is_refused():
    p = mixture(30)
    y = torch.zeros(30, dtype=torch.float64)
    calibration = ConformalIntervals.calibrate(p, y)
    with pytest.raises(ConfigurationError, match="needs at least 99 calibration rows, got 30"):
        calibration.interval(p, 0.99)
    with pytest.raises(ConfigurationError, match="level must be a number in \\(0, 1\\), got 95"):
        calibration.interval(p, 95)
    with pytest.raises(ConfigurationError, match="one per fold of the calibration, 1, got 2"):
        calibration.interval([p, p], 0.9)
    with pytest.raises(TypeError, match="CategoricalPredictive; use ConformalSets"):
        ConformalIntervals.calibrate(CategoricalPredictive.from_logits(torch.zeros(2, 5, 3)), torch.zeros(5))
    with pytest.raises(DataError, match="shape"):
        ConformalIntervals.calibrate(p, y[:29])
    with pytest.raises(DataError, match="at least one calibration row"):
        ConformalIntervals.calibrate(rows_of(p, []), y[:0])
    with pytest.raises(DivergenceError, match="NaN"):
        ConformalIntervals.calibrate(p, y.where(torch.arange(30) != 3, float("nan")))


def test_no_bound_of_counts_is_minus_zero():
    means = torch.linspace(0.05, 3.0, 40, dtype=torch.float64).expand(4, 40)
    p = CountPredictive(means)
    calibration = ConformalIntervals.calibrate(p, torch.arange(40) % 3)
    lower, upper = calibration.interval(p, 0.9)
    assert (lower == 0).any()
    assert not torch.cat([lower, upper]).signbit().any()

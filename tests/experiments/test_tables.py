"""The benchmark of the default estimators: distributions from quantiles, ranks, tables, and a run from settings to the report."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from experiments.harness.config import read_table
from experiments.harness.protocol import Context, Table, UnitError
from experiments.protocols import tables
from experiments.protocols.tables import Tables, methods, score
from experiments.protocols.tables.data import TABLES, make_split
from experiments.protocols.tables.distributions import NARROWEST, QuantilePredictive, normal
from experiments.protocols.tables.ranks import critical_difference, mean_ranks
from scipy import integrate, stats

LEVELS = [0.05, 0.3, 0.5, 0.95]
QUANTILES = np.array([[-1.0, 0.2, 0.5, 4.0], [0.3, -2.0, -2.5, 1.0]])  # the second row's cross


def quantiles(rows=1, **fields):
    return QuantilePredictive(QUANTILES[:rows], **{"levels": LEVELS, "scale": 1.0, **fields})


def density(predictive, t):
    return math.exp(float(predictive.log_prob(torch.tensor([t], dtype=torch.float64))[0]))


def distribution(predictive, t):
    return float(predictive.cdf(torch.tensor([t], dtype=torch.float64))[0])


def integral(function, breaks=(-1.0, 0.2, 0.5, 4.0)):
    ends = [-np.inf, *breaks, np.inf]
    return sum(integrate.quad(function, low, high)[0] for low, high in pairwise(ends))


def test_density_from_quantiles_integrates_to_one_and_has_these_quantiles():
    predictive = quantiles()
    assert integral(lambda t: density(predictive, t)) == pytest.approx(1.0, abs=1e-8)
    assert integral(lambda t: t * density(predictive, t)) == pytest.approx(float(predictive.mean[0]), abs=1e-8)
    for level, value in zip(LEVELS, QUANTILES[0], strict=True):
        assert distribution(predictive, value) == pytest.approx(level)
    for point in (-3.0, 0.0, 0.45, 3.0, 9.0):
        breaks = [*(q for q in QUANTILES[0] if q < point), point]
        below = sum(integrate.quad(lambda t: density(predictive, t), *ends)[0] for ends in pairwise([-np.inf, *breaks]))
        assert distribution(predictive, point) == pytest.approx(below, abs=1e-7)


@pytest.mark.parametrize("y", [-4.0, -1.0, 0.1, 0.5, 2.0, 4.0, 11.0])
def test_crps_of_quantiles_is_the_integral_of_its_definition(y):
    predictive = quantiles()
    expected = integral(lambda t: (distribution(predictive, t) - (t >= y)) ** 2, sorted({-1.0, 0.2, 0.5, 4.0, y}))
    assert float(predictive.crps(torch.tensor([y]))[0]) == pytest.approx(expected, abs=1e-7)


def test_many_quantiles_of_a_normal_distribution_score_like_it():
    levels = [0.001, 0.01, *np.linspace(0.025, 0.975, 39), 0.99, 0.999]
    mean, std = np.array([[0.0], [5.0]]), np.array([[1.0], [3.0]])
    ours = QuantilePredictive(mean + std * stats.norm.ppf(levels), levels, 1.0)
    theirs = normal(mean[:, 0], std[:, 0], 1.0)
    y = torch.tensor([0.7, 1.0], dtype=torch.float64)
    assert torch.allclose(ours.log_prob(y), theirs.log_prob(y), atol=0.05)
    assert torch.allclose(ours.crps(y), theirs.crps(y), atol=0.002)
    for own, exact in zip(ours.interval(0.95), theirs.interval(0.95), strict=True):
        assert torch.allclose(own, exact, atol=1e-6)


def test_quantiles_that_cross_are_sorted_and_equal_ones_have_a_finite_density():
    assert quantiles(2).quantiles[1].tolist() == pytest.approx([-2.5, -2.0, 0.3, 1.0])
    equal = QuantilePredictive(np.zeros((1, 4)), LEVELS, scale=10.0)
    highest = 1 / (10 * NARROWEST * math.sqrt(2 * math.pi))
    assert density(equal, 0.0) == pytest.approx(highest)
    assert integral(lambda t: density(equal, t), equal.quantiles[0].tolist()) == pytest.approx(1.0)


def test_equal_outer_quantiles_leave_tails():
    predictive = QuantilePredictive(np.array([[0.0, 0.0, 1.0, 2.0]]), LEVELS, scale=1.0)
    assert float(predictive.log_prob(torch.tensor([-1.0], dtype=torch.float64))[0]) > -15


def test_normal_distributions_are_never_narrower_than_the_limit():
    assert normal(np.zeros(2), np.array([0.0, 2.0]), 5.0).std.tolist() == pytest.approx([5 * NARROWEST, 2.0])


def test_critical_difference_is_that_of_the_paper():
    # Demsar (2006), section 3.2.3: four classifiers on 14 data sets; table 5a: q = 2.569 for four, 3.164 for ten.
    assert critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)
    assert critical_difference(10, 1) == pytest.approx(3.164 * math.sqrt(10 * 11 / 6), abs=5e-3)


def test_equal_scores_share_their_ranks():
    scores = {"a": {"x": 0.1, "y": 2.0}, "b": {"x": 0.1, "y": 1.0}, "c": {"x": 0.3, "y": 3.0}}
    assert mean_ranks(scores) == {"a": 1.75, "b": 1.25, "c": 3.0}


def test_scores_of_regression_do_not_depend_on_the_unit():
    y = np.random.default_rng(0).normal(size=50)
    first, second = score(normal(0.5 * y, 0.7, 1.0), y, None), score(normal(50 * y, 70.0, 100.0), 100 * y, None)
    assert first == pytest.approx(second)
    assert first["rmse"] == pytest.approx(np.sqrt(np.mean((0.5 * y) ** 2)) / y.std())
    assert first["nll"] == pytest.approx(-stats.norm(0.5 * y, 0.7).logpdf(y).mean() - math.log(y.std()))


def test_scores_of_classes_allow_zero_probabilities():
    values = score(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]), 2)
    assert values["accuracy"] == pytest.approx(0.5)
    assert values["nll"] == pytest.approx(-math.log(1e-6) / 2, abs=1e-3)


def test_splits_are_disjoint_parts_with_all_classes():
    first, again, other = (make_split("wine", index, 100) for index in (0, 0, 1))
    assert len(first.y) == 100
    assert len(first.y_test) == 36
    assert first.X.equals(again.X)
    assert not first.X.equals(other.X)
    assert set(first.y) == set(first.y_test) == {0, 1, 2}
    rows = {tuple(row) for row in first.X.to_numpy()}
    assert not rows & {tuple(row) for row in first.X_test.to_numpy()}


def make_table(tmp_path, **settings):
    fields = {"tables": ["diabetes", "wine"], "methods": ["Ridge", "LogisticRegression", "RandomForest", "bayesify"]}
    return Table("tables/test", "t", "s", "tables", {**fields, "splits": 1, "most_rows": 60, "epochs": 1, **settings}, {}, tmp_path)


@pytest.mark.extended
def test_methods_run_on_their_tasks_and_the_report_ranks_them(tmp_path):
    table, protocol, results = make_table(tmp_path), Tables(), {}
    jobs = protocol.jobs(table)
    assert [job.key for job in jobs] == [
        "diabetes-Ridge", "diabetes-RandomForest", "diabetes-bayesify",
        "wine-LogisticRegression", "wine-RandomForest", "wine-bayesify",
    ]  # fmt: skip
    for job in jobs:
        saved = results.setdefault(job.key, {})
        protocol.run(job, job.units, Context(None, lambda share: None, saved.update))
        assert saved["0"]["n_train"] == 60
        assert all(math.isfinite(value) for value in saved["0"].values() if not isinstance(value, str))
    report = protocol.report(table, jobs, results)
    for section in ("Regression: mean ranks", "Regression: CRPS", "Classification: Brier score", "Tables", "Methods"):
        assert f"## {section}\n" in report

    del results["diabetes-Ridge"]["0"]
    part = protocol.report(table, jobs, results)
    assert "Ridge" not in part
    assert "2 methods that ran on all of them" in part


def test_settings_of_our_defaults_are_in_the_job_so_that_a_change_is_noticed(tmp_path):
    jobs = {job.key: job.settings for job in Tables().jobs(make_table(tmp_path, epochs=None))}
    assert jobs["diabetes-bayesify"]["recipe"]["method"] == "DeepEnsemble"
    assert jobs["diabetes-bayesify"]["training"]["hidden"] == [128, 128]
    assert "recipe" not in jobs["diabetes-Ridge"]
    assert "epochs" not in jobs["diabetes-bayesify"]


def test_methods_for_few_rows_are_left_out_on_large_tables(tmp_path):
    table = make_table(tmp_path, tables=["diabetes", "protein"], methods=["GaussianProcess", "Ridge"], most_rows=20000)
    assert [job.key for job in Tables().jobs(table)] == ["diabetes-GaussianProcess", "diabetes-Ridge", "protein-Ridge"]


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "missing", lambda packages: [name for name in packages if name])
    (job,) = Tables().jobs(make_table(tmp_path, tables=["diabetes"], methods=["CatBoost"]))
    with pytest.raises(UnitError, match="catboost is not installed"):
        Tables().run(job, job.units, Context(None, lambda share: None, lambda units: None))
    assert methods.missing(["numpy", "", "no_such_package"]) == ["no_such_package"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tables": ["bostn"]}, "a table must be"),
        ({"methods": ["Bayes"]}, "a method must be"),
        ({"splits": 0}, "splits"),
        ({"rows": 3}, "unknown setting 'rows'"),
        ({"tables": ["wine"], "methods": ["Ridge"]}, "none of the methods"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        Tables().jobs(make_table(tmp_path, **settings))


def test_configured_tables_are_all_known_ones_and_none_chose_the_default():
    settings = read_table("tables/benchmark").settings
    assert sorted(settings["tables"]) == sorted(TABLES)
    assert "eeg" not in TABLES

"""Reports of fitted estimators."""

import pytest

pytest.importorskip("typer")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from bayesify.cli.evaluation import assess_estimator, report_page, train_baselines
from bayesify.errors import ModelFileError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import load_model, save_model


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 200), "D")
    price = [f"{value:,.0f}" for value in rng.uniform(500, 5000, 200)]
    return pd.DataFrame({"sold": days.strftime("%d.%m.%Y"), "asked": price, "size": rng.normal(size=200)})


def test_the_constant_has_the_moments_of_the_training_targets():
    X, y = pd.DataFrame({"a": np.linspace(0, 1, 40)}), pd.Series(np.linspace(0, 10, 40), name="y")
    regressor = BayesianRegressor(method="MCDropout", epochs=2, random_state=0).fit(X, y)
    found = assess_estimator(regressor, X, y + 100, held_out=False)
    assert found.from_training
    assert found.baselines["constant"]["rmse"] == pytest.approx(np.hypot(100, y.std(ddof=0)), rel=1e-3)


def _loaded(model, folder):
    save_model(model, folder, target="y")
    return load_model(folder)


@pytest.mark.parametrize("names", [["a", "b", "c"], [False, True]])
def test_the_constant_has_the_frequencies_of_the_training_classes(names, tmp_path):
    X, index = pd.DataFrame({"a": np.linspace(0, 1, 40)}), np.sort(np.arange(40) % 8 % len(names))
    labels = pd.Series(np.array(names)[index], name="y")
    model = _loaded(BayesianClassifier(method="MCDropout", epochs=2, random_state=0).fit(X, labels), tmp_path / "model")
    k = len(names)
    shares = (np.bincount(index) + 1 / k) / 41
    few = labels[-10:]  # all of the last class
    found = assess_estimator(model, X[-10:], few, held_out=False)
    assert found.from_training
    assert found.baselines["constant"]["nll"] == pytest.approx(-np.log(shares[-1]))
    model.class_counts_ = None  # as in files of older versions
    assert not assess_estimator(_loaded(model, tmp_path / "model"), X[-10:], few, held_out=False).from_training
    for counts in ([1], [0] * k):
        model.class_counts_ = np.array(counts)
        with pytest.raises(ModelFileError, match="counts must"):
            _loaded(model, tmp_path / "model")


def test_the_constant_of_counts_is_that_of_the_training_targets():
    X, y = pd.DataFrame({"a": np.linspace(0, 1, 60)}), pd.Series([0, 0, 0, 0, 1, 4] * 10, name="y")
    model = BayesianRegressor(method="MCDropout", likelihood="negative-binomial", epochs=2, random_state=0).fit(X, y)
    known, given = (assess_estimator(model, X[:5], y[:5], *targets, held_out=False) for targets in ((), (y,)))
    assert known.from_training
    assert known.baselines["constant"] == pytest.approx(given.baselines["constant"], rel=1e-5)


@pytest.mark.default("BayesianClassifier")
@pytest.mark.filterwarnings("ignore:column")
@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_the_report_has_baselines_and_reasons_and_reads_dates_as_the_model_does(table, kind):
    # the noise grows with the date, so that the uncertainty is shown by it
    spread = np.linspace(0, 1, 200)[pd.to_datetime(table["sold"], format="%d.%m.%Y").rank(method="first").astype(int) - 1]
    y = table["size"] + spread * np.random.default_rng(1).normal(size=200)
    y = pd.Series(np.where(y > 0, "up", "down") if kind is BayesianClassifier else y, name="y")
    X, test = table[:140], table[140:]
    estimator = kind(random_state=0, method="MCDropout", epochs=20).fit(X, y[:140])
    baselines = train_baselines(estimator, X, y[:140], test, seed=0)
    assessment = assess_estimator(estimator, test, y[140:], y[:140], baselines=baselines)
    page = report_page(estimator, assessment, test, "y", {}).decode()
    assert "gradient boosting" in page
    assert "Which columns drive the predictions" in page
    assert "Baselines have the same columns" in page
    assert "2020-" in page.split("most uncertain rows")[-1]
    assert "00:00:00" not in page
    assert "none, as no rows choose the epoch" in page or "validation" in page


@pytest.mark.filterwarnings("ignore:column")
def test_few_rows_are_not_explained(table):
    estimator = BayesianRegressor(random_state=0, method="MCDropout", epochs=2).fit(table, table["size"])
    few = table[:10]
    page = report_page(estimator, assess_estimator(estimator, few, few["size"]), few, "y", {}).decode()
    assert "Which columns" not in page

"""Reports of fitted estimators."""

import pytest

pytest.importorskip("typer")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from bayesify.cli.evaluation import assess_estimator, report_page, train_baselines
from bayesify.estimators import BayesianClassifier, BayesianRegressor


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
    labels = pd.Series(np.where(y > 3, "b", "a"), name="y")
    classifier = BayesianClassifier(method="MCDropout", epochs=2, random_state=0).fit(X, labels)
    assert not assess_estimator(classifier, X, labels, held_out=False).from_training


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

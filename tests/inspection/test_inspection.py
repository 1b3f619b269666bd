"""Explanations against scikit-learn's, and on functions whose effects are known."""

import warnings

import pytest
import torch

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
sklearn_inspection = pytest.importorskip("sklearn.inspection")

from sklearn.metrics import log_loss

from bayesify import DeepEnsemble
from bayesify.data import conform
from bayesify.errors import ConfigurationError, DataError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.inspection import explain, partial_dependence, permutation_importance, row_effects, similar_rows
from bayesify.inspection.dependence import _quantiles
from bayesify.inspection.explanation import _cost, _relevant
from bayesify.inspection.importance import _changes
from bayesify.inspection.variants import Variants


def table(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D")
    return pd.DataFrame(
        {
            "size": rng.normal(50, 10, rows),
            "kind": rng.choice(["a", "b", "c"], rows),
            "sold": days.strftime("%d.%m.%Y"),
            "noise": rng.normal(size=rows),
            "constant": 1,
        }
    )


@pytest.fixture(scope="module")
def fitted():
    warnings.simplefilter("ignore")
    X = table()
    y = X["size"] + 20 * (X["kind"] == "a") + np.random.default_rng(1).normal(size=len(X))
    labels = np.where(y > y.quantile(0.7), "high", np.where(y < y.quantile(0.3), "low", "middle"))
    regressor = BayesianRegressor(method="MCDropout", random_state=0, epochs=60, samples=10).fit(X, y)
    classifier = BayesianClassifier(method="MCDropout", random_state=0, epochs=60, samples=10).fit(X, labels)
    return X, y, labels, regressor, classifier


@pytest.mark.extended
def test_importance_agrees_with_sklearns(fitted):
    X, y, labels, regressor, classifier = fitted
    for model, target, name, score in (
        (regressor, y, "rmse", "neg_root_mean_squared_error"),
        (classifier, labels, "log_loss", lambda m, a, b: -log_loss(b, m.predict_proba(a))),
    ):
        ours = permutation_importance(model, X, target, repeats=8, draws=10)
        theirs = sklearn_inspection.permutation_importance(model, X, target, scoring=score, n_repeats=8, random_state=0)
        for j, column in enumerate(X.columns.drop("constant")):
            spread = np.hypot(ours.loc[column, f"{name}_se"], theirs.importances_std[j] / 8**0.5)
            assert ours.loc[column, name] == pytest.approx(theirs.importances_mean[j], abs=4 * spread + 1e-9)
        assert list(ours.index[:2]) in (["size", "kind"], ["kind", "size"])
        assert "constant" not in ours.index


def test_importance_is_repeatable_and_does_not_change_the_model(fitted):
    X, y, _, model, _ = fitted
    before = model.predict(X)
    first, second = (permutation_importance(model, X, y, rows=80, repeats=2, draws=4) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    assert model.samples == 10
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.extended
def test_uncertainty_has_an_importance_of_its_own():
    """The noise depends on a column that the mean does not depend on."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(600, 3)), columns=["mean", "noise", "nothing"])
    y = X["mean"] + np.where(X["noise"] > 0, 1.5, 0.1) * rng.normal(size=600)
    model = BayesianRegressor(method="MCDropout", likelihood="heteroscedastic", random_state=0, epochs=120).fit(X, y)
    found = permutation_importance(model, X, y)
    assert found["rmse"].idxmax() == "mean"
    assert found["nll"].drop("mean").idxmax() == "noise"
    assert found.loc["noise", "nll"] > 3 * found.loc["noise", "nll_se"]
    assert found["std"].idxmax() == "noise"
    assert found.loc["noise", "std"] > 3 * found["std"].drop("noise").max()


def test_standard_errors_are_those_of_repeated_tables():
    """The change of the mean and of its root, with new rows and shuffles each time."""
    generator = torch.Generator().manual_seed(0)
    results = {squares: [] for squares in (True, False)}
    for _ in range(400):
        before = torch.randn(60, generator=generator).square().double()
        after = (
            before + (0.5 + torch.randn(1, 4, 60, generator=generator)).square() + 0.2 * torch.randn(1, 4, 1, generator=generator)
        )
        for squares, values in results.items():
            values.append([v.item() for v in _changes(before, after.clamp_min(0), squares)])
    for values in results.values():
        change, error = torch.tensor(values).T
        assert error.mean().item() == pytest.approx(change.std().item(), rel=0.2)


def test_partial_dependence_agrees_with_sklearns(fitted):
    X, _, _, regressor, classifier = fitted
    ours = partial_dependence(regressor, X, "size", rows=300, draws=10).table
    assert len(ours) == 20
    for value, mean in zip(ours["value"][::6], ours["mean"][::6], strict=True):
        assert mean == pytest.approx(regressor.predict(X.assign(size=value)).mean(), rel=1e-5)
    theirs = sklearn_inspection.partial_dependence(
        regressor, X, ["size"], custom_values={"size": ours["value"].to_numpy()}, method="brute"
    )
    np.testing.assert_allclose(ours["mean"], theirs["average"][0], rtol=1e-5)
    by_class = partial_dependence(classifier, X, "kind", output=2, rows=300, draws=10).table
    for value, mean in zip(by_class["value"], by_class["mean"], strict=True):
        assert mean == pytest.approx(classifier.predict_proba(X.assign(kind=value))[:, 2].mean(), abs=1e-5)


@pytest.mark.default("MCDropout-*", extended=[])
@pytest.mark.parametrize("calibrate", [None, "temperature"])
@pytest.mark.parametrize("method", ["MCDropout", None])
def test_draws_of_classes_average_to_the_prediction(method, calibrate):
    X = table(120)
    y = np.where(X["size"] > 50, "big", "small")
    model = BayesianClassifier(method=method, random_state=0, epochs=5, samples=8, calibrate=calibrate).fit(X, y)
    rows = np.arange(120)
    p, draws, shares = Variants(model, X, 8).draws({}, rows)
    assert draws.shape == (8, 120, 2)
    assert shares.tolist() == [1 / 8] * 8
    np.testing.assert_allclose(draws.mean(0), model.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(p.probs, model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("calibrate", [None, "vector", "isotonic", "histogram"])
@pytest.mark.default("None", "histogram", extended=["vector", "isotonic"])
def test_curves_of_classes_are_averages_of_the_calibrated_probabilities(calibrate):
    X = table(150)[["size", "noise"]]
    labels = np.where(X["size"] / 10 + np.random.default_rng(0).normal(size=150) > 5, "big", "small")
    model = BayesianClassifier(method="MCDropout", random_state=0, epochs=30, samples=8, calibrate=calibrate).fit(X, labels)
    for rows in (X, X.assign(noise=np.nan)):
        found = partial_dependence(model, rows, "size", draws=8).table
        expected = [model.predict_proba(rows.assign(size=value))[:, 1].mean() for value in found["value"]]
        np.testing.assert_allclose(found["mean"], expected, atol=1e-9)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.default("False", extended=["True"])
def test_draws_of_rows_with_unknown_values_average_to_the_prediction(ordered):
    """Probabilities are averaged over values for an unknown one, not logits."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "k"])
    y = (X["a"] + 3 * X["k"] > 0).astype(int)
    model = BayesianClassifier(method="MCDropout", random_state=0, epochs=40, samples=8, ordered=ordered).fit(X, y)
    X.loc[::2, "k"] = np.nan
    _, draws, _ = Variants(model, X, 8).draws({}, np.arange(200))
    np.testing.assert_allclose(draws.mean(0), model.predict_proba(X), atol=1e-6)


def test_bands_of_a_calibrated_classifier_are_of_calibrated_draws():
    X = table(150)[["size", "noise"]]
    labels = np.where(X["size"] / 10 + np.random.default_rng(0).normal(size=150) > 5, "big", "small")
    model = BayesianClassifier(method="MCDropout", random_state=0, epochs=30, samples=8, calibrate="vector").fit(X, labels)
    found = partial_dependence(model, X, "size", draws=8).table
    assert (found["lower"] < found["mean"]).all()
    assert (found["mean"] < found["upper"]).all()
    model.probability_map_ = None
    assert np.abs(found["lower"] - partial_dependence(model, X, "size", draws=8).table["lower"]).max() > 0.01


def test_bands_are_quantiles_over_draws(fitted):
    X, _, _, model, _ = fitted
    found = partial_dependence(model, X, "kind", rows=300, draws=10).table.set_index("value")
    p = model.predictive(X.assign(kind="b"))
    averages = p.means.reshape(10, 300).mean(1).numpy()
    np.testing.assert_allclose(found.loc["b", ["lower", "upper"]].astype(float), np.quantile(averages, [0.05, 0.95]), rtol=1e-5)
    lower, upper = p.interval(0.9)
    assert found.loc["b", "predictive_lower"] == pytest.approx(lower.mean().item(), rel=1e-5)
    assert found.loc["b", "predictive_upper"] == pytest.approx(upper.mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
@pytest.mark.default(extended=["BayesianClassifier"])
def test_models_of_a_stack_count_with_their_weights(kind, monkeypatch):
    X = table(120)
    y = X["size"] if kind is BayesianRegressor else np.where(X["size"] > 50, "big", "small")
    single = {"method": "MCDropout", "samples": 8}
    monkeypatch.setattr(kind, "portfolio", {"short": single | {"epochs": 2}, "long": single | {"epochs": 40}})
    model = kind(method="auto", random_state=0, progress=False).fit(X, y)
    models = [kind(**single, random_state=k, epochs=epochs, progress=False).fit(X, y) for k, epochs in enumerate((2, 40))]
    model.adopt(models, [0.9, 0.1])
    predict = model.predict if kind is BayesianRegressor else lambda rows: model.predict_proba(rows)[:, 1]
    found = partial_dependence(model, X, "kind", rows=120, draws=8).table
    for value, mean in zip(found["value"], found["mean"], strict=True):
        assert mean == pytest.approx(np.mean(predict(X.assign(kind=value))), rel=1e-5)
    assert (found["lower"] < found["mean"]).all()
    assert (found["mean"] < found["upper"]).all()


def test_weighted_quantiles():
    values = np.random.default_rng(0).normal(size=(11, 3))
    np.testing.assert_allclose(_quantiles(values, np.full(11, 1 / 11), 0.2), np.quantile(values, 0.2, axis=0))
    normal = np.linspace(-8, 8, 4001)[:, None]  # weighted with its density, against the exact quantiles
    density = np.exp(-(normal[:, 0] ** 2) / 2)
    np.testing.assert_allclose(_quantiles(normal, density / density.sum(), 0.975), 1.959964, atol=1e-4)
    assert _quantiles(np.array([[3.0]]), np.ones(1), 0.05).tolist() == [3.0]


def test_partial_dependence_of_dates_written_as_text(fitted):
    X, _, _, model, _ = fitted
    found = partial_dependence(model, X, "sold")
    assert found.kind == "datetime"
    assert found.table["value"].is_monotonic_increasing
    assert found.table["value"].between("2020-01-01", "2022-07-01").all()


def test_effects_on_a_row(fitted):
    X, _, _, regressor, classifier = fitted
    row = int(X["size"].argmax())
    found = row_effects(regressor, X, row, rows=300, draws=10)
    others = pd.DataFrame([X.iloc[row]] * 300).assign(size=X["size"].to_numpy())
    expected = regressor.predict(X.iloc[[row]])[0] - regressor.predict(others.astype(X.dtypes)).mean()
    assert found.loc["size", "prediction"] == pytest.approx(expected, rel=1e-4)
    assert found.loc["size", "prediction"] > 10
    assert found.loc["kind", "value"] == X["kind"].iloc[row]
    assert row_effects(classifier, X, row).loc["size", "prediction"] > 0.1


def test_similar_rows(fitted):
    X, y, _, model, _ = fitted
    found = similar_rows(model, X, 7, X.assign(y=y), most=3)
    assert found.index[0] == 7
    assert found["distance"].iloc[0] == pytest.approx(0, abs=1e-9)
    inputs = model.preprocessing_.transform(conform(X, model.columns_, new=False))
    distance = np.sqrt(((inputs - inputs[7]) ** 2).sum(1))
    assert found.index.tolist() == distance.argsort(kind="stable")[:3].tolist()
    far = X.iloc[[7]].assign(size=900.0)
    assert similar_rows(model, far, 0, X)["relative distance"].min() > 5


@pytest.mark.extended
def test_explanations_have_a_bounded_cost_and_curves_of_columns_that_matter(fitted):
    model, X = fitted[3], table(300, seed=9)
    found = explain(model, X, X["size"] + 20 * (X["kind"] == "a"))
    assert {"size", "kind"} == {curve.column for curve in found.dependences}
    assert "300 rows" in found.note
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(120, 200)), columns=[f"x{i}" for i in range(200)])
    model = BayesianRegressor(method="MCDropout", random_state=0, epochs=2).fit(wide, wide["x3"])
    found = explain(model, wide, wide["x3"])
    assert found.note == "Computed on 100 rows, with 2 shuffles per column."
    assert len(found.importance) == 200


@pytest.mark.slow
def test_the_work_of_an_explanation_is_bounded_whatever_the_size_of_the_network():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 4)))
    dropout = BayesianRegressor(method="MCDropout", hidden=(5,), samples=7, random_state=0, epochs=1).fit(X, X[0])
    assert Variants(dropout, X, 20).work == 7 * (4 * 5 + 5 + 5 + 1)
    assert Variants(dropout, X, 3).work == 3 * (4 * 5 + 5 + 5 + 1)
    ensemble = DeepEnsemble(members=3)
    ensemble = BayesianRegressor(method=ensemble, hidden=(5,), encoding="standard", likelihood="gaussian", random_state=0, epochs=1)
    assert Variants(ensemble.fit(X, X[0]), X, 20).work == 3 * (4 * 5 + 5 + 5 + 1)  # a draw is a member
    assert _cost(13, 400_000) == (5, 500)
    assert _cost(100, 1_000_000) == (5, 80)
    assert _cost(300, 100_000) == (2, 66)
    assert _cost(300, 5_000_000) == (1, 50)  # 15,000 predictions rather than 40,000
    assert _cost(50, 50_000_000) == (5, 50)


def test_of_many_columns_without_effect_few_get_a_curve():
    rng = np.random.default_rng(0)
    for columns, most in ((300, 2), (5, 2)):
        noise = pd.DataFrame({"rmse": rng.normal(size=columns), "rmse_se": 1.0}).sort_values("rmse", ascending=False)
        assert len(_relevant(noise)) <= most
    assert next(iter(_relevant(pd.concat([pd.DataFrame({"rmse": [9.0], "rmse_se": 1.0}, index=["effect"]), noise])))) == "effect"


def test_arrays_and_several_outputs():
    X = np.random.default_rng(0).normal(size=(80, 3))
    model = BayesianRegressor(method="MCDropout", random_state=0, epochs=20).fit(X, X[:, :2] * [1.0, 100.0])
    found = explain(model, X, X[:, :2] * [1.0, 100.0], output=1)
    assert set(found.importance.index) == {"x0", "x1", "x2"}
    assert found.importance["rmse"].idxmin() == "x2"
    assert row_effects(model, X, 0).shape == (3, 4)


def test_errors(fitted):
    X, y, _, model, classifier = fitted
    with pytest.raises(ConfigurationError, match=r"must be one that the model uses .*'size'.*got 'constant'"):
        partial_dependence(model, X, "constant")
    with pytest.raises(ConfigurationError, match="output must be from 0 to 2, got 3"):
        partial_dependence(classifier, X, "size", output=3)
    with pytest.raises(ConfigurationError, match="row must be from 0 to 299, as the table has 300 rows, got 300"):
        row_effects(model, X, 300)
    with pytest.raises(DataError, match="one target per row, 300, got 10"):
        permutation_importance(model, X, y[:10])

"""Estimators with calibration rows: coverage, which rows calibrate, saving, and what is refused."""

import json
import math
import warnings

import pytest

pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from sklearn.base import clone

from bayesify.checksums import _checksum
from bayesify.errors import BayesifyWarning, ConfigurationError, DataError, ModelFileError
from bayesify.estimators import BayesianClassifier, BayesianRegressor, fit_together
from bayesify.likelihoods import Categorical
from bayesify.persistence import load_model, save_model

QUICK = {"method": "Deterministic", "hidden": (16,), "epochs": 20, "random_state": 0, "progress": False, "conformal": True}


def numbers(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return x, 5 * x[:, 0] + rng.normal(size=rows) * (0.5 + 3 * (x[:, 1] > 0))


def labels(rows, seed=0):
    x, y = numbers(rows, seed)
    return pd.DataFrame(x, columns=["a", "b"]), np.select([y > 3, y < -3], ["high", "low"], "middle")


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor(**QUICK).fit(*numbers(500))


@pytest.fixture(scope="module")
def classifier():
    return BayesianClassifier(**QUICK).fit(*labels(500))


def margin(level, calibration, new):
    """Four standard deviations of the coverage of new rows, for one draw of the calibration rows."""
    return 4 * math.sqrt(level * (1 - level) * (1 / (calibration + 2) + 1 / new))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_intervals_of_a_fitted_model_have_their_level(regressor, level):
    x, y = numbers(4000, seed=1)
    lower, upper = regressor.predict_interval(x, level).T
    assert regressor.conformal_.rows == 100
    assert np.mean((lower <= y) & (y <= upper)) == pytest.approx(level, abs=margin(level, 100, 4000) + 1 / 101)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_sets_of_a_fitted_model_have_their_level(classifier, level):
    x, y = labels(4000, seed=1)
    sets = classifier.predict_set(x, level)
    assert sets.shape == (4000, 3)
    assert sets.dtype == bool
    assert sets.any(1).all()
    inside = sets[np.arange(4000), np.searchsorted(classifier.classes_, y)]
    assert level - margin(level, 100, 4000) <= inside.mean()
    assert (sets | classifier.predict_set(x, 0.97) == classifier.predict_set(x, 0.97)).all()


def test_the_predictive_distribution_is_not_calibrated(regressor):
    x, _ = numbers(50, seed=1)
    plain = np.stack(regressor.predictive(x).interval(0.9), -1)
    assert not np.allclose(plain, regressor.predict_interval(x, 0.9))
    np.testing.assert_array_equal(BayesianRegressor(**{**QUICK, "conformal": False}).fit(x, x[:, 0]).conformal_, None)


@pytest.mark.parametrize("method", ["Deterministic", "DeepEnsemble"])
def test_calibration_rows_are_used_for_nothing_else(method):
    """Training with other targets in these rows gives the same model."""
    x, y = numbers(200)
    options = {**QUICK, "method": method, "validation_fraction": 0.2, "epochs": 3}
    first = BayesianRegressor(**options).fit(x, y)
    kept = np.isin(np.arange(200), rows_of_training(first, y))
    assert kept.sum() == 160
    second = BayesianRegressor(**options).fit(x, np.where(kept, y, 1000 + y))
    np.testing.assert_array_equal(first.predict(x), second.predict(x))
    assert second.conformal_.scores[0].min() > first.conformal_.scores[0].max()


def rows_of_training(model, y):
    probe = clone(model)
    probe.seed_ = model.seed_
    return probe._hold_out(pd.DataFrame({"row": np.arange(len(y))}), y)[0]["row"].to_numpy()


def test_outputs_are_calibrated_each():
    x, y = numbers(300)
    model = BayesianRegressor(**QUICK).fit(x, np.stack([y, 100 * y], 1))
    bounds = model.predict_interval(x, 0.8)
    assert bounds.shape == (300, 2, 2)
    assert model.conformal_.scores[0].shape == (60, 2)


def test_a_class_is_known_if_a_row_is_left_to_train_on():
    x, y = labels(200)
    for row in range(8):
        model = BayesianClassifier(**{**QUICK, "epochs": 1}).fit(x, np.where(np.arange(200) == row, "single", y))
        assert "single" in model.classes_


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_saved_and_loaded(kind, request, tmp_path):
    model = request.getfixturevalue(kind)
    x = (numbers if kind == "regressor" else labels)(50, seed=2)[0]
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.conformal
    predict = "predict_interval" if kind == "regressor" else "predict_set"
    np.testing.assert_array_equal(getattr(loaded, predict)(x, 0.9), getattr(model, predict)(x, 0.9))


def test_files_of_earlier_versions_have_no_calibration(tmp_path):
    x, y = numbers(40)
    model = BayesianRegressor(**{**QUICK, "conformal": False, "epochs": 1}).fit(x, y)
    save_model(model, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    del config["conformal"], config["params"]["conformal"]
    path.write_text(json.dumps({**config, "checksum": _checksum(config)}))
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict_interval(x), model.predict_interval(x))


def test_trained_together():
    x, y = numbers(150)
    models = [BayesianRegressor(**{**QUICK, "random_state": seed}) for seed in range(2)]
    fit_together([(model, x, y) for model in models])
    for seed, model in enumerate(models):
        alone = BayesianRegressor(**{**QUICK, "random_state": seed}).fit(x, y)
        np.testing.assert_allclose(model.predict_interval(x), alone.predict_interval(x), rtol=1e-3, atol=1e-3)


def test_a_second_fit_without_calibration_forgets_the_first(regressor):
    x, y = numbers(60)
    model = clone(regressor)
    assert model.get_params()["conformal"] is True
    model.fit(*numbers(300))
    assert model.set_params(conformal=False).fit(x, y).conformal_ is None


def test_no_warning_with_arrays_or_tables():
    x, y = numbers(120)
    for table in (x, pd.DataFrame(x, columns=["a", "b"])):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            BayesianRegressor(**{**QUICK, "epochs": 1}).fit(table, y).predict_interval(table, 0.9)


def test_few_rows_and_impossible_levels(regressor, classifier):
    x, y = numbers(50)
    with pytest.warns(BayesifyWarning, match="calibrates with 10 of 50 rows, enough for levels up to 0.909; level 0.95 needs 19"):
        model = BayesianRegressor(**{**QUICK, "epochs": 1}).fit(x, y)
    assert np.isfinite(model.predict_interval(x, 0.9)).all()
    with pytest.raises(ConfigurationError, match="needs at least 19 calibration rows, got 10"):
        model.predict_interval(x)
    with pytest.raises(ConfigurationError, match=r"level must be a number in \(0, 1\), got 95"):
        regressor.predict_interval(x, 95)
    with pytest.raises(ConfigurationError, match=r"level=0.999 needs at least 999"):
        classifier.predict_set(pd.DataFrame(x, columns=["a", "b"]), 0.999)
    with pytest.raises(ConfigurationError, match=r"fit BayesianClassifier\(conformal=True\)"):
        BayesianClassifier(**{**QUICK, "conformal": False, "epochs": 1}).fit(*labels(50)).predict_set(labels(5)[0])
    with pytest.raises(ConfigurationError, match="conformal must be one of"):
        BayesianRegressor(**{**QUICK, "conformal": "jackknife"}).fit(x, y)


@pytest.fixture(scope="module")
def crossed():
    return BayesianRegressor(**{**QUICK, "conformal": "cross"}).fit(*numbers(203))


@pytest.mark.default("0.9", extended=[])
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_of_folds_have_their_level(crossed, level):
    x, y = numbers(4000, seed=1)
    lower, upper = crossed.predict_interval(x, level).T
    assert crossed.conformal_.rows == 203
    assert sorted(map(len, crossed.conformal_.scores)) == [40, 40, 41, 41, 41]
    assert np.mean((lower <= y) & (y <= upper)) == pytest.approx(level, abs=margin(level, 203, 4000) + 0.02)
    assert "in the worst case" in crossed.conformal_.guarantee(level)


def test_the_model_is_trained_on_all_rows_and_the_folds_on_the_others(crossed):
    x, y = numbers(203)
    plain = BayesianRegressor(**{**QUICK, "conformal": False}).fit(x, y)
    np.testing.assert_array_equal(crossed.predict(x), plain.predict(x))
    means = [fold.target_mean_[0] for fold in crossed.folds_]
    assert np.average(means, weights=[203 - len(part) for part in crossed.conformal_.scores]) == pytest.approx(y.mean())
    assert len(set(means)) == 5


def test_sets_of_folds_have_their_level():
    model = BayesianClassifier(**{**QUICK, "conformal": "cross"}).fit(*labels(200))
    x, y = labels(3000, seed=1)
    inside = model.predict_set(x, 0.8)[np.arange(3000), np.searchsorted(model.classes_, y)]
    assert inside.mean() >= 0.8 - margin(0.8, 200, 3000) - 0.02
    x, y = labels(100)
    pair = BayesianClassifier(**{**QUICK, "conformal": "cross", "epochs": 1}).fit(x, np.where(np.arange(100) < 2, "pair", y))
    assert all("pair" in fold.classes_ for fold in pair.folds_)
    with pytest.raises(DataError, match="two rows of each class, and 1 have one"):
        BayesianClassifier(**{**QUICK, "conformal": "cross"}).fit(x, np.where(np.arange(100) < 1, "single", y))


def test_models_of_folds_are_saved(crossed, tmp_path):
    x, _ = numbers(30, seed=2)
    save_model(crossed, tmp_path / "m")
    assert len(list((tmp_path / "m").glob("fold*"))) == 10
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_interval(x, 0.9), crossed.predict_interval(x, 0.9))
    (tmp_path / "m" / "fold3-weights.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"fold3-weights\.safetensors is damaged"):
        load_model(tmp_path / "m")
    save_model(BayesianRegressor(**{**QUICK, "conformal": False, "epochs": 1}).fit(x, x[:, 0]), tmp_path / "m")
    assert not list((tmp_path / "m").glob("fold*"))


@pytest.mark.slow
def test_folds_of_estimators_that_are_trained_together(crossed):
    model = clone(crossed)
    fit_together([(model, *numbers(203))])
    x, _ = numbers(30, seed=2)
    np.testing.assert_allclose(model.predict_interval(x, 0.9), crossed.predict_interval(x, 0.9), rtol=1e-3, atol=1e-3)


def test_temperature_fits_the_rows_that_are_held_out():
    options = {**QUICK, "conformal": False, "calibrate": "temperature"}
    x, y = labels(300)
    model = BayesianClassifier(**options).fit(x, y)
    held_out = np.setdiff1d(np.arange(300), rows_of_training(model, np.arange(300) % 3))
    assert len(held_out) == 60
    best = model.likelihood_.temperature
    scores = []
    for factor in (0.8, 0.98, 1, 1.02, 1.25):
        model.likelihood_ = Categorical(temperature=factor * best)
        scores.append(model.log_score(x.iloc[held_out], y[held_out]))
    assert np.argmax(scores) == 2
    others = BayesianClassifier(**options).fit(x, np.where(np.isin(np.arange(300), held_out), "low", y))
    np.testing.assert_array_equal(others.predictive(x).prediction, model.predictive(x).prediction)  # not trained on them
    assert others.likelihood_.temperature > best


def test_temperature_is_saved(tmp_path):
    x, y = labels(100)
    model = BayesianClassifier(**{**QUICK, "conformal": False, "calibrate": "temperature"}).fit(x, y)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.likelihood_.temperature == model.likelihood_.temperature != 1
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    with pytest.raises(ConfigurationError, match="exclude each other"):
        BayesianClassifier(**{**QUICK, "calibrate": "temperature"}).fit(x, y)
    with pytest.raises(ConfigurationError, match=r"calibrate must be one of None, .*'isotonic', 'histogram', got 'platt'"):
        BayesianClassifier(**{**QUICK, "conformal": False, "calibrate": "platt"}).fit(x, y)

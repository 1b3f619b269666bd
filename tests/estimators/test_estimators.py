"""The scikit-learn estimators: its own checks, units, seeds, tables with mixed columns, real data."""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from bayesify import SWAG, VSD, DeepEnsemble, Deterministic, LinearWarmup, MCDropout, MeanField
from bayesify.errors import BayesifyWarning, DataError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.estimators.network import mlp
from bayesify.persistence import load_model, save_model

FAST = {"epochs": 3, "samples": 5, "hidden": (8,), "random_state": 0}
data_rng = np.random.default_rng(0)
X = data_rng.normal(size=(80, 3))
y = X @ [1.0, -2.0, 0.5] + 0.1 * data_rng.normal(size=80)
labels = np.where(y > 0, "high", "low")


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor(**FAST).fit(X, y)


@pytest.fixture(scope="module")
def classifier():
    return BayesianClassifier(**FAST).fit(X, labels)


def inexact(estimator):
    reason = "copies of a row and its weight are the same loss, but other batches"
    return {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in ("dense", "sparse")}


ESTIMATORS = [BayesianRegressor, BayesianClassifier]


@pytest.mark.default(
    "BayesianRegressor*check_[!er]*",
    "BayesianRegressor*check_estimators_*",
    "BayesianRegressor*check_regressors_*",
    "BayesianClassifier*check_classifiers_[!t]*",
)
@parametrize_with_checks(
    [kind(method="MeanField", epochs=30, random_state=0) for kind in ESTIMATORS], expected_failed_checks=inexact
)
def test_scikit_learn(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, a check is skipped
    check(estimator)


@pytest.mark.slow  # every fit traces the networks of the ensemble
@parametrize_with_checks([kind(epochs=30, random_state=0) for kind in ESTIMATORS], expected_failed_checks=inexact)
def test_scikit_learn_with_the_default(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


class TestRegressor:
    def test_shapes(self, regressor):
        mean, std = regressor.predict(X, return_std=True)
        assert mean.shape == std.shape == (80,)
        assert regressor.predict_interval(X, level=0.8).shape == (80, 2)
        np.testing.assert_array_equal(mean, regressor.predict(X))

    def test_units(self, regressor):
        """Another unit of the target changes the unit of every result and nothing else."""
        other = clone(regressor).fit(X, 1000 * y + 1e6)
        (mean, std), (other_mean, other_std) = (m.predict(X, return_std=True) for m in (regressor, other))
        np.testing.assert_allclose(other_mean - 1e6, 1000 * mean, rtol=1e-3, atol=1)
        np.testing.assert_allclose(other_std, 1000 * std, rtol=1e-4)
        np.testing.assert_allclose(other.predict_interval(X), 1000 * regressor.predict_interval(X) + 1e6, rtol=1e-7)
        assert other.log_score(X, 1000 * y + 1e6) == pytest.approx(regressor.log_score(X, y) - np.log(1000), abs=1e-3)

    def test_log_score_is_that_of_the_mixture(self, regressor):
        p = regressor.predictive(X)
        density = (p.weights.numpy() * stats.norm.pdf(y, p.means.numpy(), p.stds.numpy())).sum(0)
        assert regressor.log_score(X, y) == pytest.approx(np.log(density).mean(), rel=1e-9)

    def test_a_large_offset_costs_no_digits(self, regressor):
        other = clone(regressor).fit(X, y + 1e9)
        np.testing.assert_allclose(other.predict(X) - 1e9, regressor.predict(X), atol=1e-3)

    @pytest.mark.default("gaussian")
    @pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
    def test_several_outputs(self, likelihood):
        several = np.stack([y, -y, 100 * y], 1)
        model = BayesianRegressor(**FAST | {"likelihood": likelihood}).fit(X, several)
        mean, std = model.predict(X, return_std=True)
        assert mean.shape == std.shape == (80, 3)
        assert model.predict_interval(X).shape == (80, 3, 2)
        assert std[:, 2].mean() > 20 * std[:, 0].mean()
        assert np.isfinite(model.log_score(X, several))

    def test_a_column_in_a_column_out(self, regressor):
        assert clone(regressor).fit(X, y[:, None]).predict(X).shape == (80, 1)

    @pytest.mark.extended
    def test_heteroscedastic_noise_is_found(self, rng):
        x = rng.uniform(-1, 1, (600, 1))
        noisy = np.where(x[:, 0] > 0, 1.0, 0.1) * rng.normal(size=600)
        model = BayesianRegressor(likelihood="heteroscedastic", epochs=150, random_state=0).fit(x, noisy)
        std = model.predict(np.array([[-0.5], [0.5]]), return_std=True)[1]
        assert std[1] / std[0] == pytest.approx(10, rel=0.4)

    @pytest.mark.extended
    def test_uncertainty_grows_away_from_the_data(self, rng):
        x = rng.uniform(-1, 1, (120, 1))
        y = np.sin(3 * x[:, 0]) + 0.05 * rng.normal(size=120)
        for params in ({}, {"method": "MeanField"}):
            p = BayesianRegressor(epochs=200, random_state=0, **params).fit(x, y).predictive([[-3.0], [-0.5], [0.5], [3.0]])
            assert p.epistemic[[0, 3]].min() > 4 * p.epistemic[[1, 2]].max()
            assert p.aleatoric.sqrt().max() <= 10 * y.std() * len(p.means) ** 0.5  # whatever the network extrapolates
        np.testing.assert_allclose(p.aleatoric[0], p.aleatoric[1])  # one noise level

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_bad_targets(self, bad):
        wrong = y.copy()
        wrong[3] = bad
        with pytest.raises(ValueError, match="Input y contains"):
            BayesianRegressor().fit(X, wrong)
        with pytest.raises(ValueError, match="same number in every row;"):
            BayesianRegressor().fit(X, np.full(80, 0.1))
        with pytest.raises(ValueError, match="same number in every row in column 1"):
            BayesianRegressor().fit(X, np.stack([y, np.ones(80)], 1))

    def test_dates_are_no_targets(self):
        days = pd.Series(pd.date_range("2020-01-01", periods=80))
        table = pd.DataFrame({"first": y, "second": days})
        for dates in (days, days.dt.tz_localize("UTC"), days.to_numpy(), days - days[0], table):
            with pytest.raises(DataError, match="y has dates or durations, whose numbers depend on their resolution"):
                BayesianRegressor().fit(X, dates)


class TestClassifier:
    def test_probabilities(self, classifier):
        probs = classifier.predict_proba(X)
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
        assert list(classifier.classes_) == ["high", "low"]
        np.testing.assert_array_equal(classifier.predict(X), classifier.classes_[probs.argmax(1)])
        assert classifier.log_score(X, labels) == pytest.approx(-log_loss(labels, probs, labels=["high", "low"]), rel=1e-9)

    @pytest.mark.parametrize("y", [labels == "high", np.where(labels == "high", 7, -1), labels.astype(object), pd.Series(labels)])
    def test_label_types(self, y):
        model = BayesianClassifier(**FAST).fit(X, y)
        assert set(model.predict(X)) <= set(np.asarray(y))
        assert model.log_score(X, y) < 0

    def test_bad_labels(self, classifier):
        with pytest.raises(ValueError, match="one class only, 'a'"):
            BayesianClassifier().fit(X, ["a"] * 80)
        with pytest.raises(ValueError, match="1 of 80 labels are missing"):
            BayesianClassifier().fit(X, [None, *labels[1:]])
        with pytest.raises(ValueError, match="not in training: 'medium'"):
            classifier.log_score(X, ["medium"] * 80)
        with pytest.raises(ValueError, match="Unknown label type"):
            BayesianClassifier().fit(X, y)


class TestRandomness:
    def test_same_call_same_numbers(self, regressor):
        torch.manual_seed(1)
        first = regressor.predict(X, return_std=True)
        torch.manual_seed(2)
        np.testing.assert_array_equal(first, regressor.predict(X, return_std=True))

    def test_global_state_is_left_alone(self):
        legacy = np.random.mtrand._rand  # what np.random.seed seeds
        state, numpy_state = torch.get_rng_state(), legacy.get_state()[1].copy()
        BayesianRegressor(**FAST).fit(X, y).predict(X)
        assert torch.equal(state, torch.get_rng_state())
        np.testing.assert_array_equal(numpy_state, legacy.get_state()[1])

    def test_random_state(self, regressor):
        torch.manual_seed(5)
        np.testing.assert_array_equal(clone(regressor).fit(X, y).predict(X), regressor.predict(X))
        other = clone(regressor).set_params(random_state=1).fit(X, y)
        assert not np.allclose(other.predict(X), regressor.predict(X))
        free = clone(regressor).set_params(random_state=None).fit(X, y)
        np.testing.assert_array_equal(free.predict(X), free.predict(X))

    def test_a_row_does_not_depend_on_its_company(self, regressor):
        many = np.tile(X, (30, 1))  # more than one batch
        whole = regressor.predict_interval(many)
        np.testing.assert_allclose(whole[:1], regressor.predict_interval(X[:1]), rtol=1e-10)
        np.testing.assert_allclose(whole[-80:], whole[:80], rtol=1e-10)

    def test_pickle(self, regressor):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(regressor)).predict(X), regressor.predict(X))


class TestParameters:
    def test_fields_of_the_method(self):
        model = BayesianRegressor(method=MCDropout(p=0.2))
        assert model.get_params()["method__p"] == 0.2
        assert "method__p" not in model.get_params(deep=False)
        assert model.set_params(method__p=0.3).method == MCDropout(p=0.3)
        assert BayesianRegressor().set_params(method__members=3).method == DeepEnsemble(members=3)
        assert BayesianRegressor(method="MeanField").set_params(method__prior_std=0.5).method == MeanField(prior_std=0.5)
        assert model.set_params(method=MeanField(), method__prior_std=2.0, hidden=(3,)).method == MeanField(prior_std=2.0)
        with pytest.raises(ValueError, match="MeanField has no field 'p'; its fields are noise"):
            model.set_params(method__p=0.5)
        with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
            model.set_params(nonsense=1)

    def test_a_name_stands_for_what_suits_tables(self):
        named, given = BayesianRegressor(method="vsd"), BayesianRegressor(method=VSD(transforms=1))
        assert named.method_in_use() == BayesianRegressor.recipe("VSD").method != VSD()
        assert given.method_in_use() == VSD(transforms=1)
        assert clone(named).set_params(method__transforms=3).method == named.method_in_use().replace(transforms=3)

    def test_the_weight_of_the_kl_suits_the_method(self):
        vsd = BayesianRegressor.recipe("VSD").beta
        assert vsd != BayesianRegressor.default_beta
        for method in ("VSD", VSD(transforms=1), DeepEnsemble(base=VSD())):
            schedule = BayesianRegressor(method=method).beta_in_use()
            assert [schedule(share) for share in (0.0, 0.25, 0.5, 1.0)] == [0.0, vsd / 2, vsd, vsd]
        assert BayesianRegressor(method="DropConnect").beta_in_use()(1.0) == BayesianRegressor.default_beta
        assert BayesianRegressor(method="VSD", beta=0.7).beta_in_use() == 0.7

    @pytest.mark.parametrize("method", ["SWAG", DeepEnsemble(members=2, base=SWAG(snapshots=4, rank=2))], ids=["SWAG", "MultiSWAG"])
    def test_posteriors_collected_along_training(self, method):
        model = BayesianRegressor(method=method, **FAST | {"epochs": 8}).fit(X, y)
        assert len(set(model.history_.learning_rate)) == 1
        assert model.history_.validation_nll == []  # no row is held out, because no epoch is chosen
        for member in model.bnn_.members or (model.bnn_,):
            counts = {int(layer.posterior.count) for _, layer in member.random_layers()}
            assert counts == {12 if method == "SWAG" else 4}  # every step of the second half, or as many as `snapshots`
        assert (model.predict(X, return_std=True)[1] > 0).all()
        with pytest.raises(ValueError, match="patience=3 would stop training before the posterior is collected"):
            BayesianRegressor(method=method, **FAST, patience=3).fit(X, y)

    def test_grid_search_in_a_pipeline(self):
        pipeline = make_pipeline(StandardScaler(), BayesianRegressor(method="MeanField", **FAST))
        grid = {"bayesianregressor__method__prior_std": [0.1, 1.0], "bayesianregressor__hidden": [(4,)]}
        search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
        assert search.best_estimator_[-1].hidden == (4,)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()

    def test_cross_validation_with_probabilities(self):
        scores = cross_val_score(BayesianClassifier(**FAST | {"epochs": 20}), X, labels, cv=2, scoring="neg_log_loss")
        assert (scores > -0.69).all()

    def test_a_net_of_ones_own(self):
        class Net(nn.Module):
            def __init__(self, i, o):
                super().__init__()
                self.body, self.skip = mlp(i, o, (4,)), nn.Linear(i, o)

            def forward(self, x):
                return self.body(x) + self.skip(x)

        model = BayesianRegressor(net=Net, **FAST).fit(X, y)
        assert all(isinstance(member.net, Net) for member in model.bnn_.members)
        assert model.predict(X).shape == (80,)

    @pytest.mark.parametrize(
        ("params", "error", "message"),
        [
            ({"method": 3}, TypeError, "method must be a Method such as MeanField\\(\\), the name of one, or None, got 3"),
            (
                {"method": "SVD"},
                ValueError,
                r"unknown method 'SVD'; did you mean VSD\? `Method.registry` and `bayesify methods`",
            ),
            ({"epochs": 0}, ValueError, "epochs must be a whole number"),
            ({"batch_size": 1.5}, ValueError, "batch_size must be a whole number"),
            ({"samples": 0}, ValueError, "samples must be"),
            ({"train_samples": 0}, ValueError, "train_samples must be"),
            ({"learning_rate": -1.0}, ValueError, "learning_rate must be"),
            ({"validation_fraction": 1.0}, ValueError, "validation_fraction must be a number in \\[0, 1\\)"),
            ({"validation_fraction": 0.999}, ValueError, "leaves no row of 80"),
            ({"patience": 3, "method": "MeanField"}, ValueError, "patience needs a validation_fraction"),
            ({"encoding": "fourier"}, ValueError, "encoding must be one of 'standard', 'piecewise'"),
            ({"activation": "step"}, ValueError, "activation must be one of 'elu'"),
            ({"hidden": (0,)}, ValueError, "hidden must be"),
            ({"likelihood": "weibull"}, ValueError, "likelihood must be one of 'gaussian', 'heteroscedastic', 'mixture'"),
            ({"beta": -1.0}, ValueError, "beta must be"),
            ({"accelerator": "tpu"}, ValueError, "accelerator must be"),
        ],
    )
    def test_bad_parameters(self, params, error, message):
        with pytest.raises(error, match=message):
            BayesianRegressor(**FAST | params).fit(X, y)

    def test_training_options(self, tmp_path):
        records = []
        settings = {"validation_fraction": 0.2, "patience": 1, "beta": LinearWarmup(), "train_samples": 2, "batch_size": 10}
        model = BayesianRegressor(method="MeanField", **FAST | settings | {"epochs": 5})
        model.fit(X, y, checkpoint=tmp_path / "run.ckpt", loggers=[records.append])
        assert len(model.history_) == len(records) == len(model.history_.validation_nll)
        assert (tmp_path / "run.ckpt").exists()
        again = clone(model).fit(X, y, checkpoint=tmp_path / "run.ckpt")
        np.testing.assert_array_equal(again.predict(X), model.predict(X))

    def test_mlp(self):
        assert [type(layer).__name__ for layer in mlp(3, 2, (5, 4), "silu")] == ["Linear", "SiLU", "Linear", "SiLU", "Linear"]
        assert mlp(3, 2, ())(torch.zeros(7, 3)).shape == (7, 2)


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame(
        {
            "size": np.where(np.arange(80) % 7 == 0, np.nan, X[:, 0]),
            "city": np.where(X[:, 1] > 0, "Bonn", "Ulm"),
            "garden": X[:, 2] > 0,
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(80), unit="D"),
            "id": [f"row {i}" for i in range(80)],
        }
    )


@pytest.fixture(scope="module")
def model(table):
    with pytest.warns(UserWarning, match="'id' is not used"):
        return BayesianRegressor(**FAST).fit(table, pd.Series(y, name="price"))


class TestWeights:
    def test_rows_of_weight_zero_are_left_out(self, rng):
        data, target = rng.normal(size=(80, 2)), rng.normal(size=80)
        kept = np.arange(80) % 3 > 0
        settings = {"method": "MeanField", "epochs": 3, "random_state": 0}
        weighted = BayesianRegressor(**settings).fit(data, target, sample_weight=2.0 * kept)
        alone = BayesianRegressor(**settings).fit(data[kept], target[kept], sample_weight=np.full(kept.sum(), 2.0))
        assert np.array_equal(weighted.predict(data), alone.predict(data))

    def test_the_noise_is_that_of_heavy_rows(self, rng):
        data = rng.normal(size=(400, 1))
        noise = np.where(np.arange(400) % 2, 0.1, 3.0)
        target = data[:, 0] + noise * rng.normal(size=400)
        settings = {"method": "MeanField", "hidden": (), "epochs": 100, "random_state": 0, "learning_rate": 0.05}
        heavy = BayesianRegressor(**settings).fit(data, target, sample_weight=np.where(noise < 1, 1.0, 0.01))
        # the weighted mean of the variances: 0.1**2 and 0.01 times 3**2
        assert heavy.predictive(data).aleatoric.mean().sqrt() == pytest.approx(np.sqrt((0.01 + 0.09) / 1.01), rel=0.2)

    @pytest.mark.parametrize("weights", [np.zeros(80), -np.ones(80), np.full(80, np.nan), np.ones((80, 1)), np.ones(79)])
    def test_bad_weights(self, weights):
        with pytest.raises(ValueError, match=r"[Ss]ample.weight|inconsistent numbers of samples"):
            BayesianRegressor().fit(np.arange(80.0).reshape(-1, 1), np.arange(80.0), sample_weight=weights)

    def test_weights_that_single_precision_rounds_to_zero_are_zero(self, rng):
        data, target = rng.normal(size=(80, 2)), rng.normal(size=80)
        kept = np.arange(80) < 60
        settings = {"method": DeepEnsemble(members=2), "epochs": 2, "random_state": 0}
        given = [BayesianRegressor(**settings).fit(data, target, np.where(kept, 1.0, small)).predict(data) for small in (0, 1e-41)]
        assert np.array_equal(*given)
        with pytest.raises(DataError, match="sample_weight must have a weight of at least 1e-37, got at most 1e-41"):
            BayesianRegressor(**settings).fit(data, target, np.full(80, 1e-41))

    def test_a_mean_far_from_one_is_told(self, rng):
        data, target = rng.normal(size=(80, 2)), rng.normal(size=80)
        model = BayesianRegressor(method="Deterministic", epochs=1, random_state=0)
        for weight, count in ((1 / 80, "1"), (1000.0, r"8e\+04")):
            with pytest.warns(BayesifyWarning, match=f"80 rows count like {count}. If weights are relative"):
                model.fit(data, target, np.full(80, weight))
        with warnings.catch_warnings():
            warnings.simplefilter("error", BayesifyWarning)
            model.fit(data, target, rng.uniform(0, 10, 80))

    @pytest.mark.parametrize("calibration", [{"conformal": True}, {"calibrate": "temperature"}])
    def test_calibration_has_no_weights(self, calibration):
        with pytest.raises(ValueError, match="sample_weight cannot be combined with"):
            BayesianClassifier(**calibration).fit([[0.0], [1.0]] * 30, [0, 1] * 30, sample_weight=np.ones(60))


class TestTables:
    def test_duplicate_names_are_refused(self, table):
        with pytest.raises(DataError, match="X has duplicate column names: 'size'; rename or drop them"):
            BayesianRegressor(**FAST).fit(pd.concat([table, table[["size"]]], axis=1), y)

    def test_columns_are_found_by_name(self, model, table):
        expected = model.predict(table)
        assert list(model.feature_names_in_) == list(table)
        np.testing.assert_array_equal(model.predict(table[table.columns[::-1]]), expected)
        np.testing.assert_array_equal(model.predict(table.drop(columns="id")), expected)
        with pytest.warns(UserWarning, match="ignored: 'price'"):
            np.testing.assert_array_equal(model.predict(table.assign(price=1)), expected)

    def test_bad_tables(self, model, table):
        with pytest.raises(ValueError, match="lacks columns of the training table: 'city'"):
            model.predict(table.drop(columns="city"))
        with pytest.raises(ValueError, match="column 'size' must be of kind 'number', got 'big' in row 1"):
            model.predict(table.assign(size=["1", "big"] * 40))
        with pytest.raises(ValueError, match="X has 0 sample"):
            model.predict(table.iloc[:0])

    def test_new_categories_and_missing_values(self, model, table):
        odd = table.head(3).assign(city=["Paris", None, "Bonn"], size=np.nan, garden=None)
        assert np.isfinite(model.predict(odd)).all()

    def test_integer_column_names(self):
        frame = pd.DataFrame(X)
        model = BayesianRegressor(**FAST).fit(frame, y)
        np.testing.assert_array_equal(model.predict(frame[[2, 0, 1]]), model.predict(frame))

    def test_huge_numbers(self):
        spike = np.zeros((80, 1))
        spike[5] = 1e300
        with pytest.raises(ValueError, match="column 'x0' is beyond 1e\\+100 in 1 of 80 rows"):
            BayesianRegressor(**FAST).fit(spike, y)
        spike[5] = 1  # quartiles are equal, so that nothing is clipped
        model = BayesianRegressor(**FAST).fit(spike, y)
        with pytest.raises(ValueError, match="too far from those in training"):
            model.predict([[1e99]])

    def test_missing_in_arrays(self, rng, regressor):
        holes = np.where(rng.random(X.shape) < 0.2, np.nan, X)
        assert np.isfinite(BayesianRegressor(**FAST).fit(holes, y).predict(holes)).all()
        with pytest.raises(ValueError, match="infinity"):
            regressor.predict(np.full((1, 3), np.inf))

    @pytest.mark.parametrize("estimator", [BayesianRegressor(), BayesianClassifier()], ids=["regressor", "classifier"])
    def test_not_fitted(self, estimator):
        for name in ("predict", "predictive"):
            with pytest.raises(NotFittedError):
                getattr(estimator, name)(X)
        with pytest.raises(NotFittedError):
            estimator.log_score(X, y)


class TestRealData:
    """Good out of the box: the default must beat the linear model, with honest uncertainties."""

    def test_diabetes(self):
        data, target = load_diabetes(return_X_y=True)
        train, test, y_train, y_test = train_test_split(data, target, random_state=0)
        model = BayesianRegressor(random_state=0).fit(train, y_train)
        linear = LinearRegression().fit(train, y_train)
        residuals = y_train - linear.predict(train)
        reference = stats.norm.logpdf(y_test, linear.predict(test), residuals.std()).mean()
        trivial = stats.norm.logpdf(y_test, y_train.mean(), y_train.std()).mean()
        assert model.log_score(test, y_test) - trivial > 0.5 * (reference - trivial) > 0.1
        lower, upper = model.predict_interval(test, 0.9).T
        assert 0.8 < ((lower <= y_test) & (y_test <= upper)).mean() < 0.98

    @pytest.mark.default("iris", extended=[])
    @pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer], ids=["iris", "wine", "breast-cancer"])
    def test_classes(self, load):
        data, target = load(return_X_y=True)
        train, test, y_train, y_test = train_test_split(data, target, random_state=0, stratify=target)
        model = BayesianClassifier(random_state=0).fit(train, y_train)
        linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, y_train)
        assert model.score(test, y_test) > 0.9
        assert -model.log_score(test, y_test) < log_loss(y_test, linear.predict_proba(test)) + 0.1

    def test_deterministic_is_a_method_too(self):
        data, target = load_iris(return_X_y=True)
        model = BayesianClassifier(method=Deterministic(), random_state=0, epochs=30, samples=2).fit(data, target)
        assert model.predictive(data).epistemic.max() < 1e-6

    @pytest.mark.slow
    @pytest.mark.skipif("BAYESIFY_DATA" not in os.environ, reason="set BAYESIFY_DATA to the folder of the benchmark data")
    @pytest.mark.parametrize("folder", ["uci", "uci-class"])
    def test_every_benchmark_set_trains_unattended(self, folder):
        for path in sorted((Path(os.environ["BAYESIFY_DATA"]) / folder).glob("*.npz")):
            data = np.load(path)
            X, y = data["X"], data["y"]
            order = np.random.RandomState(0).permutation(len(X))
            train, test = np.split(order, [int(0.9 * len(order))])
            if folder == "uci":
                model, trivial = (
                    BayesianRegressor(random_state=0),
                    stats.norm.logpdf(y[test], y[train].mean(), y[train].std()).mean(),
                )
            else:
                model, trivial = BayesianClassifier(random_state=0), -np.log(len(np.unique(y)))
            model.fit(X[train], y[train])
            assert model.log_score(X[test], y[test]) > trivial + 0.3, path.name
            assert model.score(X[test], y[test]) > 0.5, path.name


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_weight_of_the_kl_rises_over_half_of_training_unless_given(kind):
    model = kind(method="MeanField", **FAST | {"epochs": 8}).fit(X, labels if kind is BayesianClassifier else y)
    weights = np.array(model.history_.beta)
    assert weights[0] < 0.25 * model.default_beta  # the mean over the first of four epochs of warm-up
    assert (np.diff(weights)[:3] > 0).all()
    np.testing.assert_allclose(weights[4:], model.default_beta)
    assert kind(method="MeanField", beta=0.7).beta_in_use() == 0.7


def test_the_validation_fraction_is_held_out_and_the_rest_is_trained_on():
    model = BayesianRegressor(method="MeanField", validation_fraction=0.2, **FAST).fit(X, y)
    assert model.history_.n == 64  # of 80 rows


def test_parameters_that_are_numbers_of_numpy(tmp_path):
    """As from `np.arange` in a search of parameters."""
    plain = {"epochs": 3, "batch_size": 16, "learning_rate": 0.5, "samples": 4, "hidden": (4,), "random_state": 0}
    numpy = {"epochs": np.int64(3), "batch_size": np.int32(16), "learning_rate": np.float32(0.5), "samples": np.int16(4)}
    numpy |= {"hidden": (np.int64(4),), "random_state": np.int64(0)}
    expected = BayesianRegressor(method=MeanField(prior_std=0.5), **plain).fit(X, y)
    model = BayesianRegressor(method=MeanField(prior_std=np.float32(0.5)), **numpy)
    for _ in range(2):  # the second time from the checkpoint
        model.fit(X, y, checkpoint=tmp_path / "run")
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    save_model(model, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X), expected.predict(X))
    conformal = BayesianRegressor(method=MCDropout(p=np.float32(0.25)), **numpy, conformal=True).fit(X, y)
    assert conformal.predict_interval(X, np.float32(0.5)).shape == (80, 2)

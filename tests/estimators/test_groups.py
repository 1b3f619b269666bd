"""Rows of a group stay together wherever estimators divide rows."""

import warnings

import pytest
import torch

pytest.importorskip("sklearn")
np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")

from sklearn.model_selection import GroupKFold

from bayesify import DeepEnsemble
from bayesify.errors import BayesifyWarning, CheckpointError, ConfigurationError, DataError
from bayesify.estimators import BayesianClassifier, BayesianRegressor, cross_validate
from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.groups import group_codes, with_known_classes
from bayesify.estimators.stacking import _splits
from bayesify.persistence import load_model, save_model

QUICK = {"method": DeepEnsemble(members=2), "epochs": 2, "hidden": (8,), "random_state": 0, "progress": False}


def table(groups=60, rows=20, seed=0):
    """Inputs of which all but one are those of the group, targets with a strong effect of the group, and groups."""
    random = np.random.default_rng(seed)
    of = np.repeat(np.arange(groups), rows)
    X = np.c_[random.normal(size=(groups, 3))[of], random.normal(size=len(of))]
    return X, random.normal(size=groups)[of] + X[:, 3] + 0.2 * random.normal(size=len(of)), of


def disjoint(first, second):
    return len(first) > 0 and len(second) > 0 and not set(np.asarray(first).tolist()) & set(np.asarray(second).tolist())


def test_intervals_of_new_groups_are_no_longer_far_too_narrow():
    X, y, groups = table(50, 16)
    new = groups >= 34
    coverage, nll = {}, {}
    for given in (False, True):
        model = BayesianRegressor(method=DeepEnsemble(members=4), epochs=40, patience=10, random_state=0, progress=False)
        model.fit(X[~new], y[~new], groups=groups[~new] if given else None)
        low, high = model.predict_interval(X[new]).T
        coverage[given], nll[given] = np.mean((low <= y[new]) & (y[new] <= high)), -model.log_score(X[new], y[new])
    assert coverage[False] < 0.5  # 0.31 when this was written
    assert coverage[True] > 0.75  # 0.89
    assert nll[True] < nll[False] - 2  # 1.5 and 7.8


@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_common_validation_rows_are_whole_groups(rows, fraction):
    X, y, groups = table(12, rows)
    model = BayesianRegressor(**QUICK | {"method": "Deterministic"}, validation_fraction=fraction)
    training, _ = model._prepare(X, y, None, [f"g{group}" for group in groups])
    order = dict(zip(model._training_target(y).flatten().tolist(), groups, strict=True))
    assert training.groups is None
    train, held_out = ([order[value] for value in data[1].flatten().tolist()] for data in (training.data, training.validation))
    assert disjoint(train, held_out)
    assert len(train) + len(held_out) == 12 * rows
    assert abs(len(held_out) - fraction * 12 * rows) <= rows


def test_rows_without_weight_leave_groups_at_their_rows():
    X, y, groups = table(12, 4)
    weights = np.arange(48) % 3
    training, _ = BayesianRegressor(**QUICK)._prepare(X, y, weights, groups)
    assert training.validation == "folds"
    expected, _ = pd.factorize(groups)
    np.testing.assert_array_equal(training.groups, expected[weights > 0])


@pytest.mark.parametrize("conformal", [True, "cross"])
@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_calibration_rows_are_whole_groups(conformal, kind, monkeypatch):
    X, y, groups = table(40, 5)
    X = np.c_[X, groups]
    seen = []
    prepare = BayesianEstimator._prepare

    def spy(self, X, *rows):
        training, settings = prepare(self, X, *rows)
        seen.append((self, np.asarray(X)[:, -1], training.groups))
        return training, settings

    monkeypatch.setattr(BayesianEstimator, "_prepare", spy)
    calibrated = []
    predictive = kind.predictive
    monkeypatch.setattr(kind, "predictive", lambda self, X: calibrated.append((self, X[:, -1])) or predictive(self, X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)  # of few groups
        model = kind(**QUICK, conformal=conformal).fit(X, y if kind is BayesianRegressor else y > 0, groups=groups)
    assert model.conformal_.groups == (40 if conformal == "cross" else 8)
    assert len(calibrated) == (5 if conformal == "cross" else 1)
    for model, held_out in calibrated:
        ((given, codes),) = [(given, codes) for other, given, codes in seen if other is model]
        trained = given if conformal == "cross" else np.setdiff1d(given, held_out)
        assert disjoint(trained, held_out)
        assert len(codes) == sum(np.isin(groups, trained))
    if conformal == "cross":
        np.testing.assert_array_equal(np.sort(np.concatenate([held_out for _, held_out in calibrated])), groups)


@pytest.mark.parametrize("conformal", [True, "cross"])
def test_groups_calibrate_by_their_number_whatever_their_rows(conformal):
    """A fifth of the groups, also if few of them have most rows, and equal numbers of groups in folds."""
    sizes = np.where(np.arange(100) < 12, 400, 5)
    groups = np.repeat(np.random.default_rng(0).permutation(100), sizes)
    X = np.random.default_rng(1).normal(size=(len(groups), 2))
    options = QUICK | {"method": "Deterministic", "epochs": 1, "hidden": (2,)}
    model = BayesianRegressor(**options, conformal=conformal).fit(X, X[:, 0], groups=groups)
    assert [round(float(w.sum())) for w in model.conformal_.weights] == ([20] * 5 if conformal == "cross" else [20])
    assert "every group counts alike" in model.conformal_.guarantee(0.95)


def test_too_few_groups_for_a_level_are_named_with_the_way_out(tmp_path):
    X, y, groups = table(40, 20)
    options = QUICK | {"method": "Deterministic", "epochs": 1}
    with pytest.warns(
        BayesifyWarning, match="8 of 40 groups, .* 0.889; level 0.95 needs 19: conformal='cross' calibrates with all"
    ):
        model = BayesianRegressor(**options, conformal=True).fit(X, y, groups=groups)
    assert np.isfinite(model.predict_interval(X, 0.8)).all()
    with pytest.raises(ConfigurationError, match=r"level=0.95 needs at least 19 calibration groups, got 8"):
        model.predict_interval(X)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.conformal_.groups == 8
    np.testing.assert_array_equal(loaded.predict_interval(X, 0.8), model.predict_interval(X, 0.8))
    few = groups < 12
    with pytest.warns(BayesifyWarning, match="'cross' calibrates with 12 of 12 groups, .* level 0.95 needs 19: add groups"):
        BayesianRegressor(**options, conformal="cross").fit(X[few], y[few], groups=groups[few])


@pytest.mark.parametrize("calibrate", ["temperature", "isotonic"])
def test_probabilities_are_calibrated_on_whole_groups(calibrate):
    X, y, groups = table(20, 5)
    model = BayesianClassifier(**QUICK, calibrate=calibrate)
    model.seed_ = 0
    model._keep_for_calibration(None)
    _, _, trained = model._hold_out(pd.DataFrame(X), y > 0, torch.from_numpy(groups))
    *_, (rows,) = model._kept
    assert disjoint(trained, groups[rows])
    assert len(trained) + len(rows) == 100
    assert model.fit(X, y > 0, groups=groups).predict_proba(X).shape == (100, 2)


@pytest.mark.parametrize("rows", [5, 80])
def test_stacking_holds_out_whole_groups(rows):
    groups = torch.arange(20).repeat_interleave(rows)
    target = (torch.arange(20 * rows) % 3).long()
    target[groups == 7] = 3  # a class of one group alone
    splits = _splits(target, 0, groups)
    assert len(splits) == (5 if rows == 5 else 1)
    for kept, held_out in splits:
        assert disjoint(groups[kept], groups[held_out])
        assert 7 in groups[kept]
        assert len(kept) + len(held_out) == 20 * rows
    assert len(_splits(target.float(), 0, groups)) == len(splits)


def test_models_of_auto_are_trained_by_groups(monkeypatch):
    X, y, groups = table(6, 4)
    monkeypatch.setattr(BayesianRegressor, "portfolio", {"one": {"method": "Deterministic"}, "other": {"method": "MCDropout"}})
    seen = []
    prepare = BayesianEstimator._prepare
    monkeypatch.setattr(BayesianEstimator, "_prepare", lambda self, *rows: seen.append(rows) or prepare(self, *rows))
    BayesianRegressor(**QUICK | {"method": "auto", "epochs": 1}).fit(X, y, groups=groups)
    assert len(seen) == 2 * 6
    place = {tuple(row): group for row, group in zip(X.tolist(), groups, strict=True)}
    for given, _, _, codes in seen:
        of = [place[tuple(row)] for row in np.asarray(given).tolist()]
        assert len(set(zip(of, codes.tolist(), strict=True))) == len(set(of)) == len(set(codes.tolist()))


def test_folds_of_cross_validation_pass_their_groups_on(monkeypatch):
    X, y, groups = table(12, 4)
    labels = np.array([f"g{group}" for group in groups])
    seen = []
    prepare = BayesianEstimator._prepare
    monkeypatch.setattr(BayesianEstimator, "_prepare", lambda self, *rows: seen.append(rows) or prepare(self, *rows))
    result = cross_validate(BayesianRegressor(**QUICK), X, y, cv=GroupKFold(3), groups=labels, progress=False)
    for (_, _, _, given), rows in zip(seen, result.rows, strict=True):
        assert list(given) == list(np.delete(labels, rows))
        assert disjoint(given, labels[rows])


def test_any_labels():
    for labels in (["a", "b", "a"], [("x", 1), ("x", 2), ("x", 1)], np.array([1.5, 2, 1.5]), pd.Series([7, 3, 7], index=[0, 0, 0])):
        assert group_codes(labels).tolist() == [0, 1, 0]
    assert group_codes(pd.Categorical(["b", "a", "b"])).tolist() == group_codes([1, "1", 1]).tolist() == [0, 1, 0]


def test_a_group_with_all_rows_of_a_class_is_not_held_out():
    target, groups = torch.tensor([0, 0, 1, 0, 1, 2]), torch.tensor([0, 0, 1, 1, 2, 2])
    held_out = with_known_classes(torch.tensor([True, True, False, False, True, True]), target, groups)
    assert held_out.tolist() == [True, True, False, False, False, False]


def test_errors():
    X, y, groups = table(10, 3)
    model = BayesianRegressor(**QUICK)
    labels = [f"g{group}" for group in groups]
    for missing in (None, np.nan):
        with pytest.raises(DataError, match="groups has no label in 2 rows, first in row 4; drop these rows"):
            model.fit(X, y, groups=[missing if row in (4, 8) else label for row, label in enumerate(labels)])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y, groups=labels[1:])
    with pytest.raises(DataError, match=r"groups must be one-dimensional, a label per row, got shape \(30, 1\)"):
        model.fit(X, y, groups=groups[:, None])
    with pytest.raises(TypeError, match="groups must have labels that can be compared"):
        model.fit(X, y, groups=[[label] for label in labels])
    for options in ({"validation_fraction": 0.2, "method": "Deterministic"}, {"conformal": True}, {"method": "auto"}):
        with pytest.raises(DataError, match="groups has a single group in the 30 rows to divide"):
            BayesianRegressor(**QUICK | options).fit(X, y, groups=["one"] * 30)
    with pytest.raises(
        DataError, match="conformal='cross' needs rows of each class in two folds of groups, and 1 have them in one"
    ):
        BayesianClassifier(**QUICK, conformal="cross").fit(X, np.where(groups == 3, "c", np.where(y > 0, "a", "b")), groups=groups)


def test_a_checkpoint_of_other_groups_is_refused(tmp_path):
    X, y, groups = table(16, 4)
    model = BayesianRegressor(**QUICK)
    first = model.fit(X, y, groups=groups, checkpoint=tmp_path / "c").predict(X)
    np.testing.assert_array_equal(model.fit(X, y, groups=groups, checkpoint=tmp_path / "c").predict(X), first)
    for other in (None, np.arange(64) % 16):
        with pytest.raises(CheckpointError, match="checksum of data"):
            model.fit(X, y, groups=other, checkpoint=tmp_path / "c")

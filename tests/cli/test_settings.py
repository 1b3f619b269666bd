"""Parts of the command line: --set, the split into training and test rows, CSV text."""

from collections.abc import Sequence

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from bayesify import Method
from bayesify.cli import settings
from bayesify.cli.files import to_csv
from bayesify.cli.splits import split_rows
from bayesify.cli.terminal import UsageError
from bayesify.cli.training import ESTIMATORS, make_estimator
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.methods import VIFO, MeanField
from bayesify.objectives import KLSchedule, LinearWarmup


def test_conformal_cross_says_how_to_be_conformal():
    def made(*settings):
        return make_estimator("regression", "MCDropout", settings, 0, None, True, conformal=True).conformal

    assert (made(), made("conformal=cross"), made("conformal=true")) == (True, "cross", True)


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_settings_have_one_meaning(kind):
    ours = set(settings.estimator_fields(kind))
    for name, method in Method.registry.items():
        assert not ours & set(settings.method_fields(method)), name


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("3", int, 3), ("0.5", float | None, 0.5), ("none", float | None, None), ("no", bool, False), ("True", bool, True),
     ("relu", str, "relu"), ("64,32", Sequence[int], (64, 32)), ("(8,)", Sequence[int], (8,)), ("", Sequence[int], ()),
     ("low, high", bool | Sequence[str], ("low", "high")),
     ("0.5,0.5", tuple[float, ...] | None, (0.5, 0.5)), ("vifo", Method | None, VIFO()),
     ("2", float | KLSchedule, 2.0), ("linearwarmup", float | KLSchedule, LinearWarmup())],
)  # fmt: skip
def test_conversion(text, kind, value):
    assert settings.convert("name", text, kind) == value
    assert type(settings.convert("name", text, kind)) is type(value)


@pytest.mark.parametrize(("text", "kind"), [("1.5", int), ("maybe", bool), ("x", float | None), ("1,a", Sequence[int])])
def test_conversion_refuses(text, kind):
    with pytest.raises(UsageError, match="--set name must be"):
        settings.convert("name", text, kind)


def test_every_field_of_every_method_can_be_set():
    for method in Method.registry.values():
        for name, kind in settings.method_fields(method).items():
            default = getattr(method(), name)
            text = "none" if default is None else str(default)
            assert settings.convert(name, text, kind) == default


def test_a_type_error_of_a_method_names_the_option(monkeypatch):
    def check(self):
        if self.prior_std == 2:
            raise TypeError("prior_std must be another type")

    monkeypatch.setattr(MeanField, "__post_init__", check)
    with pytest.raises(UsageError, match="--set prior_std: prior_std must be another type"):
        make_estimator("regression", "MeanField", ["prior_std=2"], seed=0, epochs=None, quiet=True)


@pytest.mark.parametrize("calibrate", ["temperature", "vector", "isotonic", "histogram"])
def test_calibration_of_probabilities_can_be_set(calibrate):
    estimator = make_estimator("classification", "MeanField", [f"calibrate={calibrate}"], seed=0, epochs=1, quiet=True)
    assert estimator.calibrate == calibrate


def test_split_is_random_repeatable_and_in_proportion():
    y = pd.Series(["a"] * 90 + ["b"] * 10)
    train, test = split_rows(y, 0.2, 0, "classification")
    assert sorted([*train, *test]) == list(range(100))
    assert y.iloc[test].value_counts().to_dict() == {"a": 18, "b": 2}
    assert split_rows(y, 0.2, 0, "classification")[1].tolist() == test.tolist()
    assert split_rows(y, 0.2, 1, "classification")[1].tolist() != test.tolist()
    rare = pd.Series([f"class {i // 2}" for i in range(20)])  # two rows each: one stays to learn from
    assert rare.iloc[split_rows(rare, 0.2, 0, "classification")[0]].nunique() == 10
    chosen = np.concatenate([split_rows(pd.Series(range(50)), 0.2, seed, "regression")[1] for seed in range(200)])
    assert np.bincount(chosen, minlength=50).std() < 10  # every row has the same chance: 40 of 200, give or take 5.7


def test_csv_keeps_an_index_that_means_something():
    table = pd.DataFrame({"a": [1, 2]})
    assert to_csv(table) == "a\n1\n2\n"
    assert to_csv(table.set_axis(["x", "y"])) == ",a\nx,1\ny,2\n"


def test_a_name_takes_what_suits_tables_and_settings_come_first():
    for task, kind in ESTIMATORS.items():
        recipe = kind.recipe("VSD")
        estimator = make_estimator(task, "vsd", ["transforms=1"], seed=0, epochs=3, quiet=True)
        assert estimator.method == recipe.method.replace(transforms=1)
        assert estimator.beta_in_use() == LinearWarmup(beta=recipe.beta, fraction=0.5)
        assert make_estimator(task, "vsd", ["beta=0.7"], seed=0, epochs=3, quiet=True).beta_in_use() == 0.7


def test_class_weight_is_balanced_or_none():
    kind = settings.estimator_fields(BayesianClassifier)["class_weight"]
    assert settings.convert("class_weight", "balanced", kind) == "balanced"
    assert settings.convert("class_weight", "none", kind) is None
    with pytest.raises(UsageError, match=r"--set class_weight must be balanced or none, got 'rare:5'"):
        settings.convert("class_weight", "rare:5", kind)

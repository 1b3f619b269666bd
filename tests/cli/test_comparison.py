"""`bayesify fit --compare`, and `--method auto`."""

import pytest

pytest.importorskip("typer")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from command_line import run

from bayesify import MeanField
from bayesify.cli import comparison, evaluation
from bayesify.cli.comparison import methods_to_compare
from bayesify.cli.splits import Split
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.estimators.recipes import Recipe, TrainingSettings


def test_the_methods_and_baselines_are_in_the_table_and_in_the_report(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90)})
    table.assign(y=table["a"] + 0.1 * rng.normal(size=90)).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setitem(BayesianRegressor.recipes, MeanField, Recipe(MeanField(), 1.0, TrainingSettings(hidden=(4,), steps=20)))
    own = ("--method", "MCDropout", "--epochs", "2", "--set", "hidden=4", "--out", tmp_path / "m")
    shown = run("fit", tmp_path / "t.csv", "--target", "y", *own, "--compare", "MeanField,mcdropout").output
    for name in ("MCDropout (the model)", "MeanField", "ridge regression", "gradient boosting"):
        assert name in shown
    page = (tmp_path / "m" / "report.html").read_text()
    assert "Comparison of methods" in page
    assert "MCDropout (the model)" in page


def test_the_others_train_for_the_chosen_epochs(monkeypatch):
    rng = np.random.default_rng(0)
    features = pd.DataFrame({"a": rng.normal(size=40)})
    rows = Split(features, features["a"], features, features["a"], "the same rows", np.arange(len(features)))
    seen = []
    monkeypatch.setattr(
        comparison, "assess_estimator", lambda other, *rows: [seen.append(len(other.history_)), assess(other, *rows)][1]
    )
    assess = evaluation.assess_estimator
    monkeypatch.setitem(BayesianRegressor.recipes, MeanField, Recipe(MeanField(), 1.0, TrainingSettings(hidden=(4,), steps=20)))
    for epochs, expected in ((3, 3), (None, 10)):
        estimator = BayesianRegressor(method="MCDropout", epochs=epochs, random_state=0, progress=False)
        (line,) = comparison.train_others(["MeanField"], estimator, rows, None, quiet=True)
        assert (line["method"], seen.pop()) == ("MeanField", expected)


def test_the_methods_to_compare():
    assert methods_to_compare("vsd, MeanField,VSD", BayesianRegressor(method="MeanField")) == ["VSD"]
    every = methods_to_compare("all", BayesianClassifier())
    assert set(every) == {kind.__name__ for kind in BayesianClassifier.recipes} - {"DeepEnsemble"}
    with pytest.raises(ValueError, match="unknown method 'foo'"):
        methods_to_compare("foo", BayesianRegressor())


@pytest.mark.slow
def test_auto_within_a_time(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    table.assign(y=table["a"] + 0.1 * rng.normal(size=60)).to_csv(tmp_path / "t.csv", index=False)
    quick = {"method": "Deterministic", "hidden": (4,), "epochs": 5, "validation_fraction": 0.0}
    monkeypatch.setattr(BayesianRegressor, "portfolio", {"small": quick, "smaller": quick | {"hidden": (2,)}})
    fit = ("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", "--time", "60")
    shown = run(*fit, "--compare", "Deterministic", "--set", "likelihood=gaussian").output
    for text in ("model", "weight", "small", "smaller", "auto (the model)"):
        assert text in shown
    assert "auto: a mixture of the models" in (tmp_path / "m" / "report.html").read_text()
    assert run("predict", tmp_path / "m", tmp_path / "t.csv").output.startswith("mean,std,lower,upper")
    assert "--time is for --method auto, got --method VSD" in run(*fit, "--method", "VSD", "--overwrite", code=2).output
    assert "is of a single method" in run(*fit, "--set", "members=3", "--overwrite", code=2).output

"""VIFO and ensembles of it on tables: the estimators, the command line, model directories that hold data and no code."""

import json
import pickle
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("skops")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")

from typer.testing import CliRunner

from bayesify import VIFO, DeepEnsemble, Method
from bayesify.cli.app import app
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.persistence import load_model, save_model

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 3))
SCORE = X @ [1.0, -2.0, 0.5]
LABELS = np.where(SCORE + 0.1 * rng.normal(size=150) > 0, "high", "low")
Y = np.stack([SCORE, np.sin(X[:, 0])], 1) + 0.1 * rng.normal(size=(150, 2))
SETTINGS = {"hidden": (16,), "epochs": 60, "samples": 30, "random_state": 0}
METHODS = {
    "VIFO": VIFO(),
    "auxiliary": VIFO(regularizer="mean-variance", eta_aux=0.1),
    "data set": VIFO(regularizer="mean-all", separate_std=True),
    "ensemble": DeepEnsemble(members=3, base=VIFO(eta_aux=0.1)),
    "plain ensemble": DeepEnsemble(members=3),
}


def loaded(directory: Path) -> BayesianEstimator:
    """The model, where what could execute code fails."""

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model directory was unpickled")

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")]:
            patch.setattr(owner, name, fail)
        return load_model(directory)


@pytest.mark.default("VIFO", extended=["plain ensemble", "auxiliary", "data set"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_classes_are_learned_saved_and_loaded(method: Method, tmp_path) -> None:
    model = BayesianClassifier(method=method, **SETTINGS).fit(X, LABELS)
    assert model.score(X, LABELS) > 0.93
    save_model(model, tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "weights.safetensors", "preprocessing.skops"}
    again = loaded(tmp_path / "model")
    assert isinstance(again, BayesianClassifier)
    assert again.method == method
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_allclose(model.predict_proba(X[5:6])[0], model.predict_proba(X)[5], rtol=1e-12)


@pytest.mark.default("auxiliary-gaussian", extended=["auxiliary-heteroscedastic"])
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
@pytest.mark.parametrize("name", ["auxiliary", "ensemble"])
def test_several_targets_are_learned_saved_and_loaded(name: str, likelihood: str, tmp_path) -> None:
    model = BayesianRegressor(method=METHODS[name], likelihood=likelihood, **SETTINGS).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (150, 2)
    assert (np.sqrt(((mean - Y) ** 2).mean(0)) < 0.5 * Y.std(0)).all()
    save_model(model, tmp_path / "model")
    for ours, its in zip((mean, std), loaded(tmp_path / "model").predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(ours, its)


def test_auxiliary_inputs_make_estimators_doubt_strange_rows() -> None:
    far = 4 * X
    entropy = {
        eta_aux: BayesianClassifier(method=VIFO(eta_aux=eta_aux), **SETTINGS).fit(X, LABELS).predictive(far).entropy.mean()
        for eta_aux in (0.0, 1.0)
    }
    assert entropy[1.0] > 1.5 * entropy[0.0]


def test_fields_of_an_ensemble() -> None:
    model = BayesianClassifier(method=DeepEnsemble(members=3))
    assert model.get_params()["method__members"] == 3
    assert model.set_params(method__members=2, method__base=VIFO()).method == DeepEnsemble(members=2, base=VIFO())
    assert model.get_params()["method__base__eta"] == 0.1
    assert model.set_params(method__base__eta=0.5).method == DeepEnsemble(members=2, base=VIFO(eta=0.5))
    with pytest.raises(ValueError, match="VIFO has no field 'beta'; its fields are regularizer"):
        model.set_params(method__base__beta=1.0)
    with pytest.raises(ValueError, match="VIFO has no method in a field 'base'"):
        model.set_params(method=VIFO(), method__base__eta=0.5)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.default(extended=["VIFO, regression"])
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("kind", ["--method", "VIFO", "--set", "regularizer=mean-variance", "--set", "eta_aux=0.1"]),
        ("kind", ["--method", "DeepEnsemble", "--set", "members=2"]),
        ("y", ["--method", "DeepEnsemble", "--set", "members=2", "--set", "base=VIFO"]),
        ("y", ["--method", "VIFO", "--set", "likelihood=heteroscedastic"]),
    ],
    ids=["VIFO, classification", "DeepEnsemble, classification", "DeepEnsemble of VIFO, regression", "VIFO, regression"],
)
def test_the_command_line(target: str, options: list[str], tmp_path) -> None:
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(**{"kind": LABELS} if target == "kind" else {"y": Y[:, 0]})
    table.to_csv(tmp_path / "table.csv", index=False)
    model, out = tmp_path / "model", tmp_path / "out.csv"
    run("fit", tmp_path / "table.csv", "--target", target, "--out", model, "--epochs", 30, "--set", "hidden=16", *options)
    params = json.loads((model / "config.json").read_text())["params"]
    assert params["method"]["method"] == options[1]
    assert options[1] in (model / "report.html").read_text()
    run("predict", model, tmp_path / "table.csv", "--out", out, "--samples", 5)
    predictions = pd.read_csv(out)
    if target == "kind":
        assert (predictions["prediction"] == LABELS).mean() > 0.9
    else:
        assert np.sqrt(((predictions["mean"] - Y[:, 0]) ** 2).mean()) < 0.35 * Y[:, 0].std()
    assert "150" in run("evaluate", model, tmp_path / "table.csv")

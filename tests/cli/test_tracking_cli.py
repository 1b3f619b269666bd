"""`bayesify fit --track`: numbers, settings and the report in MLflow and TensorBoard; one run for an interrupted command."""

import json
import signal

import numpy as np
import pandas as pd
import pytest
from command_line import refuse, run
from tracked_runs import Recorded

from bayesify.estimators import BayesianRegressor
from bayesify.train import checkpoint

SMALL = {"method": "Deterministic", "hidden": (4,), "epochs": 3, "validation_fraction": 0.0}


@pytest.fixture
def fit(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x.sum(1)}).to_csv(tmp_path / "table.csv", index=False)
    return ["fit", tmp_path / "table.csv", "--target", "y", "--out", tmp_path / "houses", "--quiet"]


def _steps(found, name):
    return [step for step, _ in found.numbers[name]]


@pytest.mark.default("tensorboard", extended=[])
def test_a_run(fit, tmp_path, track):
    run(*fit, "--track", track, "--method", "MeanField", "--epochs", "3", "--set", "hidden=4")
    found = Recorded(track, "houses")
    assert _steps(found, "loss") == [1, 2, 3]
    assert found.files == {"report.html", "config.json"}
    assert found.status in (None, "FINISHED")
    assert found.settings["estimator/hidden"] == "(4,)"
    assert found.settings["epochs"] == "3"
    assert "environment/PyTorch" in found.facts
    metrics = json.loads((tmp_path / "houses" / "config.json").read_text())["metrics"]
    assert found.numbers["test/rmse"][0][1] == pytest.approx(metrics["rmse"], rel=1e-6)
    assert not list((tmp_path / "houses").glob("training.ckpt*"))


@pytest.mark.default(extended=["tensorboard"])
def test_an_interrupted_command_goes_on_in_its_run(fit, tmp_path, track, monkeypatch):
    write = checkpoint.write

    def write_and_interrupt(path, state):
        write(path, state)
        if len(state.get("history", {"loss": ()})["loss"]) == 2:
            signal.raise_signal(signal.SIGINT)

    options = ["--track", track, "--method", "MeanField", "--epochs", "4", "--set", "hidden=4"]
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write", write_and_interrupt)
            run(*fit, *options, code=130)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert Recorded(track, "houses").status in (None, "KILLED")
    run(*fit, *options)
    found = Recorded(track, "houses")
    assert _steps(found, "loss") == [1, 2, 3, 4]
    assert found.status in (None, "FINISHED")


@pytest.mark.slow
def test_auto(fit, track, monkeypatch):
    monkeypatch.setattr(BayesianRegressor, "portfolio", {"small, smooth": SMALL, "other": SMALL | {"activation": "tanh"}})
    run(*fit, "--track", track, "--method", "auto")
    found = Recorded(track, "houses")
    assert _steps(found, "small smooth/loss") == _steps(found, "other/loss") == [1, 2, 3]
    weights = [found.numbers[f"leaderboard/{name}/weight"][0][1] for name in ("small smooth", "other")]
    assert sum(weights) == pytest.approx(1)


@pytest.mark.default(extended=["tensorboard"])
def test_an_ensemble(fit, track):
    run(*fit, "--track", track, "--epochs", "2", "--set", "hidden=4", "--set", "members=2")
    assert _steps(Recorded(track, "houses"), "validation_nll") == [1, 2]


def test_what_cannot_be_tracked_leaves_nothing_behind(fit, tmp_path):
    refuse(*fit, "--track", "wandb", match="a run is tracked in 'mlflow', 'mlflow:URI'", files=tmp_path)
    (tmp_path / "file").write_text("")
    pytest.importorskip("tensorboard")
    refuse(*fit, "--track", f"tensorboard:{tmp_path}/file", match="is not possible", files=tmp_path)

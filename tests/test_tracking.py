"""Runs in MLflow and TensorBoard, read back with the libraries' own readers."""

import socket
import sys
from importlib import import_module

import pytest
import torch
from torch import nn
from tracked_runs import Recorded

from bayesify import DeepEnsemble, Gaussian, MeanField, bayesify
from bayesify.environment import environment
from bayesify.errors import BayesifyWarning, ConfigurationError, DivergenceError, MissingDependencyError, TrackingError
from bayesify.tracking import Run, open_run
from bayesify.train import fit, single_model

pytest.importorskip("lightning")


class StopError(Exception):
    pass


def train(epochs=4, method=None, data=None, **arguments):
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), method or MeanField(prior_std=0.7))
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
    return fit(bnn, data or (x, x[:, :1]), Gaussian(std=0.5), epochs=epochs, batch_size=10, accelerator="cpu", **arguments)


def check_numbers(found, history, names=("loss", "nll", "kl", "learning_rate", "seconds")):
    for name in names:
        steps, values = zip(*found.numbers[name], strict=True)
        assert steps == tuple(range(1, len(history) + 1))
        assert list(values) == pytest.approx(getattr(history, name), rel=1e-6)


def test_fit(track):
    history = train(loggers=[track], learning_rate=0.02)
    found = Recorded(track)
    check_numbers(found, history)
    assert found.settings["epochs"] == "4"
    assert found.settings["learning_rate"] == "0.02"
    assert found.settings["method/MeanField/prior_std"] == "0.7"
    assert found.facts["environment/PyTorch"] == environment()["PyTorch"]
    assert found.status in (None, "FINISHED")


@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_training_continues_its_run(track, tmp_path, monkeypatch, stop):
    straight = train()
    run_epoch = single_model._Loop._run_epoch

    def stopping(self, epoch):
        if epoch > stop:
            raise StopError
        return run_epoch(self, epoch)

    arguments = {"loggers": [track], "checkpoint": tmp_path / "run.ckpt"}
    with monkeypatch.context() as patch:
        patch.setattr(single_model._Loop, "_run_epoch", stopping)
        with pytest.raises(StopError):
            train(**arguments)
    assert Recorded(track).status in (None, "FAILED")
    history = train(**arguments, epochs=5)
    assert history.loss[:4] == straight.loss
    found = Recorded(track)
    check_numbers(found, history)  # every epoch once
    assert found.status in (None, "FINISHED")
    if found.status is not None:  # TensorBoard shows the settings of the first start
        assert found.facts["resumed/epochs"] == "5"


def test_epochs_that_a_killed_training_has_not_logged_are_added(track, tmp_path, monkeypatch):
    arguments = {"loggers": [track], "checkpoint": tmp_path / "run.ckpt"}
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", lambda self, values, step: None)
        train(**arguments, epochs=2)
    history = train(**arguments)
    check_numbers(Recorded(track), history)


def test_another_training_starts_another_run(track, tmp_path):
    path = tmp_path / "run.ckpt"
    train(loggers=[track], checkpoint=path)
    state = path.with_name("run.ckpt.tracking").read_bytes()
    train(loggers=[track], checkpoint=path, resume=False)
    assert path.with_name("run.ckpt.tracking").read_bytes() != state
    path.unlink()
    train(loggers=[track], checkpoint=path)
    assert path.with_name("run.ckpt.tracking").read_bytes() != state


def test_members_of_an_ensemble(track):
    history = train(method=DeepEnsemble(members=2), loggers=[track])
    check_numbers(Recorded(track), history)


def test_a_failed_training(track):
    x = torch.full((20, 2), 1e30)
    with pytest.raises(DivergenceError):
        train(loggers=[track], data=(x, x[:, :1]))
    assert Recorded(track).status in (None, "FAILED")


def test_loggers_of_lightning(tmp_path):
    pytest.importorskip("tensorboard")
    from lightning.fabric.loggers import CSVLogger, TensorBoardLogger

    history = train(loggers=[TensorBoardLogger(tmp_path / "logs", name="bayesify"), CSVLogger(tmp_path)])
    check_numbers(Recorded(f"tensorboard:{tmp_path}/logs"), history)


def test_files(track, tmp_path):
    (tmp_path / "report.md").write_text("# Report")
    run = open_run(track)
    run.configure({})
    run.add_file(tmp_path / "report.md")
    run.end()
    assert Recorded(track).files == {"report.md"}


def _closed_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def test_a_server_that_does_not_answer_is_an_error_before_training(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setattr(single_model._Loop, "run_epochs", lambda self: pytest.fail("training has started"))
    with pytest.raises(TrackingError, match=r"tracking in 'mlflow:http://127\.0\.0\.1:\d+' is not possible"):
        train(loggers=[f"mlflow:http://127.0.0.1:{_closed_port()}"])


def test_a_folder_that_cannot_be_written_is_an_error_before_training(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackingError, match="is not possible"):
        train(loggers=[f"tensorboard:{tmp_path}/file"])


def test_a_server_that_dies_is_one_warning_and_training_goes_on(track, monkeypatch):
    straight, log = train(), Run._log
    working = [True]

    def dying(self, values, step):
        working[0] = step < 2
        if not working[0]:
            raise ConnectionError("refused")
        log(self, values, step)

    monkeypatch.setattr(Run, "_log", dying)
    with pytest.warns(BayesifyWarning) as noticed:
        history = train(loggers=[track])
    assert [str(warning.message).partition(": refused")[0] for warning in noticed] == ["tracking has stopped"]
    assert history.loss == straight.loss
    assert [step for step, _ in Recorded(track).numbers["loss"]] == [1]


def test_a_server_that_comes_back_gets_what_is_missing(track, monkeypatch):
    log, calls = Run._log, []

    def failing_once(self, values, step):
        calls.append(step)
        if len(calls) == 2:
            raise ConnectionError("refused")
        log(self, values, step)

    monkeypatch.setattr(Run, "_log", failing_once)
    with pytest.warns(BayesifyWarning, match="tracking has stopped"):
        history = train(loggers=[track])
    found = Recorded(track)
    check_numbers(found, history)
    assert found.status in (None, "FINISHED")


@pytest.mark.parametrize("wrong", ["wandb", "mlflow:", "", "tensorboard:", 3, None])
def test_bad_values(wrong):
    with pytest.raises(ConfigurationError, match=r"loggers must be|a run is tracked in"):
        train(loggers=[wrong])


@pytest.mark.parametrize("kind", ["mlflow", "tensorboard"])
def test_a_library_that_is_not_installed(kind, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    module = "lightning.pytorch.loggers.mlflow" if kind == "mlflow" else "lightning.fabric.loggers.tensorboard"
    for name in ("_MLFLOW_AVAILABLE", "_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        if hasattr(import_module(module), name):
            monkeypatch.setattr(f"{module}.{name}", False)
    with pytest.raises(MissingDependencyError, match=r'pip install "bayesify\[tracking\]"'):
        train(loggers=[kind])

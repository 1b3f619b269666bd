"""Commands and functions that write files, on a full disk and in a read-only folder: one error, and the old files as before."""

import errno
import os
import tempfile

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
import sys
from pathlib import Path

import torch
from saved_models import FAST, X, contents, y
from torch import nn

from bayesify import Gaussian, MeanField, bayesify
from bayesify.errors import BayesifyError
from bayesify.estimators import BayesianRegressor
from bayesify.persistence import save_model
from bayesify.train import Training, fit_many

sys.path += [str(Path(__file__).parents[1] / "cli")]
from command_line import run

pytestmark = pytest.mark.slow

COMMANDS = {
    "predict to csv": ("predict", "m", "table.csv", "--out", "out.csv"),
    "predict to parquet": ("predict", "m", "table.csv", "--out", "out.parquet"),
    "evaluate with a report": ("evaluate", "m", "table.csv", "--report", "out.html"),
    "explain as a table": ("explain", "m", "table.csv", "--out", "out.csv"),
    "explain as a page": ("explain", "m", "table.csv", "--out", "out.html"),
    "fit with a report": ("fit", "table.csv", "--target", "price", "--out", "n", "--epochs", "1", "--quiet"),
}


@pytest.fixture(scope="module")
def model():
    return BayesianRegressor(**FAST).fit(X, y)


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    X.assign(price=y).to_csv("table.csv", index=False)
    save_model(model, "m", target="price")
    return tmp_path


def failing(patch, module, name, call, code):
    """Let the call-th use of a function fail, and all later ones; returns the list of uses."""
    function, calls = getattr(module, name), []

    def fail(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) >= call:
            raise OSError(code, os.strerror(code))
        return function(*arguments, **keywords)

    patch.setattr(module, name, fail)
    return calls


FAULTS = [(os, "fsync", errno.ENOSPC), (os, "replace", errno.EIO), (tempfile, "mkstemp", errno.EROFS)]


@pytest.mark.parametrize(("module", "name", "code"), FAULTS, ids=[name for _, name, _ in FAULTS])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands(folder, monkeypatch, command, module, name, code):
    arguments = COMMANDS[command]
    for old in ("out.csv", "out.parquet", "out.html"):
        (folder / old).write_text("old")
    before = contents(folder)
    with monkeypatch.context() as patch:
        calls = failing(patch, module, name, 1, code)
        result = run(*arguments, code=2)
    assert calls, "nothing was written"
    assert os.strerror(code) in " ".join(result.stderr.split())
    assert result.stderr.count("bayesify: ") == 1
    found = contents(folder)
    assert {path: found[path] for path in before} == before
    assert not [path for path in found if path.startswith(".")], "drafts are left"
    run(*arguments, *(["--overwrite"] if arguments[0] == "fit" else []))


@pytest.mark.parametrize(("module", "name", "code"), FAULTS, ids=[name for _, name, _ in FAULTS])
def test_checkpoints_of_many_models(tmp_path, monkeypatch, module, name, code):
    def train(**options):
        torch.manual_seed(0)
        data = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(20)
        models = [Training(bnn=bayesify(nn.Linear(3, 1), MeanField()), data=data, likelihood=Gaussian()) for _ in range(2)]
        fit_many(models, epochs=3, batch_size=10, accelerator="cpu", progress=False, **options)
        return [model.bnn.state_dict() for model in models]

    expected, failures = train(), 0
    for call in range(1, 20):
        path = tmp_path / f"{call}.ckpt"
        with monkeypatch.context() as patch:
            calls = failing(patch, module, name, call, code)
            try:
                train(checkpoint=path)
            except OSError as error:
                assert "could not be written" in str(error)  # noqa: PT017
                failures += 1
            else:
                assert len(calls) < call
                break
        assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
        for state, wanted in zip(train(checkpoint=path), expected, strict=True):
            assert all(torch.equal(value, wanted[key]) for key, value in state.items())
    assert failures > 1


@pytest.mark.parametrize(("module", "name", "code"), FAULTS, ids=[name for _, name, _ in FAULTS])
def test_posteriors_of_pretrained_networks(tmp_path, monkeypatch, module, name, code):
    """A save that fails leaves a folder that is refused, never one that mixes two models."""
    pytest.importorskip("transformers")
    from bayesify.integrations.pretrained import from_pretrained, save_pretrained

    def network(seed):
        torch.manual_seed(seed)
        return bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), MeanField())

    for call in (1, 2):
        save_pretrained(network(0), tmp_path / "p")
        with monkeypatch.context() as patch:
            failing(patch, module, name, call, code)
            with pytest.raises(OSError, match=os.strerror(code)):
                save_pretrained(network(1), tmp_path / "p")
        with pytest.raises((BayesifyError, OSError)):
            from_pretrained(tmp_path / "p", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        save_pretrained(network(1), tmp_path / "p")
        loaded = from_pretrained(tmp_path / "p", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        bnn = loaded[0] if isinstance(loaded, tuple) else loaded
        assert all(torch.equal(value, network(1).state_dict()[key]) for key, value in bnn.state_dict().items())

"""A write that fails at any moment: one error that says what is intact, the old files unchanged, and no drafts left."""

import errno
import os
import warnings

import pytest
import torch
from saved_models import FAST, X, contents, y
from torch import nn

from bayesify import Gaussian, MeanField, bayesify
from bayesify.errors import CheckpointError
from bayesify.estimators import BayesianRegressor
from bayesify.files import write_atomically
from bayesify.persistence import load_model, save_model
from bayesify.train import fit

pytestmark = pytest.mark.slow
FAULTS = [errno.ENOSPC, errno.EROFS, errno.EIO]
CALLS = ["fsync", "replace", "mkdir"]


def failing(monkeypatch, name, call, code):
    """Let the call-th use of a function of `os` fail, and all later ones of a full disk; returns the number of uses."""
    function, calls = getattr(os, name), []

    def fail(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) >= call and not str(arguments[0]).endswith(".old"):
            raise OSError(code, os.strerror(code))
        return function(*arguments, **keywords)

    monkeypatch.setattr(os, name, fail)
    return calls


@pytest.fixture(scope="module")
def models():
    return [BayesianRegressor(**FAST | {"epochs": epochs}).fit(X, y) for epochs in (1, 2)]


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("name", CALLS)
def test_saving(tmp_path, monkeypatch, models, name, code):
    save_model(models[0], tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    before, failures = contents(tmp_path), 0
    for call in range(1, 20):
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            calls = failing(patch, name, call, code)
            try:
                save_model(models[1], tmp_path / "m")
            except OSError as error:
                assert "the directory is unchanged" in str(error)  # noqa: PT017
                failures += 1
            else:
                break
        assert contents(tmp_path) == before
    assert failures > 0
    assert load_model(tmp_path / "m").history_ == models[1].history_
    (notes,) = tmp_path.rglob("notes.txt")  # of the user
    if len(calls) < call:
        assert notes.parent.name == "m"
    else:  # the last write failed, after the directory had been replaced
        assert f"files in {notes.parent} could not be moved back" in str(noticed[-1].message)


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_checkpoints(tmp_path, monkeypatch, name, code):
    def train(**arguments):
        torch.manual_seed(0)
        bnn = bayesify(nn.Linear(3, 1), MeanField())
        data = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(20)
        fit(bnn, data, Gaussian(), epochs=3, batch_size=10, accelerator="cpu", **arguments)
        return bnn.state_dict()

    expected = train()
    for call in range(1, 20):
        path = tmp_path / f"{call}.ckpt"
        with monkeypatch.context() as patch:
            calls = failing(patch, name, call, code)
            try:
                train(checkpoint=path)
            except OSError as error:
                assert "could not be written" in str(error)  # noqa: PT017
            else:
                assert len(calls) < call
                break
        assert {file.name for file in tmp_path.iterdir() if file.name.startswith(".")} == set()
        resumed = train(checkpoint=path)
        assert all(torch.equal(resumed[key], value) for key, value in expected.items())
    assert call > 3


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_single_files(tmp_path, monkeypatch, name, code):
    write_atomically(tmp_path / "a", b"old")
    failing(monkeypatch, name, 1, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        write_atomically(tmp_path / "a", b"new")
    assert contents(tmp_path) == {"a": b"old"}


def test_damaged_checkpoints_are_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    data = torch.randn(20, 3), torch.zeros(20)
    fit(bayesify(nn.Linear(3, 1), MeanField()), data, Gaussian(), epochs=1, accelerator="cpu", checkpoint=path)
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        end = int(torch.randint(len(content), (), generator=generator))
        path.write_bytes(content[:end])
        with pytest.raises(CheckpointError, match=r"a\.ckpt: the file is (damaged|not a checkpoint)"):
            fit(bayesify(nn.Linear(3, 1), MeanField()), data, Gaussian(), epochs=2, accelerator="cpu", checkpoint=path)
        assert path.read_bytes() == content[:end]

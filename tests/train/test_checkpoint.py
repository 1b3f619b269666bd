"""Interrupted runs end exactly where uninterrupted ones do; files that are damaged, foreign or cannot be written are refused."""

import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesify import LinearWarmup, MeanField, bayesify
from bayesify.errors import CheckpointError
from bayesify.likelihoods import Gaussian
from bayesify.native import switch
from bayesify.train import fit
from bayesify.train.checkpoint import read, write


class StopError(Exception):
    pass


def raise_stop():
    raise StopError


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 3, generator=generator)
    return x, x.sum(1) + 0.1 * torch.randn(50, generator=generator)


def model():
    torch.manual_seed(3)
    layers = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1)
    return bayesify(nn.Sequential(*layers), MeanField()), Gaussian(std=0.5, learn=True)


def run(bnn, likelihood, stop_after=None, source=None, stop=None, **arguments):
    x, y = data()

    def interrupt(record):
        if record["epoch"] == stop_after:
            (stop or raise_stop)()

    settings = {
        "epochs": 8, "batch_size": 16, "validation": (x[40:], y[40:]), "learning_rate": 0.02, "seed": 5, "accelerator": "cpu",
        "scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5), "beta": LinearWarmup(),
    }  # fmt: skip
    return fit(bnn, source or (x[:40], y[:40]), likelihood, loggers=[interrupt], **{**settings, **arguments})


def assert_same(one, other):
    (net, likelihood, history), (net2, likelihood2, history2) = one, other
    for a, b in zip(
        [*net.state_dict().values(), *likelihood.state_dict().values()],
        [*net2.state_dict().values(), *likelihood2.state_dict().values()],
        strict=True,
    ):
        assert torch.equal(a, b)
    assert {**history.to_dict(), "seconds": 0} == {**history2.to_dict(), "seconds": 0}


def interrupted(path, stop_after, **arguments):
    """One run that stops after an epoch and another, from fresh objects, that goes on."""
    with pytest.raises(StopError):
        run(*model(), stop_after=stop_after, checkpoint=path, **arguments)
    bnn, likelihood = model()
    torch.manual_seed(77)  # the state of the world does not matter
    return bnn, likelihood, run(bnn, likelihood, checkpoint=path, **arguments)


def uninterrupted(**arguments):
    bnn, likelihood = model()
    return bnn, likelihood, run(bnn, likelihood, **arguments)


VARIANTS = {
    "everything": {},
    "few checkpoints": {"checkpoint_every": 3},
    "SGD with momentum": {"optimizer": partial(torch.optim.SGD, lr=0.01, momentum=0.9), "scheduler": None},
    "bfloat16": {"precision": "bf16-mixed", "clip_norm": 1.0},
    "plateau": {"scheduler": partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0)},
    "milestones": {"scheduler": partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2, 5])},
    "accumulate": {"accumulate": 2, "samples": 2},
    "no validation": {"validation": None},
}


@pytest.mark.default("everything-*", "accumulate-5")
@pytest.mark.parametrize("stop_after", [1, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resuming_is_exact(tmp_path, variant, stop_after):
    assert_same(uninterrupted(**VARIANTS[variant]), interrupted(tmp_path / "run.ckpt", stop_after, **VARIANTS[variant]))


def test_resuming_in_mixed_precision_without_kernels_is_exact(tmp_path):
    """As on a GPU: the first pass of a run, before which the network is examined, computes as the others."""
    switch.use_native(False)
    settings = VARIANTS["bfloat16"]
    assert_same(uninterrupted(**settings), interrupted(tmp_path / "run.ckpt", 3, **settings))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_resuming_on_a_gpu_is_exact(tmp_path, precision):
    settings = {"accelerator": "cuda", "precision": precision, "clip_norm": 1.0}
    assert_same(uninterrupted(**settings), interrupted(tmp_path / "run.ckpt", 3, **settings))


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_resuming_a_shuffling_loader_is_exact(tmp_path, generator):
    x, y = data()

    def loader():
        return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=generator)

    assert_same(uninterrupted(source=loader()), interrupted(tmp_path / "run.ckpt", 3, source=loader()))


def test_stopping_in_the_middle_of_an_epoch(tmp_path):
    class Failing(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            Failing.steps += 1
            if Failing.steps == 11:
                raise StopError
            return super().step(closure)

    path = tmp_path / "run.ckpt"
    with pytest.raises(StopError):
        run(*model(), checkpoint=path, optimizer=partial(Failing, lr=0.01))
    assert len(read(path)["history"]["loss"]) == 3
    bnn, likelihood = model()
    resumed = bnn, likelihood, run(bnn, likelihood, checkpoint=path, optimizer=partial(Failing, lr=0.01))
    assert_same(uninterrupted(optimizer=partial(Failing, lr=0.01)), resumed)


@pytest.mark.slow
def test_killed_processes(tmp_path):
    """SIGKILL, at whatever point of an epoch or of a write it comes."""
    path = tmp_path / "run.ckpt"
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, signal, sys, threading
        sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
        from test_checkpoint import model, run

        epoch = int(sys.argv[1])
        stop = threading.Timer(0.002 * epoch, os.kill, (os.getpid(), signal.SIGKILL)).start
        run(*model(), epoch, stop=stop, checkpoint={str(path)!r}, epochs=80, patience=80)
        """)
    )
    for epoch in (2, 30):
        done = subprocess.run([sys.executable, str(script), str(epoch)], timeout=300, check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(read(path)["history"]["loss"]) >= epoch
    bnn, likelihood = model()
    resumed = bnn, likelihood, run(bnn, likelihood, checkpoint=path, epochs=80, patience=80)
    assert_same(uninterrupted(epochs=80, patience=80), resumed)


def test_a_finished_run_returns_at_once_and_more_epochs_continue_it(tmp_path):
    path = tmp_path / "run.ckpt"
    steady = {"beta": 0.5, "scheduler": None}
    first = uninterrupted(checkpoint=path, **steady)
    before = path.read_bytes()
    bnn, likelihood = model()
    again = bnn, likelihood, run(bnn, likelihood, checkpoint=path, **steady)
    assert_same(first, again)
    assert first[2].seconds == again[2].seconds
    assert path.read_bytes() == before
    bnn, likelihood = model()
    longer = bnn, likelihood, run(bnn, likelihood, checkpoint=path, epochs=12, **steady)
    assert_same(uninterrupted(epochs=12, **steady), longer)
    with pytest.raises(ValueError, match="it has 12 epochs, more than epochs=8"):
        run(*model(), checkpoint=path, **steady)


def test_an_early_stop_is_final(tmp_path):
    climbing = {
        "optimizer": partial(torch.optim.SGD, lr=0.02, maximize=True),
        "clip_norm": 1.0,
        "patience": 2,
        "scheduler": None,
        "beta": 1.0,
    }
    path = tmp_path / "run.ckpt"
    first = uninterrupted(checkpoint=path, epochs=50, **climbing)
    assert first[2].stopped_early
    bnn, likelihood = model()
    assert_same(first, (bnn, likelihood, run(bnn, likelihood, checkpoint=path, epochs=50, **climbing)))


def test_starting_afresh(tmp_path):
    path = tmp_path / "run.ckpt"
    uninterrupted(checkpoint=path, seed=1)
    assert_same(uninterrupted(), uninterrupted(checkpoint=path, resume=False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": 6}, "seed was 5 and is 6"),
        ({"batch_size": 8}, "batch_size was 16 and is 8"),
        ({"epochs": 9}, "epochs was 8 and is 9"),
        ({"beta": 1.0}, "beta was"),
        ({"validation": None}, "examples of validation was 10 and is 0"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.1)}, "optimizer was 'Adam.lr=0.02.* and is 'SGD.lr=0.1"),
        ({"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=3)}, "gamma=0.5"),
        ({"source": (data()[0][:40], data()[1][10:])}, "checksum of data"),
    ],
)
def test_checkpoints_of_other_runs_are_refused(tmp_path, arguments, message):
    path = tmp_path / "run.ckpt"
    uninterrupted(checkpoint=path, epochs=8)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=message) as caught:
        run(*model(), checkpoint=path, **arguments)
    error = caught.value
    assert error.path == path
    assert error.reason.startswith("it belongs to another run (")
    assert "resume=False" in error.advice
    assert path.read_bytes() == before


@pytest.mark.parametrize("before", [True, False])
def test_other_random_numbers_are_refused(tmp_path, monkeypatch, before):
    path = tmp_path / "run.ckpt"
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if before else None)
    uninterrupted(checkpoint=path)
    uninterrupted(checkpoint=path)
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if not before else None)
    with pytest.raises(CheckpointError, match="native random numbers was") as caught:
        uninterrupted(checkpoint=path)
    assert "BAYESIFY_NATIVE=0" in caught.value.advice


def test_checkpoint_of_another_net(tmp_path):
    path = tmp_path / "run.ckpt"
    uninterrupted(checkpoint=path)
    wider = bayesify(nn.Sequential(nn.Linear(3, 9), nn.Linear(9, 1)), MeanField())
    with pytest.raises(ValueError, match=r"bnn\.net\.0\.weight was .\(8, 3\) torch.float32. and is .\(9, 3\) torch.float32.*more"):
        run(wider, Gaussian(std=0.5, learn=True), checkpoint=path)


class Payload:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "foreign", "version", "code"])
def test_files_that_are_no_checkpoints(tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.ckpt"
    uninterrupted(checkpoint=path)
    whole = path.read_bytes()
    contents = {"foreign": {"weight": 0}, "version": {"format": 0}, "code": {"format": Payload()}}
    if damage in contents:
        torch.save(contents[damage], path)
    else:
        path.write_bytes({"truncated": whole[: len(whole) // 2], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(CheckpointError) as caught:
        run(*model(), checkpoint=path)
    error = caught.value
    assert error.path == path
    assert {"foreign": "not a checkpoint of fit", "version": "format version 0"}.get(damage, "damaged") in error.reason
    assert error.advice == "delete it, or pass resume=False to start afresh and overwrite it"
    assert all(part in str(error) for part in (str(path), error.reason, error.advice))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert not (tmp_path / "executed").exists()


def test_the_checkpoint_is_plain_data(tmp_path):
    path = tmp_path / "run.ckpt"
    uninterrupted(checkpoint=path)
    state = torch.load(path, weights_only=True)
    assert state["history"]["loss"]
    assert all(math.isfinite(x.double().sum()) for x in state["best"].values())


def test_unwritable_places_are_known_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "run.ckpt", tmp_path / "file" / "run.ckpt"):
        calls = []
        with pytest.raises(OSError, match="could not be written"):
            fit(*model()[:1], data(), Gaussian(), checkpoint=path, loggers=[calls.append], accelerator="cpu")
        assert not calls
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="could not be written"):
        run(*model(), checkpoint=tmp_path / "folder", resume=False)


@pytest.mark.parametrize("place", ["os.fsync", "os.replace", "torch.save"])
def test_a_failing_write_leaves_the_checkpoint_before_it(tmp_path, monkeypatch, place):
    path = tmp_path / "run.ckpt"
    write(path, {"value": 1})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        with pytest.raises(OSError, match=r"No space left.*an existing one is left unchanged"):
            write(path, {"value": 2})
    assert read(path)["value"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.ckpt"]


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_disk_that_fills_up(tmp_path):
    """A real refusal by the operating system in the middle of a write."""
    code = textwrap.dedent(f"""
        import resource, signal, torch
        from pathlib import Path
        from bayesify.train.checkpoint import read, write
        path = Path({str(tmp_path / "run.ckpt")!r})
        write(path, {{"value": torch.ones(10)}})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write(path, {{"value": torch.ones(1_000_000)}})
        except OSError as error:
            print("refused:", error)
        print(len(read(path)["value"]), [entry.name for entry in path.parent.iterdir()])
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused: the checkpoint" in done.stdout
    assert "10 ['run.ckpt']" in done.stdout


def test_state_that_cannot_be_stored_is_known_before_the_work(tmp_path):
    class Odd(torch.optim.SGD):
        def state_dict(self):
            return {**super().state_dict(), "odd": Payload}

    with pytest.raises(TypeError, match="the state of Odd or StepLR"):
        run(*model(), checkpoint=tmp_path / "run.ckpt", optimizer=partial(Odd, lr=0.1))
    assert not list(tmp_path.iterdir())


def test_divergence_names_the_checkpoint(tmp_path):
    path = tmp_path / "run.ckpt"
    with pytest.raises(FloatingPointError, match=r"run\.ckpt was written before"):
        run(*model(), checkpoint=path, optimizer=partial(torch.optim.SGD, lr=1e30), scheduler=None)
    assert all(bool(x.double().isfinite().all()) for x in read(path)["module"].values())

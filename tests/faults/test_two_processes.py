"""Two processes that write one file at once: both finish with the result of one alone, or one is refused with a clear error."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")
TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "experiments"))  # modules of other tests
from toy_protocol import work_done, write_config

pytestmark = pytest.mark.slow

TRAIN = """
import sys, torch
from torch import nn
from bayesify import Gaussian, MeanField, bayesify
from bayesify.train import Training, fit, fit_many

def model(seed):
    torch.manual_seed(seed)
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), MeanField())

x = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
arguments = dict(epochs=40, batch_size=10, accelerator="cpu", checkpoint=sys.argv[2])
if sys.argv[1] == "fit":
    bnns = [model(0)]
    fit(bnns[0], (x, x.sum(1)), Gaussian(learn=True), **arguments)
else:
    bnns = [model(0), model(1)]
    fit_many([Training(bnn=bnn, data=(x, x.sum(1)), likelihood=Gaussian(learn=True)) for bnn in bnns], **arguments)
torch.save([bnn.state_dict() for bnn in bnns], sys.argv[3])
"""


def together(*commands, **options):
    """Run commands at once; return their exit codes and what they wrote to stderr."""
    runs = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options) for c in commands]
    errors = [run.communicate()[1] for run in runs]
    return [run.returncode for run in runs], errors


@pytest.mark.parametrize("function", ["fit", "fit_many"])
def test_checkpoints(tmp_path, function):
    def command(checkpoint, result):
        return [sys.executable, "-c", TRAIN, function, str(tmp_path / checkpoint), str(tmp_path / result)]

    assert together(command("alone.ckpt", "alone.pt"))[0] == [0]
    for _ in range(2):  # the second time from a finished checkpoint
        codes, errors = together(command("both.ckpt", "one.pt"), command("both.ckpt", "other.pt"))
        assert codes == [0, 0], errors
        expected = torch.load(tmp_path / "alone.pt")
        for name in ("one.pt", "other.pt"):
            for state, wanted in zip(torch.load(tmp_path / name), expected, strict=True):
                assert all(torch.equal(value, wanted[key]) for key, value in state.items())
    assert {path.name for path in tmp_path.iterdir()} == {"alone.ckpt", "both.ckpt", "alone.pt", "one.pt", "other.pt"}


# where tests run in the background, interrupts may be switched off for all they start
MAIN = """
import signal, toy_protocol
signal.signal(signal.SIGINT, signal.default_int_handler)
from experiments.__main__ import main
main()
"""


def experiments(root, *options):
    return [sys.executable, "-c", MAIN, "run", "paper/toys", "--root", str(root), *options]


def environment():
    paths = [str(TESTS / "experiments"), str(TESTS.parent), *sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def units(root):
    folder = root / "paper" / "toys" / "results"
    return {path.name: path.read_text().partition('"units": {')[2] for path in folder.iterdir()}


def test_experiments(tmp_path):
    both, alone = tmp_path / "both", tmp_path / "alone"
    logs = [write_config(root) for root in (both, alone)]
    assert together(experiments(alone), env=environment())[0] == [0]
    codes, errors = together(experiments(both), experiments(both), experiments(both, "--splits", "1,3"), env=environment())
    assert codes == [0, 0, 0], errors
    assert units(both) == units(alone)
    done = len(work_done(logs[0]))
    assert together(experiments(both), env=environment())[0] == [0]
    assert len(work_done(logs[0])) == done, "nothing was missing"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_killed_experiments(tmp_path, number):
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    log = write_config(killed)
    write_config(alone)
    assert together(experiments(alone), env=environment())[0] == [0]
    moments = random.Random(number)
    for _ in range(4):
        with subprocess.Popen(
            experiments(killed), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as run:
            done = len(work_done(log))
            while run.poll() is None and len(work_done(log)) == done:  # until it has begun
                time.sleep(0.05)
            time.sleep(moments.uniform(0, 0.5))
            run.send_signal(number)
            error = run.communicate()[1]
        assert run.returncode in (0, 130, -number, 128 + number), error
        assert "Traceback" not in error
    assert together(experiments(killed), env=environment())[0] == [0]
    assert units(killed) == units(alone)

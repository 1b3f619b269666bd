"""Processes killed at random moments: the same command finishes, and the result is that of an uninterrupted run."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from saved_models import X, contents, y

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals")]
KILLS = 4
BAYESIFY = [sys.executable, "-c", "from bayesify.cli import main; main()"]

TRAIN = """
import sys, torch
from torch import nn
from bayesify import Gaussian, MeanField, bayesify
from bayesify.train import fit
torch.manual_seed(0)
bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)), MeanField())
data = torch.randn(200, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(200)
print("ready", flush=True)
fit(bnn, data, Gaussian(learn=True), epochs=60, batch_size=10, accelerator="cpu", checkpoint=sys.argv[1])
torch.save(bnn.state_dict(), sys.argv[2])
"""


def killed(command, seconds, number=signal.SIGKILL):
    """Run a command, send it a signal after some time, and return its exit code."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            process.communicate()
        return process.returncode


def finished(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def duration(command):
    started = time.perf_counter()
    result = finished(command)
    assert result.returncode == 0, result.stdout + result.stderr
    return time.perf_counter() - started


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_fit(tmp_path, number):
    def command(name):
        return [sys.executable, "-c", TRAIN, str(tmp_path / f"{name}.ckpt"), str(tmp_path / f"{name}.pt")]

    seconds = duration(command("straight"))
    moments = random.Random(number)
    for _ in range(KILLS):
        killed(command("killed"), moments.uniform(0.3, 1.0) * seconds, number)
    assert finished(command("killed")).returncode == 0
    import torch

    one, other = (torch.load(tmp_path / f"{name}.pt") for name in ("straight", "killed"))
    assert all(torch.equal(one[key], value) for key, value in other.items())
    again = finished(command("killed"))
    assert again.returncode == 0
    assert not [path for path in tmp_path.iterdir() if ".tmp" in path.name] or number == signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_command_line(tmp_path, number):
    X.assign(price=y).to_csv(tmp_path / "table.csv", index=False)

    def command(name, *more):
        table = str(tmp_path / "table.csv")
        settings = ["--method", "MCDropout", "--epochs", "200", "--set", "hidden=8", "--quiet"]
        return [
            *BAYESIFY,
            "fit",
            table,
            "--target",
            "price",
            "--out",
            str(tmp_path / name),
            *settings,
            *more,
        ]

    seconds = duration(command("straight"))
    moments = random.Random(number)
    for _ in range(KILLS):
        code = killed(command("m", "--overwrite"), moments.uniform(0.3, 1.1) * seconds, number)
        assert code in (0, 130, -number)
    result = finished(command("m", "--overwrite"))
    assert result.returncode == 0, result.stderr
    files = contents(tmp_path / "m")
    assert files["weights.safetensors"] == contents(tmp_path / "straight")["weights.safetensors"]
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "straight", "m"}


def test_two_at_once(tmp_path):
    X.assign(price=y).to_csv(tmp_path / "table.csv", index=False)
    command = [
        *BAYESIFY,
        "fit",
        str(tmp_path / "table.csv"),
        "--target",
        "price",
        "--out",
        str(tmp_path / "m"),
    ]
    runs = [
        subprocess.Popen(
            [*command, "--method", "MCDropout", "--epochs", "300"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    errors = [run.communicate()[1] for run in runs]
    codes = sorted(run.returncode for run in runs)
    assert codes == [0, 2, 2]
    for run, error in zip(runs, errors, strict=True):
        assert run.returncode == 0 or "another process is training or saving" in error or "already holds a model" in error
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "m"}

"""A disk without a byte left, a file system in memory: one clear error or warning, and nothing that was finished is lost."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_models import FAST, contents, y
from saved_models import X as table
from torch import nn

from bayesify import Gaussian, MeanField, bayesify
from bayesify.errors import BayesifyWarning
from bayesify.estimators import BayesianRegressor
from bayesify.persistence import save_model
from bayesify.train import fit

pytestmark = pytest.mark.slow
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("cli", "experiments", "")]  # modules of other tests


class Disk:
    """A small file system that a file fills but for some bytes."""

    def __init__(self, path):
        self.path, self.filler = path, path / "filler"

    def fill(self, but_for=0):
        self.filler.unlink(missing_ok=True)
        with self.filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        with self.filler.open("r+b") as file:
            file.truncate(max(0, self.filler.stat().st_size - but_for))

    def free(self):
        self.filler.unlink()


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no file systems can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file systems can be mounted here: {done.stderr.strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", path], check=True)


def test_checkpoints(disk, tmp_path):
    def train(**arguments):
        torch.manual_seed(0)
        bnn = bayesify(nn.Linear(3, 1), MeanField())
        data = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(20)
        fit(bnn, data, Gaussian(), batch_size=10, accelerator="cpu", **arguments)
        return bnn.state_dict()

    path = disk.path / "run.ckpt"
    train(checkpoint=path, epochs=2)
    before = path.read_bytes()
    disk.fill()
    with pytest.raises(OSError, match=r"run\.ckpt could not be written .*an existing one is left unchanged"):
        train(checkpoint=path, epochs=4)
    assert contents(disk.path)["run.ckpt"] == before
    assert {file.name for file in disk.path.iterdir()} == {"run.ckpt", "filler"}
    disk.free()
    expected = train(epochs=4)
    assert all(torch.equal(value, expected[name]) for name, value in train(checkpoint=path, epochs=4).items())


def test_saved_models(disk):
    models = [BayesianRegressor(**FAST | {"epochs": epochs}).fit(table, y) for epochs in (1, 2)]
    save_model(models[0], disk.path / "m")
    before = contents(disk.path / "m")
    disk.fill()
    with pytest.raises(OSError, match="the directory is unchanged"):
        save_model(models[1], disk.path / "m")
    assert contents(disk.path / "m") == before
    disk.free()
    save_model(models[1], disk.path / "m")
    assert {path.name for path in disk.path.iterdir()} == {"m"}


def test_experiments(disk, tmp_path, capsys):
    pytest.importorskip("typer")
    from experiments.__main__ import main
    from toy_protocol import CONFIG, work_done

    def run(root, *options):
        with pytest.raises(SystemExit) as done:
            main(["run", "paper/toys", "--root", str(root), *options])
        return done.value.code

    roots = {name: place / "tables" for name, place in (("small", disk.path), ("large", tmp_path))}
    for name, root in roots.items():
        (root / "paper" / "toys").mkdir(parents=True)
        (root / "paper" / "toys" / "config.toml").write_text(CONFIG.format(factor=2.0, log=tmp_path / f"{name}.txt"))
    results = roots["small"] / "paper" / "toys" / "results"
    assert run(roots["small"], "--dataset", "a") == 0
    before = contents(results)
    disk.fill()
    assert run(roots["small"]) != 0
    errors = " ".join(capsys.readouterr().err.split())
    assert "No space left on device" in errors
    assert "Traceback" not in errors
    assert contents(results) == before
    disk.free()
    assert run(roots["small"]) == 0
    assert run(roots["large"]) == 0
    assert work_done(tmp_path / "small.txt").count("a-0") == 1
    units = [{path.name: path.read_text().partition('"units": {')[2] for path in sorted(folder.glob("*.json"))}
             for folder in (results, roots["large"] / "paper" / "toys" / "results")]  # fmt: skip
    assert units[0] == units[1]
    assert units[0].keys() == {"a.json", "b.json"}


@pytest.fixture(params=["local", "ray"])
def on(request):
    if request.param == "local":
        yield "local"
        return
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bayesify[ray]'")
    from ray_servers import ray_cluster

    with ray_cluster(1) as servers, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", servers.address)
        yield "ray"


def test_predictions(disk, tmp_path, on):
    pytest.importorskip("typer")
    from command_line import run

    save_model(BayesianRegressor(**FAST).fit(table, y), tmp_path / "m", target="price")
    source = tmp_path / "in"
    source.mkdir()
    for name, rows in (("a", 50), ("b", 50), ("c", 20_000)):
        drawn = table.sample(rows, replace=True, random_state=0, ignore_index=True)
        drawn["size"] += np.random.default_rng(0).normal(size=rows)  # no two rows alike, which would be compressed
        drawn.to_parquet(source / f"{name}.parquet")
    command = ["predict", tmp_path / "m", f"{source}/*.parquet", "--on", on]
    run(*command, "--out", tmp_path / "expected")
    disk.fill(but_for=100_000)
    done = run(*command, "--out", disk.path / "out", code=2)
    lines = [line for line in done.stderr.splitlines() if line.startswith("bayesify: ")]
    assert len(lines) == 1
    assert "c.parquet" in lines[0]
    assert "No space left on device" in lines[0]
    finished = contents(disk.path / "out")
    assert set(finished) == {"a.parquet", "b.parquet", "predictions.json"}
    disk.free()
    run(*command, "--out", disk.path / "out")
    assert contents(disk.path / "out") == contents(tmp_path / "expected")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's writer
@pytest.mark.parametrize("kind", ["mlflow", "tensorboard"])
def test_tracking(disk, kind, request, monkeypatch):
    pytest.importorskip(kind, reason="install bayesify[tracking]")
    monkeypatch.chdir(disk.path)
    track = f"tensorboard:{disk.path}/logs"
    if kind == "mlflow":
        (disk.path / "runs.db").write_bytes(request.getfixturevalue("empty_mlflow").read_bytes())
        track = f"mlflow:sqlite:///{disk.path}/runs.db"

    def train(loggers):
        torch.manual_seed(0)
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
        bnn = bayesify(nn.Linear(3, 1), MeanField())
        return fit(bnn, (x, x[:, 0]), Gaussian(), epochs=300, batch_size=20, accelerator="cpu", loggers=loggers)

    def fill(record):
        if record["epoch"] == 2:
            disk.fill()

    with pytest.warns(BayesifyWarning) as noticed:
        history = train([fill, track])
    assert sum("tracking has stopped" in str(warning.message) for warning in noticed) == 1
    np.testing.assert_array_equal(history.loss, train([]).loss)

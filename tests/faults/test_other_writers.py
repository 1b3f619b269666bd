"""The demo, the cache of data sets, predictions of images, and sharded checkpoints: kills, full disks and read-only folders."""

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
import torch
from saved_models import contents

from bayesify.datasets import data_files
from bayesify.datasets.data_files import File, read_file

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("cli", "experiments", "train")]  # modules of other tests
from command_line import run
from launching import environment, free_port

pytestmark = pytest.mark.slow
FAULTS = [(os, "fsync", errno.ENOSPC), (os, "replace", errno.EIO), (tempfile, "mkstemp", errno.EROFS)]
every_fault = pytest.mark.parametrize(("module", "name", "code"), FAULTS, ids=[name for _, name, _ in FAULTS])
needs_signals = pytest.mark.skipif(os.name != "posix", reason="signals")


def failing(patch, module, name, code):
    def fail(*arguments, **keywords):
        raise OSError(code, os.strerror(code))

    patch.setattr(module, name, fail)


@every_fault
@pytest.mark.parametrize("exists", [False, True])
def test_demo(tmp_path, monkeypatch, module, name, code, exists):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["bayesify.cli.demo"], "_METHODS", ())  # the default method alone
    if exists:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "report.html").write_text("old")
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, module, name, code)
        result = run("demo", "--data", "wine", "--out", "out", code=2)
    assert os.strerror(code) in " ".join(result.stderr.split())
    assert result.stderr.count("bayesify: ") == 1
    assert contents(tmp_path) == before
    run("demo", "--data", "wine", "--out", "out")
    assert "<html" in (tmp_path / "out" / "report.html").read_text()


CONTENT = b"all there is" * 100_000
FILE = File("images/a", hashlib.sha256(CONTENT).hexdigest(), ("first", "second"))


@pytest.mark.parametrize("place", ["write", "mkdtemp", "replace"])
def test_cache_of_data_sets(tmp_path, monkeypatch, place):
    """The error says what is wrong with the disk, not with the network; a second address is not tried."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    def download(url, path):
        asked.append(url)
        path.write_bytes(CONTENT)
        if place == "write" and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(data_files, "download", download)
    full = True
    with monkeypatch.context() as patch:
        if place == "mkdtemp":
            failing(patch, tempfile, "mkdtemp", errno.EROFS)
        if place == "replace":
            failing(patch, Path, "replace", errno.ENOSPC)
        with pytest.raises(FileNotFoundError, match=r"the cache .* cannot be written \(OSError: .*; set XDG_CACHE_HOME"):
            read_file(FILE, (data_files.cache_dir(),))
    assert len(asked) == (place != "mkdtemp")
    assert contents(tmp_path) == {}
    full = False
    assert read_file(FILE, (data_files.cache_dir(),)) == CONTENT


DOWNLOAD = """
import sys, time, hashlib
from bayesify.datasets import data_files
content = b"all there is" * 100_000
def download(url, path):
    print("begins", flush=True)
    with path.open("wb") as file:
        for start in range(0, len(content), 20_000):
            file.write(content[start : start + 20_000])
            time.sleep(0.005)
data_files.download = download
file = data_files.File("images/a", hashlib.sha256(content).hexdigest(), ("first",))
assert data_files.read_file(file, (data_files.cache_dir(),)) == content
"""


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_killed_downloads(tmp_path, number):
    command = [sys.executable, "-c", DOWNLOAD]
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    moments = random.Random(number)
    for _ in range(4):
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout.readline() == "begins\n"
            time.sleep(moments.uniform(0, 0.3))
            process.send_signal(number)
        if "bayesify/data/images/a" in contents(tmp_path):
            break
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path)["bayesify/data/images/a"] == CONTENT


@every_fault
def test_predictions_of_images(tmp_path, monkeypatch, module, name, code):
    """A network whose predictions cannot be kept has no result; those of others, and their results, stay as they are."""
    pytest.importorskip("PIL", reason="install bayesify[experiments]")
    import test_image_runs as images

    monkeypatch.setattr(images.data_module, "load_images", images.bars)
    job, cache = (
        images.job_of(tmp_path, ensemble=True, methods=[{"name": "M", "posterior": {"method": "MCDropout"}}]),
        tmp_path / "cache",
    )
    expected = images.run(job)
    ready = images.run(job, cache, ["0"])
    before = contents(cache)
    with monkeypatch.context() as patch:
        failing(patch, module, name, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            images.run(job, cache, ["1", "ensemble-2"], ready)
    assert contents(cache) == before
    results = ready | images.run(job, cache, ["1", "ensemble-2"], ready)
    assert without_times(results) == without_times(expected)


def without_times(results):
    return {unit: {key: value for key, value in found.items() if not key.startswith("seconds")} for unit, found in results.items()}


TRAIN = """
import sys, torch
from host_cases import Sampled, train
from shard_cases import ADAM
state = train("EMP", Sampled(), **{**ADAM, "epochs": 25}, checkpoint=sys.argv[1])
torch.save(state, sys.argv[2] + "." + __import__("os").environ["RANK"])
"""


@needs_signals
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_killed_training_in_shards(tmp_path):
    """All processes are killed at once, as by a scheduler; the next start continues, and ends with the same bits."""
    (tmp_path / "train.py").write_text(TRAIN)
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "train"), *sys.path])
    variables = environment() | {"PYTHONPATH": paths}

    def start(name):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
        command += [f"--master-port={free_port()}", str(tmp_path / "train.py"), str(tmp_path / name), str(tmp_path / f"{name}.pt")]
        with (tmp_path / "output.txt").open("wb") as file:
            return subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def finish(name):
        assert start(name).wait(300) == 0, (tmp_path / "output.txt").read_text()[-3000:]
        return [torch.load(tmp_path / f"{name}.pt.{rank}") for rank in range(2)]

    expected = finish("straight")
    moments = random.Random(0)
    for _ in range(3):
        process, index = start("killed"), tmp_path / "killed" / "run.pt"
        seen = index.stat().st_mtime_ns if index.exists() else 0
        while process.poll() is None and (not index.exists() or index.stat().st_mtime_ns == seen):
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for found, wanted in zip(finish("killed"), expected, strict=True):
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "killed").iterdir()) == ["epoch25", "run.pt"]

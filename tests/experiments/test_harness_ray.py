"""Experiments on a Ray cluster of two machines: dead processes, a dead machine, a lost head, a full disk, other versions."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from experiments.__main__ import main
from experiments.harness import store
from experiments.harness.config import read_table
from experiments.harness.engine import execute
from experiments.harness.experiment import Experiment, find_experiments
from experiments.harness.plan import Filters, plan
from experiments.harness.report import write_report
from experiments.harness.runner import run_tasks
from experiments.harness.store import read
from toy_protocol import work_done, write_config

from bayesify.environment import machine
from bayesify.jobs import RayCluster

pytest.importorskip("ray", reason="Ray is not installed: pip install 'bayesify[ray]'")
sys.path.insert(0, str(Path(__file__).parents[1]))
from ray_servers import kill_machine, ray_cluster

DATASETS = '["a", "b", "c", "d"]'


def _table(root, extra=""):
    log = write_config(root, extra=extra)
    path = root / "paper" / "toys" / "config.toml"
    path.write_text(path.read_text().replace('["a", "b"]', DATASETS))
    return log


def _units(root):
    table = read_table("paper/toys", root)
    return {key: read(table, key).units for key in "abcd"}


def _report(root):
    """The part of the report with results; the rest names machine and date."""
    write_report(Experiment(read_table("paper/toys", root)))
    lines = (root / "paper" / "toys" / "report.md").read_text().splitlines()
    return [line for line in lines if line[:3] in ("a: ", "b: ", "c: ", "d: ")]


def _wait(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_process_and_a_killed_machine_change_nothing(tmp_path, capsys):
    here, there = tmp_path / "here", tmp_path / "there"
    _table(here)
    for task in plan(find_experiments(["*"], here), Filters()):
        execute(task, None, machine())
    log = _table(there, 'trouble = {d-1 = "wait", c-1 = "wait", b-1 = "die once"}\n')
    with ray_cluster(1, 1) as cluster:
        second = cluster.list_all_nodes()[1]

        def kill():
            try:
                _wait(lambda: {"d-1", "c-1"} <= set(work_done(log)))  # one on each machine
                kill_machine(cluster, second)
            finally:
                (there / "go").touch()

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        failures = run_tasks(
            plan(find_experiments(["*"], there), Filters()), cluster=RayCluster(address=cluster.address, max_retries=3)
        )
        thread.join()
    assert failures == []
    assert _units(there) == _units(here)
    assert _report(there) == _report(here) == ["a: 12.0", "b: 12.0", "c: 12.0", "d: 12.0"]
    done = work_done(log)
    assert sum(done.count(name) for name in ("d-1", "c-1")) == 3  # one of them ran again, on the other machine
    assert done.count("b-1") == 2
    assert all(done.count(f"{key}-0") == 1 for key in "abcd")  # what an earlier attempt had finished
    records = read(read_table("paper/toys", there), "b").runs
    assert [run["units"] for run in records] == [["0", "1", "2", "3"]]
    assert "[4/4]" in capsys.readouterr().err


@pytest.mark.slow
def test_errors_of_tasks_and_a_full_disk(tmp_path, capsys, monkeypatch):
    log = _table(tmp_path, 'trouble = {a-1 = "fail", b-1 = "die", c-3 = "skip"}\n')
    with ray_cluster(2) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        command = ["run", "paper/toys", "--on", "ray", "--max-retries", "1", "--root", str(tmp_path)]
        assert _main(*command) == 1
        errors = capsys.readouterr().err
        assert "FAILED paper/toys a: ValueError: the toy broke" in errors
        assert "toy_protocol.py" in errors
        assert "FAILED paper/toys b: its process died 2 times" in errors
        assert "FAILED paper/toys c: unit 3: it would not" in errors
        assert {key: list(units) for key, units in _units(tmp_path).items()} == {
            "a": ["0"], "b": ["0"], "c": ["0", "1", "2"], "d": ["0", "1", "2", "3"],
        }  # fmt: skip

        write, saved = store.write_atomically, []

        def full(path, content):
            if saved:
                raise OSError(errno.ENOSPC, "No space left on device")
            saved.append(path)
            write(path, content)

        monkeypatch.setattr(store, "write_atomically", full)
        done = len(work_done(log))
        assert _main(*command, "--again", "--dataset", "d") == 2
        assert "No space left on device; make room, and the same command continues" in capsys.readouterr().err
        assert len(work_done(log)) > done
        assert {unit: result["value"] for unit, result in _units(tmp_path)["d"].items()} == {"0": 0, "1": 2, "2": 4, "3": 6}


def _main(*arguments):
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    return exit_.value.code


@pytest.mark.slow
@pytest.mark.parametrize("client", [False, True])
def test_a_lost_head_is_one_message_and_loses_nothing_finished(tmp_path, client):
    log = _table(tmp_path, 'trouble = {d-2 = "wait", c-2 = "wait"}\n')
    port = 23411 if client else None
    with ray_cluster(2, client_port=port) as cluster:
        address = f"ray://127.0.0.1:{port}" if client else "ray"
        code = "import toy_protocol; from experiments.__main__ import main; main()"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "RAY_ADDRESS": cluster.address,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", code, "run", "paper/toys", "--on", address, "--root", str(tmp_path)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            _wait(lambda: {"d-2", "c-2"} <= set(work_done(log)) and len(_there(tmp_path)) == 4, seconds=80)
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=False)
            _, errors = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 2, errors
    assert "is lost" in errors
    assert "What has finished is saved; the same command continues with what is missing" in errors
    assert {key: list(units) for key, units in _there(tmp_path, by_job=True).items()} == {"c": ["0", "1"], "d": ["0", "1"]}


def _there(root, by_job=False):
    table = read_table("paper/toys", root)
    found = {key: results.units for key in "abcd" if (results := read(table, key)) is not None}
    return found if by_job else [unit for units in found.values() for unit in units]


def test_errors_before_any_work(tmp_path, capsys, monkeypatch):
    log, root = _table(tmp_path), ("--root", str(tmp_path))
    assert _main("run", "paper/toys", "--on", "moon", *root) == 2
    assert "on must be 'local', 'ray'" in capsys.readouterr().err
    assert _main("run", "paper/toys", "--on", "ray", "--workers", "2", *root) == 2
    assert "--workers 2 is for --on local" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert _main("run", "paper/toys", "--on", "ray", *root) == 2
    assert 'pip install "bayesify[ray]"' in capsys.readouterr().err
    assert work_done(log) == []

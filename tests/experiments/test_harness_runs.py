"""Running: what is left to do, filters, failures, and a run that is killed in the middle and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiments.__main__ import main
from experiments.harness.config import UsageError, read_table
from experiments.harness.engine import execute
from experiments.harness.experiment import Experiment, find_experiments
from experiments.harness.forecast import forecast
from experiments.harness.plan import Filters, plan, unit_names
from experiments.harness.runner import run_tasks
from experiments.harness.store import read
from toy_protocol import work_done, write_config

ROOT = Path(__file__).parents[2]
ORIGIN = {"cpu": "abacus", "threads": 1, "commit": "abc", "dirty": False, "bayesify": "0", "torch": "2", "python": "3"}


def _run_here(root, filters=Filters()):  # noqa: B008 # it is frozen
    for task in plan(find_experiments(["*"], root), filters):
        execute(task, None, ORIGIN)


def test_only_what_is_missing_or_changed_runs(tmp_path):
    log = write_config(tmp_path)
    _run_here(tmp_path, Filters(units=("1", "2")))
    assert sorted(work_done(log)) == ["a-1", "a-2", "b-1", "b-2"]
    _run_here(tmp_path)
    assert sorted(work_done(log)[4:]) == ["a-0", "a-3", "b-0", "b-3"]
    assert plan(find_experiments(["*"], tmp_path), Filters()) == []
    _run_here(tmp_path, Filters(datasets=("b",), units=("2",), again=True))
    assert work_done(log)[8:] == ["b-2"]

    write_config(tmp_path, factor=5.0)
    table = read_table("paper/toys", tmp_path)
    assert Experiment(table).stale == ["a", "b"]
    _run_here(tmp_path, Filters(datasets=("a",)))
    assert work_done(log)[9:] == ["a-0", "a-1", "a-2", "a-3"]
    assert Experiment(table).stale == ["b"]
    assert {unit: result["value"] for unit, result in read(table, "a").units.items()} == {"0": 0, "1": 5, "2": 10, "3": 15}


@pytest.mark.slow
def test_the_duration_of_a_run_is_told_before_it_starts(tmp_path, capsys):
    log = write_config(tmp_path)
    experiments = find_experiments(["*"], tmp_path)
    tasks = plan(experiments, Filters())
    assert forecast(tasks, experiments, root=tmp_path).seconds == 4 * 1 + 4 * 2  # the costs
    assert forecast(tasks, experiments, workers=2, root=tmp_path).seconds == 8  # the longest task bounds it
    assert not forecast(tasks, experiments, root=tmp_path).measured

    for task in plan(experiments, Filters(datasets=("b",), units=("0", "1"))):
        execute(task, None, ORIGIN)
    path = tmp_path / "paper" / "toys" / "results" / "b.json"
    content = json.loads(path.read_text())
    content["runs"][0]["seconds"] = 4 * 5000.0  # for a cost of 4
    path.write_text(json.dumps(content))
    experiments = find_experiments(["*"], tmp_path)
    found = forecast(plan(experiments, Filters()), experiments, root=tmp_path)
    assert (found.jobs, found.units, found.measured, found.long, found.unseen) == (2, 6, True, True, ())
    assert found.seconds == 5000 * (4 * 1 + 2 * 2)
    assert "2 jobs, 6 units: about 11 h 6 min with 1 worker" in str(found)
    assert "the same command continues" in str(found)

    write_config(tmp_path, name="paper/others")
    (others,) = find_experiments(["paper/others"], tmp_path)
    found = forecast(plan([others], Filters()), [others], root=tmp_path)
    assert (found.seconds, found.measured) == (5000 * (4 * 1 + 4 * 2), False)  # in the proportion of the other table

    with pytest.raises(SystemExit):
        main(["run", "paper/toys", "--root", str(tmp_path), "--dataset", "a", "--splits", "0"])
    written = capsys.readouterr()
    assert "1 job, 1 unit: about 1 h 23 min" in written.out + written.err
    assert "the same command" not in written.out + written.err
    assert work_done(log)[2:] == ["a-0"]

    path = path.with_name("a.json")  # a job of which units have run has a rate of its own
    content = json.loads(path.read_text())
    content["runs"][0]["seconds"] = 100.0
    path.write_text(json.dumps(content))
    experiments = find_experiments(["paper/toys"], tmp_path)
    assert forecast(plan(experiments, Filters()), experiments, root=tmp_path).seconds == 3 * 100 + 2 * 2 * 5000


def test_methods_without_times_are_named(tmp_path):
    write_config(tmp_path, extra='methods = { b = "Tin" }\n')
    _run_here(tmp_path, Filters(methods=("Toy",)))
    experiments = find_experiments(["*"], tmp_path)
    assert forecast(plan(experiments, Filters(again=True)), experiments, root=tmp_path).unseen == ("Tin",)
    assert "rough for Tin, without results in their" in str(forecast(plan(experiments, Filters()), experiments, root=tmp_path))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), ["a 0123", "b 0123"]),
        (Filters(datasets=("b",)), ["b 0123"]),
        (Filters(methods=("Toy",), units=("3", "1")), ["a 13", "b 13"]),
    ],
)
def test_filters(tmp_path, filters, expected):
    write_config(tmp_path)
    tasks = plan(find_experiments(["*"], tmp_path), filters)
    assert [f"{task.job.key} {''.join(task.units)}" for task in tasks] == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(datasets=("c",)), "these tables have no dataset 'c'; they have a, b"),
        (Filters(methods=("Toy", "Tin")), "these tables have no method 'Tin'; they have Toy"),
        (Filters(units=("3", "4")), "these tables have no split or seed '4'; they have 0, 1, 2, 3"),
    ],
)
def test_filters_that_fit_nothing(tmp_path, filters, message):
    write_config(tmp_path)
    with pytest.raises(UsageError, match=message):
        plan(find_experiments(["*"], tmp_path), filters)


def test_units_are_numbers_ranges_and_names():
    assert unit_names(["0-2,7", "1, full"]) == ("0", "1", "2", "7", "full")
    assert unit_names([]) == ()
    with pytest.raises(UsageError, match="the range '4-2' is empty"):
        unit_names(["4-2"])


def test_data_that_are_not_there_are_known_before_any_work(tmp_path, monkeypatch):
    import dataclasses

    import toy_protocol

    log, jobs = write_config(tmp_path), toy_protocol.Toy.jobs
    monkeypatch.setattr(
        toy_protocol.Toy, "jobs", lambda self, table: [dataclasses.replace(job, data=("no-such-set",)) for job in jobs(self, table)]
    )
    with pytest.raises(UsageError, match="no-such-set"):
        plan(find_experiments(["*"], tmp_path), Filters())
    assert work_done(log) == []


@pytest.mark.slow
def test_failures_do_not_stop_the_others(tmp_path):
    write_config(tmp_path, extra='trouble = {a-1 = "fail", b-1 = "die", c-3 = "skip"}\n')
    path = tmp_path / "paper" / "toys" / "config.toml"
    path.write_text(path.read_text().replace('["a", "b"]', '["a", "b", "c", "d"]'))
    table = read_table("paper/toys", tmp_path)
    failures = {failure.task.job.key: failure for failure in run_tasks(plan([Experiment(table)], Filters()), workers=1)}
    assert failures.keys() == {"a", "b", "c"}
    assert failures["a"].error == "ValueError: the toy broke"
    assert "toy_protocol.py" in failures["a"].details
    assert "its process died with exit code -9" in failures["b"].error
    assert failures["c"].error == "unit 3: it would not"
    assert failures["c"].details == ""
    there = {key: list(read(table, key).units) for key in "abcd"}
    assert there == {"a": ["0"], "b": ["0"], "c": ["0", "1", "2"], "d": ["0", "1", "2", "3"]}


def _command(root, *arguments):
    # where tests run in the background, interrupts may be switched off for all they start
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; import toy_protocol; from experiments.__main__ import main; main()"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--root", str(root)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


@pytest.mark.slow
def test_workers_put_away_what_they_hold(tmp_path):
    write_config(tmp_path, extra='trouble = {a-1 = "lock"}\n')
    _, errors = _command(tmp_path, "run", "paper/toys").communicate(timeout=60)
    assert "leaked" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_run_that_is_cut_off_loses_the_running_unit_only(tmp_path, how, code):
    log = write_config(tmp_path, extra='trouble = {b-2 = "wait"}\n')
    process = _command(tmp_path, "run", "paper/toys")
    _wait_for(lambda: "b-2" in work_done(log), process)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)  # which ends when the worker, too, has closed the pipe
    assert process.returncode == code
    assert ("the same command continues with what is missing" in errors) == (how == signal.SIGINT)
    table = read_table("paper/toys", tmp_path)
    assert list(read(table, "b").units) == ["0", "1"]  # b is the longer one and goes first

    (tmp_path / "go").touch()
    _run_here(tmp_path)
    assert work_done(log)[3:] == ["a-0", "a-1", "a-2", "a-3", "b-2", "b-3"]
    assert Experiment(table).done == 2


@pytest.mark.slow
def test_a_run_stops_after_the_given_minutes_and_goes_on(tmp_path, capsys):
    log = write_config(tmp_path, extra='trouble = {b-0 = "wait"}\n')
    code, _, errors = _main(capsys, "run", "paper/toys", "--root", str(tmp_path), "--minutes", "0.1")
    assert code == 0
    assert "stopped after 6.0 s; the same command continues" in errors
    assert set(work_done(log)) <= {"b-0"}
    (tmp_path / "go").touch()
    code, _, errors = _main(capsys, "run", "paper/toys", "--root", str(tmp_path), "--minutes", "10")
    assert code == 0
    assert "stopped" not in errors
    assert Experiment(read_table("paper/toys", tmp_path)).done == 2


def _main(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    return exit_.value.code, *capsys.readouterr()


@pytest.mark.extended
def test_command_line(tmp_path, capsys):
    log, root = write_config(tmp_path), ("--root", str(tmp_path))
    code, out, _ = _main(capsys, "list", *root)
    assert code == 0
    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["paper/toys", "Toys", "0", "2", "0", "-"],
        ["all", "0", "2", "0", "-"],
    ]
    code, _, errors = _main(capsys, "run", "paper/*", "--workers", "2", "--seeds", "0-2", *root)
    assert code == 0
    assert "[2/2]" in errors
    report = tmp_path / "paper" / "toys" / "report.md"
    assert "**Missing:** a (3); b (3)." in report.read_text()
    assert sorted(work_done(log)) == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    code, _, errors = _main(capsys, "run", "paper/toys", "--splits", "0,1", *root)
    assert (code, "nothing to run" in errors) == (0, True)
    report.unlink()
    assert _main(capsys, "report", *root)[0] == 0
    assert report.exists()
    code, out, _ = _main(capsys, "list", *root)
    assert [line.split()[:-2] for line in out.splitlines()[-2:]] == [["paper/toys", "Toys", "0", "2", "0"], ["all", "0", "2", "0"]]


@pytest.mark.slow
def test_a_quick_run_is_apart_and_always_runs(tmp_path, capsys):
    log = write_config(tmp_path)
    for times in (1, 2):
        assert _main(capsys, "run", "--quick", "--root", str(tmp_path))[0] == 0
        assert sorted(work_done(log)) == sorted(["a-0", "b-0"] * times)
    assert "A smoke run" in (tmp_path / ".quick" / "paper" / "toys" / "report.md").read_text()
    assert [path.name for path in (tmp_path / "paper" / "toys").iterdir()] == ["config.toml"]


@pytest.mark.slow
def test_a_failed_job_is_exit_code_1(tmp_path, capsys):
    write_config(tmp_path, extra='trouble = {a-0 = "fail"}\n')
    code, _, errors = _main(capsys, "run", "paper/toys", "--root", str(tmp_path))
    assert code == 1
    assert "FAILED paper/toys a: ValueError: the toy broke" in errors
    assert "b: 12.0" in (tmp_path / "paper" / "toys" / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "name the tables to run"),
        (["run", "x/nothing"], "no table is called 'x/nothing'; the tables are paper/toys"),
        (["run", "*", "--dataset", "x"], "these tables have no dataset 'x'"),
        (["run", "*", "--dataset", "x", "--quick"], "smoke runs of these tables have no dataset 'x'"),
        (["run", "*", "--splits", "3-1"], "the range '3-1' is empty"),
        (["report", "x"], "no table is called 'x'"),
        (["run", "*", "--workers", "0"], "--workers"),
        (["walk"], "walk"),
    ],
)
def test_mistakes_are_exit_code_2(tmp_path, capsys, arguments, message):
    log = write_config(tmp_path)
    root = [] if arguments == ["walk"] else ["--root", str(tmp_path)]
    code, _, errors = _main(capsys, *arguments, *root)
    assert code == 2
    assert message in errors
    assert work_done(log) == []

"""`python -m experiments run --track`: a run per job and one per report, which later commands continue."""

import json

import pytest
from experiments.__main__ import main
from experiments.harness.tracking import Tracker
from toy_protocol import work_done, write_config
from tracked_runs import Recorded

import bayesify.tracking
from bayesify.errors import BayesifyWarning, TrackingError

GROUP = "paper/toys"


def _run(root, *options, code=0):
    with pytest.raises(SystemExit) as done:
        main(["run", GROUP, "--root", str(root), *options])
    assert done.value.code == code


@pytest.mark.slow
def test_a_run_per_job(tmp_path, track):
    log = write_config(tmp_path)
    _run(tmp_path, "--track", track, "--splits", "0-1")
    assert Recorded(track, "a", GROUP).numbers["value"] == [(0, 0.0), (1, 2.0)]
    _run(tmp_path, "--track", track)
    assert len(work_done(log)) == 8
    for job in ("a", "b"):
        found = Recorded(track, job, GROUP)
        assert found.numbers["value"] == [(0, 0.0), (1, 2.0), (2, 4.0), (3, 6.0)]
        assert (found.settings["dataset"], found.settings["factor"]) == (job, "2.0")
        assert "environment/torch" in found.facts
        assert found.files == {f"{job}.json"}
        assert found.status in (None, "FINISHED")
    assert Recorded(track, "report", GROUP).files == {"report.md", "config.toml"}


@pytest.mark.slow
def test_a_server_that_is_lost_costs_no_result(tmp_path, track, monkeypatch):
    log, opened = write_config(tmp_path), []
    open_run = bayesify.tracking.open_run

    def losing(*arguments, **keywords):
        opened.append(keywords["name"])
        if 1 < len(opened) <= 3:  # both jobs, at first
            raise TrackingError("no answer")
        return open_run(*arguments, **keywords)

    monkeypatch.setattr("experiments.harness.tracking.open_run", losing)
    with pytest.warns(BayesifyWarning, match="no answer. The tasks go on") as noticed:
        _run(tmp_path, "--track", track)
    assert len(noticed) == 1
    assert len(work_done(log)) == 8
    assert opened == ["report", "b", "a", "b", "a"]
    assert len(Recorded(track, "a", GROUP).numbers["value"]) == 4


def test_a_server_that_does_not_answer_is_an_error_before_any_task(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    log = write_config(tmp_path)
    (tmp_path / "file").write_text("")
    _run(tmp_path, "--track", f"tensorboard:{tmp_path}/file", code=2)
    assert "is not possible" in capsys.readouterr().err
    assert work_done(log) == []


@pytest.mark.slow
def test_other_results_of_a_unit_are_logged(tmp_path, track):
    write_config(tmp_path)
    _run(tmp_path, "--track", track, "--dataset", "a")
    path = tmp_path / GROUP / "results" / "a.json"
    content = json.loads(path.read_text())
    content["units"]["1"]["value"] = 7.0
    tasks = _tasks(tmp_path)
    path.write_text(json.dumps(content))
    Tracker(track, tasks).add(tasks[0], failed=False)
    assert (1, 7.0) in Recorded(track, "a", GROUP).numbers["value"]


def _tasks(root):
    from experiments.harness.experiment import find_experiments
    from experiments.harness.plan import Filters, plan

    return plan(find_experiments([GROUP], root), Filters(datasets=("a",), again=True))

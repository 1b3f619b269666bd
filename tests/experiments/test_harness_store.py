"""Results as files: written whole, units merged, other settings never mixed in."""

import json
import os

import pytest
from experiments.harness.config import UsageError, jobs_of, read_table
from experiments.harness.store import Recorder, read, results_path
from toy_protocol import Toy, write_config

ORIGIN = {"cpu": "abacus", "threads": 1, "commit": "abc", "dirty": False}


def _recorder(root, factor=2.0):
    write_config(root, factor=factor)
    table = read_table("paper/toys", root)
    return table, Recorder(table, jobs_of(table)[0], Toy(), {}, ORIGIN)


def test_units_of_several_saves_and_runs_add_up(tmp_path):
    table, recorder = _recorder(tmp_path)
    assert read(table, "a") is None
    recorder.save({"2": {"value": 1.0}})
    recorder.save({"0": {"value": 2.0}})
    first = read(table, "a")
    assert list(first.units) == ["0", "2"]  # in the order of the job
    assert [run["units"] for run in first.runs] == [["0", "2"]]
    assert first.runs[0]["cpu"] == "abacus"
    assert first.seconds == first.runs[0]["seconds"] > 0
    assert first.settings == jobs_of(table)[0].settings

    _, again = _recorder(tmp_path)
    again.date = "2000-01-01T00:00:00Z"  # this test is faster than the clock of runs
    again.save({"1": {"value": 3.0}})
    second = read(table, "a")
    assert second.units == {"0": {"value": 2.0}, "1": {"value": 3.0}, "2": {"value": 1.0}}
    assert [run["units"] for run in second.runs] == [["0", "2"], ["1"]]
    assert second.seconds == pytest.approx(sum(run["seconds"] for run in second.runs))


def test_results_of_other_settings_make_room(tmp_path):
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {"value": 1.0}, "1": {"value": 1.0}})
    assert read(table, "a").fits(jobs_of(table)[0], Toy())
    table, recorder = _recorder(tmp_path, factor=3.0)
    assert not read(table, "a").fits(jobs_of(table)[0], Toy())
    recorder.save({"1": {"value": 9.0}})
    assert read(table, "a").units == {"1": {"value": 9.0}}
    assert len(read(table, "a").runs) == 1


def test_results_depend_on_version_and_data(tmp_path, monkeypatch):
    import dataclasses

    table, _ = _recorder(tmp_path)
    job = dataclasses.replace(jobs_of(table)[0], data=("sheep",))
    Recorder(table, job, Toy(), {"sheep": "white", "cows": "brown"}, ORIGIN).save({"0": {}})
    results = read(table, "a")
    assert results.data == {"sheep": "white"}
    assert results.fits(job, Toy())
    assert results.fits(job, Toy(), {"sheep": "white"})
    assert not results.fits(job, Toy(), {"sheep": "black"})
    assert not results.fits(dataclasses.replace(job, data=("sheep", "cows")), Toy())
    monkeypatch.setattr(Toy, "version", 2)
    assert not results.fits(job, Toy())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {"value": 1.0}})
    before = results_path(table, "a").read_bytes()

    def full(source, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        recorder.save({"1": {"value": 1.0}})
    assert results_path(table, "a").read_bytes() == before
    assert [path.name for path in results_path(table, "a").parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"fingerprint": '])
def test_a_damaged_file_is_refused(tmp_path, content):
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {}})
    results_path(table, "a").write_text(content)
    with pytest.raises(UsageError, match=r"a.json is no results file .*delete it to run the job again"):
        read(table, "a")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, {"deep": [float("-inf")]}])
def test_results_must_be_finite_and_plain(tmp_path, value):
    table, recorder = _recorder(tmp_path)
    with pytest.raises(ValueError, match=r"the result 'value' of a, unit 0 must be finite and ready for JSON"):
        recorder.save({"0": {"value": value}})
    assert read(table, "a") is None


def test_results_of_unknown_units_are_refused(tmp_path):
    _, recorder = _recorder(tmp_path)
    with pytest.raises(ValueError, match="unit '7' is none of a, which has 0, 1, 2, 3"):
        recorder.save({"7": {}})
    with pytest.raises(ValueError, match="must be a dict with names"):
        recorder.save({"0": 3.0})


def test_files_are_readable_json(tmp_path):
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {"value": 0.1}})
    content = json.loads(results_path(table, "a").read_text())
    assert content["table"] == "paper/toys"
    assert content["job"] == "a"
    assert content["units"] == {"0": {"value": 0.1}}

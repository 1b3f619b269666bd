"""Results as files: written whole, units merged, other settings never mixed in."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from experiments.harness.config import UsageError, jobs_of, read_table
from experiments.harness.store import Recorder, cache_path, read, results_path
from toy_protocol import Toy, write_config

from bayesify import MCDropout

ORIGIN = {"cpu": "abacus", "threads": 1, "commit": "abc", "dirty": False}


def _recorder(root, factor=2.0):
    write_config(root, factor=factor)
    table = read_table("paper/toys", root)
    return table, Recorder(table, jobs_of(table, Toy())[0], Toy(), {}, ORIGIN)


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
    assert first.settings == jobs_of(table, Toy())[0].settings

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
    assert read(table, "a").fits(jobs_of(table, Toy())[0], Toy())
    table, recorder = _recorder(tmp_path, factor=3.0)
    assert not read(table, "a").fits(jobs_of(table, Toy())[0], Toy())
    recorder.save({"1": {"value": 9.0}})
    assert read(table, "a").units == {"1": {"value": 9.0}}
    assert len(read(table, "a").runs) == 1


def test_results_depend_on_version_and_data(tmp_path, monkeypatch):
    table, _ = _recorder(tmp_path)
    job = dataclasses.replace(jobs_of(table, Toy())[0], data=("sheep",))
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
    with pytest.raises(UsageError, match="no space"):
        recorder.save({"1": {"value": 1.0}})
    assert results_path(table, "a").read_bytes() == before
    assert [path.name for path in results_path(table, "a").parent.iterdir()] == ["a.json"]


@dataclasses.dataclass(frozen=True)
class Cage:
    """What a toy's setting `cage` describes."""

    size: int
    bars: int = 9


def _caged(root, monkeypatch, kind=Cage, **cage):
    """The table, and a job with the complete settings of a cage and a method."""
    monkeypatch.setattr(Toy, "setting_types", {"cage": kind})
    table, _ = _recorder(root)
    settings = {"method": "Toy", "cage": dataclasses.asdict(kind(size=3, **cage)), "posterior": MCDropout().to_dict()}
    return table, dataclasses.replace(jobs_of(table, Toy())[0], settings=settings)


def test_a_new_field_with_a_default_makes_nothing_stale(tmp_path, monkeypatch):
    table, job = _caged(tmp_path, monkeypatch)
    Recorder(table, job, Toy(), {}, ORIGIN).save({"0": {}})
    assert read(table, "a").settings["cage"] == {"size": 3, "bars": 9}

    @dataclasses.dataclass(frozen=True)
    class Wheeled(Cage):
        wheels: int = 0

    _, same = _caged(tmp_path, monkeypatch, Wheeled)
    assert read(table, "a").fits(same, Toy())
    Recorder(table, same, Toy(), {}, ORIGIN).save({"1": {}})
    assert list(read(table, "a").units) == ["0", "1"]
    _, other = _caged(tmp_path, monkeypatch, Wheeled, wheels=4)
    assert not read(table, "a").fits(other, Toy())


def test_a_changed_default_and_a_removed_field_make_results_stale(tmp_path, monkeypatch):
    table, job = _caged(tmp_path, monkeypatch)
    Recorder(table, job, Toy(), {}, ORIGIN).save({"0": {}})

    @dataclasses.dataclass(frozen=True)
    class Dense:
        size: int
        bars: int = 99

    @dataclasses.dataclass(frozen=True)
    class Open:
        size: int

    for kind in (Dense, Open):
        _, changed = _caged(tmp_path, monkeypatch, kind)
        assert changed.fingerprint(Toy(), {}) == read(table, "a").fingerprint
        assert not read(table, "a").fits(changed, Toy())
        assert cache_path(table, changed, "abc") != cache_path(table, job, "abc")
    Recorder(table, changed, Toy(), {}, ORIGIN).save({"1": {}})
    assert list(read(table, "a").units) == ["1"]


def test_fields_of_methods_at_their_defaults_are_not_in_the_fingerprint(tmp_path, monkeypatch):
    _, job = _caged(tmp_path, monkeypatch)
    sparse = {**job.settings, "posterior": {"method": "MCDropout"}}
    other = {**job.settings, "posterior": MCDropout(p=0.3).to_dict()}
    first, second, third = (dataclasses.replace(job, settings=s).fingerprint(Toy(), {}) for s in (job.settings, sparse, other))
    assert first == second != third


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"fingerprint": '])
def test_a_damaged_file_is_refused(tmp_path, content):
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {}})
    results_path(table, "a").write_text(content)
    with pytest.raises(UsageError, match=r"a.json is not a results file .*delete it"):
        read(table, "a")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, {"deep": [float("-inf")]}])
def test_results_must_be_finite_and_plain(tmp_path, value):
    table, recorder = _recorder(tmp_path)
    with pytest.raises(ValueError, match=r"result 'value' of a, unit 0 must be finite and ready for JSON"):
        recorder.save({"0": {"value": value}})
    assert read(table, "a") is None


def test_results_of_unknown_units_are_refused(tmp_path):
    _, recorder = _recorder(tmp_path)
    with pytest.raises(ValueError, match="a has no unit '7'; its units are 0, 1, 2, 3"):
        recorder.save({"7": {}})
    with pytest.raises(ValueError, match="must be a dict with text keys"):
        recorder.save({"0": 3.0})


def test_files_are_readable_json(tmp_path):
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {"value": 0.1}})
    content = json.loads(results_path(table, "a").read_text())
    assert content["table"] == "paper/toys"
    assert content["job"] == "a"
    assert content["units"] == {"0": {"value": 0.1}}


@pytest.mark.extended
def test_another_process_writes_the_same_results(tmp_path, monkeypatch):
    """A file that another process reads, adds to and writes back waits; it does not lose the units of this one."""
    table, recorder = _recorder(tmp_path)
    recorder.save({"0": {"value": 1.0}})
    path = results_path(table, "a")
    before = path.read_bytes()
    script = (
        "import sys, time; from pathlib import Path; from bayesify.persistence.lock import held\nwith held(Path(sys.argv[1])):\n  "
    )
    with subprocess.Popen(
        [sys.executable, "-c", script + "print(flush=True); time.sleep(600)", str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"\n"
        monkeypatch.setattr("experiments.harness.store._SECONDS", 0.1)
        with pytest.raises(UsageError, match=r"cannot write .*a\.json: another process holds"):
            recorder.save({"1": {"value": 2.0}})
        assert path.read_bytes() == before
        process.kill()
    recorder.save({"1": {"value": 2.0}})
    assert list(read(table, "a").units) == ["0", "1"]
    assert {each.name for each in path.parent.iterdir()} == {"a.json"}

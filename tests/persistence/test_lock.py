"""One process at a time writes a model directory, and removes what killed ones have left."""

import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from mixed_table import FAST, X, y

from bayesify.estimators import BayesianRegressor
from bayesify.persistence import load_model, locked, save_model

HOLD = """
import sys, time
from pathlib import Path
from bayesify.persistence.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def another_process(directory):
    """Another process that holds the lock until it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.extended
def test_a_second_process_is_refused_and_changes_nothing(saved, model):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    other = BayesianRegressor(**FAST | {"epochs": 1}).fit(X, y)
    with another_process(saved):
        message = "another process is training or saving a model in .*; wait until it has finished, or choose another folder"
        with pytest.raises(BlockingIOError, match=message):
            save_model(other, saved)
        assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
        assert load_model(saved).history_ == model.history_  # reading needs no lock
    save_model(other, saved)  # the lock of a killed process is free
    assert load_model(saved).history_ == other.history_


@pytest.mark.slow
def test_the_command_line_names_the_other_process(tmp_path):
    runner = pytest.importorskip("typer.testing").CliRunner()
    from bayesify.cli.app import app

    X.assign(price=y).to_csv(tmp_path / "table.csv", index=False)
    command = ["fit", str(tmp_path / "table.csv"), "--target", "price", "--out", str(tmp_path / "m"), "--epochs", "1", "--quiet"]
    with another_process(tmp_path / "m"):
        result = runner.invoke(app, command)
        assert result.exit_code == 2
        assert "another process is training or saving a model in" in result.output
        assert not (tmp_path / "m").exists()
    assert runner.invoke(app, command).exit_code == 0
    assert load_model(tmp_path / "m").n_features_in_ == 5


@pytest.mark.slow
def test_nested_locks_are_one(tmp_path):
    with locked(tmp_path / "m"):
        with locked(tmp_path / "m"):
            pass
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run([sys.executable, "-c", HOLD, str(tmp_path / "m")], check=True, capture_output=True, timeout=60)
    assert not list(tmp_path.iterdir())


def test_leftovers_of_killed_processes_are_removed_and_files_of_the_user_are_kept(saved, tmp_path, model):
    shutil.copytree(saved, tmp_path / ".model.01234567.old")
    (tmp_path / ".model.01234567.old" / "notes.txt").write_text("mine")
    (tmp_path / ".model.89abcdef.new").mkdir()
    (tmp_path / ".model.mine.old").mkdir()
    (tmp_path / ".models.89abcdef.new").mkdir()
    save_model(model, saved)
    assert {path.name for path in tmp_path.iterdir()} == {"model", ".model.mine.old", ".models.89abcdef.new"}
    assert (saved / "notes.txt").read_text() == "mine"
    np.testing.assert_array_equal(load_model(saved).predict(X), model.predict(X))

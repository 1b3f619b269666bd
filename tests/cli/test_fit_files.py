"""`bayesify fit` for Parquet files that are read in parts: an ordinary model directory, resuming, mistakes."""

import numpy as np
import pandas as pd
import pytest
from command_line import refuse, run

from bayesify.cli import sources
from bayesify.data import parquet_table
from bayesify.estimators import from_files
from bayesify.files import atomic_file
from bayesify.persistence import CHECKPOINT, load_model

QUICK = ("--target", "t", "--method", "MeanField", "--epochs", "2", "--set", "samples=5")


def _table(rows, seed=0):
    generator = np.random.default_rng(seed)
    table = pd.DataFrame({"a": generator.normal(size=rows), "b": generator.choice(["x", "y"], rows), "c": generator.random(rows)})
    table["t"] = 3 * table["a"] + (table["b"] == "x") + generator.normal(size=rows)
    return table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_table, "_SAMPLE_ROWS", 300)
    monkeypatch.setattr(parquet_table, "_LEAST_SAMPLE", 10)
    monkeypatch.setattr(from_files, "_PART", 200)
    (tmp_path / "in").mkdir()
    for k, rows in enumerate((300, 180, 120)):
        _table(rows, k).to_parquet(tmp_path / "in" / f"part{k}.parquet", row_group_size=100)
    return tmp_path


def test_a_model_of_files_is_an_ordinary_one(folder):
    model = folder / "model"
    result = run("fit", folder / "in" / "*.parquet", *QUICK, "--out", model)
    assert "600 rows in 3 files, read in parts" in result.stderr
    assert sorted(path.name for path in model.iterdir() if not path.name.startswith(".")) == [
        "config.json",
        "preprocessing.skops",
        "report.html",
        "test-predictions.csv",
        "weights.safetensors",
    ]
    tested = pd.read_csv(model / "test-predictions.csv")
    everything = pd.concat([_table(300, 0), _table(180, 1), _table(120, 2)], ignore_index=True)
    assert np.allclose(tested["true t"], everything["t"].iloc[tested["row"]])
    assert 80 < len(tested) < 160
    run("predict", model, folder / "in", "--out", folder / "out")
    assert len(pd.read_parquet(folder / "out" / "part1.parquet")) == 180
    run("evaluate", model, folder / "in" / "part0.parquet")
    assert load_model(model).history_.n == pytest.approx(480, abs=50)
    refuse("fit", folder / "in", *QUICK, "--out", model, match="add --overwrite", files=folder)
    result = run("fit", folder / "in", *QUICK, "--out", folder / "other", "--test", folder / "in" / "part2.parquet")
    assert "120 to test on" in result.stderr


def test_classes(folder):
    for path in (folder / "in").iterdir():
        table = pd.read_parquet(path)
        table.assign(t=np.where(table["t"] > 0, "good", "bad")).to_parquet(path)
    result = run("fit", folder / "in", *QUICK, "--out", folder / "model", "--conformal")
    assert "classification of 't'" in result.stderr
    assert list(load_model(folder / "model").classes_) == ["bad", "good"]


@pytest.mark.extended
def test_an_interrupted_run_goes_on(folder, monkeypatch):
    model, other = folder / "model", folder / "other"
    run("fit", folder / "in", *QUICK, "--out", other)
    calls = []

    def full(path):
        if str(path).endswith(CHECKPOINT):
            calls.append(path)
            if len(calls) > 3:
                raise OSError(28, "No space left on device")
        return atomic_file(path)

    monkeypatch.setattr("bayesify.train.checkpoint.atomic_file", full)
    result = run("fit", folder / "in", *QUICK, "--out", model, code=2)
    assert "could not be written" in result.stderr
    assert "No space left on device" in result.stderr
    monkeypatch.undo()
    monkeypatch.setattr(parquet_table, "_SAMPLE_ROWS", 300)
    monkeypatch.setattr(parquet_table, "_LEAST_SAMPLE", 10)
    monkeypatch.setattr(from_files, "_PART", 200)
    assert "resuming" in run("fit", folder / "in", *QUICK, "--out", model).stderr
    assert (model / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()


def test_changed_files_are_not_resumed(folder, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesify.train.single_model._Loop._train", interrupt)
    run("fit", folder / "in", *QUICK, "--out", folder / "model", code=130)
    monkeypatch.undo()
    _table(120, 9).to_parquet(folder / "in" / "part2.parquet", row_group_size=100)
    refuse("fit", folder / "in", *QUICK, "--out", folder / "model", match="cannot be continued", files=folder)


@pytest.mark.extended
def test_a_large_file_is_read_in_parts(folder, monkeypatch):
    file = folder / "in" / "part0.parquet"
    monkeypatch.setattr(sources, "_LARGE", 1000)
    assert "300 rows in 1 file, read in parts" in run("fit", file, *QUICK, "--out", folder / "a").stderr
    assert "240 rows to train on" in run("fit", file, *QUICK, "--out", folder / "b", "--split", "time:c").stderr


def test_mistakes(folder):
    source = folder / "in"
    refuse("fit", folder / "*.parquet", *QUICK, match="no file matches", files=folder)
    refuse("fit", source, "--target", "T", match="Did you mean 't'?", files=folder)
    for option in (
        ("--group", "b"),
        ("--split", "time:c"),
        ("--weight", "c"),
        ("--on", "ray"),
        ("--compare", "VSD"),
        ("--sep", ";"),
    ):
        refuse("fit", source, *QUICK, *option, match=f"{option[0]}", files=folder)
        refuse("fit", source, *QUICK, *option, match="not for several files, which are read in parts", files=folder)
    refuse("fit", source, "--target", "t", "--method", "auto", match="--method auto: not for several files", files=folder)
    (source / "part1.parquet").write_bytes(b"damaged")
    refuse("fit", source, *QUICK, match="part1.parquet cannot be read as a Parquet file", files=folder)

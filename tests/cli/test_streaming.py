"""`bayesify predict` for several Parquet files: as for one table, in bounded memory, continued after an interruption, on Ray."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import refuse, run

from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import save_model

sys.path.insert(0, str(Path(__file__).parents[1]))


def _table(rows, seed=0):
    generator = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"a": generator.normal(size=rows), "b": generator.choice(["x", "y"], rows), "id": np.arange(rows) + 10 * seed}
    )
    table.loc[table.index % 7 == 3, "a"] = np.nan
    return table


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    table = _table(80)
    settings = {"method": "MeanField", "epochs": 3, "samples": 5, "random_state": 0, "progress": False}
    save_model(BayesianRegressor(**settings).fit(table[["a", "b"]], np.arange(80.0)), place / "regression", target="t")
    y = np.where(table.index % 2, "no", "yes")
    save_model(BayesianClassifier(**settings).fit(table[["a", "b"]], y), place / "classes", target="t")
    return place


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for k, rows in enumerate((40, 7, 25)):
        _table(rows, k).to_parquet(tmp_path / "in" / f"part{k}.parquet")
    return tmp_path


@pytest.mark.default("regression")
@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_predictions_are_those_of_one_table(model, folder, monkeypatch, kind):
    from bayesify.cli import streaming

    monkeypatch.setattr(streaming, "_ROWS", 16)
    run("predict", model / kind, folder / "in" / "*.parquet", "--out", folder / "out", "--keep", "id", "--level", "0.8")
    for k in range(3):
        one = folder / "one.parquet"
        run("predict", model / kind, folder / "in" / f"part{k}.parquet", "--out", one, "--keep", "id", "--level", "0.8")
        expected, found = pd.read_parquet(one), pd.read_parquet(folder / "out" / f"part{k}.parquet")
        assert list(found["id"]) == list(_table((40, 7, 25)[k], k)["id"])
        common = [name for name in expected if name != "warning"]
        pd.testing.assert_frame_equal(found[common], expected[common], rtol=1e-9)
        if "warning" in expected:
            assert list(found["warning"].fillna("")) == list(expected["warning"])


def test_the_same_command_continues(model, folder):
    command = ("predict", model / "regression", folder / "in", "--out", folder / "out")
    run(*command)
    first = {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir() if path.suffix == ".parquet"}
    (folder / "out" / "part1.parquet").unlink()
    result = run(*command)
    assert "2 files of 3" in result.stderr
    second = {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir() if path.suffix == ".parquet"}
    assert [name for name in first if first[name] != second[name]] == ["part1.parquet"]
    refuse(*command, "--level", "0.5", match="of another model or with other options", files=folder)


def test_mistakes(model, folder):
    pattern = folder / "in" / "*.parquet"
    refuse("predict", model / "regression", pattern, match="several files need --out", files=folder)
    refuse("predict", model / "regression", folder / "*.pq", "--out", folder / "o", match="no file matches", files=folder)
    refuse("predict", model / "regression", pattern, "--out", folder / "in", match="would overwrite", files=folder)
    one = folder / "in" / "part0.parquet"
    refuse("predict", model / "regression", one, "--on", "ray", match="--on ray is for several files", files=folder)
    refuse("predict", model / "regression", pattern, "--out", folder / "o", "--on", "moon", match="on must be", files=folder)
    (folder / "in" / "part1.parquet").write_bytes(b"damaged")
    result = run("predict", model / "regression", pattern, "--out", folder / "out", code=2)
    assert "part1.parquet" in result.stderr
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["part0.parquet", "predictions.json"]


@pytest.mark.slow
def test_memory_is_bounded(model, tmp_path):
    """Eight times the rows need no more memory, up to what files and libraries take."""
    (tmp_path / "in").mkdir()
    script = (
        "import resource, sys; from bayesify.cli.app import app; from bayesify.cli import streaming; import bayesify.estimators\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('GROWTH', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    growth = []
    for rows in (50_000, 400_000):
        _table(rows).to_parquet(tmp_path / "in" / "big.parquet")
        command = "predict", model / "regression", tmp_path / "in", "--out", tmp_path / f"{rows}"
        result = subprocess.run(
            [sys.executable, "-c", script, *map(str, command)],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        growth.append(int(result.stdout.split("GROWTH")[1]))
    assert growth[1] < 1.5 * growth[0] + 20_000  # KiB: eight times the rows


@pytest.mark.slow  # jobs on Ray: tests/train/test_on_cluster.py
def test_on_a_cluster_files_are_equal(model, folder, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bayesify[ray]'")
    from ray_servers import ray_cluster

    (folder / "in" / "part3.parquet").write_bytes(b"damaged")
    pattern = folder / "in" / "*.parquet"
    with ray_cluster(1, 1) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        result = run("predict", model / "regression", pattern, "--out", folder / "ray", "--on", "ray", code=2)
    assert "part3.parquet" in result.stderr
    (folder / "in" / "part3.parquet").unlink()
    run("predict", model / "regression", pattern, "--out", folder / "here")
    for k in range(3):
        assert (folder / "ray" / f"part{k}.parquet").read_bytes() == (folder / "here" / f"part{k}.parquet").read_bytes()

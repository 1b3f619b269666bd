"""Model directories: equal predictions after loading, a clear word for everything that can be wrong, nothing half-written."""

import errno
import hashlib
import json
import os
import pickle
import shutil
import stat

import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from sklearn.preprocessing import FunctionTransformer

from bayesify import Cyclical, MCDropout, MeanField, Method, VariationalDropout
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import CHECKPOINT, ModelError, check_destination, load_config, load_model, save_model

rng = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "size": np.where(rng.random(60) < 0.1, np.nan, rng.normal(100, 10, 60)),
        "city": rng.choice(["Bonn", "Ulm", "Köln"], 60),
        "garden": rng.random(60) < 0.5,
        "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 60), unit="D"),
        "same": 1,
    }
)
y = 1e6 + 100 * rng.normal(size=60)
FAST = {"epochs": 2, "samples": 5, "hidden": (8,), "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return BayesianRegressor(**FAST).fit(X, y)


@pytest.fixture
def saved(tmp_path, model):
    save_model(model, tmp_path / "model", target="price", metrics={"rmse": np.float32(1.5), "bad": float("nan")})
    return tmp_path / "model"


def rewrite(directory, **changes):
    """An attacker, or a newer version, who gets the checksum right."""
    config = json.loads((directory / "config.json").read_text()) | changes
    rest = {name: value for name, value in config.items() if name != "checksum"}
    config["checksum"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    (directory / "config.json").write_text(json.dumps(config))


def replace_file(directory, name, content):
    (directory / name).write_bytes(content)
    files = json.loads((directory / "config.json").read_text())["files"]
    rewrite(directory, files=files | {name: hashlib.sha256(content).hexdigest()})


class TestRoundTrip:
    def test_equal_numbers(self, saved, model):
        loaded = load_model(saved)
        assert isinstance(loaded, BayesianRegressor)
        for mine, its in zip(model.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True):
            np.testing.assert_array_equal(mine, its)
        np.testing.assert_array_equal(model.predict_interval(X), loaded.predict_interval(X))
        assert loaded.history_ == model.history_
        assert loaded.columns_ == model.columns_
        assert list(loaded.feature_names_in_) == list(X.columns)
        assert loaded.n_features_in_ == 5
        assert loaded.get_params() | {"method": None} == model.get_params() | loaded.get_params() | {"method": None}

    @pytest.mark.parametrize(
        "settings",
        [
            {"method": method}
            for method in (MeanField(prior_std=0.5), MeanField(prior_mean="pretrained"), VariationalDropout(), MCDropout(p=0.2))
        ]
        + [
            {"likelihood": "heteroscedastic"},
            {"beta": Cyclical(cycles=2), "activation": "tanh", "hidden": ()},
            {"random_state": np.random.RandomState(3)},
            {"random_state": None, "validation_fraction": 0.2, "patience": 1},
        ],
        ids=lambda settings: ", ".join(settings),
    )
    def test_settings(self, tmp_path, settings):
        model = BayesianRegressor(**FAST | settings).fit(X, y)
        save_model(model, tmp_path / "m")
        loaded = load_model(tmp_path / "m")
        np.testing.assert_array_equal(model.predict(X, return_std=True), loaded.predict(X, return_std=True))
        if "beta" in settings:
            assert loaded.beta == settings["beta"]

    def test_several_outputs_and_arrays(self, tmp_path):
        numbers = X[["size"]].to_numpy()
        model = BayesianRegressor(**FAST).fit(numbers, np.stack([y, -2 * y], 1))
        save_model(model, tmp_path / "m")
        loaded = load_model(tmp_path / "m")
        assert loaded.predict(numbers).shape == (60, 2)
        np.testing.assert_array_equal(model.predict(numbers), loaded.predict(numbers))
        assert "feature_names_in_" not in vars(loaded)

    @pytest.mark.parametrize("labels", [["a", "bb"], [3, -1], [True, False], [1.0, 2.0], np.array(["x", "y"], dtype=object)])
    def test_classes(self, tmp_path, labels):
        classes = np.asarray(labels)[np.arange(60) % 2]
        model = BayesianClassifier(**FAST).fit(X, classes)
        save_model(model, tmp_path / "m")
        loaded = load_model(tmp_path / "m")
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
        assert loaded.classes_.dtype == model.classes_.dtype

    def test_a_loaded_model_can_be_saved_trained_and_pickled(self, saved, tmp_path, model):
        loaded = load_model(saved)
        save_model(loaded, tmp_path / "again")
        np.testing.assert_array_equal(load_model(tmp_path / "again").predict(X), model.predict(X))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(loaded)).predict(X), model.predict(X))
        np.testing.assert_array_equal(loaded.fit(X, y).predict(X), model.predict(X))

    def test_config(self, saved):
        config = load_config(saved)
        assert config["target"]["name"] == "price"
        assert config["metrics"] == {"rmse": 1.5, "bad": None}
        assert config["task"] == "regression"
        assert [column["kind"] for column in config["columns"]] == ["number", "category", "boolean", "datetime", "dropped"]

    def test_no_pickle(self, saved):
        for path in saved.iterdir():
            assert not path.read_bytes().startswith(b"\x80")
            with pytest.raises(Exception):  # noqa: B017
                pickle.loads(path.read_bytes())


class TestLoading:
    def test_missing(self, tmp_path, saved):
        with pytest.raises(ModelError, match="does not exist"):
            load_model(tmp_path / "nothing")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ModelError, match=r"is not a model directory: it has no config\.json"):
            load_model(tmp_path / "empty")
        with pytest.raises(ModelError, match="is not a folder"):
            load_model(saved / "config.json")

    @pytest.mark.parametrize("name", ["weights.safetensors", "preprocessing.skops"])
    def test_incomplete_and_damaged_files(self, saved, name):
        content = (saved / name).read_bytes()
        for damaged in (content[:-1], b"", content[:100] + b"x" + content[101:]):
            (saved / name).write_bytes(damaged)
            with pytest.raises(ModelError, match=f"{name} is damaged or from another model"):
                load_model(saved)
        (saved / name).unlink()
        with pytest.raises(ModelError, match=f"incomplete: {name} is missing"):
            load_model(saved)

    def test_truncated_config(self, saved):
        text = (saved / "config.json").read_text()
        (saved / "config.json").write_text(text[: len(text) // 2])
        with pytest.raises(ModelError, match="no valid JSON"):
            load_model(saved)

    def test_every_edit_of_the_config_is_noticed(self, saved):
        original = json.loads((saved / "config.json").read_text())
        for name in original.keys() - {"format", "checksum"}:
            (saved / "config.json").write_text(json.dumps(original | {name: "edited"}))
            with pytest.raises(ModelError, match="edited or damaged"):
                load_model(saved)

    @pytest.mark.parametrize("content", ["{}", "[]", '{"format": "other"}'])
    def test_foreign_config(self, saved, content):
        (saved / "config.json").write_text(content)
        with pytest.raises(ModelError, match="not bayesify's"):
            load_model(saved)

    def test_newer_format(self, saved):
        rewrite(saved, format_version=2, bayesify="9.0")
        with pytest.raises(ModelError, match=r"format 2 by bayesify 9.0, .* formats up to 1: pip install --upgrade bayesify"):
            load_model(saved)

    def test_unknown_method_parameter_and_schedule(self, saved):
        params = json.loads((saved / "config.json").read_text())["params"]
        rewrite(saved, params=params | {"method": {"method": "Oracle"}})
        with pytest.raises(ModelError, match=r"unknown method 'Oracle'; known methods: .*MeanField"):
            load_model(saved)
        rewrite(saved, params=params | {"speed": 3})
        with pytest.raises(ModelError, match="unexpected keyword argument 'speed'"):
            load_model(saved)
        rewrite(saved, params=params | {"beta": {"schedule": "Jump"}})
        with pytest.raises(ModelError, match=r"'Jump' is missing in config\.json, or unknown"):
            load_model(saved)

    def test_weights_of_another_net(self, saved):
        rewrite(saved, params=json.loads((saved / "config.json").read_text())["params"] | {"hidden": [9]})
        with pytest.raises(ModelError, match="size mismatch"):
            load_model(saved)

    def test_foreign_types_are_refused(self, saved):
        replace_file(saved, "preprocessing.skops", skops.io.dumps(FunctionTransformer(os.system)))
        with pytest.raises(ModelError, match="system"):
            load_model(saved)

    def test_garbage_that_has_the_right_checksum(self, saved):
        content = (saved / "weights.safetensors").read_bytes()
        replace_file(saved, "weights.safetensors", b"garbage" * 10)
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_model(saved)
        replace_file(saved, "weights.safetensors", content)
        replace_file(saved, "preprocessing.skops", b"garbage" * 10)
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_model(saved)


class TestSaving:
    def test_replaces_a_model_and_keeps_other_files(self, saved, tmp_path, model):
        (saved / "notes.txt").write_text("mine")
        (saved / CHECKPOINT).write_text("state of the run")
        other = BayesianRegressor(**FAST | {"epochs": 1}).fit(X, y)
        save_model(other, saved, companions={"report.html": b"<html>"})
        assert {path.name for path in saved.iterdir()} == {
            "config.json", "weights.safetensors", "preprocessing.skops", "notes.txt", "report.html",
        }  # fmt: skip
        np.testing.assert_array_equal(load_model(saved).predict(X), other.predict(X))
        save_model(model, saved)
        assert not (saved / "report.html").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_empty_directory_or_only_a_checkpoint(self, tmp_path, model):
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / CHECKPOINT).write_text("state of the run")
        save_model(model, tmp_path / "m")
        assert load_model(tmp_path / "m").n_features_in_ == 5

    def test_permissions_and_links(self, tmp_path, model):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        save_model(model, tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        umask = os.umask(0o022)
        os.umask(umask)
        assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o777 & ~umask

    def test_other_places_are_refused(self, tmp_path, model):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").write_text("meow")
        with pytest.raises(ModelError, match=r"holds files that are not a bayesify model \(cat.jpg\)"):
            save_model(model, tmp_path / "photos")
        with pytest.raises(ModelError, match="is a file"):
            check_destination(tmp_path / "photos" / "cat.jpg")
        with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
            check_destination(tmp_path / "a" / "b")
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]

    def test_not_writable(self, tmp_path, model, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
        with pytest.raises(PermissionError, match="not writable"):
            save_model(model, tmp_path / "m")

    @pytest.mark.parametrize("call", [1, 2, 3])
    def test_a_full_disk_changes_nothing(self, saved, tmp_path, monkeypatch, call):
        before = {path.name: path.read_bytes() for path in saved.iterdir()}
        calls = []

        def full(descriptor):
            calls.append(descriptor)
            if len(calls) == call:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        other = BayesianRegressor(**FAST | {"epochs": 1}).fit(X, y)
        with pytest.raises(OSError, match=r"could not be saved .* No space left on device; what was there is as it was"):
            save_model(other, saved)
        assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_a_failed_swap_is_undone(self, saved, tmp_path, model, monkeypatch):
        real = os.replace

        def fail(source, target):
            if str(source).endswith(".new"):
                raise OSError(errno.EBUSY, "busy")
            real(source, target)

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="busy"):
            save_model(model, saved)
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        load_model(saved)

    def test_killed_between_the_two_renames(self, saved, tmp_path):
        shutil.move(saved, tmp_path / ".model.1234.old")
        with pytest.raises(ModelError, match=r"does not exist; .* left the earlier model in .*\.model\.1234\.old"):
            load_model(saved)

    def test_what_cannot_be_saved(self, tmp_path, model):
        with pytest.raises(TypeError, match="must be a BayesianRegressor or BayesianClassifier, got Linear"):
            save_model(torch.nn.Linear(1, 1), tmp_path / "m")
        with pytest.raises(ModelError, match="not fitted yet"):
            save_model(BayesianRegressor(), tmp_path / "m")
        own = BayesianRegressor(net=torch.nn.Linear, **FAST).fit(X, y)
        with pytest.raises(ModelError, match=r"a net of its own cannot be saved, .*: use hidden and activation"):
            save_model(own, tmp_path / "m")
        for name in ("config.json", "../evil", CHECKPOINT):
            with pytest.raises(ModelError, match="companions must be plain file names"):
                save_model(model, tmp_path / "m", companions={name: b""})
        assert not list(tmp_path.iterdir())

    def test_every_method_of_the_registry(self, tmp_path):
        for name, kind in Method.registry.items():
            if kind.__module__.startswith("bayesify."):
                fitted = BayesianRegressor(**FAST | {"method": kind()}).fit(X, y)
                save_model(fitted, tmp_path / name)
                np.testing.assert_array_equal(load_model(tmp_path / name).predict(X), fitted.predict(X), err_msg=name)

"""Model directories: atomic replacement, rejected destinations and estimators."""

import errno
import os
import shutil
import stat
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from mixed_table import FAST, X, y

from bayesify import Method
from bayesify.errors import ConfigurationError, ModelFileError
from bayesify.estimators import BayesianRegressor
from bayesify.persistence import CHECKPOINT, check_destination, load_model, save_model


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

    def test_rejects_other_destinations(self, tmp_path, model):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").write_text("meow")
        with pytest.raises(ConfigurationError, match=r"contains files that are not a bayesify model \(cat.jpg\)"):
            save_model(model, tmp_path / "photos")
        with pytest.raises(ConfigurationError, match="is a file"):
            check_destination(tmp_path / "photos" / "cat.jpg")
        with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
            check_destination(tmp_path / "a" / "b")
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]

    def test_rejects_unwritable_folders(self, tmp_path, model, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
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
        with pytest.raises(OSError, match=r"could not be saved .* No space left on device; the directory is unchanged"):
            save_model(other, saved)
        assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_undoes_a_failed_replacement(self, saved, tmp_path, model, monkeypatch):
        replace = os.replace

        def fail(source, target):
            if str(source).endswith(".new"):
                raise OSError(errno.EBUSY, "busy")
            replace(source, target)

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="busy"):
            save_model(model, saved)
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        load_model(saved)

    def test_interrupted_between_the_two_renames(self, saved, tmp_path):
        shutil.move(saved, tmp_path / ".model.1234.old")
        with pytest.raises(ModelFileError, match=r"does not exist; .* left the previous model in .*\.model\.1234\.old"):
            load_model(saved)

    def test_rejects_estimators_and_companions(self, tmp_path, model):
        with pytest.raises(TypeError, match="must be a BayesianRegressor or BayesianClassifier, got Linear"):
            save_model(torch.nn.Linear(1, 1), tmp_path / "m")
        with pytest.raises(ConfigurationError, match="is not fitted"):
            save_model(BayesianRegressor(), tmp_path / "m")
        custom = BayesianRegressor(net=torch.nn.Linear, **FAST).fit(X, y)
        with pytest.raises(ConfigurationError, match=r"a custom net cannot be saved, .*; use hidden and activation"):
            save_model(custom, tmp_path / "m")
        for name in ("config.json", "../evil", CHECKPOINT):
            with pytest.raises(ConfigurationError, match="companions must be file names"):
                save_model(model, tmp_path / "m", companions={name: b""})
        assert not list(tmp_path.iterdir())

    @pytest.mark.extended
    def test_every_method_of_the_registry(self, tmp_path):
        fields: dict[str, dict[str, object]] = {key: {"where": "*"} for key in ("BLoB", "ScalaBL")}  # a table's network has none
        fields |= {key: {"draws": 4, "burn_in": 2, "thinning": 1} for key in ("SGLD", "SGHMC")}
        fields["HMC"] = {"draws": 4, "chains": 1, "warmup": 2, "max_tree_depth": 2}
        absent = {name for name, package in (("Laplace", "laplace"), ("HMC", "pyro")) if find_spec(package) is None}
        for name, kind in Method.registry.items():
            if kind.__module__.startswith("bayesify.") and name not in absent:
                fitted = BayesianRegressor(method=kind(**fields.get(name, {})), **FAST).fit(X, y)
                save_model(fitted, tmp_path / name)
                np.testing.assert_array_equal(load_model(tmp_path / name).predict(X), fitted.predict(X), err_msg=name)

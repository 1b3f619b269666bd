"""Model directories: identical predictions after loading, verified reading, atomic writing."""

import hashlib
import json
import os
import pickle

import numpy as np
import pytest
import skops.io
from mixed_table import FAST, X, y
from sklearn.preprocessing import FunctionTransformer

from bayesify import Cyclical, MCDropout, MeanField, VariationalDropout
from bayesify.data import Column
from bayesify.errors import ModelFileError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import load_config, load_model, save_model


def rewrite(directory, **changes):
    """Edit the configuration and update its checksum."""
    config = json.loads((directory / "config.json").read_text()) | changes
    rest = {name: value for name, value in config.items() if name != "checksum"}
    config["checksum"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    (directory / "config.json").write_text(json.dumps(config))


def replace_file(directory, name, content):
    (directory / name).write_bytes(content)
    files = json.loads((directory / "config.json").read_text())["files"]
    rewrite(directory, files=files | {name: hashlib.sha256(content).hexdigest()})


class TestRoundTrip:
    def test_predictions_are_identical(self, saved, model):
        loaded = load_model(saved)
        assert isinstance(loaded, BayesianRegressor)
        for before, after in zip(model.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True):
            np.testing.assert_array_equal(before, after)
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
        ids=", ".join,
    )
    def test_settings(self, tmp_path, settings):
        model = BayesianRegressor(**FAST | settings).fit(X, y)
        save_model(model, tmp_path / "m")
        loaded = load_model(tmp_path / "m")
        np.testing.assert_array_equal(model.predict(X, return_std=True), loaded.predict(X, return_std=True))
        if "beta" in settings:
            assert loaded.beta == settings["beta"]

    def test_several_outputs_and_arrays(self, tmp_path):
        inputs = X[["size"]].to_numpy()
        model = BayesianRegressor(**FAST).fit(inputs, np.stack([y, -2 * y], 1))
        save_model(model, tmp_path / "m")
        loaded = load_model(tmp_path / "m")
        assert loaded.predict(inputs).shape == (60, 2)
        np.testing.assert_array_equal(model.predict(inputs), loaded.predict(inputs))
        assert "feature_names_in_" not in vars(loaded)

    @pytest.mark.parametrize("labels", [["a", "bb"], [3, -1], [True, False], [1.0, 2.0], np.array(["x", "y"], dtype=object)])
    @pytest.mark.default("labels0", "labels1", extended=["labels4"])
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
        with pytest.raises(ModelFileError, match="does not exist"):
            load_model(tmp_path / "nothing")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ModelFileError, match=r"is not a model directory: it has no config\.json"):
            load_model(tmp_path / "empty")
        with pytest.raises(ModelFileError, match="is not a folder"):
            load_model(saved / "config.json")

    @pytest.mark.parametrize("name", ["weights.safetensors", "preprocessing.skops"])
    def test_rejects_incomplete_and_damaged_files(self, saved, name):
        content = (saved / name).read_bytes()
        for damaged in (content[:-1], b"", content[:100] + b"x" + content[101:]):
            (saved / name).write_bytes(damaged)
            with pytest.raises(ModelFileError, match=f"{name} is damaged or from another model"):
                load_model(saved)
        (saved / name).unlink()
        with pytest.raises(ModelFileError, match=f"incomplete: {name} is missing"):
            load_model(saved)

    def test_truncated_config(self, saved):
        text = (saved / "config.json").read_text()
        (saved / "config.json").write_text(text[: len(text) // 2])
        with pytest.raises(ModelFileError, match="not valid JSON"):
            load_model(saved)

    def test_rejects_every_edit_of_the_config(self, saved):
        original = json.loads((saved / "config.json").read_text())
        for name in original.keys() - {"format", "checksum"}:
            (saved / "config.json").write_text(json.dumps(original | {name: "edited"}))
            with pytest.raises(ModelFileError, match="edited or damaged"):
                load_model(saved)

    @pytest.mark.parametrize("content", ["{}", "[]", '{"format": "other"}'])
    def test_rejects_other_config_files(self, saved, content):
        (saved / "config.json").write_text(content)
        with pytest.raises(ModelFileError, match="was not written by bayesify"):
            load_model(saved)

    def test_newer_format(self, saved):
        rewrite(saved, format_version=3, bayesify="9.0")
        with pytest.raises(ModelFileError, match=r"format 3 by bayesify 9.0; .* formats up to 2: pip install --upgrade bayesify"):
            load_model(saved)

    def test_format_1(self, tmp_path, monkeypatch):
        """It had neither `rows`, `quantiles` and `shares` of columns, nor `reading`; one missing value made an indicator."""
        with monkeypatch.context() as patch:
            patch.setattr(Column, "has_gaps", property(lambda column: column.missing > 0))
            model = BayesianRegressor(**FAST).fit(X, y)
        save_model(model, tmp_path / "m")
        new = ("rows", "quantiles", "shares")
        columns = [{name: value for name, value in c.items() if name not in new} for c in load_config(tmp_path / "m")["columns"]]
        rewrite(tmp_path / "m", format_version=1, columns=columns)
        old, complete = load_model(tmp_path / "m"), X.dropna()
        np.testing.assert_array_equal(old.predict(complete), model.predict(complete))
        assert np.isfinite(old.predict(X)).all()
        assert (old.unusual(X) == "").all()

    def test_unknown_method_parameter_and_schedule(self, saved):
        params = json.loads((saved / "config.json").read_text())["params"]
        rewrite(saved, params=params | {"method": {"method": "Oracle"}})
        with pytest.raises(ModelFileError, match=r"unknown method 'Oracle'. `Method.registry` and `bayesify methods`"):
            load_model(saved)
        rewrite(saved, params=params | {"speed": 3})
        with pytest.raises(ModelFileError, match="unexpected keyword argument 'speed'"):
            load_model(saved)
        rewrite(saved, params=params | {"beta": {"schedule": "Jump"}})
        with pytest.raises(ModelFileError, match=r"config\.json cannot be loaded: 'Jump' is missing, or unknown"):
            load_model(saved)

    def test_weights_of_another_net(self, saved):
        rewrite(saved, params=json.loads((saved / "config.json").read_text())["params"] | {"hidden": [9]})
        with pytest.raises(ModelFileError, match="size mismatch"):
            load_model(saved)

    def test_rejects_untrusted_types(self, saved):
        replace_file(saved, "preprocessing.skops", skops.io.dumps(FunctionTransformer(os.system)))
        with pytest.raises(ModelFileError, match="system"):
            load_model(saved)

    def test_rejects_garbage_with_the_right_checksum(self, saved):
        content = (saved / "weights.safetensors").read_bytes()
        replace_file(saved, "weights.safetensors", b"garbage" * 10)
        with pytest.raises(ModelFileError, match=r"weights\.safetensors cannot be loaded"):
            load_model(saved)
        replace_file(saved, "weights.safetensors", content)
        replace_file(saved, "preprocessing.skops", b"garbage" * 10)
        with pytest.raises(ModelFileError, match="cannot be loaded"):
            load_model(saved)

    def test_bugs_are_not_reported_as_damaged_files(self, saved, monkeypatch):
        def bug(*arguments):
            raise TypeError("a bug")

        monkeypatch.setattr(BayesianRegressor, "build", bug)
        with pytest.raises(TypeError, match="a bug"):
            load_model(saved)

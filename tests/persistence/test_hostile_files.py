"""Model directories made to harm: code, sizes that exhaust memory or time, and values that no training writes."""

import functools
import importlib.metadata
import io
import json
import operator
import time
import warnings
import zipfile

import numpy as np
import pytest
import skops.io
import torch
from mixed_table import FAST, X, y
from safetensors.torch import load, save
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from test_loading import replace_file, rewrite

from bayesify import BayesifyWarning, Method
from bayesify.errors import ModelFileError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import load_config, load_model, save_model
from bayesify.persistence.weights import NOT_SIZES, SIZES

called = []


def call(*arguments):
    """What a crafted file would have called."""
    called.append(arguments)


def refuse(directory, match):
    """The model is refused, quickly and with the name of a file."""
    started = time.process_time()
    with pytest.raises(ModelFileError, match=match) as refused:
        load_model(directory)
    assert any(f"{name}" in str(refused.value) for name in ("config.json", "weights.safetensors", "preprocessing.skops"))
    assert time.process_time() - started < 10


def edit(directory, **changes):
    """Change values of the configuration, named by their path: columns__0__kind."""
    config = load_config(directory)
    for path, value in changes.items():
        *places, last = (int(name) if name.isdecimal() else name for name in path.split("__"))
        functools.reduce(operator.getitem, places, config)[last] = value
    rewrite(directory, **config)


def edit_schema(directory, change):
    """Change the JSON in the skops file."""
    source = zipfile.ZipFile(directory / "preprocessing.skops")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as target:
        for name in source.namelist():
            target.writestr(name, change(source.read(name)) if name == "schema.json" else source.read(name))
    replace_file(directory, "preprocessing.skops", content.getvalue())


class TestCode:
    @pytest.mark.parametrize(
        "crafted",
        [operator.methodcaller("append", 1), functools.partial(call, 1), StandardScaler().fit, FunctionTransformer(call)],
        ids=["operator", "partial", "method", "transformer"],
    )
    def test_neither_functions_nor_calls(self, saved, crafted):
        replace_file(saved, "preprocessing.skops", skops.io.dumps(crafted))
        refuse(saved, r"preprocessing\.skops cannot be loaded: it contains a (OperatorFunc|Partial|Method|Function)Node")
        assert not called

    def test_a_call_hidden_in_a_fitted_transformer(self, saved):
        hidden = json.loads(zipfile.ZipFile(io.BytesIO(skops.io.dumps(StandardScaler().fit))).read("schema.json"))
        edit_schema(saved, lambda text: json.dumps(json.loads(text) | {"extra": hidden}).encode())
        refuse(saved, "it contains a MethodNode")

    @pytest.mark.parametrize("version", ["0.11.0", "0.12.0"])
    def test_versions_of_skops_that_run_crafted_files(self, saved, monkeypatch, version):
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
        refuse(saved, rf"skops {version} .* requires skops>=0\.13")


class TestSizes:
    def test_compressed_preprocessing(self, saved):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("schema.json", b" " * 50_000_000)
        replace_file(saved, "preprocessing.skops", content.getvalue())
        refuse(saved, r"preprocessing\.skops cannot be loaded: it is compressed")

    def test_overlapping_members(self, saved):
        content = bytearray((saved / "preprocessing.skops").read_bytes())
        start = content.index(b"PK\x01\x02")  # the directory at the end, with the size after 24 bytes
        content[start + 24 : start + 28] = (2**31).to_bytes(4, "little")
        replace_file(saved, "preprocessing.skops", bytes(content))
        refuse(saved, "claim to be larger than the file")

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"params__method": {"method": "DeepEnsemble", "members": 1_000_000}}, "layers need more than"),
            ({"params__hidden": [8] * 200_000}, "layers need more than"),
            ({"params__hidden": [10**9]}, r"params\.hidden\[0\] must be a whole number"),
            ({"params__hidden": [2**24]}, "weights need more than"),
            ({"network__in_features": 10**9}, "weights need more than"),
            ({"network__out_features": 10**10}, "weights need more than"),
            ({"params__method": {"method": "ELRG", "rank": 10**7}}, r"rank=10,000,000 needs more than"),
            ({"params__samples": 10**9}, r"params\.samples must be a whole number from 1 to 1000000"),
        ],
    )
    def test_of_the_configuration(self, saved, changes, match):
        edit(saved, **changes)
        refuse(saved, match)

    def test_every_whole_number_of_a_method_is_checked_or_known_not_to_be_a_size(self):
        kinds = [kind for kind in Method.registry.values() if kind.__module__.startswith("bayesify.methods.")]
        found = {name for kind in kinds for name, of in kind.__annotations__.items() if str(of).startswith(("int", "Literal[0, 1"))}
        assert found <= {*SIZES, *NOT_SIZES}

    def test_width_of_labels(self, tmp_path):
        save_model(BayesianClassifier(**FAST).fit(X, np.array(["a", "b"])[np.arange(60) % 2]), tmp_path / "m")
        edit(tmp_path / "m", target__dtype="<U100000000")
        refuse(tmp_path / "m", r"target\.dtype must have the length of the labels")


class TestStructure:
    def test_deep_nesting(self, saved):
        (saved / "config.json").write_text('{"format": "bayesify-model", "x": ' + "[" * 200_000 + "]" * 200_000 + "}")
        refuse(saved, "nested too deeply")

    def test_deeply_nested_preprocessing(self, saved):
        edit_schema(saved, lambda text: b"[" * 200_000 + b"]" * 200_000)
        refuse(saved, r"preprocessing\.skops cannot be loaded")

    @pytest.mark.parametrize(
        "files", [[], "text", None, {"weights.safetensors": 1}, {"../weights.safetensors": "0"}, {"/etc/x": "0"}]
    )
    def test_checksums_of_another_type(self, saved, files):
        rewrite(saved, files=files)
        refuse(saved, "files must map")

    @pytest.mark.parametrize("content", ["text", [1, 2], {"a": 1}, None])
    def test_another_object_as_preprocessing(self, saved, content):
        replace_file(saved, "preprocessing.skops", skops.io.dumps(content))
        refuse(saved, "must contain a ColumnTransformer, got")

    def test_preprocessing_of_another_table(self, saved, tmp_path):
        save_model(BayesianRegressor(**FAST).fit(X[["size", "city"]], y), tmp_path / "other")
        replace_file(saved, "preprocessing.skops", (tmp_path / "other" / "preprocessing.skops").read_bytes())
        refuse(saved, "its transformers are not those of the columns")

    @pytest.mark.parametrize("version", [-5, 0, "2", 1.5, True, None, [2]])
    def test_format_version(self, saved, version):
        rewrite(saved, format_version=version)
        refuse(saved, "format_version must be a whole number from 1 to 2, got")

    @pytest.mark.parametrize("version", [None, 1, "", "new", "1" * 100])
    def test_version_of_bayesify(self, saved, version):
        rewrite(saved, bayesify=version)
        refuse(saved, "bayesify must be the version that saved it")

    def test_a_newer_version_of_the_same_format_is_a_warning(self, saved, model):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_model(saved)
        rewrite(saved, bayesify="99.0")
        with pytest.warns(BayesifyWarning, match=r"saved by bayesify 99\.0, newer than this version"):
            np.testing.assert_array_equal(load_model(saved).predict(X), model.predict(X))

    @pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_are_not_finite(self, saved, text):
        content = (saved / "config.json").read_text()
        (saved / "config.json").write_text(content.replace('"seed": ', f'"more": {text}, "seed": ', 1))
        refuse(saved, f"{text} is not a finite number")

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"target__mean": [None]}, r"target\.mean\[0\] must be a finite number, got None"),
            ({"target__std": [0.0]}, r"target\.std\[0\] must be a finite number"),
            ({"target__std": [1.0, 1.0]}, "must have the same length"),
            ({"target__dimensions": 3}, r"target\.dimensions must be one of 1, 2"),
            ({"columns__0__kind": "picture"}, r"columns\[0\]\.kind must be one of"),
            ({"columns__0__minimum": 1e9}, r"columns\[0\]\.minimum must not be above"),
            ({"columns__1__name": "size"}, "columns must have different names"),
            ({"columns": []}, "columns must be a list of at least 1"),
            ({"columns__0__missing": 1.5}, r"columns\[0\]\.missing must be a finite number from 0 to 1"),
            ({"seed": -1}, "seed must be a whole number"),
            ({"seed": "0"}, "seed must be a whole number"),
            ({"task": "ranking"}, "task must be one of"),
            ({"named_columns": 1}, "named_columns must be true or false"),
            ({"params": []}, "params must be an object"),
            ({"history__loss": ["low"]}, r"history\.loss\[0\] must be a finite number"),
            ({"network__encoded": [99]}, r"network\.encoded must be below in_features"),
            ({"network__out_features": 3}, "for one target the network needs 9 outputs"),
            ({"network__out_features": 15}, "out_features=15 does not fit a target of 1 numbers"),
            ({"likelihood": {"likelihood": "Gaussian", "std": -1.0}}, "std must be a finite number above 0"),
            ({"folds": {}}, "folds must be a list"),
            ({"stack": [1]}, r"stack\[0\] must be an object"),
            ({"stack_weights": [1.0]}, "stack_weights must be one per model"),
        ],
    )
    def test_values_of_the_configuration(self, saved, changes, match):
        edit(saved, **changes)
        refuse(saved, match)

    @pytest.mark.parametrize("name", ["task", "params", "network", "likelihood", "seed", "columns", "target", "history"])
    def test_missing_values(self, saved, name):
        config = {key: value for key, value in load_config(saved).items() if key != name}
        (saved / "config.json").write_text(json.dumps(config))
        rewrite(saved)
        refuse(saved, f"{name} is missing")

    def test_swapped_columns_of_an_array(self, tmp_path):
        save_model(BayesianRegressor(**FAST).fit(np.random.default_rng(0).normal(size=(60, 3)), y), tmp_path / "m")
        first, second, third = load_config(tmp_path / "m")["columns"]
        rewrite(tmp_path / "m", columns=[second, first, third])
        refuse(tmp_path / "m", "its transformers are not those of the columns")

    def test_swapped_classes(self, tmp_path):
        save_model(BayesianClassifier(**FAST).fit(X, np.arange(60) % 2), tmp_path / "m")
        edit(tmp_path / "m", target__classes=[1, 0])
        refuse(tmp_path / "m", "must be sorted")


class TestWeights:
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda x: x.to(torch.int64), "has type torch.int64 instead of torch.float64"),
            (lambda x: x.to(torch.complex64), "has type torch.complex64 instead of"),
            (lambda x: x.float(), "has type torch.float32 instead of torch.float64"),
            (lambda x: torch.full_like(x, torch.nan), "has a value of nan"),
            (lambda x: torch.full_like(x, torch.inf), "has a value of inf"),
            (lambda x: torch.full_like(x, 1e30), r"has a value of 1e\+30"),
        ],
    )
    def test_types_and_values(self, saved, change, match):
        state = load((saved / "weights.safetensors").read_bytes())
        name = next(name for name in state if name.endswith("weight"))
        replace_file(saved, "weights.safetensors", save(state | {name: change(state[name])}))
        refuse(saved, rf"weights\.safetensors cannot be loaded: .*{match}")

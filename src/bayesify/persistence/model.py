"""Saving estimators as model directories, and loading them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bayesify import __version__
from bayesify.checksums import read_verified
from bayesify.core.method import Method
from bayesify.data import Column
from bayesify.errors import ConfigurationError, MissingDependencyError, ModelFileError
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.likelihoods import Likelihood
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup
from bayesify.persistence.directory import CONFIG, PREPROCESSING, WEIGHTS, load_config, write_directory
from bayesify.persistence.preprocessing_file import dump_preprocessing, load_preprocessing
from bayesify.persistence.weights import check_outputs, check_sizes, load_state
from bayesify.train import History

try:
    import numpy as np
    import pandas as pd
    import safetensors
    import safetensors.torch
except ImportError as error:
    raise MissingDependencyError("saving and loading models", "safetensors", extra="tables") from error

__all__ = ["load_model", "save_model"]

_ESTIMATORS: dict[str, type[BayesianEstimator]] = {"regression": BayesianRegressor, "classification": BayesianClassifier}
_BY_METHOD = ("hidden", "activation", "encoding", "likelihood", "learning_rate")  # what None means may change; saved as used
_SCHEDULES: dict[str, type[KLSchedule]] = {kind.__name__: kind for kind in (Constant, Cyclical, LinearWarmup)}


def save_model(
    estimator: BayesianEstimator,
    directory: str | os.PathLike[str],
    *,
    target: str | None = None,
    metrics: Mapping[str, float] | None = None,
    companions: Mapping[str, bytes] | None = None,
    reading: Mapping[str, str] | None = None,
) -> None:
    """Save a fitted estimator as a directory.

    The directory is replaced atomically. Its files that are not part of a model are kept, except a checkpoint named `CHECKPOINT`.

    Args:
        estimator: fitted, with the built-in network.
        directory: a new or empty directory, or one with a model; its parent must exist.
        target: name of the target column.
        metrics: results to store with the model.
        companions: contents of additional files, by name.
        reading: how the training table was read, for the tables that the command line will read.

    Raises:
        TypeError: not a bayesify estimator.
        ConfigurationError: an estimator that is not fitted or has a custom network, an invalid directory or companion name.
        OSError: no space or no permission; nothing has changed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = np.linspace(-1, 1, 40)[:, None]
        >>> model = BayesianRegressor(method="MCDropout", epochs=2, random_state=0).fit(X, X[:, 0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(model, f"{folder}/model", target="y")
        ...     loaded = load_model(f"{folder}/model")
        >>> bool((loaded.predict(X) == model.predict(X)).all())
        True
    """
    config, files = _describe(estimator, target, metrics)
    config["reading"] = dict(reading or {})
    write_directory(directory, config, files, companions or {})


def load_model(directory: str | os.PathLike[str]) -> BayesianEstimator:
    """Load an estimator saved with `save_model`; its predictions are identical.

    Returns:
        A `BayesianRegressor` or `BayesianClassifier`.

    Raises:
        ModelFileError: not a model, or a damaged, incomplete, edited or newer one.

    Example: see `save_model`.
    """
    config = load_config(directory)
    return _load(Path(directory), config, config, "")


def _load(path: Path, verified: dict[str, Any], config: dict[str, Any], prefix: str) -> BayesianEstimator:
    """Load the model, or a model of a fold or stack, whose files have a prefix; `verified` has the checksums."""
    if config.get("stack"):
        return _load_stack(path, verified, config, prefix)
    weights, preprocessing = (read_verified(path, verified["files"], prefix + name) for name in (WEIGHTS, PREPROCESSING))
    with _model_file_errors(path / (prefix + WEIGHTS), safetensors.SafetensorError, RuntimeError):
        state = safetensors.torch.load(weights)
    check_sizes(path / CONFIG, config, state)
    with _model_file_errors(path / CONFIG, KeyError, TypeError, ValueError, RuntimeError):
        estimator = _restore_settings(config)
        check_outputs(estimator.likelihood_, config)
    with _model_file_errors(path / CONFIG, ConfigurationError):
        network = config["network"]
        estimator.build(network["in_features"], network["out_features"], network.get("encoded", ()))
        estimator.settle()
    for part, module in (("bnn.", estimator.bnn_), ("likelihood.", estimator.likelihood_)):
        own = {name.removeprefix(part): x for name, x in state.items() if name.startswith(part)}
        load_state(path / (prefix + WEIGHTS), module, own)
    with _model_file_errors(path / (prefix + PREPROCESSING), Exception):  # skops documents no error types for untrusted bytes
        estimator.preprocessing_ = load_preprocessing(preprocessing, estimator.columns_, config["network"]["in_features"])
    estimator.folds_ = _load_folds(path, verified, config)
    return estimator


def _load_stack(path: Path, verified: dict[str, Any], config: dict[str, Any], prefix: str) -> BayesianEstimator:
    """Load an estimator with `method="auto"`, whose models have files."""
    models = [_load(path, verified, model, f"{prefix}{_part('stack', k)}") for k, model in enumerate(config["stack"])]
    with _model_file_errors(path / CONFIG, KeyError, TypeError, ValueError):
        estimator = _restore_settings(config)
        estimator.leaderboard_ = pd.DataFrame(config["leaderboard"]).set_index("model").astype(float)
        estimator.adopt(models, config["stack_weights"])
    estimator.folds_ = _load_folds(path, verified, config)
    return estimator


def _load_folds(path: Path, verified: dict[str, Any], config: dict[str, Any]) -> list[BayesianEstimator]:
    return [_load(path, verified, fold, _part("fold", k)) for k, fold in enumerate(config.get("folds", ()))]


def _restore_settings(config: dict[str, Any]) -> BayesianEstimator:
    """Create the estimator without network and preprocessing."""
    estimator = _ESTIMATORS[config["task"]](**_parameters(config))
    estimator.seed_ = config["seed"]
    estimator.updates_ = config.get("updates", 0)  # absent from models of earlier versions
    estimator.columns_ = tuple(_restore_column(facts) for facts in config["columns"])
    estimator.named_columns_ = config["named_columns"]
    estimator.n_features_in_ = len(estimator.columns_)
    estimator.likelihood_ = Likelihood.from_dict(config["likelihood"])
    estimator.history_ = History(**config["history"])
    if config["feature_names"]:
        estimator.feature_names_in_ = np.array([column.name for column in estimator.columns_], dtype=object)
    estimator.restore_target(config["target"])
    if config.get("conformal") is not None:
        estimator.conformal_ = estimator.calibration_type.from_dict(config["conformal"])
    return estimator


def _restore_column(facts: dict[str, Any]) -> Column:
    """Create a column from JSON, whose lists were tuples; fields that earlier versions did not write have defaults."""
    lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
    return Column(**{**facts, **lists})


def _describe(estimator: Any, target: str | None, metrics: Mapping[str, float] | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the configuration without checksums, and the contents of the other files."""
    task = next((task for task, kind in _ESTIMATORS.items() if type(estimator) is kind), None)
    if task is None:
        raise TypeError(f"estimator must be a BayesianRegressor or BayesianClassifier, got {type(estimator).__name__}")
    fitted = vars(estimator)
    if "history_" not in fitted:
        raise ConfigurationError(f"the {type(estimator).__name__} is not fitted; call fit(X, y) first")
    if estimator.net is not None:
        raise ConfigurationError(
            "a model with a custom net cannot be saved, because loading it would execute code; use hidden and activation, or save "
            "estimator.bnn_.state_dict()"
        )
    folds = [_describe(fold, None, None) for fold in estimator.folds_]
    stack = [_describe(model, None, None) for model in estimator.stack_]
    params = estimator.get_params(deep=False)
    del params["net"], params["on"]
    if not estimator.stack_:
        params["method"] = estimator.method_in_use().to_dict()
        params |= {name: estimator.in_use(name) for name in _BY_METHOD if name in params} | {"samples": estimator.samples_in_use()}
    if params["hidden"] is not None:
        params["hidden"] = list(params["hidden"])
    if isinstance(weights := params.get("class_weight"), Mapping):
        params["class_weight"] = [[getattr(label, "item", lambda label=label: label)(), float(w)] for label, w in weights.items()]
    if isinstance(estimator.beta, KLSchedule):
        params["beta"] = {"schedule": type(estimator.beta).__name__, **dataclasses.asdict(estimator.beta)}
    if isinstance(estimator.random_state, np.random.RandomState):
        params["random_state"] = None  # the seed drawn from it is saved
    config = {
        "bayesify": __version__,
        "task": task,
        "params": params,
        "network": {
            "in_features": estimator.in_features_,
            "out_features": estimator.out_features_,
            "encoded": list(estimator.encoded_),
        },
        "likelihood": estimator.likelihood_.to_dict(),
        "seed": estimator.seed_,
        "updates": estimator.updates_,
        "columns": [dataclasses.asdict(column) for column in estimator.columns_],
        "named_columns": estimator.named_columns_,
        "feature_names": "feature_names_in_" in fitted,
        "target": {"name": target, **estimator.describe_target()},
        "folds": [fold for fold, _ in folds],
        "stack": [model for model, _ in stack],
        "conformal": None if estimator.conformal_ is None else estimator.conformal_.to_dict(),
        "history": estimator.history_.to_dict(),
        "metrics": dict(metrics or {}),
    }
    files = {}
    if stack:
        config |= {"stack_weights": estimator.stack_weights_, "leaderboard": estimator.leaderboard_.reset_index().to_dict("list")}
    else:
        parts = {"bnn": estimator.bnn_, "likelihood": estimator.likelihood_}
        state = {f"{part}.{name}": x.contiguous() for part, module in parts.items() for name, x in module.state_dict().items()}
        files = {WEIGHTS: safetensors.torch.save(state), PREPROCESSING: dump_preprocessing(estimator.preprocessing_)}
    for kind, models in (("fold", folds), ("stack", stack)):
        files |= {_part(kind, k) + name: content for k, (_, parts) in enumerate(models) for name, content in parts.items()}
    return _json_value(config), files


def _part(kind: str, number: int) -> str:
    """The prefix of the files of a model that is part of another, of a "fold" or in a "stack"."""
    return f"{kind}{number}-"


def _parameters(config: dict[str, Any]) -> dict[str, Any]:
    params = dict(config["params"])
    if not isinstance(params["method"], str):
        params["method"] = Method.from_dict(params["method"])
    if params["hidden"] is not None:
        params["hidden"] = tuple(params["hidden"])
    if isinstance(params.get("class_weight"), list):
        params["class_weight"] = dict(params["class_weight"])
    params.setdefault("encoding", "standard")  # of models saved before there was another
    if isinstance(params["beta"], dict):
        fields = dict(params["beta"])
        params["beta"] = _SCHEDULES[fields.pop("schedule")](**fields)
    return params


def _json_value(value: Any) -> Any:
    """Convert NumPy scalars, tuples, and NaN and infinity (to None) to JSON types."""
    if isinstance(value, Mapping):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigurationError(f"a value of type {type(value).__name__} cannot be saved: {value!r}")


@contextlib.contextmanager
def _model_file_errors(path: Path, *types: type[Exception]) -> Iterator[None]:
    """Raise errors of these types as a `ModelFileError` about the file."""
    try:
        yield
    except types as error:
        detail = f"{error} is missing, or unknown to this version" if isinstance(error, KeyError) else str(error)
        raise ModelFileError(f"{path} cannot be loaded: {detail}") from error

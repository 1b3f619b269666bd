"""Estimators to model directories and back: what is written, and how it is put together again."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bayesify.core.method import Method
from bayesify.data import Column
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.likelihoods import Likelihood
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup
from bayesify.persistence.directory import CONFIG, PREPROCESSING, WEIGHTS, ModelError, load_config, read_verified, write_directory
from bayesify.train import History

try:
    import numpy as np
    import safetensors
    import safetensors.torch
    import skops.io
except ImportError as error:
    raise ImportError('saving and loading models needs skops and safetensors: pip install "bayesify[tables]"') from error

__all__ = ["load_model", "save_model"]

_TRUSTED = ["bayesify.data.preprocessing.SoftClip", "numpy.dtype"]  # what skops does not trust by itself
_ESTIMATORS: dict[str, type[BayesianEstimator]] = {"regression": BayesianRegressor, "classification": BayesianClassifier}
_SCHEDULES: dict[str, type[KLSchedule]] = {kind.__name__: kind for kind in (Constant, Cyclical, LinearWarmup)}


def save_model(
    estimator: BayesianEstimator,
    directory: str | os.PathLike[str],
    *,
    target: str | None = None,
    metrics: Mapping[str, float] | None = None,
    companions: Mapping[str, bytes] | None = None,
) -> None:
    """Save a fitted estimator as a directory.

    The files are written to a folder beside it, which then takes its place; a model that was there before is replaced only now, and
    files in it that are not bayesify's are kept. A checkpoint named `CHECKPOINT` goes.

    Args:
        estimator: fitted, with the built-in network.
        directory: a new one, an empty one or one that holds a model; its parent must exist.
        target: the name of the target column.
        metrics: results to keep with the model.
        companions: more files, by name.

    Raises:
        ModelError: an estimator that cannot be saved, a directory that holds something else.
        OSError: no space or no permission; nothing has changed.
    """
    config, files = _describe(estimator, target, metrics)
    write_directory(directory, config, files, companions or {})


def load_model(directory: str | os.PathLike[str]) -> BayesianEstimator:
    """Load what `save_model` saved; it predicts the same numbers.

    Returns:
        A `BayesianRegressor` or `BayesianClassifier`.

    Raises:
        ModelError: no model, a damaged, incomplete or edited one, or one from a newer version.
    """
    config = load_config(directory)
    contents = {name: read_verified(directory, config, name) for name in (WEIGHTS, PREPROCESSING)}
    with _explained(directory):
        estimator = _ESTIMATORS[config["task"]](**_parameters(config))
        estimator.seed_ = config["seed"]
        estimator.columns_ = tuple(Column(**{**c, "categories": tuple(c["categories"])}) for c in config["columns"])
        estimator.named_columns_ = config["named_columns"]
        estimator.n_features_in_ = len(estimator.columns_)
        estimator.likelihood_ = Likelihood.from_dict(config["likelihood"])
        estimator.history_ = History(**config["history"])
        if config["feature_names"]:
            estimator.feature_names_in_ = np.array([column.name for column in estimator.columns_], dtype=object)
        estimator.restore_target(config["target"])
        estimator.build(config["network"]["in_features"], config["network"]["out_features"])
        estimator.settle()
        state = safetensors.torch.load(contents[WEIGHTS])
        for part, module in (("bnn.", estimator.bnn_), ("likelihood.", estimator.likelihood_)):
            module.load_state_dict({name.removeprefix(part): x for name, x in state.items() if name.startswith(part)})
        # skops builds its own trusted scikit-learn types and these, and refuses every other.
        estimator.preprocessing_ = skops.io.loads(contents[PREPROCESSING], trusted=_TRUSTED)
    return estimator


def _describe(estimator: Any, target: str | None, metrics: Mapping[str, float] | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The configuration without checksums, and the contents of the other files."""
    task = next((task for task, kind in _ESTIMATORS.items() if type(estimator) is kind), None)
    if task is None:
        raise TypeError(f"estimator must be a BayesianRegressor or BayesianClassifier, got {type(estimator).__name__}")
    fitted = vars(estimator)
    if "history_" not in fitted:
        raise ModelError(f"the {type(estimator).__name__} is not fitted yet: call fit(X, y) first")
    if estimator.net is not None:
        raise ModelError(
            "a model with a net of its own cannot be saved, because loading would have to execute code: use hidden and activation, "
            "or keep estimator.bnn_.state_dict() and build the net yourself"
        )
    params = estimator.get_params(deep=False)
    del params["net"]
    params["method"] = estimator.method_in_use().to_dict()
    params["hidden"] = list(estimator.hidden)
    if isinstance(estimator.beta, KLSchedule):
        params["beta"] = {"schedule": type(estimator.beta).__name__, **dataclasses.asdict(estimator.beta)}
    if isinstance(estimator.random_state, np.random.RandomState):
        params["random_state"] = None  # the seed it gave is saved
    config = {
        "bayesify": _version(),
        "task": task,
        "params": params,
        "network": {"in_features": estimator.in_features_, "out_features": estimator.out_features_},
        "likelihood": estimator.likelihood_.to_dict(),
        "seed": estimator.seed_,
        "columns": [dataclasses.asdict(column) for column in estimator.columns_],
        "named_columns": estimator.named_columns_,
        "feature_names": "feature_names_in_" in fitted,
        "target": {"name": target, **estimator.describe_target()},
        "history": estimator.history_.to_dict(),
        "metrics": dict(metrics or {}),
    }
    parts = {"bnn": estimator.bnn_, "likelihood": estimator.likelihood_}
    state = {f"{part}.{name}": x.contiguous() for part, module in parts.items() for name, x in module.state_dict().items()}
    files = {WEIGHTS: safetensors.torch.save(state), PREPROCESSING: skops.io.dumps(estimator.preprocessing_)}
    return _plain(config), files


def _parameters(config: dict[str, Any]) -> dict[str, Any]:
    params = dict(config["params"])
    params["method"] = Method.from_dict(params["method"])
    params["hidden"] = tuple(params["hidden"])
    if isinstance(params["beta"], dict):
        fields = dict(params["beta"])
        params["beta"] = _SCHEDULES[fields.pop("schedule")](**fields)
    return params


def _plain(value: Any) -> Any:
    """As JSON knows it: NumPy's numbers are numbers, tuples lists, NaN and infinity nothing."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise ModelError(f"a value of type {type(value).__name__} cannot be saved: {value!r}")


@contextlib.contextmanager
def _explained(place: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong in putting a verified model together is said as a ModelError."""
    try:
        yield
    except KeyError as error:
        raise ModelError(f"{place} cannot be loaded: {error} is missing in {CONFIG}, or unknown to this version") from error
    except Exception as error:  # readers of damaged files fail in many ways
        raise ModelError(f"{place} cannot be loaded: {error}") from error


def _version() -> str:
    from bayesify import __version__  # the package is complete by the time a model is saved

    return __version__

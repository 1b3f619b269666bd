"""Parameters of the estimators, and the method and KL weight that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from torch import nn

from bayesify.core.checks import check_choice, check_fraction, check_integer, check_positive
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.estimators.class_weights import check_class_weight
from bayesify.estimators.recipes import SINGLE, Recipe, TrainingSettings
from bayesify.jobs import RayCluster
from bayesify.jobs.where import LOCAL, cluster_of
from bayesify.methods import DeepEnsemble, RepulsiveEnsemble
from bayesify.objectives import KLSchedule, LinearWarmup
from bayesify.plain_numbers import plain

try:
    import numpy as np
    from sklearn.base import BaseEstimator
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

__all__ = ["AUTO", "EstimatorParameters"]

AUTO = "auto"  # the `method` of several models


class EstimatorParameters(BaseEstimator):
    """Parameters that both estimators have; the fields of the method are nested parameters, such as `method__prior_std`."""

    default_method: ClassVar[str] = "DeepEnsemble"
    default_beta: ClassVar[float]
    """Final weight of the KL, for methods without a recipe."""
    recipes: ClassVar[Mapping[type[Method], Recipe]]

    def __init__(
        self,
        *,
        method: Method | str | None = None,
        hidden: Sequence[int] | None = None,
        activation: str | None = None,
        encoding: str | None = None,
        net: Callable[[int, int], nn.Module] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        beta: float | KLSchedule | None = None,
        train_samples: int = 1,
        samples: int | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        time_limit: float | None = None,
        conformal: bool | Literal["cross"] = False,
        calibrate: Literal["temperature", "vector", "isotonic", "histogram"] | None = None,
        ordered: bool | Sequence[str] = False,
        class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = None,
        accelerator: str = "cpu",
        on: str | RayCluster = LOCAL,
        progress: bool | None = None,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.activation = activation
        self.encoding = encoding
        self.net = net
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.beta = beta
        self.train_samples = train_samples
        self.samples = samples
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.time_limit = time_limit
        self.conformal = conformal
        self.calibrate = calibrate
        self.ordered = ordered
        self.class_weight = class_weight
        self.random_state = random_state
        self.accelerator = accelerator
        self.on = on
        self.progress = progress

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with `deep` also the fields of the method, and of an ensemble's base method."""
        params = super().get_params(deep)
        if deep and isinstance(self.method, Method):
            params.update(_fields_of(self.method, "method__"))
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters and fields of the method (by default of the default method), such as `method__prior_std=0.5`."""
        fields = {name.removeprefix("method__"): value for name, value in params.items() if name.startswith("method__")}
        super().set_params(**{name: value for name, value in params.items() if not name.startswith("method__")})
        if fields:
            self.method = _with_fields(self.method_in_use(), fields)
        return self

    @classmethod
    def recipe(cls, method: str) -> Recipe:
        """Return method and KL weight for the name of a method.

        Raises:
            ConfigurationError: no such method.
        """
        kind = Method.named(method)
        return cls.recipes[kind] if kind in cls.recipes else Recipe(kind(), cls.default_beta)

    def method_in_use(self) -> Method:
        """Return `method`; if it is a name or None, the method of the recipe."""
        if isinstance(self.method, Method):
            return self.method
        return self.recipe(self.default_method if self.method is None or self.is_stacked else self.method).method

    @property
    def is_stacked(self) -> bool:
        """Whether `method` is "auto", several models."""
        return isinstance(self.method, str) and self.method.lower() == AUTO

    def beta_in_use(self) -> float | KLSchedule:
        """Return `beta`; if None, a schedule that rises over half of training to the weight of the recipe."""
        if self.beta is not None:
            return self.beta
        method = self.method_in_use()
        if isinstance(method, DeepEnsemble) and method.base is not None:
            method = method.base
        recipe = self.recipes.get(type(method))
        return LinearWarmup(beta=self.default_beta if recipe is None else recipe.beta, fraction=0.5)

    @property
    def training_settings(self) -> TrainingSettings:
        """The values of parameters that are None, by the method."""
        recipe = self.recipes.get(type(self.method_in_use()))
        return SINGLE if recipe is None else recipe.training

    def in_use(self, name: str) -> Any:
        """Return a parameter; if it is None, its value in `training_settings`."""
        value = getattr(self, name)
        return getattr(self.training_settings, name) if value is None else plain(value)

    def resolved(self) -> dict[str, Any]:
        """Return the parameters, with the values of those that are None where the method decides them."""
        decided = ("hidden", "activation", "encoding", "learning_rate", "validation_fraction")
        params = self.get_params(deep=False) | {name: self.in_use(name) for name in decided}
        method = self.method if self.is_stacked else self.method_in_use()
        return params | {"method": method, "beta": self.beta_in_use(), "samples": self.samples_in_use()}

    def samples_in_use(self) -> int:
        """Return `samples`; if None, one draw per member of an ensemble of plain networks, otherwise that of the settings."""
        method = self.method_in_use()
        if self.samples is None and isinstance(method, DeepEnsemble | RepulsiveEnsemble) and getattr(method, "base", None) is None:
            return method.members
        return self.in_use("samples")

    def _check_parameters(self) -> None:
        if not isinstance(self.method, Method | str | None):
            raise TypeError(f"method must be a Method such as MeanField(), the name of one, or None, got {self.method!r}")
        self.method_in_use()
        cluster_of(self.on)
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        check_integer("train_samples", self.train_samples)
        check_integer("samples", self.samples_in_use())
        check_positive("learning_rate", self.in_use("learning_rate"))
        check_fraction("validation_fraction", self.in_use("validation_fraction"))
        check_choice("encoding", self.in_use("encoding"), ("standard", "piecewise"))
        check_choice("conformal", self.conformal, (False, True, "cross"))
        check_choice("calibrate", self.calibrate, (None, "temperature", "vector", "isotonic", "histogram"))
        if self.time_limit is not None:
            check_positive("time_limit", self.time_limit)
            if not self.is_stacked:
                raise ConfigurationError(f"time_limit={self.time_limit:g} chooses the models of method='auto', got {self.method!r}")
        if self.calibrate and self.is_stacked:
            raise ConfigurationError(f"calibrate={self.calibrate!r} needs a single model, got method='auto'; leave it out")
        if self.calibrate == "temperature" and self.ordered is not False:
            raise ConfigurationError(
                "calibrate='temperature' divides logits, which the likelihood of ordered classes does not have; choose 'vector', "
                "'isotonic' or 'histogram'"
            )
        check_class_weight(self.class_weight)
        if self.class_weight is not None and (self.conformal or self.calibrate):
            name = "conformal" if self.conformal else "calibrate"
            raise ConfigurationError(
                f"class_weight cannot be combined with {name}={getattr(self, name)!r}, whose calibration rows count alike; "
                "drop one of them"
            )
        if self.conformal and self.calibrate:
            raise ConfigurationError(f"conformal={self.conformal} and calibrate={self.calibrate!r} exclude each other; choose one")
        if self.patience is not None and self.method_in_use().collects_from is not None:
            raise ConfigurationError(
                f"patience={self.patience} would stop training before the posterior is collected; leave it out"
            )
        by_folds = self.validation_fraction is None and isinstance(self.method_in_use(), DeepEnsemble)
        if self.patience is not None and not by_folds and not self.in_use("validation_fraction"):
            raise ConfigurationError("patience needs a validation_fraction above 0, such as 0.1")


def _fields_of(method: Method, prefix: str) -> dict[str, Any]:
    """Return the fields of a method, and recursively of methods in them, by their names in `set_params`."""
    params: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        params[prefix + field.name] = value
        if isinstance(value, Method):
            params.update(_fields_of(value, f"{prefix}{field.name}__"))
    return params


def _with_fields(method: Method, fields: Mapping[str, Any]) -> Method:
    """Return a copy with changed fields; `base__eta` is the field `eta` of the method in the field `base`.

    Raises:
        ConfigurationError: no such field.
    """
    changes = {name: value for name, value in fields.items() if "__" not in name}
    for name in dict.fromkeys(name.partition("__")[0] for name in fields if "__" in name):
        part = changes.get(name, getattr(method, name, None))
        if not isinstance(part, Method):
            raise ConfigurationError(f"{type(method).__name__} has no method in a field {name!r}")
        inner = {field.removeprefix(f"{name}__"): value for field, value in fields.items() if field.startswith(f"{name}__")}
        changes[name] = _with_fields(part, inner)
    method.check_fields(changes)
    return method.replace(**changes)

"""Settings of one method on one data set, validated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from bayesify import KLSchedule, LinearWarmup, Method
from bayesify.core.checks import check_choice, check_integer, check_nonnegative, check_open_fraction, check_positive, check_rate
from bayesify.errors import ConfigurationError
from bayesify.estimators.network import mlp
from experiments.protocols.shared.configuration import check_fields, combinations, make_methods

__all__ = ["Choose", "Setup"]

# Settings that may differ between the models of a job, and so may be chosen. Those with equal epochs are trained together.
_OWN = ("epochs", "learning_rate", "beta", "warmup", "local_beta", "statistics")
_NOISE = ("learned", "fixed", "heteroscedastic")
_NOISES = ({"learned"}, {"heteroscedastic"}, {"fixed"}, {"fixed", "training"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose:
    """Hyperparameters chosen by the log-likelihood on a validation part of the training rows.

    Args:
        among: values to try by field, such as "epochs", "method.p" or "noise.fixed", or a range {low, high, log} for a search.
        trials: trials per split of a search by optuna; None tries all combinations of the values.
        together: trials per round of a search.
        share: epochs of a trial, as a share of those of the final training.
        fraction: validation rows, as a share of the training rows.
        samples: draws that evaluate a trial; None for the number in prediction.
    """

    among: Mapping[str, Any]
    trials: int | None = None
    together: int = 10
    share: float = 1.0
    fraction: float = 0.2
    samples: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "among", _flat(self.among) if isinstance(self.among, Mapping) else {})
        if not self.among:
            raise ConfigurationError("choose.among must name at least one field, such as method.p = [0.05, 0.1]")
        for name, count in (("trials", self.trials), ("together", self.together), ("samples", self.samples)):
            if count is not None:
                check_integer(f"choose.{name}", count)
        check_rate("choose.share", self.share)
        check_open_fraction("choose.fraction", self.fraction)
        for field, values in self.among.items():
            if isinstance(values, Mapping):
                self._check_range(field, values)
            elif not isinstance(values, Sequence) or isinstance(values, str) or not values:
                raise ConfigurationError(f"choose.among.{field} must be a list of values or a range {{low, high}}, got {values!r}")

    def _check_range(self, field: str, values: Mapping[str, Any]) -> None:
        if self.trials is None:
            raise ConfigurationError(f"choose.among.{field} is a range, so choose.trials must say how many values to try")
        low, high = values["low"], values["high"]
        if not -math.inf < low < high < math.inf or (values.get("log") and low <= 0):
            raise ConfigurationError(
                f"choose.among.{field} must have low < high, and low above 0 where log = true, got {dict(values)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One method on one data set.

    Args:
        method: table as for `Method.from_dict`, or tables by pattern of layer names as for `bayesify` (the first match wins):
            {4 = {method = "MeanField"}, "*" = {method = "WHVI"}}.
        hidden, activation: of the network.
        batch_norm: initial scale of batch normalization after the input and every hidden layer; None for no normalization.
        epochs, batch_size, train_samples, clip_norm: as in `bayesify.train.fit`; `train_samples` are the draws per step.
        steps: length of training in steps instead of `epochs`, rounded to whole epochs.
        learning_rate, schedule: of Adam at the start; "cosine" decays it to 0, "power" multiplies it by (1 + 0.0005 t)^-0.3 with
            the step t at the start of the epoch.
        weight_decay: of Adam (L2). Above 0, all models of a job have the same learning rate.
        beta, warmup: KL weight, and the share of training over which it rises from 0 to that.
        local_beta: weight of the per-example KL.
        samples: S, draws in prediction.
        statistics: of batch normalization in prediction: "running" averages, or "own", those of the training rows in each draw.
        sample_counts: further S with which every model is evaluated.
        noise: of regression targets: {learned: initial standard deviation, in standard deviations of the targets},
            {heteroscedastic: the same of a second output of the network, which predicts it for every row} or {fixed: standard
            deviation in the unit of the targets}, the latter optionally with {training: another one for training, in standard
            deviations of the targets; 0.7071 makes the loss the squared error}.
        likelihood: "gaussian" (of classes, categorical), or "evidential": the network predicts the distribution of the mean and
            variance, or of the probabilities, and `noise` is not used.
        seed: of split 0; split i has seed + i.
        choose: hyperparameters chosen per split; None for none.
    """

    method: Mapping[str, Any]
    hidden: Sequence[int] = (50,)
    activation: str = "relu"
    batch_norm: float | None = None
    epochs: int = 2000
    steps: int | None = None
    batch_size: int = 128
    train_samples: int = 1
    clip_norm: float | None = None
    learning_rate: float = 1e-2
    schedule: Literal["cosine", "constant", "power"] = "cosine"
    weight_decay: float = 0.0
    beta: float = 1.0
    warmup: float = 0.0
    local_beta: float = 1.0
    samples: int = 100
    statistics: Literal["running", "own"] = "running"
    sample_counts: Sequence[int] = ()
    noise: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"learned": 0.3})
    likelihood: Literal["gaussian", "evidential"] = "gaussian"
    seed: int = 0
    choose: Choose | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Mapping):
            raise ConfigurationError(
                f'method must be a table such as {{method = "MeanField", prior_std = 1.0}}, got {self.method!r}'
            )
        # With all defaults, so that results become stale when a default changes.
        object.__setattr__(self, "method", _complete(self.method))
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str):
            raise ConfigurationError(f"hidden must be a list of widths such as [50], got {self.hidden!r}")
        object.__setattr__(self, "hidden", list(self.hidden))
        if not isinstance(self.sample_counts, Sequence) or isinstance(self.sample_counts, str):
            raise ConfigurationError(
                f"sample_counts must be a list of numbers of draws such as [1, 20, 100], got {self.sample_counts!r}"
            )
        object.__setattr__(self, "sample_counts", list(self.sample_counts))
        for count in self.sample_counts:
            check_integer("sample_counts", count)
        mlp(1, 1, self.hidden, self.activation)
        self._check_numbers()
        self._check_noise()
        if self.choose is not None:
            if self.steps is not None and "epochs" in self.choose.among:
                raise ConfigurationError(f"epochs cannot be chosen with steps={self.steps!r}, which replaces them")
            if self.weight_decay and "learning_rate" in self.choose.among:
                raise ConfigurationError(f"learning_rate cannot be chosen with weight_decay={self.weight_decay!r}")
            for name, values in self.choose.among.items():  # validates every candidate
                for value in (values["low"], values["high"]) if isinstance(values, Mapping) else values:
                    self.with_fields({name: value})

    def _check_numbers(self) -> None:
        if self.steps is not None:
            check_integer("steps", self.steps)
        for name in ("epochs", "batch_size", "train_samples", "samples"):
            check_integer(name, getattr(self, name))
        check_integer("seed", self.seed, least=0)
        check_positive("learning_rate", self.learning_rate)
        check_choice("likelihood", self.likelihood, ("gaussian", "evidential"))
        check_choice("schedule", self.schedule, ("cosine", "constant", "power"))
        check_choice("statistics", self.statistics, ("running", "own"))
        if self.batch_norm is not None:
            check_positive("batch_norm", self.batch_norm)
        for name in ("beta", "local_beta", "weight_decay"):
            check_nonnegative(name, getattr(self, name))
        if not 0 <= self.warmup <= 1:
            raise ConfigurationError(f"warmup must be a share of training in [0, 1], got {self.warmup!r}")
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)

    def _check_noise(self) -> None:
        if not isinstance(self.noise, Mapping) or set(self.noise) not in _NOISES:
            raise ConfigurationError(
                "noise must be {learned = 0.3}, {heteroscedastic = 0.3} or {fixed = 2.5}, the last optionally with training, "
                f"got {self.noise!r}"
            )
        for name, std in self.noise.items():
            check_positive(f"noise.{name}", std)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read plain settings of a configuration or a job.

        Raises:
            ConfigurationError: a setting that is unknown, missing or out of range.
        """
        values = dict(fields)
        check_fields("setting", values, cls)
        if isinstance(values.get("choose"), Mapping):
            check_fields("choose setting", values["choose"], Choose)
            values["choose"] = Choose(**values["choose"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All settings, ready for JSON; `from_dict` reads them back."""
        return dataclasses.asdict(self)

    def methods(self) -> Method | dict[str, Method]:
        """The method, or the methods by pattern of layer names, for `bayesify`."""
        return make_methods(self.method)

    def passes(self, rows: int) -> int:
        """Epochs of the final training with this number of training rows."""
        return self.epochs if self.steps is None else max(1, round(self.steps / math.ceil(rows / self.batch_size)))

    def with_fields(self, fields: Mapping[str, Any]) -> Setup:
        """This setup with some fields changed and without `choose`.

        Args:
            fields: by names as in `Choose.among`: "learning_rate", "beta", "warmup", "local_beta", "noise.fixed", "method.p" ...
        """
        changes: dict[str, Any] = {"choose": None}
        method = _flat(self.method)
        for name, value in fields.items():
            group, _, field = name.partition(".")
            if group == "method" and field in method and field.rpartition(".")[2] != "method":
                method[field] = value
            elif group == "noise" and field in _NOISE:
                changes["noise"] = {field: value}
            elif name in _OWN:
                changes[name] = value
            else:
                known = [
                    *_OWN,
                    *(f"noise.{f}" for f in _NOISE),
                    *(f"method.{f}" for f in method if f.rpartition(".")[2] != "method"),
                ]
                raise ConfigurationError(f"{name} cannot be chosen; the fields to choose are {', '.join(known)}")
        return dataclasses.replace(self, method=_nested(method, self.method), **changes)

    def trials(self) -> list[Setup]:
        """All candidates of `choose`; of a search, whose values are not known before, this setup once per trial."""
        if self.choose is None:
            return []
        if self.choose.trials is not None:
            return [self] * self.choose.trials
        return [self.with_fields(fields) for fields in combinations(self.choose.among)]

    def kl_weight(self) -> float | KLSchedule:
        """beta, or its schedule."""
        return LinearWarmup(beta=self.beta, fraction=self.warmup) if self.warmup and self.beta else self.beta


def _complete(method: Mapping[str, Any]) -> dict[str, Any]:
    """One method, or methods by pattern of layer names, with all defaults."""
    if "method" in method or not all(isinstance(fields, Mapping) for fields in method.values()):
        return Method.from_dict(dict(method)).to_dict()
    return {pattern: Method.from_dict(dict(fields)).to_dict() for pattern, fields in method.items()}


def _nested(flat: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `_flat`, with the structure of `like`."""
    if "method" in like:
        return dict(flat)
    return {pattern: {field: flat[f"{pattern}.{field}"] for field in fields} for pattern, fields in like.items()}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": {"p": [...]}} as {"method.p": [...]}; a range {low, high} stays one value."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not {"low", "high"} <= set(value):
            result.update(_flat(value, f"{name}."))
        else:
            result[name] = dict(value) if isinstance(value, Mapping) else value
    return result

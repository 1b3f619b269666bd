"""How one method is trained on one data set: every number that decides its results, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from bayesify import KLSchedule, LinearWarmup, Method
from bayesify.core.checks import check_choice, check_fraction, check_integer, check_positive
from bayesify.estimators.network import mlp

__all__ = ["Choose", "Setup"]

# What may differ between models that are trained together, and so may be chosen.
_OWN = ("learning_rate", "beta", "warmup", "local_beta")
_NOISE = ("learned", "fixed")
# Settings, and fields of choices and methods, that came later.
_LATER = {"batch_norm": None, "weight_decay": 0.0, "sample_counts": [], "statistics": "running", "steps": None}
_LATER_CHOICE = {"samples": None}
_LATER_FIELDS = {"VariationalDropout": {"prior_std": None}, "VSD": {"prior_std": None}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose:
    """What is chosen on a validation part of the training rows, by the log-likelihood there, and how.

    Args:
        among: fields, such as "method.p" or "noise.fixed", with the values to try, or with a range {low, high, log} for a search.
        trials: how many settings a search by optuna tries per split; None tries all combinations of the values.
        together: how many trials of a search are made at a time.
        share: of the epochs of the final training, that each trial gets.
        fraction: the validation part, as a share of the training rows.
        samples: draws to judge a trial by; None for as many as in prediction.
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
            raise ValueError("choose.among must name at least one field, such as method.p = [0.05, 0.1]")
        for name, count in (("trials", self.trials), ("together", self.together), ("samples", self.samples)):
            if count is not None:
                check_integer(f"choose.{name}", count)
        if not 0 < self.share <= 1:
            raise ValueError(f"choose.share must be in (0, 1], got {self.share!r}")
        check_fraction("choose.fraction", self.fraction)
        check_positive("choose.fraction", self.fraction)
        for field, values in self.among.items():
            if isinstance(values, Mapping):
                self._check_range(field, values)
            elif not isinstance(values, Sequence) or isinstance(values, str) or not values:
                raise ValueError(f"choose.among.{field} must be a list of values or a range {{low, high}}, got {values!r}")

    def _check_range(self, field: str, values: Mapping[str, Any]) -> None:
        if self.trials is None:
            raise ValueError(f"choose.among.{field} is a range, so choose.trials must say how many values to try")
        low, high = values["low"], values["high"]
        if not -math.inf < low < high < math.inf or (values.get("log") and low <= 0):
            raise ValueError(f"choose.among.{field} must have low < high, and low above 0 where log = true, got {dict(values)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One method on one data set.

    Args:
        method: name and fields, as `Method.from_dict` takes them, or such tables by pattern of layer names, as `bayesify` takes
            them (the first match wins): {4 = {method = "MeanField"}, "*" = {method = "WHVI"}}.
        hidden, activation: the network.
        batch_norm: where the scales of batch normalisations start, one after the input and one after every hidden layer; None for
            a network without.
        epochs, batch_size, train_samples, clip_norm: as in `bayesify.train.fit`; `train_samples` are the draws per step.
        steps: how long to train, in steps, instead of `epochs`; rounded to whole passes over the data.
        learning_rate, schedule: of Adam at the start; "cosine" takes it to 0, "constant" leaves it, "power" multiplies it by
            (1 + 0.0005 t)^-0.3 at step t, as of the beginning of the pass.
        weight_decay: of Adam: this times every parameter is added to its gradient. Then all models have the same learning rate.
        beta, warmup: weight of the KL, and the share of training over which it rises from 0 to that.
        local_beta: weight of the per-example KL.
        samples: S, draws in prediction.
        statistics: what batch normalisations go by in prediction: "running", the averages over training, as networks do, or "own",
            those of the training rows in every draw by itself.
        sample_counts: further S to judge every model by, to see what more draws are worth.
        noise: of targets that are numbers: {learned: standard deviation to start from, in standard deviations of the targets} or
            {fixed: standard deviation in the targets' own unit}, the latter perhaps with {training: another one that is trained
            with, in standard deviations of the targets; 0.7071 makes the loss the squared error}.
        seed: of split 0; split i has seed + i.
        choose: what is chosen per split on a validation part; None for nothing.
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
    seed: int = 0
    choose: Choose | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Mapping):
            raise ValueError(f'method must be a table such as {{method = "MeanField", prior_std = 1.0}}, got {self.method!r}')
        # With all defaults filled in, so that results become stale when a default changes.
        object.__setattr__(self, "method", _complete(self.method))
        if self.steps is not None:
            check_integer("steps", self.steps)
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str):
            raise ValueError(f"hidden must be a list of widths such as [50], got {self.hidden!r}")
        object.__setattr__(self, "hidden", list(self.hidden))
        if not isinstance(self.sample_counts, Sequence) or isinstance(self.sample_counts, str):
            raise ValueError(f"sample_counts must be a list of numbers of draws such as [1, 20, 100], got {self.sample_counts!r}")
        object.__setattr__(self, "sample_counts", list(self.sample_counts))
        for count in self.sample_counts:
            check_integer("sample_counts", count)
        mlp(1, 1, self.hidden, self.activation)
        for name in ("epochs", "batch_size", "train_samples", "samples"):
            check_integer(name, getattr(self, name))
        check_integer("seed", self.seed, least=0)
        check_positive("learning_rate", self.learning_rate)
        check_choice("schedule", self.schedule, ("cosine", "constant", "power"))
        check_choice("statistics", self.statistics, ("running", "own"))
        if self.batch_norm is not None:
            check_positive("batch_norm", self.batch_norm)
        for name in ("beta", "local_beta", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {getattr(self, name)!r}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup must be a share of training in [0, 1], got {self.warmup!r}")
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        if not isinstance(self.noise, Mapping) or set(self.noise) not in ({"learned"}, {"fixed"}, {"fixed", "training"}):
            raise ValueError(f"noise must be {{learned = 0.3}} or {{fixed = 2.5}}, perhaps with training = 0.7, got {self.noise!r}")
        for name, std in self.noise.items():
            check_positive(f"noise.{name}", std)
        if self.choose is not None:
            if self.weight_decay and "learning_rate" in self.choose.among:
                raise ValueError(f"learning_rate cannot be chosen with weight_decay={self.weight_decay!r}")
            for name, values in self.choose.among.items():  # so that what cannot be set is known before any work
                for value in (values["low"], values["high"]) if isinstance(values, Mapping) else values:
                    self.with_fields({name: value})

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The setup from plain settings, as a configuration or a job holds them.

        Raises:
            ValueError: a setting that is unknown, missing or out of range.
        """
        values = dict(fields)
        _check_known("setting", values, cls)
        if "method" not in values:
            raise ValueError('method is missing: give every method a table such as method = {method = "MeanField"}')
        if isinstance(values.get("choose"), Mapping):
            _check_known("setting of choose", values["choose"], Choose)
            values["choose"] = Choose(**{"among": {}, **values["choose"]})
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain settings, ready for JSON; `from_dict` reads them back.

        Settings that came later are left out where they are not used, so that older results keep their fingerprint.
        """
        fields = _without(_LATER, dataclasses.asdict(self))
        if self.choose is not None:
            fields["choose"] = _without(_LATER_CHOICE, fields["choose"])
        method = fields["method"]
        if "method" in method:
            return {**fields, "method": _without(_LATER_FIELDS.get(method["method"], {}), method)}
        by_layer = {pattern: _without(_LATER_FIELDS.get(own["method"], {}), own) for pattern, own in method.items()}
        return {**fields, "method": by_layer}

    def methods(self) -> Method | dict[str, Method]:
        """The method, or the methods by pattern of layer names, for `bayesify`."""
        if "method" in self.method:
            return Method.from_dict(dict(self.method))
        return {pattern: Method.from_dict(dict(fields)) for pattern, fields in self.method.items()}

    def passes(self, rows: int) -> int:
        """Passes over so many training rows."""
        return self.epochs if self.steps is None else max(1, round(self.steps / math.ceil(rows / self.batch_size)))

    def trial_passes(self, rows: int) -> int:
        """Passes over so many training rows in each trial of what is to be chosen."""
        return 0 if self.choose is None else max(1, round(self.choose.share * self.passes(rows)))

    def with_fields(self, fields: Mapping[str, Any]) -> Setup:
        """This setup with some fields changed, and nothing left to choose.

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
                raise ValueError(f"{name} cannot be chosen; what can is {', '.join(known)}")
        return dataclasses.replace(self, method=_nested(method, self.method), **changes)

    def kl_weight(self) -> float | KLSchedule:
        """beta, or its schedule."""
        return LinearWarmup(beta=self.beta, fraction=self.warmup) if self.warmup and self.beta else self.beta


def _without(unused: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields but for those that have these values."""
    return {name: value for name, value in fields.items() if name not in unused or value != unused[name]}


def _complete(method: Mapping[str, Any]) -> dict[str, Any]:
    """One method, or methods by pattern of layer names, with all defaults."""
    if "method" in method or not all(isinstance(fields, Mapping) for fields in method.values()):
        return Method.from_dict(dict(method)).to_dict()
    return {pattern: Method.from_dict(dict(fields)).to_dict() for pattern, fields in method.items()}


def _nested(flat: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """What `_flat` made of `like`, with its values, as it was."""
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


def _check_known(what: str, values: Mapping[str, Any], kind: type) -> None:
    known = [field.name for field in dataclasses.fields(kind)]
    if unknown := [name for name in values if name not in known]:
        raise ValueError(f"unknown {what} {', '.join(map(repr, unknown))}; there are {', '.join(known)}")

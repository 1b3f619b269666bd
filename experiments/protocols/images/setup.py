"""How one method is trained on one image set: every number that decides its results, checked."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, Self

from bayesify import Method
from bayesify.core.checks import check_choice, check_integer, check_positive
from bayesify.data import CORRUPTIONS, dataset_names
from experiments.protocols.images.nets import check_net

__all__ = ["Setup"]

# What may be chosen besides fields of the method.
_OWN = ("beta", "local_beta", "learning_rate", "weight_decay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One method on one image set.

    Args:
        dataset, ood: names as for `load_images`: of the set, and of sets with images of the same shape but of other things.
        net: as for `make_net`.
        posterior: fields as for `Method.from_dict`, or patterns of layer names, each with such fields; "none" is None, which toml
            cannot write.
        choices: lists of values to choose from on the validation part, for "beta", "local_beta", "learning_rate", "weight_decay" or
            a field of the method. A field is set in every method of `posterior` that has it and gives it no value itself.
        epochs, batch_size, learning_rate: of training, by Adam.
        beta, local_beta, train_samples: weights of the KLs and draws per step, as in `bayesify.train.fit`; None for the
            method's own `local_beta`, VIFO's `eta`.
        weight_decay: of Adam, for the net's own parameters; those that a method adds have none.
        decay, decay_every: the learning rate is multiplied by `decay` every so many epochs; None leaves it.
        choice_epochs: passes over the data of every candidate, at most `epochs`; None for as many. The learning rate falls as much,
            in fewer steps.
        validation: so many rows at the end of the published training set, to choose by.
        train_rows: only so many rows to train on, the first ones; None for all but the validation part.
        augment: shift and mirror the training images at random.
        samples: S, draws of the predictive distribution.
        validation_samples: the same for the validation part; None for as many.
        ood_rows: only so many images of every set of `ood`, the first ones; None for all.
        corruptions: names from `bayesify.data.CORRUPTIONS`: test images are corrupted like this, at all five severities.
        sample_counts: further S to judge every net by, to see what more draws are worth.
        subset: so many test images, the first ones, for `corruptions` and `sample_counts`; None for all.
        bins: of the calibration error.
    """

    dataset: str
    net: Mapping[str, Any]
    posterior: Mapping[str, Any]
    epochs: int
    batch_size: int
    validation: int
    samples: int
    learning_rate: float = 1e-3
    choices: Mapping[str, list[Any]] = dataclasses.field(default_factory=dict)
    beta: float = 1.0
    local_beta: float | None = None
    train_samples: int = 1
    weight_decay: float = 0.0
    decay: float = 1.0
    decay_every: int | None = None
    choice_epochs: int | None = None
    train_rows: int | None = None
    augment: bool = False
    validation_samples: int | None = None
    ood: list[str] = dataclasses.field(default_factory=list)
    ood_rows: int | None = None
    corruptions: list[str] = dataclasses.field(default_factory=list)
    sample_counts: list[int] = dataclasses.field(default_factory=list)
    subset: int | None = None
    bins: int = 15

    def __post_init__(self) -> None:
        for name in (self.dataset, *self.ood):
            check_choice("dataset and ood", name, dataset_names())
        check_net(self.net)
        for name in ("epochs", "batch_size", "validation", "samples", "train_samples", "bins"):
            check_integer(name, getattr(self, name))
        for name in ("decay_every", "choice_epochs", "train_rows", "validation_samples", "ood_rows", "subset"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        for name in self.corruptions:
            check_choice("corruptions", name, CORRUPTIONS)
        for number in self.sample_counts:
            check_integer("sample_counts", number)
        for name in ("learning_rate", "decay"):
            check_positive(name, getattr(self, name))
        weights = {name: getattr(self, name) for name in ("beta", "local_beta", "weight_decay")}
        for name, weight in weights.items():
            if not 0 <= (0 if name == "local_beta" and weight is None else weight) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {weight!r}")
        check_choice("augment", self.augment, (False, True))
        if not isinstance(self.posterior, Mapping) or not self.posterior:
            raise ValueError(f'posterior must be a table such as {{ method = "MeanField" }}, got {self.posterior!r}')
        for name, values in self.choices.items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"choices.{name} must be a list of values, got {values!r}")
        for fields in self.candidates() if self.choices else ():
            self.with_fields(fields)
        if not self.choices:
            self.methods()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The setup from plain settings, as a configuration or a job holds them.

        Raises:
            ValueError: a setting that is unknown, missing or out of range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := [name for name in fields if name not in known]:
            raise ValueError(f"unknown setting {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
        needed = [name for name, field in known.items() if field.default is field.default_factory is dataclasses.MISSING]
        if missing := [name for name in needed if name not in fields]:
            raise ValueError(f"settings are missing: {', '.join(missing)}")
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Plain settings, ready for JSON; `from_dict` reads them back. A default is left out: results outlive new settings."""
        values = dataclasses.asdict(self)
        return {field.name: values[field.name] for field in dataclasses.fields(self) if values[field.name] != _default(field)}

    def candidates(self) -> list[dict[str, Any]]:
        """All combinations of the values to choose from; one, perhaps empty, where there is no choice."""
        return [dict(zip(self.choices, values, strict=True)) for values in itertools.product(*self.choices.values())]

    def with_fields(self, fields: Mapping[str, Any]) -> Self:
        """This setup with the fields of a candidate, and nothing left to choose.

        Raises:
            ValueError: a field that neither training nor the method has, or that the method has a value for.
        """
        changes: dict[str, Any] = {name: value for name, value in fields.items() if name in _OWN}
        tables = {pattern: dict(table) for pattern, table in self._tables().items()}
        for name in fields.keys() - changes.keys():
            open_ = [table for table in tables.values() if name in _fields_of(table) and name not in table]
            if not open_:
                raise ValueError(
                    f"choices.{name} changes nothing: no method of posterior has a field {name} that is not set there; besides "
                    f"fields of methods, what can be chosen is {', '.join(_OWN)}"
                )
            for table in open_:
                table[name] = fields[name]
        posterior = tables["*"] if "method" in self.posterior else tables
        return dataclasses.replace(self, choices={}, posterior=posterior, **changes)

    def trial(self) -> Self:
        """This setup with the shorter training of a candidate."""
        if self.choice_epochs is None:
            return self
        epochs = min(self.choice_epochs, self.epochs)
        every = self.decay_every and max(1, round(self.decay_every * epochs / self.epochs))
        return dataclasses.replace(self, epochs=epochs, decay_every=every, choice_epochs=None)

    def milestones(self) -> list[int]:
        """The epochs after which the learning rate falls.

        Example:
            >>> fields = {"dataset": "mnist", "net": {"kind": "lenet"}, "posterior": {"method": "MeanField"}}
            >>> more = {"batch_size": 100, "validation": 10, "samples": 1, "epochs": 100, "decay_every": 20, "choice_epochs": 30}
            >>> setup = Setup(**fields, **more)
            >>> setup.milestones(), setup.trial().milestones()
            ([20, 40, 60, 80], [6, 12, 18, 24])
        """
        return [] if self.decay_every is None else list(range(self.decay_every, self.epochs, self.decay_every))

    def methods(self) -> Method | dict[str, Method]:
        """What `bayesify` takes."""
        tables = {
            pattern: {name: None if value == "none" else value for name, value in table.items()}
            for pattern, table in self._tables().items()
        }
        methods = {pattern: Method.from_dict(table) for pattern, table in tables.items()}
        return methods["*"] if "method" in self.posterior else methods

    def _tables(self) -> dict[str, Mapping[str, Any]]:
        """The methods' fields by pattern."""
        tables = {"*": self.posterior} if "method" in self.posterior else dict(self.posterior)
        for pattern, table in tables.items():
            if not isinstance(table, Mapping):
                raise ValueError(f'posterior.{pattern} must be a table such as {{ method = "MeanField" }}, got {table!r}')
        return tables


def _fields_of(table: Mapping[str, Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(Method.named(table.get("method")))}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()

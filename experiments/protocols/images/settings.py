"""Settings of one method on one image set, validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from bayesify import Method
from bayesify.core.checks import check_choice, check_integer, check_nonnegative, check_positive
from bayesify.datasets import dataset_names
from bayesify.errors import ConfigurationError
from experiments.protocols.images.corruption import CORRUPTIONS
from experiments.protocols.images.networks import check_net
from experiments.protocols.shared.configuration import check_fields, combinations, make_methods, tables_by_pattern

__all__ = ["Setup"]

# Settings that may be chosen besides fields of the method.
_OWN = ("beta", "local_beta", "learning_rate", "weight_decay")
_CHOSEN = "chosen"  # a method's field that `choices` sets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One method on one image set.

    Args:
        dataset, ood: names as for `load_images`: of the set, and of out-of-distribution sets with images of the same shape.
        net: as for `make_net`.
        posterior: table as for `Method.from_dict`, or tables by pattern of layer names; "none" stands for None, which toml lacks.
        choices: candidate values for "beta", "local_beta", "learning_rate", "weight_decay" or fields of the method, chosen on the
            validation rows. A field is set in every method of `posterior` that has it and does not set it.
        epochs, batch_size, learning_rate: of training with Adam.
        beta, local_beta, train_samples: KL weights and draws per step, as in `bayesify.train.fit`; `local_beta` None for the
            method's default, VIFO's `eta`.
        weight_decay: of Adam, for the network's parameters; those that a method adds have none.
        decay, decay_every: the learning rate is multiplied by `decay` every `decay_every` epochs; None for never.
        choice_epochs: epochs of a candidate, at most `epochs`; None for `epochs`. The learning rate decays in proportion.
        validation: number of validation rows at the end of the published training set.
        train_rows: number of training rows, the first ones; None for all but the validation rows.
        likelihood: "categorical" or "evidential", where the network predicts a Dirichlet distribution of the probabilities.
        calibrate: scale the logits by the temperature that fits the validation rows best.
        augment: shift and mirror the training images at random.
        precision: of training, as in `bayesify.train.fit`; predictions are made in float32.
        samples: S, draws in prediction.
        validation_samples: S for validation rows; None for `samples`.
        test_rows: number of test images, the first ones; None for all.
        ood_rows: number of images of every set of `ood`, the first ones; None for all.
        corruptions: names from `CORRUPTIONS`: test images are corrupted like this, at all five severities.
        sample_counts: further S with which every network is evaluated.
        subset: number of test images, the first ones, for `corruptions` and `sample_counts`; None for all.
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
    likelihood: Literal["categorical", "evidential"] = "categorical"
    calibrate: bool = False
    augment: bool = False
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    validation_samples: int | None = None
    ood: list[str] = dataclasses.field(default_factory=list)
    test_rows: int | None = None
    ood_rows: int | None = None
    corruptions: list[str] = dataclasses.field(default_factory=list)
    sample_counts: list[int] = dataclasses.field(default_factory=list)
    subset: int | None = None
    bins: int = 15

    def __post_init__(self) -> None:
        self._check_numbers()
        for name in (self.dataset, *self.ood):
            check_choice("dataset and ood", name, dataset_names())
        check_net(self.net)
        for name in self.corruptions:
            check_choice("corruptions", name, CORRUPTIONS)
        check_choice("augment", self.augment, (False, True))
        check_choice("precision", self.precision, ("32-true", "bf16-mixed"))
        check_choice("calibrate", self.calibrate, (False, True))
        check_choice("likelihood", self.likelihood, ("categorical", "evidential"))
        if self.calibrate and self.likelihood == "evidential":
            raise ConfigurationError("calibrate scales logits, which likelihood='evidential' does not have; leave one of them out")
        for name, values in self.choices.items():
            if not isinstance(values, list) or not values:
                raise ConfigurationError(f"choices.{name} must be a list of values, got {values!r}")
        # With all defaults, so that results become stale when a default changes.
        object.__setattr__(self, "posterior", self._complete())
        for fields in self.candidates() if self.choices else ():
            self.with_fields(fields)

    def _check_numbers(self) -> None:
        for name in ("epochs", "batch_size", "validation", "samples", "train_samples", "bins"):
            check_integer(name, getattr(self, name))
        for name in ("decay_every", "choice_epochs", "train_rows", "validation_samples", "test_rows", "ood_rows", "subset"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        for number in self.sample_counts:
            check_integer("sample_counts", number)
        for name in ("learning_rate", "decay"):
            check_positive(name, getattr(self, name))
        for name in ("beta", "local_beta", "weight_decay"):
            if name != "local_beta" or self.local_beta is not None:
                check_nonnegative(name, getattr(self, name))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read plain settings of a configuration or a job.

        Raises:
            ConfigurationError: a setting that is unknown, missing or out of range.
        """
        check_fields("setting", fields, cls)
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """All settings, ready for JSON; `from_dict` reads them back."""
        return dataclasses.asdict(self)

    def candidates(self) -> list[dict[str, Any]]:
        """All combinations of the candidate values; a single empty one without `choices`."""
        return combinations(self.choices)

    def with_fields(self, fields: Mapping[str, Any]) -> Self:
        """This setup with the fields of a candidate and without `choices`.

        Raises:
            ConfigurationError: a field that neither training nor the method has, or that `posterior` sets.
        """
        changes: dict[str, Any] = {name: value for name, value in fields.items() if name in _OWN}
        tables = {pattern: dict(table) for pattern, table in tables_by_pattern(self.posterior).items()}
        for name in fields.keys() - changes.keys():
            open_ = [table for table in tables.values() if table.get(name) == _CHOSEN]
            if not open_:
                raise ConfigurationError(
                    f"choices.{name} changes nothing: no method of posterior has a field {name} that is not set there; besides "
                    f"fields of methods, these can be chosen: {', '.join(_OWN)}"
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
        """The method, or the methods by pattern, for `bayesify`."""
        return make_methods(self.posterior)

    def _complete(self) -> dict[str, Any]:
        """The posterior with all fields of its methods; those that `choices` sets are "chosen"."""
        if not isinstance(self.posterior, Mapping) or not self.posterior:
            raise ConfigurationError(f'posterior must be a table such as {{ method = "MeanField" }}, got {self.posterior!r}')
        tables: dict[str, Any] = {}
        for pattern, table in tables_by_pattern(self.posterior).items():
            if not isinstance(table, Mapping):
                raise ConfigurationError(f'posterior.{pattern} must be a table such as {{ method = "MeanField" }}, got {table!r}')
            given = {name: None if value == "none" else value for name, value in table.items() if value != _CHOSEN}
            full = Method.from_dict(given).to_dict()
            open_ = [name for name in full if name in self.choices and name not in (*_OWN, *given)]
            tables[pattern] = full | dict.fromkeys(open_, _CHOSEN)
        return tables["*"] if "method" in self.posterior else tables

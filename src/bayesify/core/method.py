"""`Method`, the base class of methods."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.errors import ConfigurationError
from bayesify.plain_numbers import plain

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["Method"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A method: frozen hyperparameters, saved as JSON, that determine which layers become random and how.

    A new method is one file in `bayesify.methods`: a subclass (a frozen, keyword-only dataclass) that builds one `Posterior` per
    layer. Subclasses are registered in `Method.registry`, which tests, command line and benchmarks iterate over.

    Attributes:
        has_root: it makes the root module; a network can have one such method.
        is_whole: it makes the root from plain networks, without patterns.
        keeps_weight: its layers compute with their own weight, unchanged, which may therefore be frozen or tied.
        family: what is random, for lists of methods.
        paper: its source, for lists of methods.
        advice: one sentence on when to use it, for lists of methods.
        cost: time of a training step of LeNet-5 and of AlexNet, as ratios to the plain network's, and passes per prediction with
            S draws or M members, for lists of methods.

    Raises:
        ConfigurationError: a subclass was given a hyperparameter that is not possible.

    Example:
        >>> method = Method.from_dict({"method": "MCDropout", "p": 0.2})
        >>> method, method.replace(p=0.3).p, type(method) is Method.registry["MCDropout"]
        (MCDropout(p=0.2, prior_std=None), 0.3, True)
    """

    registry: ClassVar[dict[str, type[Method]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Method.registry[cls.__name__] = cls

    has_root: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False
    keeps_weight: ClassVar[bool] = False
    family: ClassVar[str] = "Other"
    paper: ClassVar[str] = ""
    advice: ClassVar[str] = ""
    cost: ClassVar[str] = ""

    @property
    def is_random(self) -> bool:
        """Whether it makes layers random; `bayesify` then raises a `NothingRandomError` if none became random."""
        return True

    @property
    def collects_from(self) -> float | None:
        """Fraction of training after which the posterior is collected from the weights; None if it is not."""
        return None

    def build(self, layer: BayesianLayer) -> Posterior | None:
        """Build the posterior of one layer; None leaves the layer unchanged.

        Raises:
            ConfigurationError: the method takes whole networks, and was given with name patterns.
        """
        return None

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        """Assign methods to layers, for `bayesify(net, method)` and the pattern "*"; by default this one to all.

        A layer that another pattern names gets the method of that pattern.

        Args:
            layers: names and modules of all layers with parameters, in the network's order.

        Returns:
            Methods by name; layers without one are not converted.

        Raises:
            ConfigurationError: a hyperparameter names a layer that there is not.
        """
        return dict.fromkeys(layers, self)

    def output_layer(self, layers: Mapping[str, nn.Module]) -> str | None:
        """The layer that `assign` takes for the output layer of the network; the first pass warns if it is not."""
        return None

    def root(self, net: nn.Module) -> nn.Module:
        """Make the root module (a `Bayesian`) of a converted network, if the method declares `has_root`."""
        raise NotImplementedError(f"{type(self).__name__} declares has_root but does not implement `root`")

    def whole(self, nets: Sequence[nn.Module], convert: Callable[[nn.Module, Method], nn.Module]) -> nn.Module:
        """Make the root module (a `Bayesian`) from plain networks, if the method declares `is_whole` (ensembles).

        Args:
            nets: the plain networks: one, or one per member.
            convert: `bayesify` of a single network, with the caller's layout of inputs.
        """
        raise NotImplementedError(f"{type(self).__name__} declares is_whole but does not implement `whole`")

    def check_completion(self, likelihood: Any, weighted: bool) -> None:
        """Raise an error if `complete` cannot serve a likelihood or weights of examples, or lacks a package; before training."""

    def rehearse(self, bnn: Bayesian, names: Sequence[str], batch: Any, likelihood: Any) -> None:
        """Raise an error, before training, if `complete` cannot serve this network: it gets the first batch."""

    def complete(
        self,
        bnn: Bayesian,
        names: Sequence[str],
        batches: Iterable[Any],
        likelihood: Any,
        scale: float,
        advance: Callable[[float], object],
    ) -> None:
        """Make the posteriors of layers after training, if they are `CompletedPosterior`s; see `Bayesian.complete`.

        Args:
            bnn: the root.
            names: of the layers, within `bnn.net`.
            batches, likelihood, scale: as for `Bayesian.complete`, which has seeded the random number generators.
            advance: call it with the fraction of the work that has been done since the last call, for the progress bar.

        Raises:
            ConfigurationError: the method cannot serve this network.
            DivergenceError: what is sampled became NaN or infinite.
        """
        raise NotImplementedError(f"{type(self).__name__} builds a CompletedPosterior but does not implement `complete`")

    def to_dict(self) -> dict[str, Any]:
        """Name and fields as JSON values, for `Method.from_dict`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values = {name: value.to_dict() if isinstance(value, Method) else plain(value) for name, value in fields.items()}
        return {"method": type(self).__name__, **values}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Method:
        """Build a method from the result of `to_dict`.

        Raises:
            ConfigurationError: an unknown method or field.
        """
        values = dict(fields)
        kind = cls.named(values.pop("method", None))
        kind.check_fields(values)
        return kind(**{name: cls.from_dict(value) if isinstance(value, dict) else value for name, value in values.items()})

    @classmethod
    def named(cls, name: object) -> type[Method]:
        """The method class of a name, case-insensitive.

        Raises:
            ConfigurationError: an unknown method.
        """
        by_name = {registered.lower(): kind for registered, kind in cls.registry.items()}
        if str(name).lower() not in by_name:
            close = difflib.get_close_matches(str(name).lower(), by_name, n=1)
            hint = f"; did you mean {by_name[close[0]].__name__}?" if close else "."
            raise ConfigurationError(f"unknown method {name!r}{hint} `Method.registry` and `bayesify methods` list all methods")
        return by_name[str(name).lower()]

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def check_fields(cls, names: Iterable[str]) -> None:
        """Raise a `ConfigurationError` unless all names are fields of the method."""
        fields = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(names) - set(fields)):
            listed = ", ".join(fields) or "none"
            raise ConfigurationError(f"{cls.__name__} has no field {', '.join(map(repr, unknown))}; its fields are {listed}")

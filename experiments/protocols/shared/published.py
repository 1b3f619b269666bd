"""Metrics, and a paper's values of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from bayesify.errors import ConfigurationError
from experiments.harness.numbers import Estimate

__all__ = ["Metric", "read_estimates", "table"]


class Metric(NamedTuple):
    """A score that methods are compared by; `sign` is 1 if higher is better, -1 if lower is."""

    key: str
    title: str
    note: str
    sign: int = -1


def table(name: str, value: object) -> Mapping[str, Any]:
    """The value, if it is a table.

    Raises:
        ConfigurationError: any other value.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} must be a table, got {value!r}")
    return value


def read_estimates(name: str, value: object, keys: Collection[str]) -> dict[str, Estimate]:
    """Published values by metric, each given as a mean or as [mean, standard error].

    Raises:
        ConfigurationError: not a table, unknown metrics, other values.
    """
    values, estimates = table(name, value), {}
    if not set(values) <= set(keys):
        raise ConfigurationError(f"{name} must be a table of {', '.join(sorted(keys))}, got {value!r}")
    for key, given in values.items():
        pair = given if isinstance(given, list) else [given]
        if len(pair) not in (1, 2) or not all(type(number) in (int, float) for number in pair):
            raise ConfigurationError(f"{name}.{key} must be a mean or [mean, standard error], got {given!r}")
        estimates[key] = Estimate(*pair)
    return estimates

"""Checks of configured settings, and settings of methods: one method, or methods by pattern of layer names."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bayesify import Method
from bayesify.errors import ConfigurationError

__all__ = ["check_fields", "combinations", "complete", "list_of", "make_methods", "method_name", "tables_by_pattern"]


def check_fields(what: str, values: Mapping[str, Any], kind: type) -> None:
    """Check the names of settings against the fields of a dataclass.

    Raises:
        ConfigurationError: unknown settings, or missing ones that have no default.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := [name for name in values if name not in fields]:
        raise ConfigurationError(f"unknown {what} {', '.join(map(repr, unknown))}; the {what}s are {', '.join(fields)}")
    required = [name for name, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in values]:
        raise ConfigurationError(f"{what}s are missing: {', '.join(missing)}")


def list_of(name: str, value: object, kind: type) -> list[Any]:
    """The value, if it is a list with at least one `kind` (str or Mapping) and nothing else.

    Raises:
        ConfigurationError: any other value.
    """
    if not isinstance(value, list) or not value or not all(isinstance(entry, kind) for entry in value):
        what = "names" if kind is str else f"tables, [[{name}]]"
        raise ConfigurationError(f"{name} must be a list of {what}, got {value!r}")
    return value


def method_name(method: Mapping[str, Any]) -> str:
    """The name of an entry of `methods`.

    Raises:
        ConfigurationError: no name.
    """
    if not isinstance(method.get("name"), str):
        raise ConfigurationError(f"every method needs a name, got {dict(method)}")
    return method["name"]


def tables_by_pattern(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of methods by pattern of layer names; a single method has the pattern "*".

    Example:
        >>> tables_by_pattern({"method": "MeanField"})
        {'*': {'method': 'MeanField'}}
    """
    return {"*": table} if "method" in table else dict(table)


def make_methods(table: Mapping[str, Any]) -> Method | dict[str, Method]:
    """The method, or the methods by pattern, for `bayesify`."""
    methods = {pattern: Method.from_dict(dict(fields)) for pattern, fields in tables_by_pattern(table).items()}
    return methods["*"] if "method" in table else methods


def complete(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of methods with all fields, so that results become stale when a default changes.

    Example:
        >>> complete({"method": "MCDropout"})
        {'method': 'MCDropout', 'p': 0.1, 'prior_std': None}
    """
    tables = {pattern: Method.from_dict(dict(fields)).to_dict() for pattern, fields in tables_by_pattern(table).items()}
    return tables["*"] if "method" in table else tables


def combinations(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the values; a single empty one without any choices.

    Example:
        >>> combinations({"p": [0.1, 0.2], "beta": [1.0]})
        [{'p': 0.1, 'beta': 1.0}, {'p': 0.2, 'beta': 1.0}]
    """
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]

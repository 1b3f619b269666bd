"""Settings as plain dicts: what a fingerprint contains of them, and whether a record agrees with them.

Settings in a job and in a results file are complete: every field of a method and of a protocol's setup is written out. A
fingerprint contains only those that differ from their defaults, so a new field with a default makes no result stale. A changed
default does: the record has the old value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bayesify import Method

__all__ = ["agree", "without_defaults"]


def without_defaults(settings: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The settings without those fields of methods and of the given dataclasses that have their default, at any depth.

    Args:
        settings: ready for JSON; a table with a text `method` holds the fields of that method, except at the top level.
        types: dataclasses by the name of the setting that holds their fields.

    Example:
        >>> without_defaults({"seed": 0, "prior": {"method": "MeanField", "prior_std": 2.0, "initial_std": 0.1}}, {})
        {'seed': 0, 'prior': {'method': 'MeanField', 'prior_std': 2.0}}
    """
    return {name: _reduced(name, value, types) for name, value in settings.items()}


def agree(recorded: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Whether every recorded setting has the same value now, at any depth; settings that the record lacks are ignored.

    Example:
        >>> agree({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2, "new": 3}}), agree({"a": 1}, {"a": 2})
        (True, False)
    """
    for name, value in recorded.items():
        if name not in present:
            return False
        both = isinstance(value, Mapping) and isinstance(present[name], Mapping)
        if not (agree(value, present[name]) if both else value == present[name]):
            return False
    return True


def _reduced(name: str, value: object, types: Mapping[str, type]) -> object:
    if not isinstance(value, Mapping):
        return value
    kind = types.get(name)
    if kind is None and isinstance(value.get("method"), str):
        kind = Method.named(value["method"])
    defaults = {} if kind is None else _defaults(kind)
    return {key: _reduced(key, item, types) for key, item in value.items() if key not in defaults or item != defaults[key]}


def _defaults(kind: type) -> dict[str, Any]:
    """Default values by field, ready for JSON; fields without a default are missing."""
    values = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
    }
    return {
        name: value.to_dict() if isinstance(value, Method) else list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not dataclasses.MISSING
    }

"""Fields of an estimator's method by the names that scikit-learn knows parameters of parts by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bayesify.core.method import Method

__all__ = ["fields_of", "with_fields"]


def fields_of(method: Method, prefix: str) -> dict[str, Any]:
    """The method's fields, and those of a method in one of them, by the names of `set_params`."""
    params: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        params[prefix + field.name] = value
        if isinstance(value, Method):
            params.update(fields_of(value, f"{prefix}{field.name}__"))
    return params


def with_fields(method: Method, fields: Mapping[str, Any]) -> Method:
    """The method with some fields changed, `method__eta` being that of the method in its field `method`."""
    changes = {name: value for name, value in fields.items() if "__" not in name}
    for name in dict.fromkeys(name.partition("__")[0] for name in fields if "__" in name):
        part = changes.get(name, getattr(method, name, None))
        if not isinstance(part, Method):
            raise ValueError(f"{type(method).__name__} has no method in a field {name!r} whose fields could be set")
        inner = {field.removeprefix(f"{name}__"): value for field, value in fields.items() if field.startswith(f"{name}__")}
        changes[name] = with_fields(part, inner)
    method.check_fields(changes)
    return method.replace(**changes)

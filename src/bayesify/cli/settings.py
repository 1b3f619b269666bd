"""`--set field=value`: text converted to the declared type of a field of the method or a parameter of training."""

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bayesify.cli.terminal import UsageError
from bayesify.core.method import Method
from bayesify.estimators import BayesianEstimator
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup

__all__ = ["convert", "estimator_fields", "method_fields", "parse", "split"]

_NOT_SETTABLE = ("method", "net", "random_state", "on", "progress")  # separate options, or not expressible as text
_ITEMS = {int: "integers", str: "labels"}
_SCHEDULES = {kind.__name__.lower(): kind for kind in (Constant, Cyclical, LinearWarmup)}


def method_fields(kind: type[Method]) -> dict[str, Any]:
    """Return a method's fields and their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def estimator_fields(kind: type[BayesianEstimator]) -> dict[str, Any]:
    """Return the parameters of an estimator that --set can change, and their types."""
    hints = typing.get_type_hints(kind.__init__)
    return {name: hints[name] for name in inspect.signature(kind).parameters if name not in _NOT_SETTABLE}


def parse(settings: Sequence[str]) -> dict[str, str]:
    """Convert `["a=1", "b=x"]` to a mapping.

    Example:
        >>> parse(["prior_std=0.5"])
        {'prior_std': '0.5'}
    """
    result: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set takes field=value, such as --set prior_std=0.5, got {setting!r}")
        if name.strip() in result:
            raise UsageError(f"--set {name.strip()} is given twice")
        result[name.strip()] = value.strip()
    return result


def split(
    settings: Mapping[str, str], method: type[Method], kind: type[BayesianEstimator]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert settings and separate those of the method from those of the estimator.

    Raises:
        UsageError: an unknown name, or a value of the wrong type.
    """
    fields, params = method_fields(method), estimator_fields(kind)
    result: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, text in settings.items():
        if name not in fields and name not in params:
            close = difflib.get_close_matches(name, [*fields, *params], n=1)
            raise UsageError(
                f"--set {name}: unknown field.{f' Did you mean {close[0]!r}?' if close else ''} {method.__name__} has "
                f"{', '.join(fields) or 'none'}; training has {', '.join(params)}"
            )
        result[name not in fields][name] = convert(name, text, fields.get(name, params.get(name)))
    return result


def convert(name: str, text: str, kind: Any) -> Any:
    """Convert text to a type: bool, int, float, str, None, Literal, a sequence, a KL schedule, a method, or a union of these.

    Example:
        >>> convert("hidden", "64,32", Sequence[int]), convert("prior_std", "none", float | None)
        ((64, 32), None)
    """
    members = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    members = [member for member in members if typing.get_origin(member) is not Mapping]  # for Python alone
    for member in sorted(members, key=lambda member: member is str):  # last, because any text is a str
        try:
            return _convert(text, member)
        except (ValueError, KeyError):
            continue
    raise UsageError(f"--set {name} must be {' or '.join(map(_describe, members))}, got {text!r}")


def _convert(text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        return {str(choice).lower(): choice for choice in typing.get_args(kind)}[text.lower()]
    if typing.get_origin(kind) is not None:  # Sequence[int], tuple[float, ...]
        item = typing.get_args(kind)[0]
        return tuple(item(part.strip()) for part in text.strip("()[]").split(",") if part.strip())
    if kind is types.NoneType:
        return {"none": None}[text.lower()]
    if kind is bool:
        return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
    if kind is KLSchedule:
        return _SCHEDULES[text.lower()]()
    if kind is Method:
        return Method.named(text)()
    return kind(text)


def _describe(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is not None:
        return f"{_ITEMS.get(typing.get_args(kind)[0], 'numbers')} separated by commas"
    if kind is KLSchedule:
        return ", ".join(schedule.__name__ for schedule in _SCHEDULES.values())
    if kind is Method:
        return "the name of a method"
    words: dict[Any, str] = {types.NoneType: "none", bool: "true or false", int: "an integer", float: "a number"}
    return words.get(kind, "text")

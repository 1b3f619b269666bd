"""Schemas of JSON values: functions that check one value and name what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bayesify.errors import ModelFileError

__all__ = [
    "Check",
    "anything",
    "check_json",
    "choice",
    "listing_of",
    "mapping_of",
    "number",
    "optional",
    "record",
    "require",
    "text",
    "truth",
    "whole",
]

Check = Callable[[str, Any], None]
"""Check a value; the first argument is its place in the document, such as "columns[2].kind"."""


class _MismatchError(Exception):
    """A value that does not fit its schema."""


def check_json(path: Path, document: Any, check: Check) -> None:
    """Check a parsed JSON document.

    Args:
        path: its file, for the message.
        document: parsed.
        check: its schema.

    Raises:
        ModelFileError: a value that does not fit.

    Example:
        >>> check_json(Path("a.json"), {"members": -1}, record({"members": whole(1, 10)}))
        Traceback (most recent call last):
        ...
        bayesify.errors.ModelFileError: a.json is invalid: members must be a whole number from 1 to 10, got -1
    """
    try:
        check("", document)
    except _MismatchError as error:
        raise ModelFileError(f"{path} is invalid: {error}") from None
    except RecursionError:
        raise ModelFileError(f"{path} is invalid: it is nested too deeply") from None


def require(fits: bool, expected: str) -> None:
    """Reject the document unless `fits`; `expected` is the sentence of the message, from the place on."""
    if not fits:
        raise _MismatchError(expected)


def anything(place: str, value: Any) -> None:
    """Accept every value; what reads it later checks it."""


def text(place: str, value: Any) -> None:
    """Accept a string."""
    _expect(isinstance(value, str), place, "text", value)


def truth(place: str, value: Any) -> None:
    """Accept true and false."""
    _expect(isinstance(value, bool), place, "true or false", value)


def whole(low: int, high: int) -> Check:
    """Accept integers between two bounds."""

    def check(place: str, value: Any) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        _expect(fits, place, f"a whole number from {low} to {high}", value)

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """Accept finite numbers between two bounds."""
    bounds = "" if math.isinf(low) and math.isinf(high) else f" from {low:g} to {high:g}"

    def check(place: str, value: Any) -> None:
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        _expect(numeric and abs(value) < math.inf and low <= value <= high, place, f"a finite number{bounds}", value)

    return check


def choice(*values: Any) -> Check:
    """Accept some values, of the same type."""

    def check(place: str, value: Any) -> None:
        fits = any(type(value) is type(each) and value == each for each in values)
        _expect(fits, place, f"one of {', '.join(map(repr, values))}", value)

    return check


def optional(check: Check) -> Check:
    """Accept null, and what a schema accepts."""

    def check_optional(place: str, value: Any) -> None:
        if value is not None:
            check(place, value)

    return check_optional


def listing_of(check: Check, least: int = 0) -> Check:
    """Accept lists of at least `least` values that a schema accepts."""

    def check_listing(place: str, value: Any) -> None:
        size = f" of at least {least} values" if least else ""
        _expect(isinstance(value, list) and len(value) >= least, place, f"a list{size}", value)
        for index, each in enumerate(value):
            check(f"{place}[{index}]", each)

    return check_listing


def mapping_of(check: Check) -> Check:
    """Accept objects whose values a schema accepts, with any names."""

    def check_mapping(place: str, value: Any) -> None:
        _expect(isinstance(value, dict), place, "an object", value)
        for name, each in value.items():
            check(_within(place, name), each)

    return check_mapping


def record(fields: Mapping[str, Check], more: Mapping[str, Check] | None = None) -> Check:
    """Accept objects with these fields, and possibly `more` of them; fields without a schema are accepted."""

    def check_record(place: str, value: Any) -> None:
        _expect(isinstance(value, dict), place, "an object", value)
        for name, check in fields.items():
            if name not in value:
                raise _MismatchError(f"{_within(place, name)} is missing")
            check(_within(place, name), value[name])
        for name, check in (more or {}).items():
            if name in value:
                check(_within(place, name), value[name])

    return check_record


def _within(place: str, name: str) -> str:
    return f"{place}.{name:.40}" if place else f"{name:.40}"


def _expect(fits: bool, place: str, expected: str, value: Any) -> None:
    if not fits:
        got = f"{value!r:.40}" if isinstance(value, str | int | float | None) else type(value).__name__
        raise _MismatchError(f"{place or 'the document'} must be {expected}, got {got}")

"""Dates that a table has as text: which format a column has."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable

__all__ = ["ISO_DATE", "LIKE_A_DATE", "date_format"]

ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
LIKE_A_DATE = re.compile(r"(?:\d{4}([./-])\d{1,2}\1\d{1,2}|\d{1,2}([./-])\d{1,2}\2(?:\d{4}|\d{2}))(?:[T ].*)?")
_TIME = r"(?: (?P<time>(?P<hour>\d{1,2}):\d{2})(?P<seconds>:\d{2})?(?P<half>(?P<gap> ?)[AaPp][Mm])?)?"
_FIELD = r"\d{4}|\d{1,2}"
_NUMBERS = re.compile(
    rf"(?P<first>\d{{4}}|\d{{1,2}})(?P<mark>[./-])(?P<second>\d{{1,2}})(?P=mark)(?P<third>\d{{4}}|\d{{1,2}}){_TIME}"
)
_DAY_AND_NAME = re.compile(rf"\d{{1,2}}(?P<mark>[ -])(?P<month>[A-Za-z]{{3,9}})(?P=mark)(?P<year>\d{{4}}|\d{{2}}){_TIME}")
_NAME_AND_DAY = re.compile(rf"(?P<month>[A-Za-z]{{3,9}}) \d{{1,2}}(?P<mark>,? )(?P<year>\d{{4}}){_TIME}")
_NAMES = {"%b": [name.casefold() for name in calendar.month_abbr], "%B": [name.casefold() for name in calendar.month_name]}


def date_format(text: Iterable[str]) -> str:
    """The `strftime` format of dates such as 31.12.2020, 12/31/2020 6:30 PM, 2020/12/31 or 31 Dec 2020; empty if they have none.

    A dot means that the day comes before the month. With other separators a value above 12 decides; if there is none, the month
    comes first, unless years have two digits. Such dates have a format if one order alone is possible; where days and years may be
    exchanged, the day is what has more values. With dots and hyphens, all of their numbers must have two digits.

    Args:
        text: the distinct values, without those that are missing.

    Example:
        >>> date_format(["31.12.2020", "01.02.2021"]), date_format(["12/31/20 6:30 PM", "1/2/21 9:00 AM"])
        ('%d.%m.%Y', '%m/%d/%y %I:%M %p')
        >>> date_format(["31 Dec 2020", "1 May 2021"]), date_format(["1/2/20", "3/4/20"])
        ('%d %b %Y', '')
    """
    values = [value.strip() for value in text]
    for pattern, order in ((_NUMBERS, _order_of_numbers), (_DAY_AND_NAME, _day_and_name), (_NAME_AND_DAY, _name_and_day)):
        found = []
        for value in values:
            if (match := pattern.fullmatch(value)) is None:
                break
            found.append(match.groupdict())
        times = {(bool(one["time"]), bool(one["seconds"]), bool(one["half"]), one["gap"]) for one in found}
        if found and len(found) == len(values) and len(times) == 1 and len({one["mark"] for one in found}) == 1:
            ((has_time, has_seconds, has_half, gap),) = times
            if has_half and not all(1 <= int(one["hour"]) <= 12 for one in found):
                return ""
            time = f" {'%I' if has_half else '%H'}:%M" * has_time + ":%S" * has_seconds + f"{gap}%p" * has_half
            date = order(found)
            return date + time if date else ""
    return ""


def _order_of_numbers(found: list[dict[str, str]]) -> str:
    mark, fields = found[0]["mark"], [[one[name] for one in found] for name in ("first", "second", "third")]
    first, second, third = (max(map(int, field)) for field in fields)
    widths = [{len(value) == 4 for value in field} for field in fields]
    if any(len(width) > 1 for width in widths) or widths[0] == widths[2] == {True}:
        return ""
    order: tuple[str, ...] | None
    if widths[0] == {True}:
        order = ("%Y", "%m", "%d") if second <= 12 and third <= 31 else None
    elif widths[2] == {True}:
        day_first = mark == "." or first > 12
        possible = min(first, second) <= 12 and max(first, second) <= 31 and (mark != "." or second <= 12)
        order = (("%d", "%m", "%Y") if day_first else ("%m", "%d", "%Y")) if possible else None
    elif mark != "/" and any(len(value) < 2 for field in fields for value in field):
        order = None  # 1.2.10 may be a version
    else:
        order = _order_of_short_years(mark, first, second, third, len(set(fields[0])) - len(set(fields[2])))
    return "" if order is None else mark.join(order)


def _order_of_short_years(mark: str, first: int, second: int, third: int, more: int) -> tuple[str, ...] | None:
    """The order of numbers with these largest values; `more` is how many more values the first has than the third."""
    orders = [
        *[("%d", "%m", "%y")] * (first <= 31 and second <= 12),
        *[("%m", "%d", "%y")] * (first <= 12 and second <= 31 and mark != "."),
        *[("%y", "%m", "%d")] * (second <= 12 and third <= 31),
    ]
    if len(orders) == 2 and (orders[0][0], orders[1][0]) == ("%d", "%y") and more:
        return orders[0] if more > 0 else orders[1]
    return orders[0] if len(orders) == 1 else None


def _day_and_name(found: list[dict[str, str]]) -> str:
    name, years = _month(found), {len(one["year"]) for one in found}
    if not name or len(years) > 1:
        return ""
    return found[0]["mark"].join(("%d", name, "%Y" if years == {4} else "%y"))


def _name_and_day(found: list[dict[str, str]]) -> str:
    name = _month(found)
    return f"{name} %d{found[0]['mark']}%Y" if name else ""


def _month(found: list[dict[str, str]]) -> str:
    """The directive of the months' English names; empty if they are others."""
    months = {one["month"].casefold() for one in found}
    return next((directive for directive, names in _NAMES.items() if months.issubset(names)), "")

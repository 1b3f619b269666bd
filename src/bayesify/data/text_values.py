"""Numbers and dates that a table has as text: which format a column has, and reading it."""

from __future__ import annotations

import re

import pandas as pd

__all__ = ["ISO_DATE", "MISSING_WORDS", "all_text", "date_format", "number_format", "parse_numbers"]

MISSING_WORDS = frozenset(  # which pandas reads as missing in text files
    {"#N/A", "#N/A N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
_MOST = 0.9  # the share of a column's values that must be numbers; the others are treated as missing
_CURRENCY = r"^[$€£¥]\s*|\s*(?:[$€£¥%])$"
_CODE = r"[+-]?0\d.*"  # a leading zero, as in postal codes
_GROUPING = {".": "[, '\u00a0\u202f]", ",": "[. '\u00a0\u202f]"}  # thousands separators, by decimal separator
_NUMBERS = {
    decimal: re.compile(rf"[+-]?(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)?(?:[{decimal}]\d*)?(?:[eE][+-]?\d+)?")
    for decimal, group in _GROUPING.items()
}
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})")


def all_text(values: pd.Series) -> bool:
    """Whether a column has values, and all of them are text rather than of a categorical type."""
    present = values.dropna()
    return present.dtype != "category" and len(present) > 0 and bool(present.map(lambda value: isinstance(value, str)).all())


def number_format(text: pd.Series) -> str:
    """The decimal separator of a column of numbers written as text; empty if it has categories.

    Nearly all values must be numbers; thousands separators, currency and percent signs are allowed. Columns whose values are all
    plain numbers are categories on purpose, and so are codes with leading zeros.

    Args:
        text: the present values, all strings.

    Example:
        >>> number_format(pd.Series(["1,200", "950", "1,050"])), number_format(pd.Series(["3,5", "4,25"]))
        ('.', ',')
        >>> [number_format(pd.Series(text)) for text in (["Bonn", "Ulm"], ["1", "2"], ["01067", "53111"])]
        ['', '', '']
    """
    if text.str.fullmatch(_CODE).any() or pd.to_numeric(text, errors="coerce").notna().all():
        return ""
    shares = {decimal: float(parse_numbers(text, decimal).notna().mean()) for decimal in _NUMBERS}
    best = max(shares, key=lambda decimal: shares[decimal])  # the first of equals: "1,200" is 1200
    return best if shares[best] >= _MOST else ""


def parse_numbers(text: pd.Series, decimal: str) -> pd.Series:
    """Read numbers with this decimal separator; NaN where a value is none.

    Example:
        >>> parse_numbers(pd.Series(["$66,457.50", "12 %", "n/a"]), ".").tolist()
        [66457.5, 12.0, nan]
    """
    bare = text.str.strip().str.replace(_CURRENCY, "", regex=True)
    bare = bare.where(bare.str.fullmatch(_NUMBERS[decimal]) & bare.str.contains(r"\d"))
    plain = bare.str.replace(_GROUPING[decimal], "", regex=True).str.replace(decimal, ".", regex=False)
    return pd.to_numeric(plain, errors="coerce").astype(float)


def date_format(text: pd.Series) -> str:
    """The `strftime` format of a column of dates such as 31.12.2020 or 12/31/2020; empty if it has none.

    A dot means that the day comes first. With other separators a value above 12 decides; if there is none, the month comes first.

    Args:
        text: the present values, all strings.

    Example:
        >>> date_format(pd.Series(["31.12.2020", "01.02.2021"])), date_format(pd.Series(["12/31/2020", "1/2/2021"]))
        ('%d.%m.%Y', '%m/%d/%Y')
    """
    matches = [_DATE.fullmatch(value.strip()) for value in text]
    found = [match.groups() for match in matches if match]
    separators = {separator for _, separator, _, _ in found}
    if len(found) < len(matches) or len(separators) != 1:
        return ""
    first, second = (max(int(groups[i]) for groups in found) for i in (0, 2))
    (separator,) = separators
    day_first = separator == "." or first > 12
    if min(first, second) > 12 or max(first, second) > 31 or (separator == "." and second > 12):
        return ""
    return separator.join(("%d", "%m", "%Y") if day_first else ("%m", "%d", "%Y"))

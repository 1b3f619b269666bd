"""Numbers that a table has as text: which format a column has, and reading it."""

from __future__ import annotations

import re

import pandas as pd

from bayesify.data.dates import LIKE_A_DATE

__all__ = [
    "MISSING_WORDS",
    "all_text",
    "describe_format",
    "distinct",
    "no_value",
    "number_format",
    "numeric_share",
    "parse_numbers",
    "strip_text",
]

MISSING_WORDS = frozenset(  # which pandas reads as missing in text files
    {"#N/A", "#N/A N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
_NO_VALUE = {word.casefold() for word in MISSING_WORDS}.union(
    {"", "?", "??", "-", "--", "---", ".", "..", "...", "n.a.", "unknown", "missing"}
)
_MOST = 0.9  # the share of a column's values that must be numbers; the others are treated as missing
_CURRENCY = r"^[$€£¥]\s*|\s*(?:[$€£¥%])$"
_CODE = re.compile(r"[+-]?0\d.*")  # a leading zero, as in postal codes
_GROUPING = {".": "[, '\u00a0\u202f]", ",": "[. '\u00a0\u202f]"}  # thousands separators, by decimal separator
_NUMBERS = {
    decimal: re.compile(rf"[+-]?(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)?(?:[{decimal}]\d*)?(?:[eE][+-]?\d+)?")
    for decimal, group in _GROUPING.items()
}
_WITH_UNIT = r"[+-]?[\d.,][\d., '\u00a0\u202f]*?\s*([^\W\d_][\w°²³^/*. -]{0,14}|°[^\W\d_]?)"  # "57.3 kg", "5 EUR/m2", "21 °C"
_DIRECTIVES = {
    "%d": "day",
    "%m": "month",
    "%b": "month",
    "%B": "month",
    "%Y": "year",
    "%y": "year",
    "%H": "hour",
    "%I": "hour",
    "%M": "minute",
    "%S": "second",
    "%p": "AM/PM",
}


def all_text(values: pd.Series) -> bool:
    """Whether a column has values, and all of them are text rather than of a categorical type."""
    return pd.api.types.infer_dtype(values, skipna=True) == "string"


def strip_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without blanks at the start and end of its names and texts; nothing but blanks is a missing value.

    Example:
        >>> strip_text(pd.DataFrame({"town ": ["Bonn ", "Bonn", " "]})).to_dict("list")
        {'town': ['Bonn', 'Bonn', nan]}
    """
    table = table.rename(columns=lambda name: name.strip() if isinstance(name, str) else name)
    for name in table:
        if all_text(table[name]):
            values = table[name].str.strip()
            table[name] = values.mask(values == "")
    return table


def no_value(values: pd.Series) -> pd.Series:
    """Whether values are text that marks a missing number or date, such as "?" or "n/a", by row.

    Example:
        >>> no_value(pd.Series(["?", "N/A", "1.5", None])).tolist()
        [True, True, False, False]
    """
    return values.map(lambda value: isinstance(value, str) and value.strip().casefold() in _NO_VALUE).astype(bool)


def number_format(text: pd.Series) -> str:
    """The format of a column of numbers written as text: the decimal separator, and the unit if there is one; empty for categories.

    Nearly all values must be numbers, except for marks of missing values; thousands separators, currency and percent signs are
    allowed, and a unit, the same for nearly all numbers. Columns whose values are all plain numbers are categories on purpose, and
    so are codes with leading zeros.

    Args:
        text: the present values, all strings.

    Example:
        >>> number_format(pd.Series(["1,200", "950", "1,050"])), number_format(pd.Series(["3,5", "4,25", "?"]))
        ('.', ',')
        >>> number_format(pd.Series(["57.3 kg", "61 kg"]))
        '.kg'
        >>> [number_format(pd.Series(text)) for text in (["Bonn", "Ulm"], ["1", "2"], ["01067", "53111"])]
        ['', '', '']
    """
    text, counts = distinct(text)
    if text.str.fullmatch(_CODE).any() or pd.to_numeric(text, errors="coerce").notna().all():
        return ""
    known = ~no_value(text)
    share, written = _best_format(text[known], counts[known])
    return written if share >= _MOST else ""


def distinct(text: pd.Series) -> tuple[pd.Series, pd.Series]:
    """The distinct values of a column, which may be far fewer, and how many rows have them."""
    counts = text.value_counts()
    return pd.Series(counts.index), counts.reset_index(drop=True)


def _share(rows: pd.Series, counts: pd.Series) -> float:
    return float(counts[rows].sum() / counts.sum())


def _best_format(text: pd.Series, counts: pd.Series) -> tuple[float, str]:
    """The format that reads most rows, and their share."""
    if text.empty:
        return 0.0, ""
    shares = {decimal: _share(parse_numbers(text, decimal).notna(), counts) for decimal in _NUMBERS}
    best = max(shares, key=lambda decimal: shares[decimal])  # the first of equals: "1,200" is 1200
    if shares[best] >= _MOST:
        return shares[best], best
    units = text.str.strip().str.extract(f"^{_WITH_UNIT}$", expand=False)
    if units.isna().all():
        return shares[best], best
    unit = str(counts.groupby(units).sum().idxmax())
    has_unit = units == unit
    share, decimal = _best_format(text[has_unit].str.strip().str.removesuffix(unit), counts[has_unit])
    share *= _share(has_unit, counts)
    return (share, decimal[:1] + unit) if share > shares[best] else (shares[best], best)


def parse_numbers(text: pd.Series, written: str) -> pd.Series:
    """Read numbers in a format of `number_format`, with or without its unit; NaN where a value is none.

    Example:
        >>> parse_numbers(pd.Series(["$66,457.50", "12 %", "n/a"]), ".").tolist()
        [66457.5, 12.0, nan]
        >>> parse_numbers(pd.Series(["57.3 kg", "61", "126 lb"]), ".kg").tolist()
        [57.3, 61.0, nan]
    """
    decimal, unit = written[0], written[1:]
    bare = text.str.strip().str.removesuffix(unit).str.strip().str.replace(_CURRENCY, "", regex=True)
    bare = bare.where(bare.str.fullmatch(_NUMBERS[decimal]) & bare.str.contains(r"\d"))
    plain = bare.str.replace(_GROUPING[decimal], "", regex=True).str.replace(decimal, ".", regex=False)
    return pd.to_numeric(plain, errors="coerce").astype(float)


def describe_format(written: str) -> str:
    """Return what text in a format is.

    Example:
        >>> [describe_format(written) for written in (".", ",kg", "%d.%m.%Y")]
        ['numbers', "numbers with a decimal comma and the unit 'kg'", 'dates, day.month.year']
    """
    if "%" in written:
        for directive, word in _DIRECTIVES.items():
            written = written.replace(directive, word)
        return f"dates, {written}"
    parts = [*["a decimal comma"] * written.startswith(","), *[f"the unit {written[1:]!r}"] * bool(written[1:])]
    return f"numbers with {' and '.join(parts)}" if parts else "numbers"


def numeric_share(text: pd.Series) -> tuple[float, pd.Series]:
    """Return the share of values that are numbers in one format, or dates, and the distinct other values.

    Codes such as 01067 are neither, nor are numbers if there is nothing else, which are categories on purpose.

    Args:
        text: the present values, all strings.

    Example:
        >>> share, others = numeric_share(pd.Series(["3.5", "about 4", "31.12.2020", "5"]))
        >>> share, others.tolist()
        (0.75, ['about 4'])
    """
    text, counts = distinct(text)
    if pd.to_numeric(text, errors="coerce").notna().all():
        return 0.0, text
    bare = text.str.strip()
    numbers = parse_numbers(text, _best_format(text, counts)[1]).notna() & ~bare.str.fullmatch(_CODE)
    found = numbers | bare.str.fullmatch(LIKE_A_DATE)
    return _share(found, counts), text[~found]

"""Tables as text: encoding, separator and decimal separator are detected, and malformed lines are reported."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pandas as pd

from bayesify.data.columns import check_unique_names
from bayesify.data.text_values import all_text, parse_numbers, strip_text
from bayesify.errors import DataError, warn

__all__ = ["decode", "find_decimal", "find_separator", "parse_text"]

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SEPARATORS = ("\t", ";", "|", ",")  # the comma last, because it is also part of numbers and text
_SAMPLE = 65_536  # characters
_DECLARED = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)  # the first line of files that Excel splits correctly
_COMMENT = re.compile(r"#\s|#.*\n#")
_FRACTION = {decimal: re.compile(rf"[+-]?\d+[{decimal}]\d+") for decimal in ",."}
_THOUSANDS = {decimal: re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:[{decimal}]\d{{3}})+") for decimal in ",."}
_SMALL = re.compile(r"[+-]?\d{1,3}")  # integers that need no thousands separator
_GROUPED = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+)(?:,\d+)?")
_UNCLOSED = re.compile(r"EOF inside string starting at row (\d+)")
_LEAST_COLUMNS = 3  # from which on separators and line breaks of a text tell that it is lines of the table
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def decode(content: bytes, encoding: str | None = None) -> str:
    """Decode text: by its byte order mark, else as UTF-8, else as Windows-1252 or Latin-1 with a warning.

    Args:
        content: the bytes of a file.
        encoding: the name of an encoding; None to detect it.

    Raises:
        DataError: an unknown encoding, bytes that it does not have, or NUL characters, which text does not contain.

    Example:
        >>> decode("Köln".encode("utf-16"))
        'Köln'
    """
    name = encoding or next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(name)
    except LookupError:
        raise DataError(f"--encoding {encoding} is unknown; use utf-8, utf-16, cp1252 or another one that Python has") from None
    except UnicodeDecodeError as error:
        if encoding is not None or name != "utf-8":
            raise DataError(
                f"byte {error.start} is not {name} text; choose another --encoding, or save the file as UTF-8"
            ) from None
        text = _decode_one_byte_characters(content, error.start)
    if "\0" in text:
        raise DataError("it contains NUL characters: it is not text, or needs --encoding utf-16-le or utf-16-be")
    return text


def _decode_one_byte_characters(content: bytes, start: int) -> str:
    try:
        text, name = content.decode("cp1252"), "Windows-1252"
    except UnicodeDecodeError:
        text, name = content.decode("latin-1"), "Latin-1"
    word = re.split(r"[\s,;|\"]", text[max(0, start - 20) : start])[-1] + re.split(r"[\s,;|\"]", text[start : start + 20])[0]
    warn(f"the file is not UTF-8 and read as {name}, such as {word!r}; --encoding sets another encoding")
    return text


def find_separator(text: str, default: str = ",") -> str:
    r"""Find the separator of columns: whichever of tab, semicolon, bar, comma and blank splits the first lines alike.

    Args:
        text: a table with a header row.
        default: the result for a table with a single column.

    Example:
        >>> find_separator("a;b\n1,5;2,5\n"), find_separator("a\n1\n")
        (';', ',')
    """
    if match := _DECLARED.match(text):
        return match[1]
    best, best_score = default, (0.0, 1)
    for separator in _SEPARATORS:
        counts = [len(row) for row in _rows(text, separator)]
        if counts and counts[0] > 1:
            score = sum(count == counts[0] for count in counts) / len(counts), counts[0]
            best, best_score = max((best, best_score), (separator, score), key=lambda pair: pair[1])
    if best_score[1] == 1:  # a single column, or blanks between the columns
        counts = [len(row) for row in _rows(text, " ")]
        return " " if len(counts) > 1 and counts[0] > 1 and len(set(counts)) == 1 else default
    return best


def find_decimal(text: str, separator: str, default: str = ".") -> str:
    r"""Find the decimal separator of a table: a comma if its numbers have commas and none has a decimal point.

    Args:
        text: a table with a header row.
        separator: of its columns; a table with commas between its columns has decimal points.
        default: the result if nothing in the table decides: "1.200" and "1,200" do not.

    Example:
        >>> [find_decimal(f"a;b\n{value};2\n", ";", default=",") for value in ("1,5", "1.5", "1.200")]
        [',', '.', ',']
    """
    if separator == ",":
        return "."
    rows = list(_rows(text, separator))
    cells = {cell.strip() for row in rows[1:] for cell in row}
    evidence = {
        decimal for decimal in ",." if any(_FRACTION[decimal].fullmatch(x) and not _THOUSANDS[decimal].fullmatch(x) for x in cells)
    }
    if not evidence and default == ".":
        _tell_thousands(rows)
    return {frozenset(","): ",", frozenset(): default}.get(frozenset(evidence), ".")


def _tell_thousands(rows: Sequence[Sequence[str]]) -> None:
    """Warn of columns of numbers in which a point may separate thousands: three decimals, or an integer below 1000."""
    for name, *cells in itertools.zip_longest(*rows, fillvalue=""):
        numbers = {cell.strip() for cell in cells} - {""}
        grouped = sorted(cell for cell in numbers if _THOUSANDS["."].fullmatch(cell))
        small = sorted(cell for cell in numbers if _SMALL.fullmatch(cell))
        if grouped and small and len(grouped) + len(small) == len(numbers):
            warn(
                f"column {name!r} has numbers such as {grouped[0]}, next to {small[0]}: the point is read as a decimal point; set "
                "--decimal , if it separates thousands"
            )


def parse_text(text: str, separator: str, decimal: str, as_text: Collection[str] = ()) -> pd.DataFrame:
    """Parse a table with a header row; an unnamed first column becomes the index.

    Args:
        text: the table.
        separator: of the columns.
        decimal: "." or ",".
        as_text: columns to leave as text.

    Raises:
        DataError: duplicate column names, or a line with more fields than the header.
        pandas.errors.EmptyDataError: no header.
        ValueError: other errors of `pandas.read_csv`.
    """
    if match := _DECLARED.match(text):
        text = text[match.end() :]
    if _COMMENT.match(text):
        warn(f"the first line, {text.splitlines()[0][:60]!r}, is read as the header; delete it if it is a comment")
    rows = _rows(text, separator)
    header, first = next(rows, []), next(rows, [])
    check_unique_names([name.strip() for name in header if name], "the header")  # pandas would rename them ("a", "a.1")
    if len(first) > len(header):  # pandas would take the first fields for an index, or drop the last ones
        for line, row in _numbered_rows(text, separator):
            if any(row[len(header) :]):
                raise _too_long(len(header), f"line {line}", len(row), separator)
    has_index = len(header) > 1 and not header[0]
    options: dict[str, Any] = {
        "sep": r"\s+" if separator == " " else separator, "skipinitialspace": True, "low_memory": False,
    }  # fmt: skip
    try:
        table = pd.read_csv(
            io.StringIO(text),
            decimal=decimal,
            index_col=0 if has_index else False,
            dtype=dict.fromkeys((name for name in header if name.strip() in as_text), str),
            **options,
        )
    except pd.errors.ParserError as error:
        raise _explained(error, separator) from None
    table.columns = table.columns.str.strip()
    if decimal == ",":
        _read_thousands(table, as_text)
    positions = [i for i, name in enumerate(table) if table[name].isna().any() and all_text(table[name])]
    if positions:  # text such as "None" or "NA", which is missing in a column of numbers, may be a class
        cells = pd.read_csv(
            io.StringIO(text),
            usecols=[i + has_index for i in positions],
            index_col=False,
            dtype=str,
            keep_default_na=False,
            na_values=[""],
            **options,
        )
        for i, name in zip(positions, cells, strict=True):
            table[table.columns[i]] = cells[name].to_numpy()
    _tell_hidden_lines(table, separator, len(header))
    return strip_text(table)


def _tell_hidden_lines(table: pd.DataFrame, separator: str, columns: int) -> None:
    """Warn of texts that look like lines of the table: a stray quote takes all until the next one for a single field."""
    for name in table.columns if columns >= _LEAST_COLUMNS else ():
        if not all_text(table[name]):
            continue
        breaks = table[name].str.count("\n")
        hides = (breaks > 0) & (table[name].str.count(re.escape(separator)) == (columns - 1) * breaks)
        if hides.any():
            lines, first = int(breaks[hides].sum()), table.index[hides][0]
            warn(
                f"column {name!r} has a text that looks like lines of the table, in row {first}: if a field starts with a double "
                f"quote of its text, {lines:,} lines are hidden in that field. Remove such quotes, or double them in a quoted field"
            )


def _read_thousands(table: pd.DataFrame, as_text: Collection[str]) -> None:
    """Convert columns such as 1.200,5, which pandas leaves as text if the decimal separator is a comma."""
    for name in table.columns.difference(list(as_text)):
        present = table[name].dropna()
        if len(present) and all(isinstance(value, str) and _GROUPED.fullmatch(value.strip()) for value in present):
            table[name] = parse_numbers(present.astype(str), ",").reindex(table.index)


def _explained(error: pd.errors.ParserError, separator: str) -> ValueError:
    """The error of pandas with the way out, or itself."""
    if match := _TOO_LONG.search(str(error)):
        return _too_long(int(match[1]), f"line {match[2]}", int(match[3]), separator)
    if match := _UNCLOSED.search(str(error)):
        return DataError(
            f"a field starts with a double quote that is not closed, in row {match[1]} below the header; close or remove it"
        )
    return error


def _too_long(header: int, line: str, fields: int, separator: str) -> DataError:
    return DataError(
        f"{line} has {fields} fields, and the header has {header}; put a field that contains the separator {separator!r} into "
        "double quotes, or set another separator with --sep"
    )


def _rows(text: str, separator: str) -> Iterator[list[str]]:
    """The first rows of a table, without empty lines."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample
    yield from (row for _, row in _numbered_rows(sample, separator))


def _numbered_rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table without empty lines, and the numbers of their lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error:  # a field of more than 131,072 characters
        return

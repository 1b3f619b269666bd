"""Files of tables: checks before the work, and writing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bayesify.cli.terminal import UsageError
from bayesify.files import atomic_file, write_atomically

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["check_file", "check_input", "check_level", "check_output", "check_report", "is_several", "to_csv", "write_table"]

_ENDINGS = (".csv", ".tsv", ".parquet")


def check_input(path: Path) -> None:
    """Raise a UsageError if there is no such file, before `read_table` and PyTorch are imported; "-" is standard input."""
    if str(path) != "-" and not path.exists():
        raise UsageError(f"{path} does not exist; give a table such as a .csv or .parquet file")


def is_several(path: Path) -> bool:
    """Whether the argument DATA means several files: a folder, or a pattern that is not itself a file."""
    return path.is_dir() or (not path.exists() and any(character in str(path) for character in "*?["))


def check_output(path: Path | None, inputs: Iterable[Path]) -> None:
    """Raise a UsageError unless a table can be written to `path`, which is none of the `inputs`."""
    if path is None:
        return
    if path.suffix.lower() not in _ENDINGS:
        raise UsageError(f"--out {path}: unknown ending {path.suffix!r}; use {', '.join(_ENDINGS)}")
    check_file(path, inputs)


def check_report(path: Path, inputs: Iterable[Path]) -> None:
    """Raise a UsageError unless a report can be written to `path`, which is none of the `inputs`."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            f"--report {path}: a report is HTML; choose a name that ends in .html, and print it from a browser for PDF"
        )
    check_file(path, inputs)


def check_level(level: float) -> None:
    """Raise a UsageError unless `level` is a probability below 1."""
    if not 0 <= level < 1:
        hint = f"; for {level:g} % give {level / 100:g}" if 1 < level < 100 else ""
        raise UsageError(f"--level must be a number in [0, 1), got {level!r}{hint}")


def check_file(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise a UsageError unless `path` can be written: its folder exists, and it is neither a folder nor one of the `inputs`."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} is in a folder that does not exist; create it first")
    if path.exists() and any(source.exists() and path.samefile(source) for source in inputs):
        raise UsageError(f"{path} is read by this command and would be overwritten; choose another file")


def write_table(table: pd.DataFrame, path: Path | None) -> None:
    """Write a table atomically, or print it as CSV if `path` is None."""
    if path is None:
        sys.stdout.write(to_csv(table))
        sys.stdout.flush()
    elif path.suffix.lower() == ".parquet":
        with atomic_file(path) as file:
            table.to_parquet(file)
    else:
        write_atomically(path, to_csv(table, "\t" if path.suffix.lower() == ".tsv" else ",").encode())


def to_csv(table: pd.DataFrame, separator: str = ",") -> str:
    """Convert to CSV text; an index other than 0, 1, 2, ... is the first column."""
    is_default = table.index.name is None and list(table.index) == list(range(len(table)))
    return table.to_csv(sep=separator, index=not is_default, lineterminator="\n")

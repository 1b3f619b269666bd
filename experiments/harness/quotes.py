"""Tables of reports, quoted in the documentation between two comments that name table and section.

<!-- quoted from uci/standard: Coverage -->
...
<!-- end of quote -->
"""

from __future__ import annotations

import re
from pathlib import Path

from experiments.harness.config import ROOT, UsageError, table_names

__all__ = ["DOCUMENTS", "quote"]

DOCUMENTS = (ROOT.parent / "docs" / "results.md",)
"""Documents that quote reports."""

_QUOTE = re.compile(r"(<!-- quoted from (?P<table>\S+): (?P<section>.+?) -->\n).*?(<!-- end of quote -->)", re.DOTALL)


def quote(text: str, root: Path = ROOT) -> str:
    """Replace every quoted table with the one in its report.

    Args:
        text: Markdown.
        root: folder of all tables.

    Raises:
        UsageError: a quote of a report or section that does not exist.
    """
    return _QUOTE.sub(lambda found: f"{found[1]}\n{_table(found['table'], found['section'], root)}\n\n{found[4]}", text)


def _table(name: str, section: str, root: Path) -> str:
    """The Markdown table in a section of a report."""
    report = root / name / "report.md"
    if name not in table_names(root) or not report.exists():
        raise UsageError(f"{name!r} is quoted, but has no report; `list` shows the tables")
    _, _, after = report.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    lines = [line for line in after.split("\n## ")[0].splitlines() if line.startswith("|")]
    if not lines:
        raise UsageError(f"{section!r} is quoted from {name}, but {report} has no section of that name with a table")
    return "\n".join(lines)

"""Tables of reports, quoted in the documentation between two comments, of which the first says where from.

<!-- quoted from uci/standard: Coverage -->
...
<!-- end of quote -->
"""

from __future__ import annotations

import re
from pathlib import Path

from experiments.harness.config import ROOT, UsageError, table_names

__all__ = ["DOCUMENTS", "quote"]

DOCUMENTS = (ROOT.parent / "README.md", ROOT.parent / "docs" / "results.md")
"""Where reports are quoted."""

_QUOTE = re.compile(r"(<!-- quoted from (?P<table>\S+): (?P<section>.+?) -->\n).*?(<!-- end of quote -->)", re.DOTALL)


def quote(text: str, root: Path = ROOT) -> str:
    """The text with every quoted table as it is in its report now.

    Args:
        text: Markdown.
        root: the folder that the tables lie below.

    Raises:
        UsageError: a quote of something that is not there.
    """
    return _QUOTE.sub(lambda found: f"{found[1]}\n{_table(found['table'], found['section'], root)}\n\n{found[4]}", text)


def _table(name: str, section: str, root: Path) -> str:
    """The Markdown table in a section of a report."""
    report = root / name / "report.md"
    if name not in table_names(root) or not report.exists():
        raise UsageError(f"{name!r} is quoted, but there is no report of it; `list` shows the tables")
    _, _, after = report.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    lines = [line for line in after.split("\n## ")[0].splitlines() if line.startswith("|")]
    if not lines:
        raise UsageError(f"{section!r} is quoted from {name}, but {report} has no section of that name with a table")
    return "\n".join(lines)

"""What the pages of methods quote from other pages: their results, and the errata of their papers."""

import re
from pathlib import Path

from repository_files import ROOT, markdown_pages

__all__ = ["errata_of", "gap_row", "is_of", "results_of"]

_GAP = "experiments/posterior/gap/report.md"
_UCI = "RMSE in units of the target, log-likelihood in nats per row; mean ± standard error over splits"
_QUOTED = {
    "experiments/uci/standard/report.md": f"one protocol with 2,000 epochs for all methods; {_UCI}",
    "experiments/uci/grid/report.md": f"the same search for every method; {_UCI}",
    _GAP: "mean ± standard error over data sets; total variation: lower is better, ratios: 1 is best",
    "docs/bayesian-lora.md": "adapters of a tiny language model; mean ± standard error over seeds",
}
"""Tables whose rows are quoted, and what they are."""
_SECTIONS = 2  # of a report: the scores, before numbers of parameters and seconds


def results_of(name: str) -> str:
    """The rows of a method in the quoted tables, and links to all tables that have such a row or are of its paper."""
    texts = {path: (ROOT / path).read_text("utf-8") for path in [*markdown_pages(), *_QUOTED] if _is_table(path)}
    found = {
        path: _title(text)
        for path, text in texts.items()
        if _rows(text, name) or _is_paper_of(path, name) or (path, name) == (_GAP, "HMC")
    }
    if not found:
        return "No committed table has this method yet. [Results](../results.md) has the tables."
    pages = markdown_pages()
    quotes = [
        _quoted(texts[path], path, name, f"[{found[path]}](../{pages[path]}): {what}.")
        for path, what in _QUOTED.items()
        if path in found
    ]
    links = "\n".join(f"- [{title}](../{pages[path]})" for path, title in found.items())
    return "\n\n".join([*filter(None, quotes), f"All tables with this method:\n\n{links}"])


def gap_row(name: str) -> str | None:
    """The row of the table `posterior/gap` that the picture of a method shows."""
    rows = _rows((ROOT / _GAP).read_text("utf-8"), name)
    return min((_first_cell(row) for row in rows), key=lambda cell: (cell != name, cell)) if rows else None


def errata_of(paper: str) -> str:
    """The errata of a paper, without their proofs; a sentence if it is not among those that the page of errata covers."""
    text = (ROOT / "docs" / "errata.md").read_text("utf-8")
    for section in text.split("\n## ")[1:]:
        title = section.splitlines()[0]
        if any(number in section.partition("|")[0] for number in re.findall(r"\d+\.\d+", paper)):
            rows = [re.split(r"(?<!\\)\|", line)[1:4] for line in section.splitlines() if line.startswith("|")]
            anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title)).lower()
            lines = [f"|{'|'.join(cells)}|" for cells in rows]
            return f"Of {title}; the [page of errata](../errata.md#{anchor}) has the proofs.\n\n" + "\n".join(lines)
    return (
        "None known. The [page of errata](../errata.md) covers five papers, and this method's is not among them. Where the library "
        "differs from the paper, the formulas above say so."
    )


def is_of(label: str, name: str) -> bool:
    """Whether a row is about a method or a variant of it."""
    return label == name or label.startswith((f"{name},", f"{name} ", f"{name}("))


def _is_table(path: str) -> bool:
    return path.endswith("report.md") or path in _QUOTED


def _is_paper_of(path: str, name: str) -> bool:
    """Whether a table is from the folder of the method's paper."""
    return Path(path).parts[1].replace("-", "") == name.lower()


def _title(text: str) -> str:
    return text.splitlines()[0].removeprefix("# ")


def _rows(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|") and is_of(_first_cell(line), name)]


def _first_cell(line: str) -> str:
    return line.split("|")[1].strip(" *`")


def _quoted(text: str, path: str, name: str, caption: str) -> str:
    """The method's rows in the first sections of a page that have any, with the sections' titles if there are several."""
    several = path != _GAP and path in markdown_pages() and path.endswith("report.md")
    lines: list[str] = []
    sections = [part for part in text.split("\n## ") if _rows(part, name)][:_SECTIONS]
    for section in sections:
        table = [line for line in section.splitlines() if line.startswith("|")]
        lines += [] if lines else table[:2]
        title = section.splitlines()[0]
        for row in (row for row in _rows(section, name) if row.count("|") == lines[0].count("|")):
            label = (
                f"{title}, {_first_cell(row)}" if several and _first_cell(row) != name else title if several else _first_cell(row)
            )
            lines.append(f"| {label} |{row.split('|', 2)[2]}")
    return f"{caption}\n\n" + "\n".join(lines) if lines else ""

"""The page of every method: its sections are there and say something, and its picture is that of the committed results."""

import itertools
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "generator"))
sys.path.insert(0, str(ROOT))

method_pages = pytest.importorskip("method_pages", reason="needs bayesify[cli]", exc_type=ImportError)
from method_results import errata_of, gap_row, results_of

METHODS = method_pages.methods()
SECTIONS = ["Picture", "Formulas", "Options", "Settings on tables", "Cost", "Errata", "Results"]


def sections_of(name: str) -> dict[str, str]:
    """Text by heading of level 2; what precedes the first one under ""."""
    parts = re.split(r"^## (.*)$", method_pages.method_pages()[f"methods/{name}.md"], flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize("name", METHODS)
def test_every_section_says_something(name: str) -> None:
    sections = sections_of(name)
    assert list(sections) == ["", *SECTIONS]
    for topic in ("What is random", "Paper", "When to use it"):
        assert re.search(rf"^- \*\*{topic}:\*\* \w.{{5,}}", sections[""].replace("[", ""), re.MULTILINE), topic
    assert re.search(r"<svg .*</svg>.*\n\nA regression .{100,}", sections["Picture"], re.DOTALL)
    assert len(re.findall(r"\$.+?\$", sections["Formulas"], re.DOTALL)) >= 1
    assert f"::: bayesify.{name}\n" in sections["Options"]
    assert re.search(r"`\w+=.*`|^None: ", sections["Settings on tables"], re.MULTILINE)
    assert re.search(r"\d\.\dx|Training: \w+", sections["Cost"])
    assert "Prediction: " in sections["Cost"]
    assert re.search(r"^\| \w\d+ \|.*\w|^None known", sections["Errata"], re.MULTILINE)
    assert " ± " in sections["Results"] or sections["Results"].strip().startswith("No committed table")
    assert all(line.count("|") == before.count("|") for before, line in pairs_of_rows(sections["Results"]))


def pairs_of_rows(text: str) -> list[tuple[str, str]]:
    lines = text.splitlines()
    return [(a, b) for a, b in itertools.pairwise(lines) if a.startswith("|") and b.startswith("|")]


@pytest.mark.parametrize("name", [name for name in METHODS if gap_row(name)])
def test_the_picture_shows_the_committed_results(name: str) -> None:
    pytest.importorskip("pooch")
    from docs import method_figures

    task = method_figures.make_task("gap", 40, 0)
    curve = method_figures.curve_of(name)
    assert curve is not None
    drawn = method_figures.svg(name, curve, method_figures.curve_of("HMC"), task)
    assert drawn == (method_figures.IMAGES / f"{name}.svg").read_text("utf-8")


def test_errata_are_those_of_the_paper() -> None:
    found = errata_of("Chang et al. 2019, arXiv 1905.09453")
    assert "](../errata.md#chang-et-al-2019-emp)" in found
    assert re.findall(r"^\| (\w\d+) \|", found, re.MULTILINE) == [f"E{k}" for k in range(1, 14)]
    assert errata_of("Nobody 1999").startswith("None known")


def test_results_are_rows_of_the_reports() -> None:
    found = results_of("VSD")
    for path in ("uci/standard", "uci/grid", "posterior/gap"):
        assert f"](../experiments/{path}.md): " in found
    report = (ROOT / "experiments/posterior/gap/report.md").read_text("utf-8")
    (row,) = (line for line in report.splitlines() if line.startswith("| VSD |"))
    assert row in found
    assert "| BLoB |" in results_of("BLoB")
    assert results_of("Nothing").startswith("No committed table")

"""Numbers in reports against numpy, reports from results alone, and the committed reports against the committed results."""

import dataclasses
import io
import math
import time

import experiments.protocols  # noqa: F401 # fills the registry
import numpy as np
import pytest
from experiments.harness.config import ROOT, UsageError, jobs_of, read_table, table_names
from experiments.harness.experiment import Experiment
from experiments.harness.numbers import Estimate, difference, estimate, markdown
from experiments.harness.plan import Task
from experiments.harness.progress import Display
from experiments.harness.quotes import DOCUMENTS, quote
from experiments.harness.report import render, write_report
from experiments.harness.store import Recorder
from rich.console import Console
from toy_protocol import Toy, write_config

ORIGIN = {"cpu": "abacus", "threads": 1, "commit": "abc", "dirty": False, "bayesify": "0.1", "torch": "2", "python": "3"}


def test_estimates_are_numpys():
    values = np.random.default_rng(0).normal(3, 2, 20)
    found = estimate(values.tolist())
    assert found.mean == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(20))
    assert math.isnan(estimate([1.0]).error)
    with pytest.raises(ValueError, match="values is empty"):
        estimate([])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Estimate(12.3456, 1.234), "12.3 ± 1.2"),
        (Estimate(1234.5, 99.0), "1234 ± 99"),
        (Estimate(-2.40194, 0.04279), "-2.402 ± 0.043"),
        (Estimate(0.00074123, 0.0000051), "0.0007412 ± 0.0000051"),
        (Estimate(5.0, 0.0), "5"),
    ],
)
def test_numbers_show_the_digits_that_are_known(value, text):
    assert str(value) == text


def test_difference_is_in_combined_standard_errors():
    assert difference(Estimate(3.0, 0.3), Estimate(2.0, 0.4)) == "+1.00 (+2.0 s.e.)"  # sqrt(0.09 + 0.16) = 0.5
    assert difference(Estimate(2.0, 0.3), Estimate(3.0)) == "-1.00"
    assert difference(Estimate(2.0), Estimate(3.0)) == "-1"


def test_tables_keep_their_bars():
    assert markdown(["a", "b"], [["x|y", "1"]]).splitlines() == ["| a | b |", "|:---|---:|", "| x\\|y | 1 |"]


def _results(root):
    write_config(root)
    table = read_table("paper/toys", root)
    first, second = jobs_of(table, Toy())
    Recorder(table, first, Toy(), {}, ORIGIN).save({"0": {"value": 1.0}, "2": {"value": 2.0}})
    return table, second


def test_a_report_says_what_it_is_and_what_is_missing(tmp_path):
    table, second = _results(tmp_path)
    text, figure = render(Experiment(table))
    assert figure is None
    assert text.startswith("# Toys\n\nNo paper.\n")
    assert "python -m experiments run paper/toys\n" in text
    assert "add options such as `--dataset a --method Toy --again`." in text
    assert "- on: abacus, 1 thread per job" in text
    assert "- with: bayesify 0.1, PyTorch 2, Python 3" in text
    assert "- commit: abc\n" in text
    assert "2 units in " in text
    assert "**Missing:** a (1, 3); b (all)." in text
    many = dataclasses.replace(table, settings={**table.settings, "datasets": ["a", "b", *map(str, range(20))]})
    assert "; 9 (all); and 10 more jobs." in render(Experiment(many))[0]
    assert "\n\na: 3.0\n\n## How it was made\n" in text

    Recorder(table, second, Toy(), {}, {**ORIGIN, "commit": "def", "dirty": True}).save({str(u): {"value": 1.0} for u in range(4)})
    assert "- commit: abc, def with changes\n" in render(Experiment(table))[0]
    assert Experiment(table).done == 1
    write_config(tmp_path, factor=7.0)
    text, _ = render(Experiment(read_table("paper/toys", tmp_path)))
    assert "There are no results yet." in text
    assert "**Stale, not shown:** a, b." in text


def test_remarks_come_first_and_do_not_make_results_stale(tmp_path):
    _results(tmp_path)
    path = tmp_path / "paper" / "toys" / "config.toml"
    path.write_text('remarks = """\nToys are fun.\n"""\n' + path.read_text())
    text, _ = render(Experiment(read_table("paper/toys", tmp_path)))
    assert text.index("## Summary\n\nToys are fun.\n") < text.index("\na: 3.0\n")
    assert "Stale" not in text


def test_the_figure_is_written_and_removed(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    table, _ = _results(tmp_path)
    monkeypatch.setattr(Toy, "figure", lambda self, table, jobs, results: Figure(figsize=(1, 1)))
    write_report(Experiment(table))
    picture = (table.folder / "figure.png").read_bytes()
    write_report(Experiment(table))
    assert (table.folder / "figure.png").read_bytes() == picture
    assert (table.folder / "report.md").read_text().count("\n![Toys](figure.png)\n") == 1
    monkeypatch.undo()
    write_report(Experiment(table))
    assert not (table.folder / "figure.png").exists()


@pytest.mark.default("uci/standard")
@pytest.mark.parametrize("name", [name for name in table_names() if (read_table(name).folder / "report.md").exists()])
def test_committed_reports_are_those_of_the_committed_results(name):
    table = read_table(name)
    assert (table.folder / "report.md").read_text() == render(Experiment(table))[0], f"run python -m experiments report {name}"


def test_documents_quote_tables_of_reports(tmp_path):
    table, _ = _results(tmp_path)
    (table.folder / "report.md").write_text(
        "# Toys\n\n## Fun\n\nmuch\n\n| a | b |\n|:---|---:|\n\n## None\n\nno table\n\n## More\n\n| c |\n"
    )
    begin, end = "Text.\n<!-- quoted from paper/toys: Fun -->\n", "<!-- end of quote -->\nMore.\n"
    for old in ("", "\n| an old table |\n\n"):
        assert quote(begin + old + end + begin + end, tmp_path) == 2 * f"{begin}\n| a | b |\n|:---|---:|\n\n{end}"
    for name, section, message in (
        ("toys", "None", "no section"),
        ("toys", "Fu", "no section"),
        ("boys", "Fun", "has no report"),
    ):
        with pytest.raises(UsageError, match=message):
            quote(f"<!-- quoted from paper/{name}: {section} -->\n{end}", tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_committed_documents_quote_the_committed_reports(document):
    text = document.read_text(encoding="utf-8")
    assert "<!-- quoted from" in text
    assert quote(text) == text, "run python -m experiments report"


@pytest.mark.parametrize("name", table_names())
def test_every_table_has_jobs_also_quick_ones(name):
    for quick in (False, True):
        assert Experiment(read_table(name, ROOT, quick)).jobs


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_lines_or_bars(tmp_path, monkeypatch, terminal):
    write_config(tmp_path)
    table = read_table("paper/toys", tmp_path)
    tasks = [Task(table, Toy(), job, job.units, {}) for job in jobs_of(table, Toy())]  # costs 4 and 8
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    stream = io.StringIO()
    with Display(tasks, Console(file=stream, force_terminal=terminal, width=150, highlight=False)) as display:
        assert display.left() == ""
        display.start(tasks[1])
        clock[0] = 104.0
        display.advance(tasks[1], 0.5)
        assert display.left() == "about 8.0 s left"  # a third in 4 s
        display.finish(tasks[1], 10.0, None)
        display.start(tasks[0])
        display.tick()
        display.finish(tasks[0], 1.0, "it broke")
    text = stream.getvalue()
    assert "[1/2] paper/toys b: 4 units in 10.0 s; about 2.0 s left" in text
    assert "[2/2] paper/toys a: FAILED after 1.0 s: it broke" in text
    assert ("all jobs" in text) == terminal

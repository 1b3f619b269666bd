"""The report of a regression table against numbers worked out with numpy, and what its picture shows."""

import re

import numpy as np
import pytest
from experiments.harness.numbers import Estimate
from experiments.harness.protocol import Job
from experiments.protocols.regression.picture import draw_overview, visible_range
from experiments.protocols.regression.tables import published_of, write_tables

DATASETS, METHODS = ("boston", "yacht"), ("Deterministic", "MCDropout")
JOBS = [
    Job(f"{dataset}-{method}", {"dataset": dataset, "method": method}, ("0", "1", "2"), (dataset,))
    for dataset in DATASETS
    for method in METHODS
]
PUBLISHED = published_of({"MCDropout": {"source": "a book", "boston": {"rmse": [2.5, 0.2], "log_likelihood": -2.0}}})


def _results():
    random = np.random.default_rng(0)
    keys = ("rmse", "log_likelihood", "crps", "coverage_95", "width_95", "train_seconds")
    results = {
        job.key: {unit: dict(zip(keys, random.uniform(1, 3, 6).tolist(), strict=True)) for unit in job.units} for job in JOBS
    }
    del results["yacht-MCDropout"]
    del results["yacht-Deterministic"]["1"]
    return results


def _rows(text, title):
    """Cells of the table below a heading, by data set."""
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return lines[0], {line[0]: line[1:] for line in lines[2:]}


def _numbers(cell):
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*(?:e-?\d+)?", cell)]


@pytest.mark.parametrize(("title", "key"), [("RMSE", "rmse"), ("Log-likelihood", "log_likelihood")])
def test_ours_and_the_papers_stand_side_by_side(title, key):
    results = _results()
    header, rows = _rows(write_tables(JOBS, results, PUBLISHED, {"MCDropout": "a book"}), title)
    assert header == ["data set", "Deterministic", "MCDropout: paper", "ours", "difference"]
    values = np.array([unit[key] for unit in results["boston-MCDropout"].values()])
    error = np.sqrt(((values - values.mean()) ** 2).sum() / 2 / 3)
    mean_shown, error_shown = _numbers(rows["boston"][2])
    assert mean_shown == pytest.approx(values.mean(), abs=0.06)
    assert error_shown == pytest.approx(error, rel=0.06)
    if key == "rmse":
        gap, in_errors = _numbers(rows["boston"][3])
        assert gap == pytest.approx(values.mean() - 2.5, abs=0.06)
        assert in_errors == pytest.approx((values.mean() - 2.5) / np.sqrt(error**2 + 0.2**2), abs=0.06)
        assert rows["boston"][1] == "2.50 ± 0.20"
    else:
        assert rows["boston"][1] == "-2"
        assert "s.e." not in rows["boston"][3]
    assert rows["yacht"][1:] == ["-", "-", "-"]
    assert rows["yacht"][0].endswith("(2 of 3)")


def test_the_best_mean_is_bold():
    results = _results()
    text = write_tables(JOBS, results, PUBLISHED, {})
    for title, key, best in (("RMSE", "rmse", np.argmin), ("Log-likelihood", "log_likelihood", np.argmax)):
        means = [np.mean([unit[key] for unit in results[f"boston-{method}"].values()]) for method in METHODS]
        cells = [_rows(text, title)[1]["boston"][place] for place in (0, 2)]
        assert [cell.startswith("**") for cell in cells] == [place == best(means) for place in (0, 1)]
        assert "**" not in _rows(text, title)[1]["yacht"][0]  # nothing to compare with


def test_coverage_and_seconds():
    results = _results()
    text = write_tables(JOBS, results, {}, {})
    boston = list(results["boston-Deterministic"].values())
    share, width = _numbers(_rows(text, "Coverage")[1]["boston"][0])
    assert share == pytest.approx(np.mean([unit["coverage_95"] for unit in boston]), abs=6e-4)
    assert width == pytest.approx(np.mean([unit["width_95"] for unit in boston]), abs=6e-3)
    (seconds,) = _numbers(_rows(text, "Seconds")[1]["boston"][0])
    assert seconds == pytest.approx(np.mean([unit["train_seconds"] for unit in boston]), abs=6e-3)
    assert _rows(text, "CRPS")[0] == ["data set", *METHODS]
    assert "Chosen" not in text


def test_choices_are_counted():
    results = _results()
    for place, unit in enumerate(results["boston-MCDropout"].values()):
        unit["chosen"] = {"method.p": (0.1, 0.005, 0.1)[place]}
    text = write_tables(JOBS, results, PUBLISHED, {})
    assert "| boston | MCDropout | method.p | 0.005 (1), 0.1 (2) |" in text


@pytest.mark.parametrize(
    ("published", "message"),
    [
        ({"MCDropout": 3}, "published.MCDropout must be a table of data sets"),
        ({"MCDropout": {"boston": 3}}, "published.MCDropout.boston must be a table of crps, log_likelihood, rmse"),
        ({"MCDropout": {"boston": {"mse": 3}}}, "published.MCDropout.boston must be a table of"),
        ({"MCDropout": {"boston": {"rmse": "3"}}}, r"published.MCDropout.boston.rmse must be a mean or \[mean, standard error\]"),
        ({"MCDropout": {"boston": {"rmse": [1, 2, 3]}}}, "boston.rmse must be a mean"),
    ],
)
def test_wrong_published_numbers_are_named(published, message):
    with pytest.raises(ValueError, match=message):
        published_of(published)


def test_the_picture_shows_means_and_papers():
    results = _results()
    figure = draw_overview(JOBS, results, PUBLISHED)
    assert len(figure.axes) == 4
    boston = figure.axes[0]
    assert boston.get_title() == "boston"
    ours = np.mean([unit["rmse"] for unit in results["boston-Deterministic"].values()])
    drawn = [line.get_xdata()[0] for line in boston.lines]
    assert any(np.isclose(x, ours) for x in drawn)
    assert any(np.isclose(x, 2.5) for x in drawn)
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"ours", "paper"}
    assert draw_overview(JOBS, {"boston-MCDropout": results["boston-MCDropout"]}, {}).legends == []


def test_far_values_do_not_hide_the_rest():
    near = [Estimate(1.0, 0.1), Estimate(1.2, 0.1), Estimate(1.4)]
    low, high = visible_range(near, -1)
    assert low == pytest.approx(0.9 - 0.08 * 0.5)
    assert high == pytest.approx(1.4 + 0.08 * 0.5)
    assert visible_range([*near, Estimate(30.0, 1.0)], -1) == pytest.approx((low, high))
    assert visible_range([*near, Estimate(-30.0, 1.0)], 1) == pytest.approx((low, high))
    assert visible_range([*near, Estimate(-30.0, 1.0)], -1)[0] < -30  # the best is never hidden
    assert visible_range([*near, Estimate(2.0)], -1)[1] > 2
    low, high = visible_range([Estimate(3.0)], 1)
    assert low < 3.0 < high
    assert visible_range([], 1) == (0.0, 1.0)

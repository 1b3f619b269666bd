"""The tables of docs/performance.md, and what methods say of their cost, against the committed results."""

import re

import pytest
from benchmarks.measure import read
from benchmarks.page import PAGE, fill_tables
from benchmarks.training_step import METHODS

from bayesify import Method

LABELS = {type(method).__name__: label for label, method in reversed(METHODS.items())} | {"VSD": "VSD, T = 2", "SGHMC": "SGLD"}
STATED = {name: kind.cost for name, kind in Method.registry.items() if re.match(r"[\d.]+, [\d.]+", kind.cost)}


def test_performance_page_is_up_to_date() -> None:
    assert PAGE.read_text() == fill_tables(PAGE.read_text()), "python -m benchmarks.page"


@pytest.mark.parametrize("name", STATED)
def test_the_stated_cost_of_a_training_step_is_measured(name: str) -> None:
    stated = [float(number) for number in re.findall(r"[\d.]+", STATED[name])[:2]]
    nets = read("training_step")["nets"]
    for number, net in zip(stated, ("LeNet5", "AlexNet"), strict=True):
        assert number == pytest.approx(nets[net][LABELS[name]]["ratio"], abs=0.051 if number < 10 else 0.51)

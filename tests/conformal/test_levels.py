"""From a level to a rank among calibration scores."""

import math
from fractions import Fraction

import pytest

from bayesify.conformal import conformal_rank, cross_coverage, least_rows
from bayesify.errors import ConfigurationError


@pytest.mark.parametrize("level", ["0.05", "0.5", "0.57", "0.8", "0.9", "0.95", "0.99", "0.07"])
def test_ranks_are_those_of_exact_arithmetic(level):
    exact = Fraction(level)
    for n in range(1, 400):
        rank = math.ceil((n + 1) * exact)
        if rank > n:
            assert n < least_rows(float(level))
        else:
            assert conformal_rank(n, float(level)) == rank
            assert n >= least_rows(float(level))


def test_too_few_rows_are_named():
    with pytest.raises(ConfigurationError, match=r"level=0.95 needs at least 19 calibration rows, got 12; .* at most 0.923"):
        conformal_rank(12, 0.95)
    assert conformal_rank(12, 0.923) == 12


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, 95, True, "0.9", float("nan")])
def test_levels_are_between_zero_and_one(level):
    for function in (least_rows, lambda level: conformal_rank(1000, level), lambda level: cross_coverage([50, 50], level)):
        with pytest.raises(ConfigurationError, match=r"level must be a number in \(0, 1\)"):
            function(level)


def test_coverage_of_folds_in_the_worst_case():
    for folds, n in ((2, 20), (5, 1000), (10, 200), (50, 50)):
        guaranteed = cross_coverage([n // folds] * folds, 0.9)
        assert 0.8 - math.sqrt(2 / n) <= guaranteed <= 0.8  # the corollary in the paper
    assert cross_coverage([1] * 50, 0.9) == pytest.approx(0.8)  # the jackknife+ has no further term
    with pytest.raises(ConfigurationError, match="two folds, got 1"):
        cross_coverage([100], 0.9)

"""Corruption errors: sums written out by hand in exact fractions, and what they mean."""

from fractions import Fraction

import pytest
import torch

from bayesify.metrics.robustness import corruption_errors


def test_by_hand() -> None:
    ours = [[Fraction(k, 40) for k in (4, 6, 9, 12, 20)], [Fraction(k, 40) for k in (5, 5, 8, 10, 13)]]
    theirs = [[Fraction(k, 40) for k in (5, 9, 12, 18, 30)], [Fraction(k, 40) for k in (7, 7, 8, 9, 11)]]
    clean, theirs_clean = Fraction(3, 40), Fraction(4, 40)
    ce = [Fraction(51, 74), Fraction(41, 42)]
    rce = [Fraction(51 - 15, 74 - 20), Fraction(41 - 15, 42 - 20)]
    result = corruption_errors(
        torch.tensor([[float(e) for e in row] for row in ours]), float(clean),
        torch.tensor([[float(e) for e in row] for row in theirs]), float(theirs_clean),
    )  # fmt: skip
    assert result.ce.tolist() == pytest.approx([float(e) for e in ce], rel=1e-6)
    assert result.rce.tolist() == pytest.approx([float(e) for e in rce], rel=1e-6)
    assert result.mce == pytest.approx(float(sum(ce) / 2), rel=1e-6)
    assert result.rmce == pytest.approx(float(sum(rce) / 2), rel=1e-6)


def test_the_baseline_beside_itself_is_one_and_a_shift_of_all_errors_changes_the_first_alone() -> None:
    errors = torch.rand(15, 5, dtype=torch.float64) * 0.4 + 0.3
    same = corruption_errors(errors, 0.2, errors, 0.2)
    assert (same.mce, same.rmce) == pytest.approx((1.0, 1.0))
    better = corruption_errors(errors - 0.1, 0.1, errors, 0.2)
    assert better.rmce == pytest.approx(1.0)
    assert better.mce == pytest.approx(float(((errors - 0.1).mean(1) / errors.mean(1)).mean()))


def test_bad_arguments() -> None:
    errors = torch.full((2, 5), 0.5)
    with pytest.raises(ValueError, match=r"one shape .*, got \(2, 5\) and \(2, 4\)"):
        corruption_errors(errors, 0.1, errors[:, :4], 0.1)
    with pytest.raises(ValueError, match="clean must be error rates"):
        corruption_errors(errors, 12.0, errors, 0.1)
    with pytest.raises(ValueError, match="under corruption 0"):
        corruption_errors(errors, 0.1, errors, 0.5)

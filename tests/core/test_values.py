"""Values of tensors: whether all are finite."""

from __future__ import annotations

import math

import pytest
import torch

from bayesify.core.values import are_finite, finite_models

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_single_value_that_is_not_finite_is_found(dtype: torch.dtype, bad: float) -> None:
    x = torch.randn(33, 7).to(dtype)
    assert are_finite(x)
    x[20, 3] = bad
    assert not are_finite(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_finite_values_whose_sum_overflows_are_finite(dtype: torch.dtype) -> None:
    assert are_finite(torch.full((40,), torch.finfo(dtype).max, dtype=torch.float64).to(dtype))


def test_infinities_of_both_signs_do_not_cancel() -> None:
    assert not are_finite(torch.tensor([math.inf, -math.inf, 1.0]))


def test_no_values_are_finite() -> None:
    assert are_finite(torch.empty(0, 3))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_models_that_are_not_finite_are_found(bad: float) -> None:
    weights, scales = torch.randn(4, 5, 3), torch.randn(4)
    assert finite_models([weights, scales]).tolist() == [True] * 4
    weights[0] = torch.finfo(torch.float32).max  # whose sum overflows
    weights[2, 1, 1] = scales[3] = bad
    assert finite_models([weights, scales, torch.empty(4, 0, 2)]).tolist() == [True, True, False, False]

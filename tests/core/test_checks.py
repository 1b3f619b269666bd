"""Argument checks: what passes, what does not, and that the message names argument and value."""

import contextlib
import math

import numpy as np
import pytest
import torch

from bayesify.core.checks import check_choice, check_fraction, check_integer, check_positive, check_scale
from bayesify.plain_numbers import plain

NUMBERS = [float("nan"), float("inf"), float("-inf"), True, False, "1", None, 1j, [1]]


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.float32(0.5), np.float64(0.5), np.bool_(True)])
def test_numbers_of_numpy(value):
    """They are what Python's numbers are, and become such; booleans are none."""
    accepted = 0
    for check in (check_positive, check_scale, check_fraction, check_integer):
        with contextlib.suppress(ValueError):
            check("number", value)
            accepted += 1
    assert accepted == {"i": 3, "u": 3, "f": 3, "b": 0}[value.dtype.kind]
    assert type(plain(value)) is {"i": int, "u": int, "f": float, "b": np.bool_}[value.dtype.kind]


@pytest.mark.parametrize("value", [1, 0.5, 1e-300, 10**400])
def test_positive(value):
    check_positive("scale", value)


@pytest.mark.parametrize("value", [0, 0.0, -1, -1e-300, *NUMBERS])
def test_not_positive(value):
    with pytest.raises(ValueError, match="scale must be a finite number above 0, got ") as error:
        check_positive("scale", value)
    assert str(error.value).endswith(repr(value))


@pytest.mark.parametrize("value", [1e-15, 0.5, 1, 1e15])
def test_scale(value):
    check_scale("prior_std", value)
    square = torch.tensor(value, dtype=torch.float32).square()
    assert 0 < square < math.inf
    assert 0 < 1 / square < math.inf


@pytest.mark.parametrize("value", [1e-16, 2e15, 1e300])
def test_no_scale(value):
    with pytest.raises(ValueError, match=r"prior_std must be between 1e-15 and 1e\+15, got ") as error:
        check_scale("prior_std", value)
    assert str(error.value).endswith(repr(value))


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1 - 1e-15])
def test_fraction(value):
    check_fraction("p", value)


@pytest.mark.parametrize("value", [1, 1.0, -1e-300, 2, *NUMBERS])
def test_no_fraction(value):
    with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\), got ") as error:
        check_fraction("p", value)
    assert str(error.value).endswith(repr(value))


def test_integer():
    check_integer("samples", 1)
    check_integer("samples", 10**30)
    check_integer("depth", 0, least=0)
    check_integer("depth", -2, least=-2)


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, *NUMBERS])
def test_no_integer(value):
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1, got ") as error:
        check_integer("samples", value)
    assert str(error.value).endswith(repr(value))


def test_choice():
    check_choice("noise", "local", ("local", "shared"))
    check_choice("mode", None, {None, 1})
    for value in ("Local", None, 1):
        with pytest.raises(ValueError, match="noise must be one of 'local', 'shared', got ") as error:
            check_choice("noise", value, ("local", "shared"))
        assert str(error.value).endswith(repr(value))

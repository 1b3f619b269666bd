"""Values of a likelihood that are one number, or one number per output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from bayesify.core.checks import check_scale
from bayesify.errors import ConfigurationError, DataError
from bayesify.plain_numbers import is_number, plain

__all__ = ["check_width", "scales_of"]


def scales_of(name: str, value: float | Sequence[float]) -> float | list[float]:
    """Return a positive number, or a list with one per output.

    Raises:
        ConfigurationError: a number that is not above 0, none, or a tensor.
    """
    if isinstance(value, Tensor):
        shape = tuple(value.shape)
        raise ConfigurationError(f"{name} must be a number or one per output, got a tensor {shape}; use {name}.tolist()")
    values = [value] if is_number(value) else list(cast("Sequence[float]", value))
    if not values:
        raise ConfigurationError(f"{name} must be a number or one per output, got an empty sequence")
    for each in values:
        check_scale(name, each)
    return plain(value) if is_number(value) else list(map(plain, values))


def check_width(name: str, values: Tensor, outputs: Tensor, width: int) -> None:
    """Raise a `DataError` if there are values (D,) for another number of outputs than `width`; a scalar is for all."""
    if values.dim() and values.shape[0] != width:
        raise DataError(f"{name} has {values.shape[0]} values but outputs {tuple(outputs.shape)} have {width} per example")

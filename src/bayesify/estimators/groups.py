"""Groups of rows that are held out together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesify.errors import DataError, MissingDependencyError

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

__all__ = ["group_codes", "with_known_classes"]


def group_codes(groups: Any) -> Tensor:
    """Return an integer per row from the labels of groups, (N,).

    Raises:
        TypeError: labels without a hash, such as lists.
        DataError: another shape, or a missing label.

    Example:
        >>> group_codes(["Ulm", "Bonn", "Ulm"]).tolist()
        [0, 1, 0]
    """
    if (shape := getattr(groups, "shape", (len(groups),))) != (len(groups),):
        raise DataError(f"groups must be one-dimensional, a label per row, got shape {tuple(shape)}")
    labels = groups if isinstance(groups, pd.Series) else pd.Series(groups if isinstance(groups, np.ndarray) else list(groups))
    try:
        codes, _ = pd.factorize(labels)  # -1 of a missing label
    except TypeError as error:
        raise TypeError(f"groups must have labels that can be compared, such as text or integers: {error}") from error
    if (missing := codes < 0).any():
        row = int(missing.argmax())
        raise DataError(
            f"groups has no label in {int(missing.sum())} rows, first in row {row}; drop these rows, or give them "
            "labels: a common one if they belong together, otherwise one each"
        )
    return torch.from_numpy(codes.astype(np.int64))


def with_known_classes(held_out: Tensor, target: Tensor, groups: Tensor | None) -> Tensor:
    """Return which rows are held out, (N,), without those of a class (integers) that no other row has, and without their groups.

    A class is known only if it has a row to train on.
    """
    if target.is_floating_point():
        return held_out
    unknown = held_out & ~torch.isin(target, target[~held_out])
    return held_out & ~(unknown if groups is None else torch.isin(groups, groups[unknown]))

"""`class_weight` of the classifier: weights of labels as weights of rows."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from bayesify.errors import ConfigurationError
from bayesify.formatting import listing

__all__ = ["check_class_weight", "row_weights"]


def check_class_weight(class_weight: object) -> None:
    """Raise an error unless `class_weight` is None, "balanced", or positive numbers by label."""
    if class_weight is None or class_weight == "balanced":
        return
    if not isinstance(class_weight, Mapping):
        raise ConfigurationError(f"class_weight must be None, 'balanced' or a dict of label and weight, got {class_weight!r}")
    for label, weight in class_weight.items():
        if not isinstance(weight, numbers.Real) or not 0 < float(weight) < math.inf:
            raise ConfigurationError(f"class_weight of {label!r} must be a positive number, got {weight!r}")


def row_weights(class_weight: Any, labels: np.ndarray, sample_weight: Any) -> np.ndarray:
    """The weight of each row: that of its label, times its `sample_weight`.

    Args:
        class_weight: "balanced": every class has the same total weight, and all rows together keep theirs; or weights by label, 1
            where a label has none.
        labels: (N,)
        sample_weight: (N,), or None for ones.

    Raises:
        ConfigurationError: a weight for a label that no row has.

    Example:
        >>> row_weights("balanced", np.array(["a", "a", "a", "b"]), None).round(2)
        array([0.67, 0.67, 0.67, 2.  ])
    """
    own = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    classes, index = np.unique(labels, return_inverse=True)
    if isinstance(class_weight, Mapping):
        known = set(classes.tolist())
        if unknown := [label for label in class_weight if label not in known]:
            raise ConfigurationError(
                f"class_weight has labels that y lacks: {listing(map(repr, unknown))}; the labels of y are "
                f"{listing(map(repr, classes.tolist()))}"
            )
        return own * np.array([float(class_weight.get(label, 1.0)) for label in classes.tolist()])[index]
    totals = np.bincount(index, weights=own)
    present = totals > 0
    return own * np.divide(own.sum(), present.sum() * totals, out=np.zeros_like(totals), where=present)[index]

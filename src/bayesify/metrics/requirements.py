"""The optional dependency torchmetrics."""

from __future__ import annotations

from types import ModuleType

from bayesify.errors import MissingDependencyError

__all__ = ["classification_metrics"]


def classification_metrics() -> ModuleType:
    """The functional classification metrics of torchmetrics.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        from torchmetrics.functional import classification
    except ImportError as error:
        raise MissingDependencyError("calibration and out-of-distribution metrics", "torchmetrics", extra="metrics") from error
    return classification

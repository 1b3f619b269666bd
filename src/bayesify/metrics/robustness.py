"""Robustness to corrupted inputs: error rates at several severities, relative to a baseline's.

Shapes: C corruptions, V severities (5 in the benchmark).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.errors import DataError

__all__ = ["CorruptionErrors", "corruption_errors"]


class CorruptionErrors(NamedTuple):
    """Corruption errors; 1 is as good as the baseline, lower is better. The papers print them times 100.

    Attributes:
        ce: corruption error of each corruption (C,).
        rce: relative corruption error (C,), of the increase over the clean error rate.
    """

    ce: Tensor
    rce: Tensor

    @property
    def mce(self) -> float:
        """Mean corruption error."""
        return float(self.ce.mean())

    @property
    def rmce(self) -> float:
        """Relative mean corruption error."""
        return float(self.rce.mean())


def corruption_errors(errors: Tensor, clean: float, baseline: Tensor, baseline_clean: float) -> CorruptionErrors:
    r"""Corruption errors of a model relative to a baseline.

    $$\mathrm{CE}_c = \frac{\sum_v E_{cv}}{\sum_v E^0_{cv}}, \qquad
      \mathrm{rCE}_c = \frac{\sum_v (E_{cv} - E_\mathrm{clean})}{\sum_v (E^0_{cv} - E^0_\mathrm{clean})}$$

    Args:
        errors: error rates (C, V), in [0, 1].
        clean: error rate without corruption.
        baseline, baseline_clean: those of the baseline.

    Raises:
        DataError: shapes that do not fit, rates outside [0, 1], or a corruption that adds no errors to the baseline's.

    Source: Hendrycks & Dietterich, *Benchmarking neural network robustness to common corruptions and perturbations* (2019),
        section 4. Chang et al., *Ensemble model patching* (2019), D.4, print the model's own clean error in the denominator, and
        one clean error against a sum of five; both are misprints.

    Example:
        >>> result = corruption_errors(torch.tensor([[0.2, 0.4]]), 0.1, torch.tensor([[0.3, 0.9]]), 0.2)
        >>> round(result.mce, 3), round(result.rmce, 3)
        (0.5, 0.5)
    """
    errors, baseline = torch.as_tensor(errors), torch.as_tensor(baseline)
    if errors.dim() != 2 or errors.numel() == 0 or errors.shape != baseline.shape:
        raise DataError(
            "errors and baseline must have one shape (corruptions, severities), got "
            f"{tuple(errors.shape)} and {tuple(baseline.shape)}"
        )
    for name, value in (("errors", errors), ("clean", clean), ("baseline", baseline), ("baseline_clean", baseline_clean)):
        rates = torch.as_tensor(value)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise DataError(f"{name} must be error rates in [0, 1], got {value!r}")
    errors, baseline = errors.double(), baseline.double()
    total, added = baseline.sum(1), (baseline - baseline_clean).sum(1)
    if (total == 0).any() or (added == 0).any():
        row = int(((total == 0) | (added == 0)).nonzero()[0])
        raise DataError(f"baseline must have more errors under corruption {row}, got {baseline[row].tolist()}; leave that one out")
    return CorruptionErrors(errors.sum(1) / total, (errors - clean).sum(1) / added)

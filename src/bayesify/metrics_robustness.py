"""Robustness to corrupted inputs: errors at several severities, in units of a baseline's.

Shapes: C corruptions, V severities (5 in the benchmark).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["CorruptionErrors", "corruption_errors"]


class CorruptionErrors(NamedTuple):
    """Corruption errors; 1 is as good as the baseline, less is better. The papers print them times 100.

    Attributes:
        ce: the corruption error of each corruption (C,).
        rce: the relative corruption error (C,): how much the corruption adds to the error.
    """

    ce: Tensor
    rce: Tensor

    @property
    def mce(self) -> float:
        """The mean corruption error."""
        return float(self.ce.mean())

    @property
    def rmce(self) -> float:
        """The relative mean corruption error."""
        return float(self.rce.mean())


def corruption_errors(errors: Tensor, clean: float, baseline: Tensor, baseline_clean: float) -> CorruptionErrors:
    r"""Corruption errors of a model beside those of a baseline.

    $$\mathrm{CE}_c = \frac{\sum_v E_{cv}}{\sum_v E^0_{cv}}, \qquad
      \mathrm{rCE}_c = \frac{\sum_v (E_{cv} - E_\mathrm{clean})}{\sum_v (E^0_{cv} - E^0_\mathrm{clean})}$$

    Args:
        errors: (C, V) shares of wrong predictions, in [0, 1].
        clean: that share without corruption.
        baseline, baseline_clean: the same of the model to compare with.

    Raises:
        ValueError: shapes that do not fit, shares outside [0, 1], a baseline without errors, or with none added by a corruption.

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
        raise ValueError(
            f"errors and baseline must be (corruptions, severities), alike, got {tuple(errors.shape)} and {tuple(baseline.shape)}"
        )
    for name, value in (("errors", errors), ("clean", clean), ("baseline", baseline), ("baseline_clean", baseline_clean)):
        share = torch.as_tensor(value)
        if not ((share >= 0) & (share <= 1)).all():
            raise ValueError(f"{name} must hold shares of wrong predictions in [0, 1], got {value!r}")
    errors, baseline = errors.double(), baseline.double()
    total, added = baseline.sum(1), (baseline - baseline_clean).sum(1)
    if (total == 0).any() or (added == 0).any():
        row = int(((total == 0) | (added == 0)).nonzero()[0])
        raise ValueError(
            f"baseline makes no (more) errors under corruption {row}, got {baseline[row].tolist()}; leave that one out"
        )
    return CorruptionErrors(errors.sum(1) / total, (errors - clean).sum(1) / added)

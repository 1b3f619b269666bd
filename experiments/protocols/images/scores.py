"""How good beliefs about images are, and what an ensemble believes.

Shapes: N rows, K classes, M members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesify import metrics
from experiments.harness.protocol import Unit

__all__ = ["Beliefs", "average", "entropy", "judge", "scores"]

Beliefs = Mapping[str, Tensor]
"""Log probabilities (N, K) of "validation", "test" and, by the names of their sets, images of other things."""


def judge(beliefs: Beliefs, validation: Tensor, test: Tensor, bins: int) -> Unit:
    """All scores of a net or an ensemble.

    Args:
        beliefs: about all parts.
        validation, test: labels (N,).
        bins: of the calibration error.

    Returns:
        error (%), nll (nats per image), ece and entropy (mean over images, nats) on the test part; validation_error and
        validation_nll; ood, by set, entropy and auroc, of the entropy as the score that tells these images from test images.
    """
    held_out = scores(beliefs["validation"], validation, bins)
    familiar = entropy(beliefs["test"])
    ood: dict[str, dict[str, float]] = {}
    for name in beliefs.keys() - {"validation", "test"}:
        unfamiliar = entropy(beliefs[name])
        ood[name] = {"entropy": float(unfamiliar.mean()), "auroc": metrics.ood_metrics(familiar, unfamiliar)["auroc"]}
    return {
        **scores(beliefs["test"], test, bins),
        "entropy": float(familiar.mean()),
        "validation_error": held_out["error"],
        "validation_nll": held_out["nll"],
        "ood": dict(sorted(ood.items())),
    }


def scores(log_probs: Tensor, y: Tensor, bins: int) -> dict[str, float]:
    """Error (%), nll (nats per image) and expected calibration error, for log probabilities (N, K) and labels (N,)."""
    log_probs = log_probs.double()
    return {
        "error": 100 * float((log_probs.argmax(1) != y).double().mean()),
        "nll": -float(log_probs.gather(1, y.unsqueeze(1)).mean()),
        "ece": float(metrics.expected_calibration_error(log_probs.exp(), y, bins=bins)),
    }


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy (N,) of probabilities, in nats."""
    return torch.special.entr(log_probs.double().exp()).sum(1)


def average(members: Sequence[Beliefs]) -> dict[str, Tensor]:
    """The log of the mean over M members of their probabilities.

    Example:
        >>> two = [{"test": torch.tensor([[0.9, 0.1]]).log()}, {"test": torch.tensor([[0.5, 0.5]]).log()}]
        >>> average(two)["test"].exp()
        tensor([[0.7000, 0.3000]], dtype=torch.float64)
    """
    return {
        part: torch.logsumexp(torch.stack([member[part].double() for member in members]), 0) - math.log(len(members))
        for part in members[0]
    }

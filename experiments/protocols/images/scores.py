"""Scores of predictions for images, and predictions of an ensemble.

Shapes: N rows, K classes, M members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesify import metrics
from experiments.harness.protocol import Unit

__all__ = ["Predictions", "average", "entropy", "evaluate", "scores"]

Predictions = Mapping[str, Tensor]
"""Log probabilities (N, K) for "validation", "test" and out-of-distribution sets by name; for the first test images also
"CORRUPTION/SEVERITY", and "draws/S" with S draws."""

_LEAST = 6  # rows of a bin for the maximum calibration error, as in Chang et al. (2019)


def evaluate(predictions: Predictions, validation: Tensor, test: Tensor, bins: int) -> Unit:
    """Compute all scores of a network or an ensemble.

    Args:
        predictions: for all parts.
        validation, test: labels (N,).
        bins: of the calibration error.

    Returns:
        error (%), nll (nats per image), ece, mce and entropy (mean over images, nats) on the test part; validation_error and
        validation_nll; ood, by set, entropy and `ood_metrics` of the entropy as the score; by_draws and
        corrupted, error, nll, ece and mce on the first test images by number of draws, or by corruption and severity, "none"
        for the clean ones.
    """
    held_out = scores(predictions["validation"], validation, bins)
    test_entropy = entropy(predictions["test"])
    ood: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, dict[str, float]]] = {}
    for name in sorted(predictions.keys() - {"validation", "test"}):
        kind, _, which = name.partition("/")
        if which:
            parts.setdefault(kind, {})[which] = scores(predictions[name], test[: len(predictions[name])], bins)
        else:
            others = entropy(predictions[name])
            ood[name] = {"entropy": float(others.mean()), **metrics.ood_metrics(test_entropy, others)}
    by_draws = parts.pop("draws", {})
    corrupted: dict[str, object] = dict(parts)
    if parts:
        rows = next(len(log_probs) for name, log_probs in predictions.items() if name.partition("/")[0] in parts)
        corrupted["none"] = scores(predictions["test"][:rows], test[:rows], bins)
    return {
        **scores(predictions["test"], test, bins),
        "entropy": float(test_entropy.mean()),
        "validation_error": held_out["error"],
        "validation_nll": held_out["nll"],
        "ood": ood,
        **({"by_draws": by_draws} if by_draws else {}),
        **({"corrupted": corrupted} if corrupted else {}),
    }


def scores(log_probs: Tensor, y: Tensor, bins: int) -> dict[str, float]:
    """Error (%), nll (nats per image), expected and maximum calibration error, for log probabilities (N, K) and labels (N,).

    The maximum is over bins with at least 6 images or, for few images, the mean number per bin.
    """
    log_probs = log_probs.double()
    probs = log_probs.exp()
    return {
        "error": 100 * float((log_probs.argmax(1) != y).double().mean()),
        "nll": -float(log_probs.gather(1, y.unsqueeze(1)).mean()),
        "ece": float(metrics.expected_calibration_error(probs, y, bins=bins)),
        "mce": float(metrics.maximum_calibration_error(probs, y, bins=bins, least=min(_LEAST, -(-len(y) // bins)))),
    }


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy (N,) of probabilities, in nats."""
    return torch.special.entr(log_probs.double().exp()).sum(1)


def average(members: Sequence[Predictions]) -> dict[str, Tensor]:
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

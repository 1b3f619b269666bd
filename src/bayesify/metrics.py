"""Metrics: how good predictions are, how well their confidence is calibrated, and how well a score finds unfamiliar inputs.

Shapes: N rows, K classes. Functions of `probs` take (N, K), or (N,) as the probability of class 1 of two, and labels y (N,). All
return means over rows unless they say otherwise; `evaluate` gives the usual set for a predictive distribution.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.core.checks import check_choice, check_integer
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from bayesify.predictive.base import align_targets
from bayesify.predictive.discrete import check_labels

__all__ = [
    "Reliability",
    "accuracy",
    "brier",
    "coverage",
    "crps",
    "evaluate",
    "expected_calibration_error",
    "interval_width",
    "maximum_calibration_error",
    "nll",
    "ood_metrics",
    "reliability",
    "rmse",
]


class Reliability(NamedTuple):
    """Per bin of confidence: mean confidence and accuracy (NaN where the bin is empty) and the number of rows, each (bins,)."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]


def evaluate(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """The usual metrics of a predictive distribution.

    Args:
        predictive: N rows, from `predict`.
        y: the N true targets. Labels (or tokens, except ignored ones) of one row count as separate predictions, but in `nll`.

    Returns:
        Classes: nll (nats per row), accuracy, brier, ece and mce (15 equal-width bins). Numbers: nll, rmse and crps (both in the
        unit of y, over rows and outputs), coverage and width of the central 95 % interval.

    Raises:
        TypeError: a predictive of a kind it does not know.
        ValueError: targets that do not fit.
        ImportError: classes without torchmetrics.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0))
        >>> {name: round(value, 2) for name, value in evaluate(p, torch.tensor([0.0, 2.0])).items()}
        {'nll': 1.92, 'rmse': 1.41, 'crps': 0.84, 'coverage_95': 0.5, 'width_95': 3.92}
    """
    y = torch.as_tensor(y).to(predictive.mean.device)
    scores = {"nll": -predictive.log_prob(y).mean()}
    if isinstance(predictive, GaussianPredictive):
        y = align_targets(y, predictive.mean.shape)
        lower, upper = predictive.interval(0.95)
        scores["rmse"] = rmse(predictive.mean, y)
        scores["crps"] = crps(predictive, y)
        scores["coverage_95"] = coverage(lower, upper, y)
        scores["width_95"] = interval_width(lower, upper)
    elif isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        y = align_targets(y, tuple(predictive.log_probs.shape[:-1])).flatten().long()
        probs = predictive.log_probs.exp().flatten(0, -2)
        if isinstance(predictive, CategoricalPredictive):
            probs, y = probs[y != predictive.ignore_index], y[y != predictive.ignore_index]
        scores["accuracy"] = accuracy(probs, y)
        scores["brier"] = brier(probs, y)
        scores["ece"] = expected_calibration_error(probs, y)
        scores["mce"] = maximum_calibration_error(probs, y)
    else:
        raise TypeError(f"predictive must be categorical, Bernoulli or Gaussian, got {type(predictive).__name__}")
    return {name: float(value) for name, value in scores.items()}


def nll(probs: Tensor, y: Tensor) -> Tensor:
    """Negative log probability of the labels, in nats; `predictive.log_prob` is exact where probabilities round to 0.

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.tensor([0, 1]))
        tensor(0.3993)
    """
    probs, y = _classes(probs, y)
    return -probs.gather(1, y.unsqueeze(1)).log().mean()


def brier(probs: Tensor, y: Tensor) -> Tensor:
    r"""Squared distance from the one-hot label, $\sum_k (p_k - 1[y = k])^2$, in [0, 2]: twice the one-class form for two classes.

    Source: Brier, *Verification of forecasts expressed in terms of probability* (1950), equation (2).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
        tensor(0.2500)
    """
    probs, y = _classes(probs, y)
    return (probs - torch.nn.functional.one_hot(y, probs.shape[1])).square().sum(1).mean()


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """The share of rows whose most probable class is right.

    Example:
        >>> accuracy(torch.tensor([0.9, 0.9]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    return _confidence(probs, y)[1].mean()


def reliability(probs: Tensor, y: Tensor, bins: int = 15, binning: str = "width") -> Reliability:
    """Confidence against accuracy, by bins of the confidence, the probability of the predicted class.

    Args:
        probs, y: (N, K) or (N,), and (N,) labels.
        bins: the number of bins.
        binning: "width" for intervals [a, b) of equal width over [0, 1], the last one closed; "mass" for about equally many rows
            per bin, where rows of equal confidence stay together.

    Source: Guo, Pleiss, Sun & Weinberger, *On calibration of modern neural networks* (2017), section 2.

    Example:
        >>> reliability(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([1, 0, 1]), bins=2).count
        tensor([0, 3])
    """
    check_integer("bins", bins)
    check_choice("binning", binning, ("width", "mass"))
    confidence, correct = _confidence(probs, y)
    if binning == "width":
        edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)
        index = torch.bucketize(confidence, edges[1:-1], right=True)
    else:
        smaller = torch.searchsorted(confidence.sort().values, confidence)  # rows of smaller confidence
        index = smaller * bins // len(confidence)
    count = torch.zeros(bins, dtype=torch.long, device=index.device).index_add(0, index, torch.ones_like(index))
    confidence, correct = (torch.zeros(bins, dtype=v.dtype, device=v.device).index_add(0, index, v) for v in (confidence, correct))
    return Reliability(confidence / count, correct / count, count)


def expected_calibration_error(probs: Tensor, y: Tensor, bins: int = 15, binning: str = "width") -> Tensor:
    r"""The gap between confidence and accuracy, $\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|$; see `reliability`.

    Source: Guo, Pleiss, Sun & Weinberger (2017), equation (3).

    Example:
        >>> expected_calibration_error(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]), binning="mass", bins=1)
        tensor(0.3500)
    """
    if binning != "width":
        confidence, correct, count = reliability(probs, y, bins, binning)
        return ((correct - confidence).abs().nan_to_num() * count).sum() / count.sum()
    check_integer("bins", bins)
    confidence, correct = _confidence(probs, y)
    # torchmetrics gives a confidence of exactly 1 a bin of its own; just below 1 it joins the last one, as it should.
    below_one = torch.nextafter(torch.ones_like(confidence), torch.zeros_like(confidence))
    return _torchmetrics().binary_calibration_error(confidence.minimum(below_one), correct.long(), n_bins=bins, norm="l1")


def maximum_calibration_error(probs: Tensor, y: Tensor, bins: int = 15, binning: str = "width", least: int = 1) -> Tensor:
    r"""The largest gap between confidence and accuracy, $\max_b |\mathrm{acc}_b - \mathrm{conf}_b|$; see `reliability`.

    Bins of fewer than `least` rows, which can make it anything, are left out (Chang et al., 2019, use 6); ValueError if all are.

    Source: Guo, Pleiss, Sun & Weinberger (2017), equation (5).

    Example:
        >>> maximum_calibration_error(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]), binning="mass", bins=2)
        tensor(0.8000)
    """
    check_integer("least", least)
    confidence, correct, count = reliability(probs, y, bins, binning)
    gaps = (correct - confidence).abs()[count >= least]
    if len(gaps) == 0:
        raise ValueError(f"no bin has least={least} rows, the fullest has {int(count.max())}; take a smaller number, or fewer bins")
    return gaps.max()


def rmse(mean: Tensor, y: Tensor) -> Tensor:
    """Root of the mean squared error of the predictive mean, over rows and outputs, in the unit of y.

    Example:
        >>> rmse(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 3.0]))
        tensor(1.4142)
    """
    return (mean - align_targets(y, mean.shape)).square().mean().sqrt()


def coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """The share of targets inside their interval, ends included; 0.95 is ideal for 95 % intervals.

    Example:
        >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 1.5]))
        tensor(0.5000)
    """
    y = align_targets(y, lower.shape)
    return ((lower <= y) & (y <= upper)).to(lower.dtype).mean()


def interval_width(lower: Tensor, upper: Tensor) -> Tensor:
    """The mean width of the intervals, in the unit of y: at equal coverage, narrower is better.

    Example:
        >>> interval_width(torch.zeros(2), torch.tensor([1.0, 2.0]))
        tensor(1.5000)
    """
    return (upper - lower).mean()


def crps(predictive: GaussianPredictive, y: Tensor) -> Tensor:
    """Continuous ranked probability score, the mean over rows and outputs of `GaussianPredictive.crps`, in the unit of y.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> crps(GaussianPredictive(torch.zeros(1, 1), torch.tensor(1.0)), torch.zeros(1))
        tensor(0.2337)
    """
    return predictive.crps(y).mean()


def ood_metrics(score_in: Tensor, score_out: Tensor) -> dict[str, float]:
    r"""How well a score tells unfamiliar inputs from familiar ones; familiar (in-distribution) is the positive class.

    Args:
        score_in: (N,) scores of inputs like the training data, for example `predictive.entropy`.
        score_out: (M,) scores of other inputs; higher means more likely out of distribution.

    Returns:
        auroc; aupr_in and aupr_out (average precision with either class as positive); fpr95, the share of unfamiliar inputs that
        pass where 95 % of the familiar ones do; detection_error, the least $\tfrac12 (1 - \mathrm{TPR}) + \tfrac12 \mathrm{FPR}$.

    Raises:
        ValueError: no scores, or NaN.
        ImportError: without torchmetrics.

    Source: Liang, Li & Srikant, *Enhancing the reliability of out-of-distribution image detection* (2018), section 4.

    Example:
        >>> ood_metrics(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.9]))["auroc"]
        1.0
    """
    for name, score in (("score_in", score_in), ("score_out", score_out)):
        if score.numel() == 0 or score.isnan().any():
            raise ValueError(f"{name} must hold at least one score and no NaN, got shape {tuple(score.shape)}")
    scores = torch.cat([score_in.flatten(), score_out.flatten()])
    # Ranks keep order and ties. torchmetrics would take scores outside [0, 1] for logits, and its sigmoid ties the large ones.
    values, rank = scores.unique(return_inverse=True)
    unfamiliar = rank.double() / len(values)
    familiar = 1 - unfamiliar
    is_in = torch.arange(len(scores), device=scores.device) < score_in.numel()
    metric = _torchmetrics()
    fpr, tpr, _ = metric.binary_roc(familiar, is_in.long())
    return {
        "auroc": float(metric.binary_auroc(familiar, is_in.long())),
        "aupr_in": float(metric.binary_average_precision(familiar, is_in.long())),
        "aupr_out": float(metric.binary_average_precision(unfamiliar, (~is_in).long())),
        "fpr95": float(fpr[tpr >= 0.95].min()),
        "detection_error": float((0.5 * (1 - tpr) + 0.5 * fpr).min()),
    }


def _classes(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K) and labels (N,), checked."""
    probs = torch.stack([1 - probs, probs], 1) if probs.dim() == 1 else probs
    if probs.dim() != 2 or y.shape != probs.shape[:1] or len(y) == 0:
        raise ValueError(f"probs must be (N, K) or (N,) and y (N,), N at least 1, got {tuple(probs.shape)} and {tuple(y.shape)}")
    if not ((probs >= 0) & (probs <= 1 + 1e-4)).all():
        raise ValueError("probs must lie in [0, 1]; take softmax(-1) or sigmoid() of logits, and the mean over draws, first")
    y = y.long() if y.dtype == torch.bool else y
    check_labels(y, probs.shape[1])
    return probs, y.long()


def _confidence(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the predicted class, at most 1, and whether that class is right (1 or 0), each (N,)."""
    probs, y = _classes(probs, y)
    confidence, predicted = probs.max(1)
    return confidence.clamp_max(1), (predicted == y).to(probs.dtype)


def _torchmetrics() -> ModuleType:
    try:
        from torchmetrics.functional import classification
    except ImportError as error:
        raise ImportError(
            'calibration and out-of-distribution metrics need torchmetrics: pip install "bayesify[metrics]"'
        ) from error
    return classification

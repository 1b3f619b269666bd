"""`assess`: scores of a model and of a baseline on the same rows, and what they mean."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.formatting import number, percent
from bayesify.metrics import evaluate
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from bayesify.report.verdict import Sentence, verdict

__all__ = ["Assessment", "Card", "assess", "baseline_scores"]


class Card(NamedTuple):
    """A metric of the model and of the baseline, as text."""

    name: str
    value: str
    unit: str
    baseline: str
    meaning: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assessment:
    """The evaluation of a model's predictions of N rows, from `assess`.

    Attributes:
        predictive: of the N rows, on the CPU.
        y: their targets, on the CPU.
        scores: metrics of the model, from `bayesify.metrics.evaluate`.
        baseline: the same metrics of the baseline, which ignores the inputs.
        from_training: whether the baseline was computed from the training targets rather than from `y`.
        held_out: whether the model was not trained on these rows.
        cards: metrics as text.
        verdict: conclusions in sentences.
    """

    predictive: Predictive
    y: Tensor
    scores: dict[str, float]
    baseline: dict[str, float]
    from_training: bool
    held_out: bool
    cards: list[Card]
    verdict: list[Sentence]

    @property
    def row(self) -> str:
        """The noun for one row."""
        return "held-out row" if self.held_out else "row"


def assess(
    predictive: Predictive, y: Tensor, *, training_y: Tensor | None = None, unit: str = "", held_out: bool = True
) -> Assessment:
    """Evaluate predictions of N rows.

    Args:
        predictive: predictive distributions of N rows.
        y: their targets, as `predictive.log_prob` takes them.
        training_y: the training targets, whose distribution is the baseline. Without them the baseline is the distribution of `y`.
        unit: of the target (regression).
        held_out: whether the model was not trained on these rows.

    Raises:
        ConfigurationError: no rows, or `y` of another length.
        DivergenceError: the predictions are not finite.
        MissingDependencyError: classification without torchmetrics.

    Example:
        >>> p = GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0))
        >>> assess(p, torch.tensor([0.0, 2.0])).cards[0].value
        '1.414'
    """
    y, predictive = torch.as_tensor(y).detach().cpu(), predictive.to("cpu")
    if len(predictive) == 0 or len(predictive) != len(y):
        raise ConfigurationError(
            f"predictive and y must have the same number of rows, at least 1, got {len(predictive)} and {len(y)}"
        )
    if isinstance(predictive, GaussianPredictive) and not (predictive.mean.isfinite() & predictive.std.isfinite()).all():
        raise DivergenceError("predictions of the model are infinite or NaN; train with a smaller learning_rate")
    scores, baseline = evaluate(predictive, y), baseline_scores(predictive, y, training_y)
    return Assessment(
        predictive=predictive,
        y=y,
        scores=scores,
        baseline=baseline,
        from_training=training_y is not None,
        held_out=held_out,
        cards=_cards(scores, baseline, unit),
        verdict=verdict(predictive, y, scores, baseline, row="held-out row" if held_out else "row"),
    )


def baseline_scores(predictive: Predictive, y: Tensor, training_y: Tensor | None) -> dict[str, float]:
    """Evaluate the model that ignores its inputs: a normal distribution with the moments of the targets, or class frequencies."""
    source = torch.as_tensor(y if training_y is None else training_y)
    if isinstance(predictive, GaussianPredictive):
        source = source.double().reshape(len(source), *predictive.mean.shape[1:])
        std = source.std(0, correction=0)
        means = source.mean(0).expand(1, *predictive.mean.shape)
        return evaluate(GaussianPredictive(means, torch.where(std > 0, std, 1.0)), y.double())
    if isinstance(predictive, BernoulliPredictive):
        share = (source.double().sum(0) + 0.5) / (len(source) + 1)
        return evaluate(BernoulliPredictive.from_logits(share.logit().expand(1, *predictive.probs.shape)), y)
    assert isinstance(predictive, CategoricalPredictive)
    k = predictive.probs.shape[-1]
    counts = torch.bincount(source[source >= 0].flatten().long(), minlength=k).double() + 1 / k  # no class has probability 0
    logits = counts.log().expand(1, *predictive.probs.shape)
    return evaluate(CategoricalPredictive.from_logits(logits, predictive.ignore_index), y)


def _cards(scores: dict[str, float], baseline: dict[str, float], unit: str) -> list[Card]:
    formats = {
        "rmse": ("RMSE", number, unit, "Root mean squared error of the predictive mean."),
        "accuracy": ("accuracy", percent, "", "Share of rows whose most probable class is the true one."),
        "coverage_95": ("95% coverage", percent, "", "Share of targets inside the central 95% interval; 95% is ideal."),
        "width_95": ("95% interval width", number, unit, "Mean width; narrower is better at a coverage of 95%."),
        "nll": ("NLL", number, "nats", "Mean negative log-likelihood of the targets; lower is better."),
        "crps": ("CRPS", number, unit, "Continuous ranked probability score; lower is better."),
        "brier": ("Brier score", number, "", "Squared error of the probabilities, 0 to 2; lower is better."),
        "ece": ("ECE", percent, "", "Expected calibration error: mean gap between confidence and accuracy; above 0 for few rows."),
    }
    return [
        Card(title, text(scores[name]), of, text(baseline[name]), meaning)
        for name, (title, text, of, meaning) in formats.items()
        if name in scores
    ]

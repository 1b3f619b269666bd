"""`assess`: scores of a model and of a baseline on the same rows, and what they mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.formatting import number, percent
from bayesify.metrics import evaluate
from bayesify.predictive import NumericPredictive, Predictive
from bayesify.report.sentence import Sentence
from bayesify.report.skill import CONSTANT, constant_baseline
from bayesify.report.verdict import verdict

__all__ = ["Assessment", "Card", "assess"]


class Card(NamedTuple):
    """A metric of the model and of each baseline, as text."""

    name: str
    value: str
    unit: str
    baselines: dict[str, str]
    meaning: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assessment:
    """The evaluation of a model's predictions of N rows, from `assess`.

    Attributes:
        predictive: of the N rows, on the CPU.
        y: their targets, on the CPU.
        scores: metrics of the model, from `bayesify.metrics.evaluate`.
        baselines: the same metrics of each baseline, by name; "constant" ignores the inputs.
        note: how the baselines were made, if that differs from what a reader expects.
        from_training: whether the constant baseline was computed from the training targets rather than from `y`.
        held_out: whether the model was not trained on these rows.
        cards: metrics as text.
        verdict: conclusions in sentences.
    """

    predictive: Predictive
    y: Tensor
    scores: dict[str, float]
    baselines: dict[str, dict[str, float]]
    note: str
    from_training: bool
    held_out: bool
    cards: list[Card]
    verdict: list[Sentence]

    @property
    def row(self) -> str:
        """The noun for one row."""
        return "held-out row" if self.held_out else "row"


def assess(
    predictive: Predictive,
    y: Tensor,
    *,
    training_y: Tensor | None = None,
    baselines: Mapping[str, Predictive] | None = None,
    note: str = "",
    unit: str = "",
    labels: Sequence[object] | None = None,
    held_out: bool = True,
    class_weights: bool = False,
) -> Assessment:
    """Evaluate predictions of N rows.

    Args:
        predictive: predictive distributions of N rows.
        y: their targets, as `predictive.log_prob` takes them.
        training_y: the training targets, whose distribution is the constant baseline. Without them it is the distribution of `y`.
        baselines: predictions of the same rows by other models, by name.
        note: how the baselines were made, if that differs from what a reader expects.
        unit: of the target (regression).
        labels: names of the K classes.
        held_out: whether the model was not trained on these rows.
        class_weights: whether the classes had weights in training, which probabilities then contain.

    Raises:
        ConfigurationError: no rows, or `y` or a baseline of another length.
        DivergenceError: the predictions are not finite.
        MissingDependencyError: classification without torchmetrics.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0))
        >>> assess(p, torch.tensor([0.0, 2.0])).cards[0].value
        '1.414'
    """
    y, predictive = torch.as_tensor(y).detach().cpu(), predictive.to("cpu")
    if len(predictive) == 0 or len(predictive) != len(y):
        raise ConfigurationError(
            f"predictive and y must have the same number of rows, at least 1, got {len(predictive)} and {len(y)}"
        )
    if isinstance(predictive, NumericPredictive) and not (predictive.mean.isfinite() & predictive.std.isfinite()).all():
        raise DivergenceError("predictions of the model are infinite or NaN; train with a smaller learning_rate")
    references = {CONSTANT: constant_baseline(predictive, y, training_y), **(baselines or {})}
    scores, others = evaluate(predictive, y), {name: evaluate(p, y) for name, p in references.items()}
    return Assessment(
        predictive=predictive,
        y=y,
        scores=scores,
        baselines=others,
        note=note,
        from_training=training_y is not None,
        held_out=held_out,
        cards=_cards(scores, others, unit),
        verdict=verdict(
            predictive, y, references, labels=labels, row="held-out row" if held_out else "row", class_weights=class_weights
        ),
    )


def _cards(scores: dict[str, float], baselines: dict[str, dict[str, float]], unit: str) -> list[Card]:
    formats = {
        "rmse": ("RMSE", number, unit, "Root mean squared error of the predictive mean."),
        "accuracy": ("accuracy", percent, "", "Share of rows whose most probable class is the true one."),
        "balanced_accuracy": ("balanced accuracy", percent, "", "Mean over classes of the share of their rows that is found."),
        "roc_auc": (
            "ROC AUC",
            number,
            "",
            "Chance that a row of a class ranks above a row of another; 0.5 by chance.",
        ),
        "average_precision": (
            "average precision",
            number,
            "",
            "Area under precision and recall; for two classes of the rarer one.",
        ),
        "coverage_95": ("95% coverage", percent, "", "Share of targets inside the central 95% interval; 95% is ideal."),
        "width_95": ("95% interval width", number, unit, "Mean width; narrower is better at a coverage of 95%."),
        "nll": ("NLL", number, "nats", "Mean negative log-likelihood of the targets; lower is better."),
        "crps": ("CRPS", number, unit, "Continuous ranked probability score; lower is better."),
        "brier": ("Brier score", number, "", "Squared error of the probabilities, 0 to 2; lower is better."),
        "ece": ("ECE", percent, "", "Expected calibration error: mean gap between confidence and accuracy; above 0 for few rows."),
    }
    return [
        Card(title, text(scores[name]), of, {key: text(of_key[name]) for key, of_key in baselines.items()}, meaning)
        for name, (title, text, of, meaning) in formats.items()
        if name in scores
    ]

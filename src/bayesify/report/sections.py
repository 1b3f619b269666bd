"""The chapters of a report: what is shown for numbers and for classes, and the words that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bayesify import plots
from bayesify.metrics import coverage, evaluate, interval_width, rmse
from bayesify.plots.style import shorten
from bayesify.plots.values import one_output
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from bayesify.report.numbers import number, percent, plural
from bayesify.report.pictures import Picture, picture

if TYPE_CHECKING:
    from pandas import DataFrame

    from bayesify.train import History

__all__ = ["Card", "Section", "Table", "calibration", "cards", "doubt", "outputs", "predictions", "training", "trivial"]

SHOWN = 3  # outputs of a model with many that get figures of their own


class Card(NamedTuple):
    """A headline number beside that of the trivial guess."""

    name: str
    value: str
    unit: str
    baseline: str
    meaning: str


class Table(NamedTuple):
    """Cells as text; `numeric` columns are set flush right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]


class Section(NamedTuple):
    """A chapter: a heading, a sentence, figures, then a table."""

    title: str
    text: str
    pictures: Sequence[Picture] = ()
    table: Table | None = None


def trivial(predictive: Predictive, y: Tensor, training: Tensor | None) -> dict[str, float]:
    """The scores of the model that ignores its inputs: the normal distribution of the training targets, or class frequencies."""
    y = torch.as_tensor(y)
    known = y if training is None else torch.as_tensor(training)
    if isinstance(predictive, GaussianPredictive):
        known = known.double().reshape(len(known), *predictive.mean.shape[1:])
        std = known.std(0, correction=0)
        means = known.mean(0).expand(1, *predictive.mean.shape)
        return evaluate(GaussianPredictive(means, torch.where(std > 0, std, 1.0)), y.double())
    if isinstance(predictive, BernoulliPredictive):
        share = (known.double().sum(0) + 0.5) / (len(known) + 1)
        return evaluate(BernoulliPredictive.from_logits(share.logit().expand(1, *predictive.probs.shape)), y)
    assert isinstance(predictive, CategoricalPredictive)
    k = predictive.probs.shape[-1]
    counts = torch.bincount(known[known >= 0].flatten().long(), minlength=k).double() + 1 / k  # no class is impossible
    guess = CategoricalPredictive.from_logits(counts.log().expand(1, *predictive.probs.shape), predictive.ignore_index)
    return evaluate(guess, y)


def cards(scores: dict[str, float], baseline: dict[str, float], unit: str) -> list[Card]:
    """The headline numbers, whichever of them the metrics hold."""
    known = {
        "rmse": ("typical error", number, unit, "Root mean squared error of the predicted mean (RMSE)."),
        "accuracy": ("accuracy", percent, "", "Share of rows whose most probable class is right."),
        "coverage_95": ("in 95% interval", percent, "", "Share of true values inside the interval; 95% is ideal."),
        "width_95": ("interval width", number, unit, "Mean width of 95% intervals; narrower is better if 95% fall inside."),
        "nll": (
            "surprise",
            number,
            "nats",
            "Mean negative log probability of the truth (NLL); lower is better, below 0 too.",
        ),
        "crps": (
            "CRPS",
            number,
            unit,
            "Distance of predicted distribution and truth: an absolute error that rewards honesty.",
        ),
        "brier": ("Brier score", number, "", "Squared distance of the probabilities from the truth, 0 to 2; lower is better."),
        "ece": (
            "calibration error",
            percent,
            "",
            "Mean gap of confidence and accuracy (ECE); few rows always show some.",
        ),
    }
    present = [name for name in known if name in scores]
    return [
        Card(title, text(scores[name]), of, text(baseline[name]), meaning)
        for name, (title, text, of, meaning) in ((name, known[name]) for name in present)
    ]


def outputs(predictive: GaussianPredictive, y: Tensor, names: Sequence[str]) -> Table:
    """One line of numbers per output of a model with several."""
    rows = []
    for output, name in enumerate(names):
        p, target = one_output(predictive, y, output)
        lower, upper = p.interval(0.95)
        error, spread = rmse(p.mean, target).item(), target.std(correction=0).item()
        inside, width = coverage(lower, upper, target).item(), interval_width(lower, upper).item()
        rows.append([name, number(error), number(spread), percent(inside), number(width)])
    header = ("output", "typical error", "spread of the truth", "inside 95%", "mean width")
    return Table("Every output in its own unit.", header, rows, (False, True, True, True, True))


def calibration(predictive: Predictive, y: Tensor, names: Sequence[str]) -> Section:
    """Does the stated uncertainty hold?"""
    if isinstance(predictive, GaussianPredictive):
        text = "An interval that claims 80% should hold 80% of the truth, and an error of the predicted size should be the rule."
        pictures = [_intervals(predictive, y, o, names) for o in _shown(names)]
    else:
        text = "Of all predictions made with 80% confidence, 80% should be right."
        reliability = picture(
            "Confidence and accuracy",
            f"Reliability diagram of {plural(len(predictive), 'row')}: accuracy against confidence; the diagonal is ideal.",
            "On the diagonal confidence is honest, below it too high. Grey: where chance may put a perfect model. Numbers: rows.",
            lambda ax: plots.plot_reliability(predictive, y, ax),
            "reliability",
        )
        pictures = [reliability]
    errors = [
        picture(
            f"Predicted and actual error{_of(names, o)}",
            "Actual error against predicted uncertainty in bins of equally many rows; the diagonal is ideal.",
            "Rows in bins by predicted uncertainty. Where points rise along the diagonal, it tells safe rows from risky ones.",
            lambda ax, o=o: plots.plot_uncertainty_error(predictive, y, ax, output=o),
            f"errors{o}",
        )
        for o in _shown(names)
    ]
    return Section("Can the uncertainty be trusted?", text, _pairs(pictures, errors))


def predictions(predictive: Predictive, y: Tensor, names: Sequence[str], labels: Sequence[object] | None) -> Section:
    """Predicted and true, and what is gained by setting doubtful rows aside."""
    if isinstance(predictive, GaussianPredictive):
        pictures = [
            picture(
                f"Predicted and true{_of(names, o)}",
                f"Predicted {names[o]} with 95% intervals against true {names[o]}, {plural(len(predictive), 'row')}.",
                "Each point is a row, exact on the diagonal. Orange: the truth lies outside the interval.",
                lambda ax, o=o: plots.plot_predictions(predictive, y, ax, output=o, name=names[o]),
                f"predictions{o}",
            )
            for o in _shown(names)
        ]
    else:
        confusion = picture(
            "Predicted and true",
            f"Confusion matrix of {plural(len(predictive), 'row')}: true classes in rows, predicted ones in columns.",
            "Rows are true classes, columns predicted ones: the diagonal is right. Stronger colour: a larger share of the row.",
            lambda ax: plots.plot_confusion(predictive, y, ax, names=labels),
            "confusion",
        )
        pictures = [confusion]
    rejections = [
        picture(
            f"If doubtful rows go to an expert{_of(names, o)}",
            "Error of the remaining rows against the share of rows set aside, the least certain ones first.",
            "Set aside the rows the model is least sure of, and this is how good it is on the others.",
            lambda ax, o=o: plots.plot_rejection(predictive, y, ax, output=o),
            f"rejection{o}",
        )
        for o in _shown(names)
    ]
    return Section("How good are the predictions?", "", _pairs(pictures, rejections))


def doubt(
    predictive: Predictive, names: Sequence[str], features: DataFrame | None, related: Sequence[str], table: Table
) -> Section:
    """Where, and of which kind, the uncertainty is."""
    numbers = isinstance(predictive, GaussianPredictive)
    text = (
        "Noise in the data stays however many rows are collected. The model's doubt shrinks with more data like these rows: it is "
        "where new measurements help most."
    )
    pictures = [
        picture(
            f"Two kinds of uncertainty{_of(names, o)}",
            "Uncertainty of all rows from the most to the least certain, split into noise in the data and doubt of the model.",
            "All rows, side by side, from the most to the least certain."
            + (" Height: predicted standard deviation, split like the variance." if numbers else " Height: entropy."),
            lambda ax, o=o: plots.plot_uncertainty(predictive, ax, output=o),
            f"kinds{o}",
        )
        for o in _shown(names if numbers else names[:1])
    ]
    if features is not None:
        pictures += [
            picture(
                f"Uncertainty by {shorten(column)}",
                f"Uncertainty of the rows against {column}.",
                "One of the columns that go along with the uncertainty most closely.",
                lambda ax, values=values: plots.plot_feature(predictive, values, ax),
                f"feature{place}",
            )
            for place, (column, values) in enumerate(features[list(related)].items())
        ]
    return Section("Where is it unsure?", text, pictures, table)


def training(history: History) -> Section:
    """How the training went."""
    seconds = sum(history.seconds)
    kept = f", epoch {history.best_epoch} was kept" if history.best_epoch else ""
    early = " (stopped early)" if history.stopped_early else ""
    text = f"{plural(len(history), 'epoch')}{early}{kept}; {number(seconds, 3)} seconds."
    curves = picture(
        "Training",
        f"Negative ELBO, fit to the data and validation over {plural(len(history), 'epoch')}, in nats per example.",
        "Lower is better. The gap of the two training curves is what complexity costs."
        + (" Validation rows are not trained on." if history.validation_nll else ""),
        lambda ax: plots.plot_training(history, ax),
        "training",
    )
    pictures = [curves]
    if any(history.kl):
        pictures.append(
            picture(
                "Complexity",
                f"KL of the weights from their prior over {plural(len(history), 'epoch')}, in nats, and its weight in the loss.",
                "How far the weights have moved from what was believed before (KL), and how much that counted (shaded).",
                lambda ax: plots.plot_kl(history, ax),
                "kl",
            )
        )
    return Section("How did the training go?", text, pictures)


def _intervals(predictive: GaussianPredictive, y: Tensor, output: int, names: Sequence[str]) -> Picture:
    return picture(
        f"Intervals at every level{_of(names, output)}",
        f"Share of true values inside intervals of every level, {plural(len(predictive), 'row')}; the diagonal is ideal.",
        "Below the diagonal the model is too confident, above it too cautious; inside the grey band it may be chance.",
        lambda ax: plots.plot_coverage(predictive, y, ax, output=output),
        f"coverage{output}",
    )


def _pairs(left: Sequence[Picture], right: Sequence[Picture]) -> list[Picture]:
    """One of each in turn: a line of the page per output."""
    return [p for pair in zip(left, right, strict=True) for p in pair]


def _shown(names: Sequence[str]) -> range:
    return range(min(len(names), SHOWN))


def _of(names: Sequence[str], output: int) -> str:
    return f": {names[output]}" if len(names) > 1 else ""

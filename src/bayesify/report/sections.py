"""The sections of a report, for regression and classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from bayesify import plots
from bayesify.formatting import duration, number, percent, plural
from bayesify.metrics import coverage, interval_width, rmse
from bayesify.plots.history import has_penalty
from bayesify.plots.statistics import select_output
from bayesify.plots.style import shorten
from bayesify.predictive import NumericPredictive, Predictive
from bayesify.report.figures import Picture, picture

if TYPE_CHECKING:
    from pandas import DataFrame

    from bayesify.train import History

__all__ = ["Section", "Table", "calibration", "predictions", "training", "uncertainty"]

SHOWN = 3  # outputs with figures


class Table(NamedTuple):
    """Cells as text; `numeric` columns are right-aligned."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]


class Section(NamedTuple):
    """A heading, a sentence, figures and a table."""

    title: str
    text: str
    pictures: Sequence[Picture] = ()
    table: Table | None = None


def calibration(predictive: Predictive, y: Tensor, names: Sequence[str]) -> Section:
    """Coverage or reliability, and errors against predicted uncertainty."""
    rows = plural(len(predictive), "row")
    if isinstance(predictive, NumericPredictive):
        text = "80% intervals should contain 80% of the targets, and errors should be as large as the predicted standard deviation."
        pictures = [
            picture(
                f"Coverage of intervals{_of(names, o)}",
                f"Share of targets inside central intervals of every level, {rows}; the diagonal is ideal.",
                "Below the diagonal: overconfident. Above it: underconfident. Gray: 95% range of a calibrated model.",
                lambda ax, o=o: plots.plot_coverage(predictive, y, ax, output=o),
                f"coverage{o}",
            )
            for o in _shown(names)
        ]
    else:
        text = "Of the predictions with a confidence of 80%, 80% should be correct."
        reliability = picture(
            "Reliability diagram",
            f"Accuracy against confidence, {rows}; the diagonal is ideal.",
            "Below the diagonal: overconfident. Above it: underconfident. Gray: 95% range of a calibrated model. Numbers: rows.",
            lambda ax: plots.plot_reliability(predictive, y, ax),
            "reliability",
        )
        pictures = [reliability]
    errors = [
        picture(
            f"Error and predicted uncertainty{_of(names, o)}",
            "Actual error against predicted uncertainty in bins of equal size; the diagonal is ideal.",
            "Rows binned by predicted uncertainty. Near the diagonal, errors are as large as predicted.",
            lambda ax, o=o: plots.plot_uncertainty_error(predictive, y, ax, output=o),
            f"errors{o}",
        )
        for o in _shown(names)
    ]
    return Section("Calibration", text, _pairs(pictures, errors))


def predictions(predictive: Predictive, y: Tensor, names: Sequence[str], labels: Sequence[object] | None) -> Section:
    """Predictions against targets, and the error when uncertain rows are rejected; with several outputs, a table of them."""
    rows = plural(len(predictive), "row")
    table = None
    if isinstance(predictive, NumericPredictive):
        pictures = [
            picture(
                f"Predictions and targets{_of(names, o)}",
                f"Predicted {names[o]} with 95% intervals against true {names[o]}, {rows}.",
                "One point per row; exact predictions are on the diagonal. Orange: the target is outside the 95% interval.",
                lambda ax, o=o: plots.plot_predictions(predictive, y, ax, output=o, name=names[o]),
                f"predictions{o}",
            )
            for o in _shown(names)
        ]
        table = _outputs(predictive, y, names) if len(names) > 1 else None
    else:
        confusion = picture(
            "Confusion matrix",
            f"Confusion matrix of {rows}: true classes in rows, predicted classes in columns.",
            "True classes in rows, predicted classes in columns. Color: share of the true class.",
            lambda ax: plots.plot_confusion(predictive, y, ax, names=labels),
            "confusion",
        )
        pictures = [confusion]
    rejections = [
        picture(
            f"Rejection curve{_of(names, o)}",
            "Error of the remaining rows against the share of rejected rows, the most uncertain ones first.",
            "Error of the remaining rows after the most uncertain rows are rejected, for example to be decided by an expert.",
            lambda ax, o=o: plots.plot_rejection(predictive, y, ax, output=o),
            f"rejection{o}",
        )
        for o in _shown(names)
    ]
    return Section("Predictions", "", _pairs(pictures, rejections), table)


def uncertainty(
    predictive: Predictive, names: Sequence[str], features: DataFrame | None, related: Sequence[str], table: Table
) -> Section:
    """Aleatoric and epistemic uncertainty, the related columns and the most uncertain rows."""
    is_regression = isinstance(predictive, NumericPredictive)
    text = (
        "Aleatoric uncertainty (noise) does not decrease with more data. Epistemic uncertainty (model) does; where it is high, new "
        "data help most."
    )
    height = "predicted standard deviation, split in proportion to the variances" if is_regression else "entropy in nats"
    pictures = [
        picture(
            f"Aleatoric and epistemic uncertainty{_of(names, o)}",
            "Uncertainty of all rows in increasing order, split into aleatoric and epistemic.",
            f"Rows in order of increasing uncertainty. Height: {height}.",
            lambda ax, o=o: plots.plot_uncertainty(predictive, ax, output=o),
            f"kinds{o}",
        )
        for o in _shown(names if is_regression else names[:1])
    ]
    if features is not None:
        pictures += [
            picture(
                f"Uncertainty by {shorten(column)}",
                f"Uncertainty of the rows against {column}.",
                "One of the columns most strongly related to the uncertainty.",
                lambda ax, values=values: plots.plot_feature(predictive, values, ax),
                f"feature{j}",
            )
            for j, (column, values) in enumerate(features[list(related)].items())
        ]
    return Section("Uncertainty", text, pictures, table)


def training(history: History) -> Section:
    """Loss and KL by epoch."""
    epochs = plural(len(history), "epoch")
    early = " (stopped early)" if history.stopped_early else ""
    kept = sorted(set(history.kept_epochs))
    epoch = f"epoch {kept[0]}" if len(kept) == 1 else f"epochs {kept[0]} to {kept[-1]}, by member" if kept else ""
    best = f", weights of {epoch}" if kept else ""
    curves = picture(
        "Loss",
        f"Loss over {epochs}, in nats per example.",
        _caption(history),
        lambda ax: plots.plot_training(history, ax),
        "training",
    )
    pictures = [curves]
    if any(history.kl):
        pictures.append(
            picture(
                "KL divergence",
                f"KL divergence of the weights from their prior over {epochs}, in nats, and its weight in the loss.",
                "KL divergence of the posterior from the prior, and its weight in the loss (shaded).",
                lambda ax: plots.plot_kl(history, ax),
                "kl",
            )
        )
    return Section("Training", f"{epochs}{early}{best}; {duration(sum(history.seconds))}.", pictures)


def _caption(history: History) -> str:
    """How to read the curves, and why one of them rises."""
    parts = ["NLL: negative log-likelihood; lower is better."]
    if has_penalty(history):
        parts.append("The loss is the negative ELBO; its gap to the NLL is the weighted KL.")
    if len(history.kept_epochs) > 1:
        parts.append("Curves are means over the members that are still in training.")
    if _rises(history.loss) and history.beta[-1] > history.beta[0]:
        parts.append("The loss rises because the weight of the KL does.")
    if history.validation_nll:
        parts.append("The validation rows are not used for training.")
        if len(history.kept_epochs) > 1:
            parts.append("Every member keeps the weights of the epoch with the lowest NLL of its validation rows.")
        elif history.kept_epochs and _rises(history.validation_nll):
            parts.append(f"Their NLL rises after epoch {history.kept_epochs[0]}, so the weights of that epoch are used.")
    return " ".join(parts)


def _rises(curve: Sequence[float]) -> bool:
    """Whether a curve ends clearly above its minimum."""
    return len(curve) > 1 and curve[-1] - min(curve) > 0.05 * (max(curve) - min(curve))


def _outputs(predictive: NumericPredictive, y: Tensor, names: Sequence[str]) -> Table:
    """The metrics of every output."""
    rows = []
    for output, name in enumerate(names):
        p, target = select_output(predictive, y, output)
        lower, upper = p.interval(0.95)
        error, spread = rmse(p.mean, target).item(), target.std(correction=0).item()
        inside, width = coverage(lower, upper, target).item(), interval_width(lower, upper).item()
        rows.append([name, number(error), number(spread), percent(inside), number(width)])
    header = ("output", "RMSE", "std of the targets", "95% coverage", "95% interval width")
    return Table("Each output in its own unit.", header, rows, (False, True, True, True, True))


def _pairs(left: Sequence[Picture], right: Sequence[Picture]) -> list[Picture]:
    """Alternate: one line of the page per output."""
    return [p for pair in zip(left, right, strict=True) for p in pair]


def _shown(names: Sequence[str]) -> range:
    return range(min(len(names), SHOWN))


def _of(names: Sequence[str], output: int) -> str:
    return f": {names[output]}" if len(names) > 1 else ""

"""The HTML page of a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.files import write_atomically
from bayesify.formatting import looks_numeric, number, plural
from bayesify.plots.style import shorten
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, NumericPredictive, Predictive
from bayesify.report import reasons, sections
from bayesify.report.assessment import Assessment, assess
from bayesify.report.sections import Section, Table
from bayesify.report.uncertain_rows import most_uncertain, related_columns

if TYPE_CHECKING:
    from pandas import DataFrame

    from bayesify.inspection import Explanation
    from bayesify.train import History

__all__ = ["render", "render_page", "write_report"]

_TERMS = {
    "draws": "Predictions are averages over draws: several plausible networks, such as the members of an ensemble or sets of "
    "weights. Where they disagree, the training data do not settle the prediction.",
    "aleatoric": "Uncertainty from noise in the data, which stays however much data there is.",
    "epistemic": "Uncertainty from limited data: disagreement of the draws. It shrinks with more data like the row.",
    "baseline": "A simpler model on the same rows. A model that does not beat it is not worth its effort.",
}
_REGRESSION = {
    "std": "Standard deviation of a prediction, aleatoric and epistemic: about two thirds of the targets are within one std.",
    "coverage": "Share of targets inside the intervals. Intervals of 95% should contain 95% of them: fewer means overconfident, "
    "more means wider than needed.",
    "NLL, CRPS": "Scores of the whole predicted distribution. They reward accurate means and honest intervals; lower is better.",
}
_CLASSIFICATION = {
    "confidence": "Probability of the predicted class. Of predictions with 80%, 80% should be correct.",
    "entropy": "Total uncertainty about the class, in nats: 0 if it is certain, 0.69 if two classes are equally probable.",
    "mutual information": "The epistemic part of the entropy, in nats: how much the draws disagree.",
    "NLL, Brier score": "Scores of the predicted probabilities. They reward both accuracy and calibration; lower is better.",
    "ROC AUC": "How well the probabilities rank rows, whatever the threshold; it does not depend on how rare a class is.",
}


def write_report(
    path: str | os.PathLike[str],
    *,
    predictive: Predictive,
    y: Tensor,
    title: str = "Model evaluation",
    target: str | Sequence[str] = "target",
    unit: str = "",
    labels: Sequence[object] | None = None,
    features: DataFrame | None = None,
    training_y: Tensor | None = None,
    history: History | None = None,
    comparison: Sequence[Mapping[str, object]] | None = None,
    facts: Mapping[str, Mapping[str, object]] | None = None,
    explanation: Explanation | None = None,
    held_out: bool = True,
) -> Path:
    """Evaluate predictions of N rows and write the result as one self-contained HTML page, atomically.

    Args:
        path: of the page, in an existing folder.
        predictive, y, training_y, unit, held_out: as for `assess`.
        title, target, labels, features, history, comparison, facts, explanation: as for `render`.

    Returns:
        The path.

    Raises:
        ConfigurationError: no rows, or arguments that do not match.
        DivergenceError: the predictions are not finite.
        MissingDependencyError: without matplotlib, Jinja or torchmetrics.
        OSError: the page cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.randn(10, 40), torch.tensor(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_report(f"{folder}/report.html", predictive=p, y=torch.randn(40)).name
        'report.html'
    """
    page = render(
        assess(predictive, y, training_y=training_y, unit=unit, labels=labels, held_out=held_out),
        title=title,
        target=target,
        labels=labels,
        features=features,
        history=history,
        comparison=comparison,
        facts=facts,
        explanation=explanation,
    )
    write_atomically(path, page.encode())
    return Path(path)


def render(
    assessment: Assessment,
    *,
    title: str = "Model evaluation",
    target: str | Sequence[str] = "target",
    labels: Sequence[object] | None = None,
    features: DataFrame | None = None,
    history: History | None = None,
    comparison: Sequence[Mapping[str, object]] | None = None,
    facts: Mapping[str, Mapping[str, object]] | None = None,
    explanation: Explanation | None = None,
) -> str:
    """Render an assessment as one HTML page without scripts or external resources.

    Args:
        assessment: of N rows.
        title: of the page.
        target: name of the target; one name per output if there are several.
        labels: names of the K classes.
        features: the N rows before preprocessing, to show where the uncertainty is high.
        history: of the training.
        comparison: other models on the same rows: one mapping of column to value each, the first column naming the model.
        facts: the configuration: mappings of name to value under a heading each, such as `{"Method": method.to_dict()}`.
        explanation: from `bayesify.inspection.explain`, which columns drive the predictions.

    Raises:
        ConfigurationError: arguments that do not match.
        MissingDependencyError: without matplotlib or Jinja.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(1, 40), torch.tensor(1.0))
        >>> page = render(assess(p, torch.linspace(-2, 2, 40)), title="House prices", target="price", facts={"Data": {"rows": 40}})
        >>> "<h1>House prices</h1>" in page, "<script" in page
        (True, False)
    """
    predictive, y = assessment.predictive, assessment.y
    if features is not None:
        features = features.set_axis([str(column) for column in features.columns], axis=1)
    names = _names(predictive, target)
    _check(predictive, labels, features)
    related = related_columns(predictive, features)
    parts = [
        sections.calibration(predictive, y, names),
        sections.predictions(predictive, y, names, labels),
        sections.uncertainty(predictive, names, features, related, most_uncertain(predictive, y, features, related, names, labels)),
    ]
    if explanation is not None:
        parts.append(reasons.drivers(explanation, _predicted(predictive, names, labels)))
    if comparison:
        parts.append(_comparison(comparison))
    if history is not None and len(history):
        parts.append(sections.training(history))
    return render_page(
        "report",
        title=title,
        subtitle=" · ".join(
            (
                shorten(names[0]) if len(names) == 1 else plural(len(names), "output"),
                plural(len(predictive), assessment.row),
                plural(predictive.samples, "draw"),
            )
        ),
        assessment=assessment,
        sections=parts,
        terms={**_TERMS, **(_REGRESSION if isinstance(predictive, NumericPredictive) else _CLASSIFICATION)},
        facts={heading: {name: _text(value) for name, value in values.items()} for heading, values in (facts or {}).items()},
    )


def render_page(template: str, **values: object) -> str:
    """Render a template of this package: "report", or "page" of `title`, `subtitle` and `sections`.

    Raises:
        MissingDependencyError: without Jinja.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError("reports", "jinja2", extra="report") from error
    loader = jinja2.FileSystemLoader(Path(__file__).parent.parent / "templates")
    pages = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = pages.get_template(f"{template}.html.j2").render(**values)
    return page.encode("utf-8", errors="replace").decode()  # text from data may have characters that UTF-8 lacks


def _predicted(predictive: Predictive, names: Sequence[str], labels: Sequence[object] | None) -> str:
    """What `partial_dependence` averages by default."""
    if isinstance(predictive, NumericPredictive):
        return names[0]
    index = 1 if predictive.log_probs.shape[-1] == 2 else 0
    return f"probability of {shorten(index if labels is None else labels[index], 24)}"


def _names(predictive: Predictive, target: str | Sequence[str]) -> list[str]:
    """One name per output."""
    count = predictive.mean.shape[1] if isinstance(predictive, NumericPredictive) and predictive.mean.dim() > 1 else 1
    if isinstance(target, str):
        return [target] if count == 1 else [f"{target} {i + 1}" for i in range(count)]
    if len(target) != count:
        raise ConfigurationError(f"target must have one name per output, {count}, got {len(target)}")
    return [str(name) for name in target]


def _check(predictive: Predictive, labels: Sequence[object] | None, features: DataFrame | None) -> None:
    if features is not None and len(features) != len(predictive):
        raise ConfigurationError(f"features must have one row per target, {len(predictive)}, got {len(features)}")
    if features is not None and not features.columns.is_unique:
        duplicates = list(features.columns[features.columns.duplicated()])
        raise ConfigurationError(f"features must have distinct columns, got {duplicates} twice")
    if isinstance(predictive, CategoricalPredictive) and labels is not None and len(labels) != predictive.probs.shape[-1]:
        raise ConfigurationError(f"labels must name the {predictive.probs.shape[-1]} classes, got {len(labels)}")
    if isinstance(predictive, BernoulliPredictive) and labels is not None and len(labels) != 2:
        raise ConfigurationError(f"labels must name the classes 0 and 1, got {len(labels)}")


def _comparison(models: Sequence[Mapping[str, object]]) -> Section:
    header = list(dict.fromkeys(name for model in models for name in model))
    cells = [[_text(model.get(name, "")) for name in header] for model in models]
    numeric = [all(looks_numeric(row[j]) for row in cells if row[j]) for j in range(len(header))]
    return Section("Comparison of methods", "", (), Table("All methods on the same rows.", header, cells, numeric))


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return number(value) if isinstance(value, float) else str(value)

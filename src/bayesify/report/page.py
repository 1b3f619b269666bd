"""`write_report`: checks what it is given, collects the chapters and fills the page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesify.metrics import evaluate
from bayesify.plots.style import shorten
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from bayesify.report import rows, sections
from bayesify.report.numbers import looks_numeric, number, plural
from bayesify.report.sections import Section, Table
from bayesify.report.verdict import verdict

if TYPE_CHECKING:
    from jinja2 import Template
    from pandas import DataFrame

    from bayesify.train import History

__all__ = ["write_report"]


def write_report(
    path: str | os.PathLike[str],
    *,
    predictive: Predictive,
    y: Tensor,
    title: str = "How sure is the model?",
    target: str | Sequence[str] = "target",
    unit: str = "",
    labels: Sequence[object] | None = None,
    features: DataFrame | None = None,
    training_y: Tensor | None = None,
    history: History | None = None,
    comparison: Sequence[Mapping[str, object]] | None = None,
    facts: Mapping[str, Mapping[str, object]] | None = None,
    held_out: bool = True,
) -> Path:
    """Write one HTML page about a model's predictions of held-out rows; it needs no network and no scripts.

    Args:
        path: of the page; replaced in one step if it exists. Its folder must exist.
        predictive: what the model believes about N rows.
        y: their true targets, as `predictive.log_prob` takes them.
        title: of the page.
        target: what is predicted; one name per output if there are several.
        unit: of the target (numbers), shown beside errors.
        labels: names of the K classes.
        features: the N rows as they were before preprocessing, for the chapter about where the model is unsure.
        training_y: the targets the model was trained on, which the trivial guess it is compared with knows. Without them it knows
            the held-out ones, which makes it a little too good.
        history: of the training.
        comparison: other models on the same rows, one mapping of column to value each, the first column naming the model.
        facts: what was run: mappings of name to value under a heading each, such as `{"Method": method.to_dict()}`.
        held_out: whether the model was not trained on these rows; the page says so.

    Returns:
        The path.

    Raises:
        ImportError: without matplotlib, Jinja or torchmetrics.
        ValueError: no rows, or arguments that do not fit together.
        OSError: the page cannot be written.

    Example:
        >>> import tempfile
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.randn(10, 40), torch.tensor(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_report(f"{folder}/report.html", predictive=p, y=torch.randn(40)).name
        'report.html'
    """
    path = Path(path)
    y = torch.as_tensor(y).detach().cpu()
    predictive = predictive.to("cpu")
    if features is not None:
        features = features.set_axis([str(column) for column in features.columns], axis=1)
    row = "held-out row" if held_out else "row"
    names = _check(predictive, y, target, labels, features)
    scores, baseline = evaluate(predictive, y), sections.trivial(predictive, y, training_y)
    related = rows.related_columns(predictive, features)
    table = rows.least_certain(predictive, y, features, related, names, labels)

    quality = sections.predictions(predictive, y, names, labels)
    if len(names) > 1 and isinstance(predictive, GaussianPredictive):
        quality = quality._replace(table=sections.outputs(predictive, y, names))
    chapters = [
        sections.calibration(predictive, y, names),
        quality,
        sections.doubt(predictive, names, features, related, table),
    ]
    if comparison:
        chapters.append(_comparison(comparison))
    if history is not None and len(history):
        chapters.append(sections.training(history))
    page = _template().render(
        title=title,
        subtitle=_subtitle(predictive, names, row),
        verdict=verdict(predictive, y, scores, baseline, row=row),
        cards=sections.cards(scores, baseline, unit),
        held_out=held_out,
        guess="the distribution of the training targets" if training_y is not None else "the distribution of these very targets",
        chapters=chapters,
        facts={heading: {name: _fact(value) for name, value in values.items()} for heading, values in (facts or {}).items()},
    )
    _write(path, page)
    return path


def _check(
    predictive: Predictive, y: Tensor, target: str | Sequence[str], labels: Sequence[object] | None, features: DataFrame | None
) -> list[str]:
    """The names of the outputs, when everything fits together."""
    if len(predictive) == 0 or len(predictive) != len(y):
        raise ValueError(f"predictive and y must have the same number of rows, at least 1, got {len(predictive)} and {len(y)}")
    if features is not None and len(features) != len(y):
        raise ValueError(f"features must have one row per target, {len(y)}, got {len(features)}")
    if features is not None and not features.columns.is_unique:
        raise ValueError(f"features must have distinct columns, got {list(features.columns[features.columns.duplicated()])} twice")
    if isinstance(predictive, CategoricalPredictive) and labels is not None and len(labels) != predictive.probs.shape[-1]:
        raise ValueError(f"labels must name the {predictive.probs.shape[-1]} classes, got {len(labels)}")
    if isinstance(predictive, BernoulliPredictive) and labels is not None and len(labels) != 2:
        raise ValueError(f"labels must name no and yes, got {len(labels)}")
    count = predictive.mean.shape[1] if isinstance(predictive, GaussianPredictive) and predictive.mean.dim() > 1 else 1
    names = [target] if isinstance(target, str) else [str(name) for name in target]
    if count > 1 and isinstance(target, str):
        names = [f"{target} {i + 1}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"target must have one name per output, {count}, got {len(names)}")
    return names


def _subtitle(predictive: Predictive, names: Sequence[str], row: str) -> str:
    what = shorten(names[0]) if len(names) == 1 else f"{len(names)} outputs"
    return f"{what} · {plural(len(predictive), row)} · {plural(predictive.samples, 'draw')} of the weights"


def _comparison(models: Sequence[Mapping[str, object]]) -> Section:
    header = list(dict.fromkeys(name for model in models for name in model))
    cells = [[_fact(model.get(name, "")) for name in header] for model in models]
    numeric = [all(looks_numeric(row[place]) for row in cells) for place in range(len(header))]
    return Section("How do other methods do?", "", (), Table("The same rows, held out from all of them.", header, cells, numeric))


def _fact(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return number(value) if isinstance(value, float) else str(value)


def _template() -> Template:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError('reports need jinja2: pip install "bayesify[report]"') from error
    loader = jinja2.FileSystemLoader(Path(__file__).parent.parent / "templates")
    pages = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return pages.get_template("report.html.j2")


def _write(path: Path, page: str) -> None:
    beside = path.with_name(path.name + ".tmp")
    try:
        beside.write_text(page, encoding="utf-8", errors="replace")
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise

"""The most uncertain rows, and the columns related to the uncertainty."""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesify.formatting import looks_numeric, number, percent, plural
from bayesify.plots.statistics import row_uncertainty, select_output
from bayesify.plots.style import shorten
from bayesify.predictive import NumericPredictive, Predictive
from bayesify.predictive.base import align_targets
from bayesify.report.sections import Table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["cell", "most_uncertain", "related_columns"]

_COLUMNS = 6  # of a row that are shown


def related_columns(predictive: Predictive, features: DataFrame | None, most: int = 3) -> list[str]:
    """The columns that, in at most ten groups, explain the most variance of the ranks of the uncertainty, and more than 5 %."""
    if features is None or len(features) < 30:
        return []
    from pandas import Series  # who has features has pandas, which the extra does not need otherwise

    ranks = torch.tensor(Series(row_uncertainty(predictive)[0].numpy()).rank().to_numpy())
    strength = {str(column): _explained(values, ranks) for column, values in features.items()}
    strong = sorted((c for c in strength if strength[c] > 0.05), key=lambda column: -strength[column])
    return strong[: most if len(strong) >= most else 1]  # with the figure before them, full lines of two


def most_uncertain(
    predictive: Predictive,
    y: Tensor,
    features: DataFrame | None,
    related: Sequence[str],
    names: Sequence[str],
    labels: Sequence[object] | None,
    most: int = 10,
) -> Table:
    """Tabulate the rows of the largest uncertainty; related columns come first."""
    total = row_uncertainty(predictive)[0]
    order = total.argsort(descending=True)[:most].tolist()
    if isinstance(predictive, NumericPredictive):
        p, target = select_output(predictive, y)
        header = ["row", f"true {shorten(names[0], 24)}", "predicted", "95% interval", "std"]
        values = torch.stack([target, p.mean, *p.interval(0.95)], 1)[order].tolist()
        cells = [[number(t), number(mean), f"{number(low, 3)} to {number(high, 3)}"] for t, mean, low, high in values]
    elif predictive.prediction.dim() == 1:
        target = align_targets(torch.as_tensor(y), tuple(predictive.prediction.shape)).long().tolist()
        predicted, confidence = predictive.prediction.tolist(), predictive.log_probs.exp().amax(1).tolist()
        names_of = [shorten(label, 24) for label in (range(predictive.log_probs.shape[-1]) if labels is None else labels)]
        true = [names_of[k] if 0 <= k < len(names_of) else "unknown" for k in target]
        header = ["row", "true", "predicted", "probability", "entropy"]
        cells = [[true[i], names_of[predicted[i]], percent(confidence[i])] for i in order]
    else:
        header, cells = ["row", "mean entropy"], [[] for _ in order]
    index = list(range(len(total))) if features is None else list(features.index)
    shown = {} if features is None else {c: features[c] for c in dict.fromkeys([*related, *map(str, features.columns)])}
    left_out = max(0, len(shown) - _COLUMNS)
    shown = dict(list(shown.items())[:_COLUMNS])
    rows = [
        [shorten(index[i], 24), *values, number(total[i].item(), 3), *(cell(column.iloc[i]) for column in shown.values())]
        for i, values in zip(order, cells, strict=True)
    ]
    header += [shorten(column, 24) for column in shown]
    numeric = [bool(rows) and all(looks_numeric(row[i]) for row in rows) for i in range(len(header))]
    caption = f"The most uncertain rows ({plural(left_out, 'more column')} not shown)." if left_out else "The most uncertain rows."
    return Table(caption, header, rows, numeric)


def _explained(values: Series, ranks: Tensor) -> float:
    """The adjusted share of the variance of `ranks` between groups of rows: deciles of numbers, categories of other columns."""
    from pandas import factorize
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    if (is_numeric_dtype(values) and not is_bool_dtype(values)) or is_datetime64_any_dtype(values):
        quantiles = values.rank(pct=True).fillna(2.0)  # missing values are a separate group
        groups = (quantiles * 10).apply(math.ceil) if values.nunique() > 10 else quantiles
    else:
        groups = values.astype(str)
    codes = torch.tensor(factorize(groups, use_na_sentinel=False)[0])
    sizes = torch.bincount(codes)
    if len(sizes) < 2 or len(ranks) <= len(sizes) or not ranks.var(correction=0) > 0:
        return 0.0
    within = (ranks - (torch.bincount(codes, ranks) / sizes)[codes]).var(correction=0) / ranks.var(correction=0)
    return 1 - within.item() * (len(ranks) - 1) / (len(ranks) - len(sizes))


def cell(value: object) -> str:
    """A value of a table as text."""
    from pandas import isna

    if isna(value) is True:
        return "missing"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return number(float(value))
    text = str(value)
    return shorten(text.removesuffix(" 00:00:00") if isinstance(value, datetime.date) else text, 32)

"""The rows a model is least sure of, with their values, and the columns that go along with its uncertainty."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesify.plots.style import shorten
from bayesify.plots.values import one_output, uncertainty
from bayesify.predictive import GaussianPredictive, Predictive
from bayesify.predictive.base import align_targets
from bayesify.report.numbers import looks_numeric, number, percent
from bayesify.report.sections import Table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["least_certain", "related_columns"]


def related_columns(predictive: Predictive, features: DataFrame | None, most: int = 3) -> list[str]:
    """The columns whose values explain the ranks of the uncertainty best, in at most ten groups each; weak ones are left out."""
    from pandas import Series

    if features is None or len(features) < 30:
        return []
    ranks = torch.tensor(Series(uncertainty(predictive)[0].numpy()).rank().to_numpy())
    strength = {str(column): _explained(values, ranks) for column, values in features.items()}
    strong = sorted((c for c in strength if strength[c] > 0.05), key=lambda column: -strength[column])
    return strong[: most if len(strong) >= most else 1]  # with the picture before them they fill rows of two


def least_certain(
    predictive: Predictive,
    y: Tensor,
    features: DataFrame | None,
    related: Sequence[str],
    names: Sequence[str],
    labels: Sequence[object] | None,
    most: int = 10,
    columns: int = 6,
) -> Table:
    """The rows of the largest uncertainty, with the features that matter most for it first."""
    doubt = uncertainty(predictive)[0]
    order = doubt.argsort(descending=True)[:most].tolist()
    if isinstance(predictive, GaussianPredictive):
        p, target = one_output(predictive, y)
        header = ["row", f"true {shorten(names[0], 24)}", "predicted", "95% interval", "std"]
        values = torch.stack([target, p.mean, *p.interval(0.95)], 1)[order].tolist()
        cells = [[number(t), number(mean), f"{number(low, 3)} to {number(high, 3)}"] for t, mean, low, high in values]
    elif predictive.prediction.dim() == 1:
        target = align_targets(torch.as_tensor(y), tuple(predictive.prediction.shape)).long().tolist()
        guess, confidence = predictive.prediction.tolist(), predictive.log_probs.exp().amax(1).tolist()
        texts = [shorten(label, 24) for label in (range(predictive.log_probs.shape[-1]) if labels is None else labels)]
        header = ["row", "true", "predicted", "probability", "entropy"]
        known = range(len(texts))
        cells = [[texts[target[i]] if target[i] in known else "unknown", texts[guess[i]], percent(confidence[i])] for i in order]
    else:
        header, cells = ["row", "mean entropy"], [[] for _ in order]
    index = list(range(len(doubt))) if features is None else list(features.index)
    shown = [] if features is None else [*related, *(c for c in features.columns if c not in related)][:columns]
    told = [features[column] for column in shown] if features is not None else []
    rows = [
        [shorten(index[i], 24), *values, number(doubt[i].item(), 3), *(_cell(column.iloc[i]) for column in told)]
        for i, values in zip(order, cells, strict=True)
    ]
    header += [shorten(column, 24) for column in shown]
    numeric = [bool(rows) and all(looks_numeric(row[i]) for row in rows) for i in range(len(header))]
    left_out = 0 if features is None else len(features.columns) - len(shown)
    caption = f"The {len(rows)} rows it is least sure of" + (f" ({left_out} more columns are not shown)." if left_out else ".")
    return Table(caption, header, rows, numeric)


def _explained(values: Series, ranks: Tensor) -> float:
    """The adjusted share of the variance of `ranks` between groups of rows: quantiles of numbers, categories of everything else."""
    from pandas import factorize
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    if (is_numeric_dtype(values) and not is_bool_dtype(values)) or is_datetime64_any_dtype(values):
        places = values.rank(pct=True).fillna(2.0)  # missing values are a group of their own
        groups = (places * 10).apply(math.ceil) if values.nunique() > 10 else places
    else:
        groups = values.astype(str)
    codes = torch.tensor(factorize(groups, use_na_sentinel=False)[0])
    sizes = torch.bincount(codes)
    if len(sizes) < 2 or len(ranks) <= len(sizes) or not ranks.var(correction=0) > 0:
        return 0.0
    within = (ranks - (torch.bincount(codes, ranks) / sizes)[codes]).var(correction=0) / ranks.var(correction=0)
    return 1 - within.item() * (len(ranks) - 1) / (len(ranks) - len(sizes))


def _cell(value: object) -> str:
    from pandas import isna

    if isna(value) is True:
        return "missing"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return number(float(value))
    return shorten(value, 32)

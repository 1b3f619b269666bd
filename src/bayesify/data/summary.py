"""Facts about the columns of a table that is read in pieces: exact, whatever a sample of its rows says."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayesify.data.column import CATEGORIES, Column
from bayesify.errors import warn

__all__ = ["TableSummary"]

_MOST_CATEGORIES = 100_000


@dataclasses.dataclass
class _Facts:
    missing: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    counts: Counter[str] | None = dataclasses.field(default_factory=Counter)


class TableSummary:
    """Counts and ranges of columns over pieces of a table, and a checksum of the values.

    Args:
        columns: from `describe_columns` of a sample of the rows.

    Example:
        >>> from bayesify.data import conform, describe_columns
        >>> sample = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
        >>> summary = TableSummary(describe_columns(sample))
        >>> for piece in (sample, pd.DataFrame({"a": [5.0, None], "b": ["z", "x"]})):
        ...     summary.add(conform(piece, summary.columns))
        >>> [(column.maximum, column.missing, column.categories) for column in summary.described()]
        [(5.0, 0.25, ()), (None, 0.0, ('x', 'y', 'z'))]
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns, self.rows, self.checksum = tuple(columns), 0, 0
        self.facts = {column.name: _Facts() for column in columns if column.kind != "dropped"}

    def add(self, table: pd.DataFrame, y: pd.Series | None = None) -> None:
        """Add rows from `conform`; the targets are of the checksum alone."""
        self.rows += len(table)
        for values in (*(table[name] for name in table), *([] if y is None else [y])):
            hashes = pd.util.hash_pandas_object(values, index=False).to_numpy()
            self.checksum = zlib.crc32(hashes.tobytes(), self.checksum)
        for name, facts in self.facts.items():
            values = table[name]
            facts.missing += int(values.isna().sum())
            if pd.api.types.is_float_dtype(values):
                facts.minimum = float(np.fmin(facts.minimum, values.min()))
                facts.maximum = float(np.fmax(facts.maximum, values.max()))
            elif facts.counts is not None:
                facts.counts.update({category: count for category, count in values.value_counts(sort=False).items() if count})
                if len(facts.counts) > _MOST_CATEGORIES:
                    facts.counts = None

    def described(self) -> tuple[Column, ...]:
        """Return the columns with exact ranges, categories and fractions; quantiles are those of the sample.

        Columns with more than 100,000 categories are marked as dropped, with a warning.
        """
        return tuple(column if column.kind == "dropped" else self._described(column) for column in self.columns)

    def _described(self, column: Column) -> Column:
        facts = self.facts[column.name]
        missing = round(facts.missing / max(1, self.rows), 6)
        if column.kind != "category":
            return dataclasses.replace(column, minimum=facts.minimum, maximum=facts.maximum, missing=missing, rows=self.rows)
        if facts.counts is None:
            reason = f"it has more than {_MOST_CATEGORIES:,} categories"
            warn(f"column {column.name!r} is not used: {reason}")
            return Column(name=column.name, kind="dropped", missing=missing, reason=reason)
        total = facts.counts.total()
        most = facts.counts.most_common(CATEGORIES)
        shares = tuple(round(count / total, 6) for _, count in most)
        return dataclasses.replace(
            column, categories=tuple(name for name, _ in most), shares=shares, missing=missing, rows=self.rows
        )

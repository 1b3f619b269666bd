"""Rows of a table that is read in pieces."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa

__all__ = ["Piece", "Rows", "Sample"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Consecutive rows with a known target.

    Attributes:
        positions: of the rows in the table.
        X, y: inputs and target.
        source: file and rows, for messages.
    """

    positions: np.ndarray
    X: pd.DataFrame
    y: pd.Series
    source: str

    def __getitem__(self, rows: np.ndarray | slice) -> Piece:
        return Piece(self.positions[rows], self.X.iloc[rows], self.y.iloc[rows], self.source)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the first pass over a table keeps.

    Attributes:
        train: a random sample of the training rows, with two rows of every class.
        test: the rows held out for evaluation.
        written: decimal separator of a target that is text, from `target_format`.
        task, reason: "regression" or "classification", and why it was inferred, where the target leaves a choice.
    """

    train: Piece
    test: Piece
    written: str
    task: str
    reason: str


class Rows:
    """Rows that a pass keeps."""

    def __init__(self) -> None:
        self.positions: list[np.ndarray] = []
        self.tables: list[pa.Table] = []

    def add(self, positions: np.ndarray, batch: pa.RecordBatch, mask: np.ndarray) -> None:
        """Keep the rows of a batch that the mask selects."""
        if mask.any():
            self.positions.append(positions[mask])
            self.tables.append(pa.Table.from_batches([batch]).filter(pa.array(mask)))

    def table(self, *others: Rows) -> tuple[np.ndarray, pd.DataFrame]:
        """Return positions and rows, also those of others, in the order of the positions."""
        parts = (self, *others)
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *(x for part in parts for x in part.positions)])
        table = pa.concat_tables([table for part in parts for table in part.tables], promote_options="permissive")
        order = positions.argsort(kind="stable")
        return positions[order], table.take(order).to_pandas().reset_index(drop=True)

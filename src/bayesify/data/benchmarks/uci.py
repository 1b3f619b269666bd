"""The UCI sets of the literature, with the standard splits of Hernández-Lobato & Adams, "Probabilistic Backpropagation for Scalable
Learning of Bayesian Neural Networks" (2015), as published by Gal & Ghahramani with "Dropout as a Bayesian Approximation" (2016).
"""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path

import numpy as np

from bayesify.core.checks import check_choice, check_integer
from bayesify.data.benchmarks.store import damaged, data_dirs, find, obtain
from bayesify.data.benchmarks.uci_sources import SETS

__all__ = ["UCI", "load_uci"]


@dataclasses.dataclass(frozen=True, eq=False)
class UCI:
    """A table with its standard splits; not normalised: do that on the training rows of each split.

    Attributes:
        name: of the set.
        X: inputs (N, D), float64.
        y: targets (N,), float64; of a classification set labels 0 ... K-1, int64.
        classes: the names of the K labels; None for regression.
        splits: how many standard splits the literature uses: 20 (5 for protein, none for classification).

    Example:
        >>> toy = UCI("toy", np.zeros((10, 2)), np.zeros(10), None, 20)
        >>> train, test = toy.split(0)
        >>> train.tolist(), test.tolist()
        ([2, 9, 6, 4, 0, 3, 1, 7, 8], [5])
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...] | None
    splits: int

    def split(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of the training and the test part of split i, int64.

        Of the i-th successive draw (from 0) of `RandomState(1).permutation(N)`, the first round(0.9 N) rows are for training: the
        standard splits, where i < `splits`, and any number of further ones drawn in the same way.

        Raises:
            ValueError: i is no whole number, or negative.
        """
        check_integer("i", i, least=0)
        random = np.random.RandomState(1)
        rows = len(self.y)
        for _ in range(i):
            random.permutation(rows)
        order = random.permutation(rows).astype(np.int64)
        train = round(0.9 * rows)
        return order[:train], order[train:]


def load_uci(name: str, data_dir: str | os.PathLike[str] | None = None) -> UCI:
    """Load a UCI set: every value and the order of the rows are verified, the splits would be others without that.

    What no folder has is downloaded: text files at fixed commits or from UCI, or else OpenML where it keeps the same rows.

    Of eeg, rows 898, 10386 and 11509 of the 14980 are left out: they hold values up to 715,897 where 4,300 is usual, which ruins
    any standardisation (row 13179, with 7,805, stays). Its rows are a time series: random splits put neighbours of training rows
    into the test part. Of letter, the first 16,000 rows are by custom for training. Column 11 of boston ("B") is ethically
    contested: use the set for comparison with published numbers only. Columns 8 and 11 of naval are constant. (All from 0.)

    Args:
        name: boston, concrete, kin8nm, naval, power-plant, protein, yacht (regression), letter or eeg (classification).
        data_dir: the data folder; else `$BAYESIFY_DATA`, else `../shared/data`. A folder of the user's cache comes after these.

    Raises:
        ValueError: an unknown name, or a damaged file.
        FileNotFoundError: the set is not here and cannot be downloaded; says how to get it.
        NotADirectoryError: the folder that was named does not exist.

    Example, where the data are:
        data = load_uci("boston")
        train, test = data.split(0)
        X, y = data.X[train], data.y[train]
    """
    check_choice("name", name, tuple(SETS))
    source = SETS[name]
    dirs = data_dirs(data_dir)
    path = find(source.path, dirs) or obtain(source.path, source.writers(), dirs)
    try:
        X, y = _read(path)
        source.verify(X, y)
    except ValueError as error:
        raise damaged(path, error) from error
    kept = np.setdiff1d(np.arange(len(y)), source.absurd)
    target = y if source.classes is None else y.astype(np.int64)
    return UCI(name, X[kept], target[kept], source.classes, source.splits)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = io.BytesIO(path.read_bytes())
    try:
        with np.load(content) as arrays:
            return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    except Exception as error:  # there is no end to the ways in which a damaged file upsets zipfile, zlib, tokenize and numpy
        raise ValueError(f"it cannot be read ({error})") from error

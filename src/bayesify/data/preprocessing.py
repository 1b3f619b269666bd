r"""From columns to the inputs of a network: scikit-learn's transformers, and one of our own for absurd values.

Numbers, booleans and datetimes: `SoftClip`, then mean 0 and standard deviation 1, then the median in place of missing values, with
an indicator of its own for each column that had some. Categories: one indicator per category; a missing value is a category like
the others, rare ones (below 0.5 % of the rows, or not among the 50 most frequent) share one, and so do those never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from bayesify.core.checks import check_positive
from bayesify.data.columns import Column

try:
    import numpy as np
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError('preprocessing needs scikit-learn: pip install "bayesify[tables]"') from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

__all__ = ["SoftClip", "preprocessing"]


class SoftClip(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""Pull values far outside the bulk of a column towards it; order is kept, everything else is left exactly as it is.

    With the quartiles $q_1, q_3$ and $r = q_3 - q_1$, values beyond the fence $b = q_3 + k r$ become

    $$b + r \log\Bigl(1 + \frac{x - b}{r}\Bigr)$$

    and likewise below $q_1 - k r$: one absurd value no longer ruins the standardisation of its column. Normal tails are never
    touched: for k = 5 the fence is 7.4 standard deviations out. Columns with r = 0 stay as they are, and so do missing values.

    Args:
        k: distance of the fence from the quartiles, in units of r.

    Example:
        >>> SoftClip().fit_transform([[0.0], [1.0], [2.0], [3.0], [4.0], [1e6]]).round(1).ravel().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 48.5]
    """

    def __init__(self, k: float = 5.0) -> None:
        self.k = k

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn the fences of each column: X (N, D)."""
        check_positive("k", self.k)
        values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
        low, high = np.nanpercentile(values, [25, 75], axis=0)
        self.scale_ = high - low
        self.lower_ = low - self.k * self.scale_
        self.upper_ = high + self.k * self.scale_
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """X (N, D) with the far values pulled in."""
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False, copy=True)
        scale = np.where(self.scale_ > 0, self.scale_, 1.0)
        above, below = (np.maximum(beyond, 0) / scale for beyond in (values - self.upper_, self.lower_ - values))
        far = self.scale_ > 0
        values = np.where(far & (above > 0), self.upper_ + scale * np.log1p(above), values)
        return np.where(far & (below > 0), self.lower_ - scale * np.log1p(below), values)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def preprocessing(columns: Sequence[Column]) -> ColumnTransformer:
    """The transformer, not yet fitted, for tables as `conform` returns them.

    Args:
        columns: what `describe_columns` said of the training table.

    Example:
        >>> import pandas as pd
        >>> from bayesify.data import conform, describe_columns
        >>> X = pd.DataFrame({"a": [1.0, 3.0], "b": ["x", "y"]})
        >>> columns = describe_columns(X)
        >>> preprocessing(columns).fit_transform(conform(X, columns)).tolist()
        [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    numeric = [column.name for column in columns if column.kind in ("number", "boolean", "datetime")]
    categories = [column.name for column in columns if column.kind == "category"]
    numbers: list[tuple[str, Any]] = [
        ("clip", SoftClip()),
        ("scale", StandardScaler()),
        ("impute", SimpleImputer(strategy="median", add_indicator=True)),
    ]
    encode = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=0.005, max_categories=50, sparse_output=False)
    texts: list[tuple[str, Any]] = [("impute", SimpleImputer(strategy="constant", fill_value="(missing)")), ("encode", encode)]
    return ColumnTransformer([("numbers", Pipeline(numbers), numeric), ("categories", Pipeline(texts), categories)])

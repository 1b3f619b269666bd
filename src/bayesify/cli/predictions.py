"""Tables of predictions, and notes about the rows they are for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayesify.cli.terminal import UsageError
from bayesify.data import drift
from bayesify.errors import warn
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.formatting import listing
from bayesify.predictive import Predictive

__all__ = ["check_kept", "kept_columns", "note_differences", "prediction_table", "rounded"]

_DIGITS = 5  # significant ones of std
_PREDICTED = ("prediction", "mean", "std", "lower", "upper", "entropy", "mutual_information", "label_set", "warning")


def prediction_table(
    estimator: BayesianEstimator, features: pd.DataFrame, predictive: Predictive, index: pd.Index, level: float
) -> pd.DataFrame:
    """Tabulate predictions, one line per row.

    Regression: mean, std (noise included), lower and upper bound of `predict_interval`. Classification: prediction, p_<class> for
    each class, entropy and mutual_information in nats, and label_set, the labels of `predict_set` separated by " | ", for a model
    with calibration rows.
    """
    if isinstance(estimator, BayesianRegressor):
        calibrated = estimator.conformal_ is not None
        lower, upper = estimator.predict_interval(features, level).T if calibrated else predictive.interval(level)
        moments = {"mean": predictive.mean.numpy(), "std": predictive.variance.sqrt().numpy()}
        return pd.DataFrame({**moments, "lower": np.asarray(lower), "upper": np.asarray(upper)}, index=index)
    assert isinstance(estimator, BayesianClassifier)
    probs = predictive.probs.numpy()
    table = {"prediction": estimator.classes_[predictive.prediction.numpy()]}
    table.update({f"p_{label}": probs[:, k] for k, label in enumerate(estimator.classes_)})
    table.update({"entropy": predictive.entropy.numpy(), "mutual_information": predictive.mutual_information.numpy()})
    if estimator.conformal_ is not None:
        sets = estimator.predict_set(features, level)
        table["label_set"] = np.array([" | ".join(map(str, estimator.classes_[row])) for row in sets], dtype=object)
    return pd.DataFrame(table, index=index)


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Round predictions for text: std to 5 significant digits, mean and bounds to as many decimals, others to 6 digits.

    Example:
        >>> rounded(pd.DataFrame({"mean": [1234.56789], "std": [1.23456789]})).to_dict("list")
        {'mean': [1234.5679], 'std': [1.2346]}
    """
    result = table.copy()
    names = [name for name in table.columns if pd.api.types.is_float_dtype(table[name])]
    if "std" not in table:
        for name in names:
            result[name] = [float(f"{value:.6g}") for value in table[name]]
        return result
    std = table["std"].to_numpy(float)
    usual = (std > 1e-9) & (std < 1e15)
    places = np.where(usual, _DIGITS - 1 - np.floor(np.log10(np.where(usual, std, 1.0))), 0.0)
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)  # one of them is 1, so that both are exact
    for name in names:
        values = table[name].to_numpy(float)
        result[name] = np.where(usual, np.round(values * up / down) * down / up, values)
    return result


def kept_columns(table: pd.DataFrame, keep: Sequence[str]) -> pd.DataFrame:
    """Select the columns of the input that are copied to the predictions; arguments and errors are those of `check_kept`."""
    return table[check_kept(list(table.columns), keep)]


def check_kept(columns: Sequence[str], keep: Sequence[str]) -> list[str]:
    """Return the names of the columns that are copied to the predictions.

    Args:
        columns: names of those of the input.
        keep: names, or several of them separated by commas.

    Raises:
        UsageError: no such column, or one with the name of a prediction.
    """
    names = [name for part in keep for name in ([part] if part in columns else part.split(","))]
    if absent := [name for name in names if name not in columns]:
        known = listing(map(repr, map(str, columns)))
        raise UsageError(f"--keep {absent[0]}: the table has no such column; it has {known}")
    if taken := [name for name in names if name in _PREDICTED or name.startswith("p_")]:
        raise UsageError(f"--keep {taken[0]}: predictions have, or can have, a column of this name; rename it in the table")
    return list(dict.fromkeys(names))


def note_differences(estimator: BayesianEstimator, features: pd.DataFrame) -> pd.Series:
    """Return the warnings by row, with one note about them, and one about a table that is unlike the training table."""
    warnings = estimator.unusual(features)
    if rows := int((warnings != "").sum()):
        first = int((warnings != "").to_numpy().argmax())
        warn(
            f"{rows:,} of {len(features):,} rows have values unlike those of training, such as row {features.index[first]} "
            f"({warnings.iloc[first]}); beyond the range of training, uncertainty may be too small"
        )
    if found := drift(features, estimator.columns_):
        columns = listing((f"{name} ({text})" for name, text in found.items()), most=3)
        warn(f"the table is unlike the training rows in {columns}; the model may be less accurate than its evaluation says")
    return warnings

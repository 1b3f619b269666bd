"""Conformal prediction: intervals and label sets whose coverage is guaranteed, from any predictive distributions.

Held-out calibration rows, which the model was not trained on, correct the level of its intervals or sets. A new row is covered
with probability `level` or slightly more, however wrong the model is, if it and the calibration rows are exchangeable, such as
independent draws from one population. The probability is over new rows and calibration rows together: it is no statement about
one row or one kind of row, and does not hold after the data change.

The classes take the predictive distributions of one model (split conformal prediction) or of one model per fold
(cross-conformal prediction). Shapes: n calibration rows in all folds, N new rows, K classes, D outputs.
"""

from bayesify.conformal.intervals import ConformalIntervals
from bayesify.conformal.levels import conformal_rank, cross_coverage, least_rows
from bayesify.conformal.sets import ConformalSets

__all__ = ["ConformalIntervals", "ConformalSets", "conformal_rank", "cross_coverage", "least_rows"]

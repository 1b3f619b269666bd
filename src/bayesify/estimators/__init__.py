"""scikit-learn estimators: tables in, predictive distributions in the original units out."""

from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.classifier import BayesianClassifier
from bayesify.estimators.cross_validation import CrossValidation, cross_validate, fit_together
from bayesify.estimators.regressor import BayesianRegressor

__all__ = [
    "BayesianClassifier",
    "BayesianEstimator",
    "BayesianRegressor",
    "CrossValidation",
    "cross_validate",
    "fit_together",
]

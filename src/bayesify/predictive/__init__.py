"""Predictive distributions: equal-weight mixtures of S draws for each of N rows.

Aleatoric + epistemic uncertainty is the `variance` in regression, in squared units of the target, and the `entropy` in
classification, in nats.
"""

from bayesify.predictive.base import NumericPredictive, Predictive
from bayesify.predictive.counts import CountPredictive
from bayesify.predictive.discrete import BernoulliPredictive, CategoricalPredictive, DirichletPredictive
from bayesify.predictive.gaussian import GaussianPredictive
from bayesify.predictive.student import StudentTPredictive

__all__ = [
    "BernoulliPredictive",
    "CategoricalPredictive",
    "CountPredictive",
    "DirichletPredictive",
    "GaussianPredictive",
    "NumericPredictive",
    "Predictive",
    "StudentTPredictive",
]

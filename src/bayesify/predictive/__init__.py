"""Predictive distributions: equal-weight mixtures of S draws for each of N rows.

Aleatoric + epistemic uncertainty is the `variance` in regression, in squared units of the target, and the `entropy` in
classification, in nats.
"""

from bayesify.predictive.base import NumericPredictive, Predictive
from bayesify.predictive.counts import CountPredictive
from bayesify.predictive.discrete import BernoulliPredictive, CategoricalPredictive
from bayesify.predictive.gaussian import GaussianPredictive

__all__ = [
    "BernoulliPredictive",
    "CategoricalPredictive",
    "CountPredictive",
    "GaussianPredictive",
    "NumericPredictive",
    "Predictive",
]

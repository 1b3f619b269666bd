"""Predictive distributions: the equal-weight mixture of S draws for each of N rows, and what can be asked of it.

`variance` of a number splits into aleatoric + epistemic in squared units of the target, `entropy` of a class into aleatoric +
epistemic in nats.
"""

from bayesify.predictive.base import Predictive
from bayesify.predictive.discrete import BernoulliPredictive, CategoricalPredictive
from bayesify.predictive.gaussian import GaussianPredictive

__all__ = ["BernoulliPredictive", "CategoricalPredictive", "GaussianPredictive", "Predictive"]

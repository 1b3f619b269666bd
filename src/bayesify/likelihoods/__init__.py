"""Likelihoods: how a network's outputs become a probability of the targets, in nats."""

from bayesify.likelihoods.base import Likelihood
from bayesify.likelihoods.discrete import Bernoulli, Categorical
from bayesify.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian

__all__ = ["Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian", "Likelihood"]

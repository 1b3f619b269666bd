"""Likelihoods: distributions of the targets given a network's outputs. Log probabilities are in nats."""

from bayesify.likelihoods.base import Likelihood
from bayesify.likelihoods.counts import NegativeBinomial, Poisson
from bayesify.likelihoods.discrete import Bernoulli, Categorical
from bayesify.likelihoods.evidential import EvidentialCategorical, EvidentialGaussian
from bayesify.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bayesify.likelihoods.mixture import GaussianMixture
from bayesify.likelihoods.ordinal import Ordinal

__all__ = [
    "Bernoulli",
    "Categorical",
    "EvidentialCategorical",
    "EvidentialGaussian",
    "Gaussian",
    "GaussianMixture",
    "HeteroscedasticGaussian",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
]

"""bayesify makes any PyTorch network say how sure it is."""

from bayesify import functional
from bayesify.core.convert import bayesify, unbayesify
from bayesify.core.folded import Folded
from bayesify.core.model import Bayesian, Draws, LayerReport, NormalOutputs
from bayesify.core.posterior import Method, Posterior
from bayesify.core.sites import Site
from bayesify.core.spectrum import spectrum
from bayesify.core.summary import Summary, summary
from bayesify.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from bayesify.methods import (
    ECMP,
    EMP,
    VIFO,
    VSD,
    WHVI,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MCDropout,
    MeanField,
    TensorFactorised,
    VariationalDropout,
)
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup, elbo
from bayesify.predict import predict
from bayesify.predictive import Predictive
from bayesify.train import History, fit

__version__ = "0.1.0"

__all__ = [
    "ECMP",
    "EMP",
    "VIFO",
    "VSD",
    "WHVI",
    "Bayesian",
    "Bernoulli",
    "Categorical",
    "Constant",
    "Cyclical",
    "DeepEnsemble",
    "Deterministic",
    "Draws",
    "DropConnect",
    "Folded",
    "Gaussian",
    "HeteroscedasticGaussian",
    "History",
    "KLSchedule",
    "LayerReport",
    "Likelihood",
    "LinearWarmup",
    "MCDropout",
    "MeanField",
    "Method",
    "NormalOutputs",
    "Posterior",
    "Predictive",
    "Site",
    "Summary",
    "TensorFactorised",
    "VariationalDropout",
    "bayesify",
    "elbo",
    "fit",
    "functional",
    "predict",
    "spectrum",
    "summary",
    "unbayesify",
]

"""bayesify makes any PyTorch network say how sure it is."""

from bayesify import functional
from bayesify.core.convert import bayesify, unbayesify
from bayesify.core.model import Bayesian, Draws, Folded, LayerReport
from bayesify.core.posterior import Method, Posterior
from bayesify.core.sites import Site
from bayesify.core.summary import Summary, summary
from bayesify.methods import Deterministic, MCDropout, MeanField, VariationalDropout
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup, elbo

__version__ = "0.1.0"

__all__ = [
    "Bayesian",
    "Constant",
    "Cyclical",
    "Deterministic",
    "Draws",
    "Folded",
    "KLSchedule",
    "LayerReport",
    "LinearWarmup",
    "MCDropout",
    "MeanField",
    "Method",
    "Posterior",
    "Site",
    "Summary",
    "VariationalDropout",
    "bayesify",
    "elbo",
    "functional",
    "summary",
    "unbayesify",
]

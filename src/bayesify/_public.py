"""The public names of `bayesify`, which serves them from here on first use."""

from bayesify import functional, likelihoods, methods
from bayesify.core.collection import CollectedPosterior
from bayesify.core.completion import CompletedPosterior
from bayesify.core.convert import bayesify, unbayesify
from bayesify.core.folded import Folded
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layer_report import LayerReport
from bayesify.core.layers import register_layer
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.natural import NaturalGradient, NaturalPosterior, NaturalStep
from bayesify.core.outputs import Draws, NormalOutputs
from bayesify.core.updating import update_prior
from bayesify.diagnostics import Summary, spectrum, summary
from bayesify.errors import (
    BayesifyError,
    BayesifyWarning,
    CheckpointError,
    ConfigurationError,
    ContractError,
    DataError,
    DivergenceError,
    MissingDependencyError,
    ModelFileError,
    NothingRandomError,
    PassError,
    StaleFunctionError,
)
from bayesify.likelihoods import *  # noqa: F403
from bayesify.methods import *  # noqa: F403
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup, elbo
from bayesify.prediction import TokenScores, predict, score_tokens
from bayesify.predictive import Predictive
from bayesify.train import History, fit

__all__ = [
    "Bayesian",
    "BayesianLayer",
    "BayesifyError",
    "BayesifyWarning",
    "CheckpointError",
    "CollectedPosterior",
    "CompletedPosterior",
    "ConfigurationError",
    "Constant",
    "ContractError",
    "Cyclical",
    "DataError",
    "DivergenceError",
    "Draws",
    "Folded",
    "ForwardPass",
    "History",
    "KLSchedule",
    "LayerReport",
    "LinearWarmup",
    "Method",
    "MissingDependencyError",
    "ModelFileError",
    "NaturalGradient",
    "NaturalPosterior",
    "NaturalStep",
    "NormalOutputs",
    "NothingRandomError",
    "PassError",
    "Posterior",
    "Predictive",
    "StaleFunctionError",
    "Summary",
    "TokenScores",
    "bayesify",
    "elbo",
    "fit",
    "functional",
    "predict",
    "register_layer",
    "score_tokens",
    "spectrum",
    "summary",
    "unbayesify",
    "update_prior",
]
__all__ += likelihoods.__all__
__all__ += methods.__all__

"""The public names of `bayesify`, which serves them from here on first use."""

from bayesify import functional
from bayesify.core.convert import bayesify, unbayesify
from bayesify.core.folded import Folded
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import register_layer
from bayesify.core.method import Method
from bayesify.core.model import Bayesian, LayerReport
from bayesify.core.outputs import Draws, NormalOutputs
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
from bayesify.likelihoods import (
    Bernoulli,
    Categorical,
    EvidentialCategorical,
    EvidentialGaussian,
    Gaussian,
    GaussianMixture,
    HeteroscedasticGaussian,
    Likelihood,
    NegativeBinomial,
    Ordinal,
    Poisson,
)
from bayesify.methods import (
    ECMP,
    EMP,
    VIFO,
    VSD,
    WHVI,
    BLoB,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MCDropout,
    MeanField,
    ScalaBL,
    TensorFactorized,
    VariationalDropout,
)
from bayesify.objectives import Constant, Cyclical, KLSchedule, LinearWarmup, elbo
from bayesify.prediction import TokenScores, predict, score_tokens
from bayesify.predictive import Predictive
from bayesify.train import History, fit

__all__ = [
    "ECMP",
    "EMP",
    "VIFO",
    "VSD",
    "WHVI",
    "BLoB",
    "Bayesian",
    "BayesianLayer",
    "BayesifyError",
    "BayesifyWarning",
    "Bernoulli",
    "Categorical",
    "CheckpointError",
    "ConfigurationError",
    "Constant",
    "ContractError",
    "Cyclical",
    "DataError",
    "DeepEnsemble",
    "Deterministic",
    "DivergenceError",
    "Draws",
    "DropConnect",
    "EvidentialCategorical",
    "EvidentialGaussian",
    "Folded",
    "ForwardPass",
    "Gaussian",
    "GaussianMixture",
    "HeteroscedasticGaussian",
    "History",
    "KLSchedule",
    "LayerReport",
    "Likelihood",
    "LinearWarmup",
    "MCDropout",
    "MeanField",
    "Method",
    "MissingDependencyError",
    "ModelFileError",
    "NegativeBinomial",
    "NormalOutputs",
    "NothingRandomError",
    "Ordinal",
    "PassError",
    "Poisson",
    "Posterior",
    "Predictive",
    "ScalaBL",
    "StaleFunctionError",
    "Summary",
    "TensorFactorized",
    "TokenScores",
    "VariationalDropout",
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
]

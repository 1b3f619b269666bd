"""Every method of the registry, in the settings that are checked, with independent references."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Independent, MixtureSameFamily, Normal

from bayesify import (
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
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.testing import References


def _flat(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.flatten(1) if bias is None else torch.cat([weight.flatten(1), bias.flatten(1)], 1)


def _mean_field_moments(layer: BayesianLayer) -> tuple[Tensor, Tensor]:
    weight, bias = layer.posterior.mean(layer)
    stds = [parameter.exp() for parameter in layer.posterior.parameters()]
    return _flat(weight[None], None if bias is None else bias[None])[0], torch.cat([std.flatten() for std in stds])


def _shrink(layer: BayesianLayer) -> None:
    for name, parameter in layer.posterior.named_parameters():
        if name.endswith(("log_std", "log_alpha")):
            torch.nn.init.constant_(parameter, -40.0)


def _silence(layer: BayesianLayer) -> None:
    for parameter in layer.posterior.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(layer.posterior.get_parameter("bias"), -40.0)


def _to_normal_prior(prior_std: float) -> Callable[[BayesianLayer], None]:
    def to_prior(layer: BayesianLayer) -> None:
        for parameter in (layer.weight, layer.bias):
            if parameter is not None:
                torch.nn.init.zeros_(parameter)
        for parameter in layer.posterior.parameters():
            torch.nn.init.constant_(parameter, torch.tensor(prior_std).double().log().item())

    return to_prior


def _log_ratio(prior: torch.distributions.Distribution) -> Callable[[BayesianLayer, Tensor, Tensor | None], Tensor]:
    def log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
        mean, std = _mean_field_moments(layer)
        w = _flat(weight, bias)
        return Independent(Normal(mean, std), 1).log_prob(w) - prior.log_prob(w).sum(-1)

    return log_ratio


_MIXTURE = MixtureSameFamily(
    torch.distributions.Categorical(torch.tensor([0.25, 0.75], dtype=torch.float64)),
    Normal(torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 0.1], dtype=torch.float64)),
)
_MEAN_FIELD = References(
    collapse=_shrink,
    to_prior=_to_normal_prior(0.7),
    log_ratio=_log_ratio(Normal(torch.zeros((), dtype=torch.float64), 0.7)),
)
_SHRINKING = References(collapse=_shrink)


def _to_standard_prior(layer: BayesianLayer) -> None:
    """Where all that is random has a standard normal prior."""
    for name, parameter in layer.named_parameters():
        if name.endswith(("g.mean", "core_mean", "log_std", "tril", "bias")):
            torch.nn.init.zeros_(parameter)


_STANDARD = References(to_prior=_to_standard_prior)


def _to_zero(layer: BayesianLayer) -> None:
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)


def _blob_to_prior(layer: BayesianLayer) -> None:
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.constant_(layer.posterior.get_parameter("g"), 0.7**0.5)


def _blob_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    mean, std = layer.weight.flatten(), layer.posterior.get_parameter("g").flatten() ** 2
    w = weight.flatten(1)
    return (Normal(mean, std).log_prob(w) - Normal(torch.zeros_like(mean), 0.7).log_prob(w)).sum(-1)


_BLOB = References(
    collapse=lambda layer: torch.nn.init.constant_(layer.posterior.get_parameter("g"), 1e-10),
    to_prior=_blob_to_prior,
    log_ratio=_blob_log_ratio,
)


def _scalabl_to_prior(layer: BayesianLayer) -> None:
    torch.nn.init.constant_(layer.posterior.get_parameter("scale_mean"), 0.4)
    torch.nn.init.constant_(layer.posterior.get_parameter("scale_log_std"), torch.tensor(0.7).double().log().item())


def _scalabl_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    mean, std = (layer.posterior.get_parameter(f"scale_{name}") for name in ("mean", "log_std"))
    s = weight.flatten(2).mean(-1) / layer.weight.flatten(1).mean(-1)  # the scales, from the drawn weights
    return (Normal(mean, std.exp()).log_prob(s) - Normal(torch.full_like(mean, 0.4), 0.7).log_prob(s)).sum(-1)


_SCALABL = References(collapse=_shrink, to_prior=_scalabl_to_prior, log_ratio=_scalabl_log_ratio)

_MIXTURE_OF_POINTS = References(collapse=lambda layer: None, to_prior=_to_zero)

METHODS: list[tuple[Method, References]] = [
    (MeanField(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(noise="shared", prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(prior_mean="pretrained"), _SHRINKING),
    (
        MeanField(prior="scale-mixture", mixture_weight=0.25, mixture_std=0.1, initial_std=0.5),
        References(collapse=_shrink, log_ratio=_log_ratio(_MIXTURE), noisy_kl=True),
    ),
    (MeanField(prior="mean", prior_std=0.3**0.5), _SHRINKING),
    (MeanField(prior="mean-variance"), _SHRINKING),
    (MeanField(prior="empirical-bayes", noise="shared"), _SHRINKING),
    (VariationalDropout(p=0.3), _SHRINKING),
    (VariationalDropout(alpha_per="layer", max_alpha=None), _SHRINKING),
    (VariationalDropout(noise="weight", alpha_per="layer"), _SHRINKING),
    (VariationalDropout(noise="weight", p=0.3, prior_std=0.5), _SHRINKING),
    (VariationalDropout(noise="weight", alpha_per="weight", max_alpha=None), _SHRINKING),
    (VariationalDropout(learn=False), References()),
    (VSD(p=0.3), _SHRINKING),
    (VSD(transforms=1, conv_noise="input", p=0.3, prior_std=0.5), _SHRINKING),
    (VSD(transforms=3, rank=None, hierarchical=True), _SHRINKING),
    (VSD(transforms=1, hierarchical=True, hyperprior="gamma", conv_noise="input"), _SHRINKING),
    (MCDropout(p=0.3, prior_std=0.5), References()),
    (MCDropout(p=0.0), References(collapse=lambda layer: None)),
    (DropConnect(p=0.3, prior_std=0.5), References()),
    (DropConnect(p=0.0), References(collapse=lambda layer: None)),
    (EMP(where="*", spread=0.0), _MIXTURE_OF_POINTS),
    (EMP(where="*", components=3, spread=0.5, decay="plain"), References(to_prior=_to_zero)),
    (EMP(where="*", components=2, spread=0.5, probabilities=(0.8, 0.2), prior_std=None), References()),
    (EMP(where="*", components=3, spread=0.5, probabilities=(0.5, 0.3, 0.2), learn_probabilities=True), References()),
    (EMP(components=1, where="*", bias_prior_std=1.8), _MIXTURE_OF_POINTS),
    (ECMP(where="*", spread=0.0), _MIXTURE_OF_POINTS),
    (ECMP(where="*", components=2, spread=0.5, bias_prior_std=0.7), References(to_prior=_to_zero)),
    (ECMP(where="*", components=3, spread=0.5, learn_probabilities=True), References(to_prior=_to_zero)),
    (Deterministic(prior_std=0.5), References(collapse=lambda layer: None)),
    (Deterministic(), References(collapse=lambda layer: None)),
    (WHVI(initial_std=0.5), _STANDARD),
    (WHVI(covariance="full", blocks="tied", vectors="stack"), _STANDARD),
    (WHVI(flows=2, noise="shared"), References(noisy_kl=True)),
    (WHVI(structure="S1HGHS2H", scales="variational"), References()),
    (WHVI(initial="pretrained"), _STANDARD),
    (TensorFactorized(initial_std=0.5), _STANDARD),
    (BLoB(where="*", prior_std=0.7, epsilon=0.9), _BLOB),
    (ScalaBL(where="*", prior_mean=0.4, prior_std=0.7, initial_std=0.5), _SCALABL),
    (VIFO(), References(collapse=_silence)),
]
# What their roots add does not depend on the type of the layer.
ROOTS: list[tuple[str, Method, References]] = [
    ("VIFO naive", VIFO(regularizer="naive", link="exp"), References(collapse=_silence)),
    ("VIFO in two networks", VIFO(regularizer="mean-variance", separate_std=True), References()),
    ("VIFO for the data set", VIFO(regularizer="empirical-bayes-all"), References(collapse=_silence)),
    ("ensemble", DeepEnsemble(members=2), References()),
    ("ensemble of mean field", DeepEnsemble(members=2, base=MeanField()), References()),
    ("ensemble of VIFO", DeepEnsemble(members=2, base=VIFO(regularizer="naive")), References()),
]


def identify(method: Method) -> str:
    """The fields that differ from the defaults."""
    default = type(method)()
    fields = [
        f"{f.name}={getattr(method, f.name)}"
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != getattr(default, f.name)
    ]
    return f"{type(method).__name__}({', '.join(fields)})"

"""Every method in the registry, on every layer type, through the whole contract."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor
from torch.distributions import Independent, MixtureSameFamily, Normal

from bayesify import (
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
    Method,
    Site,
    TensorFactorised,
    VariationalDropout,
)
from bayesify.testing import LAYERS, References, check_method


def _flat(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.flatten(1) if bias is None else torch.cat([weight.flatten(1), bias.flatten(1)], 1)


def _mean_field_moments(site: Site) -> tuple[Tensor, Tensor]:
    weight, bias = site.posterior.mean(site)
    stds = [p.exp() for p in (site.posterior.weight_log_std, site.posterior.bias_log_std) if p is not None]
    return _flat(weight[None], None if bias is None else bias[None])[0], torch.cat([std.flatten() for std in stds])


def _shrink(site: Site) -> None:
    for name, parameter in site.posterior.named_parameters():
        if name.endswith(("log_std", "log_alpha")):
            torch.nn.init.constant_(parameter, -40.0)


def _silence(site: Site) -> None:
    for parameter in site.posterior.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(site.posterior.get_parameter("bias"), -40.0)


def _to_normal_prior(prior_std: float) -> Callable[[Site], None]:
    def to_prior(site: Site) -> None:
        for parameter in (site.weight, site.bias):
            if parameter is not None:
                torch.nn.init.zeros_(parameter)
        for parameter in site.posterior.parameters():
            torch.nn.init.constant_(parameter, torch.tensor(prior_std).double().log().item())

    return to_prior


def _log_ratio(prior: torch.distributions.Distribution) -> Callable[[Site, Tensor, Tensor | None], Tensor]:
    def log_ratio(site: Site, weight: Tensor, bias: Tensor | None) -> Tensor:
        mean, std = _mean_field_moments(site)
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


def _to_standard_prior(site: Site) -> None:
    """Where all that is random has a standard normal prior."""
    for name, parameter in site.named_parameters():
        if name.endswith(("g.mean", "core_mean", "log_std", "tril", "bias")):
            torch.nn.init.zeros_(parameter)


_STANDARD = References(to_prior=_to_standard_prior)


def _to_zero(site: Site) -> None:
    for parameter in site.parameters():
        torch.nn.init.zeros_(parameter)


_MIXTURE_OF_POINTS = References(collapse=lambda site: None, to_prior=_to_zero)

METHODS: list[tuple[Method, References]] = [
    (MeanField(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(noise="shared", prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(prior_mean="pretrained"), _SHRINKING),
    (
        MeanField(prior="scale-mixture", mixture_weight=0.25, mixture_std=0.1, initial_std=0.5),
        References(collapse=_shrink, log_ratio=_log_ratio(_MIXTURE), noisy_kl=True),
    ),
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
    (MCDropout(p=0.0), References(collapse=lambda site: None)),
    (DropConnect(p=0.3, prior_std=0.5), References()),
    (DropConnect(p=0.0), References(collapse=lambda site: None)),
    (EMP(where="*", spread=0.0), _MIXTURE_OF_POINTS),
    (EMP(where="*", components=3, spread=0.5, decay="plain"), References(to_prior=_to_zero)),
    (EMP(where="*", components=2, spread=0.5, probabilities=(0.8, 0.2), tau=0.0), References()),
    (EMP(where="*", components=3, spread=0.5, probabilities=(0.5, 0.3, 0.2), learn_probabilities=True), References()),
    (EMP(components=1, where="*", rho=0.3), _MIXTURE_OF_POINTS),
    (ECMP(where="*", spread=0.0), _MIXTURE_OF_POINTS),
    (ECMP(where="*", components=2, spread=0.5, rho=2.0), References(to_prior=_to_zero)),
    (ECMP(where="*", components=3, spread=0.5, learn_probabilities=True), References(to_prior=_to_zero)),
    (Deterministic(prior_std=0.5), References(collapse=lambda site: None)),
    (Deterministic(), References(collapse=lambda site: None)),
    (WHVI(initial_std=0.5), _STANDARD),
    (WHVI(covariance="full", blocks="shared", vectors="stack"), _STANDARD),
    (WHVI(flows=2, noise="shared"), References(noisy_kl=True)),
    (WHVI(structure="S1HGHS2H", scales="variational"), References()),
    (WHVI(initial="pretrained"), _STANDARD),
    (TensorFactorised(initial_std=0.5), _STANDARD),
    (VIFO(), References(collapse=_silence)),
]
# What their roots add does not depend on the type of the layer.
ROOTS: list[tuple[str, Method, References]] = [
    ("VIFO naive", VIFO(regularizer="naive", link="exp"), References(collapse=_silence)),
    ("VIFO in two networks", VIFO(regularizer="mean-variance", shared=False), References()),
    ("VIFO for the data set", VIFO(regularizer="empirical-bayes-all"), References(collapse=_silence)),
    ("ensemble", DeepEnsemble(members=2), References()),
    ("ensemble of mean field", DeepEnsemble(members=2, method=MeanField()), References()),
    ("ensemble of VIFO", DeepEnsemble(members=2, method=VIFO(regularizer="naive")), References()),
]


def _identify(method: Method) -> str:
    """The fields that differ from the defaults."""
    default = type(method)()
    fields = [
        f"{f.name}={getattr(method, f.name)}"
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != getattr(default, f.name)
    ]
    return f"{type(method).__name__}({', '.join(fields)})"


def _cases() -> Iterator[ParameterSet]:
    """The first setting of every method meets all layers; with the others, most layers are slow tests."""
    seen: set[type[Method]] = set()
    for method, references in METHODS:
        for layer in LAYERS:
            quick = type(method) not in seen or layer in ("Linear", "Conv2d", "ConvTranspose2d", "LayerNorm", "Embedding")
            marks = () if quick else pytest.mark.slow
            yield pytest.param(method, references, layer, marks=marks, id=f"{_identify(method)}-{layer}")
        seen.add(type(method))


@pytest.mark.parametrize(("method", "references", "layer"), _cases())
def test_contract(method: Method, references: References, layer: str) -> None:
    contracts = "Norm" not in layer and layer != "Embedding"
    if contracts or isinstance(method, MeanField | Deterministic | EMP):
        assert check_method(method, {layer: LAYERS[layer]}, references) == [layer]
    else:
        with pytest.raises(AssertionError, match="supports none"):
            check_method(method, {layer: LAYERS[layer]}, references)


@pytest.mark.parametrize(("name", "method", "references"), ROOTS, ids=[name for name, _, _ in ROOTS])
def test_roots_fulfil_the_contract(name: str, method: Method, references: References) -> None:
    assert check_method(method, {"Linear": LAYERS["Linear"]}, references) == ["Linear"]


def test_every_registered_method_is_checked() -> None:
    ours = {kind for kind in Method.registry.values() if kind.__module__.startswith("bayesify.")}
    assert {type(method) for method in (*(m for m, _ in METHODS), *(m for _, m, _ in ROOTS))} == ours

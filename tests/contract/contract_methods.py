"""Every method of the registry, in the settings that are checked, with independent references."""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import HalfNormal, Independent, MixtureSameFamily, MultivariateNormal, Normal

from bayesify import (
    DVI,
    ECMP,
    ELRG,
    EMP,
    HMC,
    IVON,
    MNF,
    SGHMC,
    SGLD,
    SLANG,
    SNGP,
    SWA,
    SWAG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    BLoB,
    ConcreteDropout,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    Laplace,
    MCDropout,
    MeanField,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    Rank1,
    RepulsiveEnsemble,
    ScalaBL,
    SpectralNorm,
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


def _elrg_distribution(layer: BayesianLayer) -> MultivariateNormal:
    """The dense normal of the elements of weight and bias."""
    p = layer.posterior
    log_std, factor = ([p.get_parameter(f"{each}_{kind}") for each in _parts(layer)] for kind in ("log_std", "factor"))
    factors = torch.cat([each.flatten(1) for each in factor], 1)
    covariance = torch.cat([each.flatten() for each in log_std]).exp().square().diag() + factors.T @ factors
    return MultivariateNormal(torch.cat([getattr(layer, each).flatten() for each in _parts(layer)]), covariance)


def _parts(layer: BayesianLayer) -> list[str]:
    return ["weight"] if layer.bias is None else ["weight", "bias"]


def _elrg_shrink(layer: BayesianLayer) -> None:
    for name, parameter in layer.posterior.named_parameters():
        torch.nn.init.constant_(parameter, -40.0 if name.endswith("log_std") else 0.0)


def _elrg_to_prior(layer: BayesianLayer) -> None:
    for name, parameter in layer.named_parameters():
        value = torch.tensor(0.7).double().log().item() if name.endswith("log_std") else 0.0
        torch.nn.init.constant_(parameter, value)


def _elrg_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    w = _flat(weight, bias)
    return _elrg_distribution(layer).log_prob(w) - Normal(torch.zeros_like(w), 0.7).log_prob(w).sum(-1)


_ELRG = References(collapse=_elrg_shrink, to_prior=_elrg_to_prior, log_ratio=_elrg_log_ratio)


def _vmg_to_prior(layer: BayesianLayer) -> None:
    for name, parameter in layer.named_parameters():
        log_prior_std = torch.tensor(0.7).double().log().item()
        values = {"row_log_std": 2.0, "column_log_std": log_prior_std - 2.0, "bias_log_std": log_prior_std}
        torch.nn.init.constant_(parameter, values.get(name.removeprefix("posterior."), 0.0))


def _vmg_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    p, mean = layer.posterior, layer.weight.flatten(1)
    row, column = p.get_parameter("row_log_std").exp(), p.get_parameter("column_log_std").exp()
    covariance = torch.kron(row.square().diag(), column.square().diag())
    w = weight.flatten(1)
    ratio = MultivariateNormal(mean.flatten(), covariance).log_prob(w) - Normal(torch.zeros_like(w), 0.7).log_prob(w).sum(-1)
    if bias is None:
        return ratio
    q = Normal(layer.bias, p.get_parameter("bias_log_std").exp())
    return ratio + (q.log_prob(bias) - Normal(torch.zeros_like(bias), 0.7).log_prob(bias)).sum(-1)


_VMG = References(collapse=_shrink, to_prior=_vmg_to_prior, log_ratio=_vmg_log_ratio)


def _kfac_shrink(layer: BayesianLayer) -> None:
    p = layer.posterior.get_parameter("row_tril")
    with torch.no_grad():
        p.copy_(-40.0 * torch.eye(len(p)))


def _kfac_to_prior(layer: BayesianLayer) -> None:
    for name, parameter in layer.named_parameters():
        with torch.no_grad():
            parameter.zero_()
            if name.endswith("row_tril"):
                parameter.add_(torch.tensor(0.7).double().log() * torch.eye(len(parameter)))


def _kfac_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, columns = (layer.posterior.get_parameter(f"{name}_tril").double() for name in ("row", "column"))
    rows, columns = (p.tril(-1) + torch.diag(p.diag().exp()) for p in (rows, columns))
    w = weight.flatten(2) if bias is None else torch.cat([weight.flatten(2), bias.unsqueeze(2)], 2)
    mean = layer.weight.flatten(1) if bias is None else torch.cat([layer.weight.flatten(1), layer.bias.unsqueeze(1)], 1)
    q = MultivariateNormal(mean.flatten(), scale_tril=torch.kron(rows, columns))
    w = w.flatten(1)
    return q.log_prob(w) - Normal(torch.zeros_like(w), 0.7).log_prob(w).sum(-1)


_NOISY_KFAC = References(collapse=_kfac_shrink, to_prior=_kfac_to_prior, log_ratio=_kfac_log_ratio)


def _slang_shrink(layer: BayesianLayer) -> None:
    with torch.no_grad():
        layer.posterior.get_parameter("log_diagonal").fill_(60.0)


def _slang_to_prior(layer: BayesianLayer) -> None:
    for name, parameter in layer.named_parameters():
        with torch.no_grad():
            parameter.fill_(-2 * math.log(0.7) if name.endswith("log_diagonal") else 0.0)


def _slang_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    diagonal, factor = (layer.posterior.get_parameter(name).double() for name in ("log_diagonal", "factor"))
    precision = diagonal.exp().diag() + factor @ factor.T
    mean = _flat(layer.weight.unsqueeze(0), None if bias is None else layer.bias.unsqueeze(0)).double()
    w = _flat(weight, bias).double()
    return MultivariateNormal(mean[0], precision_matrix=precision).log_prob(w) - Normal(0.0, 0.7).log_prob(w).sum(-1)


_SLANG = References(collapse=_slang_shrink, to_prior=_slang_to_prior, log_ratio=_slang_log_ratio)


def _mnf_open_gates(layer: BayesianLayer) -> None:
    for name, parameter in layer.posterior.named_parameters():
        if "gate" in name or "shift" in name:
            torch.nn.init.constant_(parameter, 40.0 if name.endswith("gate_bias") else 0.0)


def _mnf_shrink(layer: BayesianLayer) -> None:
    _mnf_open_gates(layer)
    _shrink(layer)


def _mnf_to_prior(layer: BayesianLayer) -> None:
    """W is a normal that does not depend on z, and r(z) = q(z)."""
    _mnf_open_gates(layer)
    for name, parameter in layer.named_parameters():
        if name in ("weight", "bias"):
            torch.nn.init.zeros_(parameter)
        if name.endswith(("weight_log_std", "bias_log_std")):
            torch.nn.init.constant_(parameter, torch.tensor(0.7).double().log().item())


_MNF = References(collapse=_mnf_shrink, to_prior=_mnf_to_prior, noisy_kl=True)


def _radial_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    mean, std = _mean_field_moments(layer)  # the parameters of both are named alike
    w = _flat(weight, bias)
    n, distance = w.shape[1], ((w - mean) / std).norm(dim=1)
    log_area = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)
    log_q = HalfNormal(1.0).log_prob(distance) - log_area - (n - 1) * distance.log() - std.log().sum()
    return log_q - Normal(torch.zeros_like(w), 0.7).log_prob(w).sum(-1)


_RADIAL = References(collapse=_shrink, log_ratio=_radial_log_ratio)


def _rank1_around_one(layer: BayesianLayer) -> None:
    for name, parameter in layer.posterior.named_parameters():
        torch.nn.init.constant_(parameter, -40.0 if name.endswith("log_std") else 1.0)


def _rank1_to_prior(layer: BayesianLayer) -> None:
    for name, parameter in layer.posterior.named_parameters():
        value = torch.tensor(0.3).double().log().item() if name.endswith("log_std") else 1.0
        torch.nn.init.constant_(parameter, value)


_RANK1 = References(collapse=_rank1_around_one, to_prior=_rank1_to_prior)


def _concrete_shrink(layer: BayesianLayer) -> None:
    torch.nn.init.constant_(layer.posterior.get_parameter("logit"), -40.0)


_CONCRETE = References(collapse=_concrete_shrink, to_prior=_to_zero)


def _emp_log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of weights and choices together: the mean over the choices that may have drawn the weights."""
    names = ["weight"] if bias is None else ["weight", "bias"]
    centers = torch.cat([layer.posterior.get_parameter(name).flatten(1) for name in names], 1)  # (K, elements)
    w = _flat(weight, bias)
    log_q = Normal(centers.unsqueeze(1), 0.5).log_prob(w).sum(-1)  # (K, S)
    return (log_q.softmax(0) * log_q).sum(0) - Normal(torch.zeros_like(w), 0.7).log_prob(w).sum(-1)


_EMP_NORMAL = References(log_ratio=_emp_log_ratio)
_MIXTURE_OF_POINTS = References(collapse=lambda layer: None, to_prior=_to_zero)

METHODS: list[tuple[Method, References]] = [
    (MeanField(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(noise="shared", prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(noise="flipout", prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (MeanField(prior_mean="pretrained"), _SHRINKING),
    (MeanField(prior="sequential", prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (
        MeanField(prior="scale-mixture", mixture_weight=0.25, mixture_std=0.1, initial_std=0.5),
        References(collapse=_shrink, log_ratio=_log_ratio(_MIXTURE), noisy_kl=True),
    ),
    (ELRG(prior_std=0.7, initial_std=0.5), _ELRG),
    (ELRG(rank=1, diagonal="layer", prior_std=0.7), References(collapse=_elrg_shrink, to_prior=_elrg_to_prior)),
    (VMG(prior_std=0.7, initial_std=0.5), _VMG),
    (MNF(flow_units=5, prior_std=0.7, initial_std=0.5, initial_z_std=0.4), _MNF),
    (Radial(prior_std=0.7, initial_std=0.5), _RADIAL),
    (IVON(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (VOGN(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (NoisyAdam(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    (NoisyKFAC(prior_std=0.7, initial_std=0.5), _NOISY_KFAC),
    (SLANG(prior_std=0.7, initial_std=0.5, rank=2), _SLANG),
    (IVON(prior_std=0.7, initial_std=0.5, prior="sequential", noise="local"), _MEAN_FIELD),
    (MeanField(prior="mean", prior_std=0.3**0.5), _SHRINKING),
    (MeanField(prior="mean-variance"), _SHRINKING),
    (MeanField(prior="empirical-bayes", noise="shared"), _SHRINKING),
    (VariationalDropout(p=0.3), _SHRINKING),
    (VariationalDropout(alpha_per="layer", max_alpha=None), _SHRINKING),
    (VariationalDropout(noise="weight", alpha_per="layer"), _SHRINKING),
    (VariationalDropout(noise="weight", p=0.3, prior_std=0.5), _SHRINKING),
    (VariationalDropout(noise="weight", alpha_per="weight", max_alpha=None), _SHRINKING),
    (VariationalDropout(learn=False), References()),
    (VariationalDropout(prior="ard", max_alpha=None), _SHRINKING),
    (VariationalDropout(noise="weight", alpha_per="weight", prior="ard"), _SHRINKING),
    (VSD(p=0.3), _SHRINKING),
    (VSD(transforms=1, conv_noise="input", p=0.3, prior_std=0.5), _SHRINKING),
    (VSD(transforms=3, rank=None, hierarchical=True), _SHRINKING),
    (VSD(transforms=1, hierarchical=True, hyperprior="gamma", conv_noise="input"), _SHRINKING),
    (VSD(transforms=0, hierarchical=True, hyperprior="half-cauchy", conv_noise="input"), _SHRINKING),
    (MCDropout(p=0.3, prior_std=0.5), References()),
    (MCDropout(p=0.0), References(collapse=lambda layer: None)),
    (ConcreteDropout(p=0.3, prior_std=0.5), _CONCRETE),
    (ConcreteDropout(noise="weight", p=0.3, prior_std=0.5), _CONCRETE),
    (DropConnect(p=0.3, prior_std=0.5), References()),
    (DropConnect(p=0.0), References(collapse=lambda layer: None)),
    (EMP(where="*", spread=0.0), _MIXTURE_OF_POINTS),
    (EMP(where="*", components=3, spread=0.5, decay="plain"), References(to_prior=_to_zero)),
    (EMP(where="*", components=2, spread=0.5, probabilities=(0.8, 0.2), prior_std=None), References()),
    (EMP(where="*", components=3, spread=0.5, probabilities=(0.5, 0.3, 0.2), learn_probabilities=True), References()),
    (EMP(where="*", spread=0.0, prior_std=0.7, component_std=0.5), _EMP_NORMAL),
    (ECMP(where="*", components=2, spread=0.5, component_std=0.3), References()),
    (EMP(components=1, where="*", bias_prior_std=1.8), _MIXTURE_OF_POINTS),
    (ECMP(where="*", spread=0.0), _MIXTURE_OF_POINTS),
    (ECMP(where="*", components=2, spread=0.5, bias_prior_std=0.7), References(to_prior=_to_zero)),
    (ECMP(where="*", components=3, spread=0.5, learn_probabilities=True), References(to_prior=_to_zero)),
    (Rank1(prior_std=0.3, initial_std=0.4, spread=0.5), _RANK1),
    (Rank1(components=1, prior_std=0.3, initial_std=0.4), _RANK1),
    (BatchEnsemble(components=3, weight_prior_std=0.5), References(collapse=_rank1_around_one)),
    (Deterministic(prior_std=0.5), References(collapse=lambda layer: None)),
    (Deterministic(), References(collapse=lambda layer: None)),
    (SpectralNorm(max_norm=0.5, prior_std=0.5), References(to_prior=_to_zero)),
    (SpectralNorm(max_norm=100.0), References(collapse=lambda layer: None)),
    (SWA(prior_std=0.5), References(collapse=lambda layer: None, to_prior=_to_zero)),
    (SWAG(), References(collapse=lambda layer: None)),  # before the first snapshot; tests/methods/test_swag.py has it collected
    # before completion; tests/methods/test_completion.py has it
    (Laplace(layers="all", prior_std=0.5), References(collapse=lambda layer: None, to_prior=_to_zero)),
    (Laplace(layers="all", structure="full", prior_std=0.5), References(collapse=lambda layer: None, to_prior=_to_zero)),
    (HMC(prior_std=0.5), References(collapse=lambda layer: None, to_prior=_to_zero)),
    (SGLD(prior_std=0.5), References(collapse=lambda layer: None, to_prior=_to_zero)),
    (SGHMC(prior_std=0.5), References(collapse=lambda layer: None, to_prior=_to_zero)),
    (WHVI(initial_std=0.5), _STANDARD),
    (WHVI(covariance="full", blocks="tied", vectors="stack"), _STANDARD),
    (WHVI(flows=2, noise="shared"), References(noisy_kl=True)),
    (WHVI(structure="S1HGHS2H", scales="variational"), References()),
    (WHVI(initial="pretrained"), _STANDARD),
    (TensorFactorized(initial_std=0.5), _STANDARD),
    (BLoB(where="*", prior_std=0.7, epsilon=0.9), _BLOB),
    (ScalaBL(where="*", prior_mean=0.4, prior_std=0.7, initial_std=0.5), _SCALABL),
    (VIFO(), References(collapse=_silence)),
    (SNGP(features=6, prior_std=0.5), References(to_prior=lambda layer: None)),  # a mean of zero is the prior before completion
]
# What their roots add does not depend on the type of the layer.
ROOTS: list[tuple[str, Method, References]] = [
    ("VIFO naive", VIFO(regularizer="naive", link="exp"), References(collapse=_silence)),
    ("VIFO in two networks", VIFO(regularizer="mean-variance", separate_std=True), References()),
    ("VIFO for the data set", VIFO(regularizer="empirical-bayes-all"), References(collapse=_silence)),
    ("ensemble", DeepEnsemble(members=2), References()),
    ("ensemble of mean field", DeepEnsemble(members=2, base=MeanField()), References()),
    ("DVI", DVI(prior_std=0.7, initial_std=0.5), _MEAN_FIELD),
    ("DVI, diagonal", DVI(covariance="diagonal", prior="empirical-bayes", initial_std=0.5), _SHRINKING),
    ("repulsive ensemble", RepulsiveEnsemble(members=2), References()),
    ("repulsive ensemble, weights", RepulsiveEnsemble(members=2, space="weight"), References()),
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

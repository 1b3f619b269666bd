"""The adapter to `laplace-torch`, for `Laplace`: a network and data in, tensors out.

Tested with versions 0.3 of `laplace-torch` and 3.0.1 of `curvlinops-for-pytorch`. Diagonal and full curvature come from its
`torch.func` backend, which takes any network; Kronecker factors from curvlinops. Its other backends are not used: BackPACK takes
chains of layers alone, ASDL is no longer developed, and the Hessian of a network may be indefinite.

Errata: with a temperature, its log likelihood divides the squared errors by it, but not the normalizer of the normal density, which
is corrected here. It takes one noise level for all outputs; here outputs and targets are divided by theirs. Its 100 steps of Adam
for the prior start at a precision of 1, and stop short of a distant optimum; here the prior is found by golden section.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.errors import BayesifyError, ConfigurationError, DataError, MissingDependencyError
from bayesify.formatting import first_line, listing
from bayesify.functional.golden_section import golden_section
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.methods._weight_density import WeightDensity

__all__ = ["STRUCTURES", "Curvature", "check_laplace", "check_network", "fit_laplace"]

STRUCTURES = {"diagonal": "diag", "kronecker": "kron", "full": "full"}
_ROWS = 16  # per Jacobian, whose memory is their square
_FARTHEST, _TOLERANCE = math.log(1e4), 1e-3  # of the log standard deviation of the tuned prior: its distance, its last interval


@dataclasses.dataclass(frozen=True)
class Curvature:
    """A fitted approximation: tensors of every layer, the prior standard deviation, the log marginal likelihood in nats."""

    layers: Mapping[str, Mapping[str, Tensor]]
    prior_std: float
    log_evidence: float


def fit_laplace(
    density: WeightDensity, names: Sequence[str], batches: Iterable[Any], structure: str, tune_prior: bool
) -> Curvature:
    """Fit the Laplace approximation of the layers `names`, whose weights are the vector of the density.

    Raises:
        ConfigurationError: a likelihood, weights of examples or a layout that laplace-torch does not know, or a network that it
            cannot differentiate.
        DataError: outputs that are not (B, K).
        MissingDependencyError: laplace-torch is not installed.
    """
    library, curvature = _library()
    data = list(_standardized(density, batches))
    std = _output_std(density)
    model = _Standardized(density, std)
    for name in density.parameters:
        density.net.get_parameter(name).requires_grad_(True)
    regression = isinstance(density.likelihood, Gaussian)
    approximation = library.Laplace(
        model,
        "regression" if regression else "classification",
        subset_of_weights="all",
        hessian_structure=STRUCTURES[structure],
        prior_precision=density.prior_std**-2,
        temperature=1 / density.scale,
        backend=curvature.CurvlinopsGGN if structure == "kronecker" else curvature.GGNInterface,
    )
    try:
        approximation.fit(_Loader(data, None if structure == "kronecker" else _ROWS))
    except (BayesifyError, torch.linalg.LinAlgError, torch.OutOfMemoryError):  # pyright: ignore[reportPrivateImportUsage]
        raise
    except NETWORK_ERRORS as error:
        raise ConfigurationError(
            f'laplace-torch cannot compute the curvature (structure="{structure}") of {listing(map(repr, names), most=3)} in this '
            "network; try another structure, name other layers by patterns, or use another method such as SWAG(). PyTorch says: "
            f"{first_line(error)}"
        ) from error
    if tune_prior:
        approximation.prior_precision = density.start.new_tensor(_best_prior_std(approximation, density.prior_std) ** -2)
    evidence = float(approximation.log_marginal_likelihood().detach())
    if regression:
        rows, outputs = sum(len(y) for _, y in data), data[0][1].shape[1]
        normalizer = 0.5 * rows * outputs * math.log(2 * math.pi)
        evidence += normalizer - density.scale * (normalizer + rows * float(std.log().expand(outputs).sum()))
    prior_std = float(approximation.prior_precision.detach().reshape(-1)[0]) ** -0.5
    return Curvature(_tensors(density, names, approximation, structure), prior_std, evidence)


def check_network(density: WeightDensity, batch: Any) -> None:
    """Raise an error if the network of a density has inputs or outputs that laplace-torch cannot take, shown by a batch."""
    list(_standardized(density, [batch]))


def check_laplace(likelihood: Any, weighted: bool) -> None:
    """Raise an error unless laplace-torch is installed and knows the likelihood and examples of equal weight."""
    _library()
    if type(likelihood) not in (Gaussian, Categorical):
        raise ConfigurationError(
            f"laplace-torch knows Gaussian and Categorical likelihoods, got {type(likelihood).__name__}; use one of them "
            "(Categorical with two outputs for Bernoulli), or another method such as SWAG()"
        )
    if weighted:
        raise ConfigurationError("laplace-torch has no weights of examples; leave them out (Weighted, sample_weight)")


def _library() -> tuple[Any, Any]:
    """laplace-torch and its backends."""
    try:
        return importlib.import_module("laplace"), importlib.import_module("laplace.curvature")
    except ImportError as error:
        raise MissingDependencyError("the posterior of Laplace()", "laplace-torch", extra="laplace") from error


class _Standardized(nn.Module):
    """The network's outputs (B, K) divided by the standard deviation of the noise, or the temperature."""

    def __init__(self, density: WeightDensity, std: Tensor) -> None:
        super().__init__()
        self.std = nn.Parameter(std, requires_grad=False)  # the library takes its dtype from the first parameter
        self.net, self.select = density.net, density.select

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        y = y if self.select is None else self.select(y)
        return (y.unsqueeze(1) if y.dim() == 1 else y) / self.std


class _Loader:
    """What laplace-torch needs of a loader: batches of a maximum size, and a `dataset` with a length."""

    def __init__(self, data: Sequence[tuple[Tensor, Tensor]], rows: int | None) -> None:
        self.data, self.rows, self.dataset = data, rows, range(sum(len(y) for _, y in data))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.data:
            yield from zip(x.split(self.rows or len(x)), y.split(self.rows or len(y)), strict=True)


def _output_std(density: WeightDensity) -> Tensor:
    likelihood = density.likelihood
    if isinstance(likelihood, Gaussian):
        return likelihood.std.to(density.start)
    assert isinstance(likelihood, Categorical)
    return density.start.new_tensor(likelihood.temperature)


def _standardized(density: WeightDensity, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets as laplace-torch takes them: normal targets (B, K) of unit variance, or labels (B,)."""
    likelihood = density.likelihood
    if density.batch_dim:
        raise ConfigurationError(f"Laplace() takes networks whose batch is the first dimension, got batch_dim={density.batch_dim}")
    for batch in batches:
        x, y, weights = density.moved(batch)
        check_laplace(likelihood, weights is not None)
        if not isinstance(x, Tensor):
            raise ConfigurationError(f"Laplace() takes networks with one input tensor, got {type(x).__name__}")
        outputs = density.trial(x)
        if outputs.dim() > 2 or (isinstance(likelihood, Categorical) and outputs.dim() != 2):
            raise DataError(f"Laplace() takes networks with outputs (B, K), one vector per example, got {tuple(outputs.shape)}")
        if len(outputs) != len(x):
            raise ConfigurationError(
                f"Laplace() takes networks with a row of outputs for each row of inputs, got {len(outputs)} for {len(x)}, as of a "
                "set or a graph; use another method such as SWAG()"
            )
        if isinstance(likelihood, Gaussian):
            y = y.reshape(len(x), -1) / _output_std(density)
        else:
            kept = y != likelihood.ignore_index
            x, y = x[kept], y[kept].long()
        if len(y):
            yield x, y


def _best_prior_std(approximation: Any, start: float) -> float:
    r"""The s that maximizes the log marginal likelihood, within a factor of 1e4 of the start.

    It has one maximum: with the eigenvalues $\lambda_i$ of the curvature, its derivative in $s^2$ has the sign of
    $\lVert\hat\theta\rVert^2 - \sum_i \lambda_i s^4 / (1 + \lambda_i s^2)$, which falls.
    """

    @torch.no_grad()
    def loss(log_std: float) -> float:
        value = -float(approximation.log_marginal_likelihood(approximation.mean.new_tensor(math.exp(-2 * log_std))))
        return math.inf if math.isnan(value) else value

    return math.exp(golden_section(loss, *_bracket(loss, math.log(start)), _TOLERANCE))


def _bracket(function: Callable[[float], float], start: float) -> tuple[float, float]:
    """An interval around the only minimum of a function, which grows from the start."""
    lowest, highest, step = start - _FARTHEST, start + _FARTHEST, math.log(2)
    low, middle, high = start - step, start, start + step
    at_low, at_middle, at_high = function(low), function(middle), function(high)
    while at_high < at_middle and high < highest:
        step *= 2
        low, middle, high = middle, high, min(high + step, highest)
        at_middle, at_high = at_high, function(high)
    while at_low < at_middle and low > lowest:
        step *= 2
        low, middle, high = max(low - step, lowest), low, middle
        at_low, at_middle = function(low), at_low
    return low, high


def _tensors(density: WeightDensity, names: Sequence[str], approximation: Any, structure: str) -> dict[str, dict[str, Tensor]]:
    """The tensors of each layer's posterior, of the names that it stores."""
    counts = {name: len([p for p in density.parameters if p.rpartition(".")[0] == name]) for name in names}
    if structure == "kronecker":
        precision = approximation.posterior_precision
        blocks = iter(zip(precision.eigenvectors, precision.eigenvalues, precision.deltas, strict=True))
        return {name: _kronecker(density, [next(blocks) for _ in range(counts[name])]) for name in names}
    scale, key = approximation.posterior_scale, "std" if structure == "diagonal" else "scale"
    sizes = dict(zip(density.parameters, (shape.numel() for shape in density.shapes), strict=True))
    of_layer = [sum(size for p, size in sizes.items() if p.rpartition(".")[0] == name) for name in names]
    return {name: {key: part} for name, part in zip(names, scale.split(of_layer), strict=True)}


def _kronecker(density: WeightDensity, blocks: Sequence[tuple[Any, Any, Tensor]]) -> dict[str, Tensor]:
    """Eigenvectors and standard deviations of a layer's weight and, if there are two blocks, of its bias."""
    vectors, values, delta = blocks[0]
    one = density.start.new_ones(1)
    if len(vectors) == 1:  # a weight of one element
        vectors, values = [*vectors, one.view(1, 1)], [*values, one]
    std = (values[0].clamp(min=0).outer(values[1].clamp(min=0)) + delta).rsqrt()
    found = {"std": std, "output_vectors": vectors[0], "input_vectors": vectors[1]}
    if len(blocks) == 1:
        return found
    (bias_vectors,), (bias_values,), delta = blocks[1]
    return {**found, "bias_vectors": bias_vectors, "bias_std": (bias_values.clamp(min=0) + delta).rsqrt()}

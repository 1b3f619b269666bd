"""Methods with one fault each, which the contract has to reject. Run as a script, it prints the fault, the check and the error.

python -O broken_methods.py
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Normal

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.errors import ContractError
from bayesify.functional import at_least_float32, gaussian_kl_sum
from bayesify.testing import LAYERS, References, check_method

FAULTS = (
    "",
    "variance",
    "variances of other weights",
    "mean KL",
    "KL of one variance",
    "refilled buffer",
    "gradient of sigma",
    "noise of predictions",
    "unregistered state",
    "ignored checkpoint",
    "misspelled means",
    "error in build",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken(Method):
    """Independent normal weights and a certain bias, with a fault; the fault "" is none."""

    fault: str = ""

    def build(self, layer: BayesianLayer) -> Posterior | None:
        if self.fault == "error in build":
            raise IndexError("of a hyperparameter")
        replaces = self.fault in ("ignored checkpoint", "misspelled means")
        return ReplacingPosterior(layer, self.fault) if replaces else BrokenPosterior(layer, self.fault)


if __name__ != "__main__":
    Method.registry.pop("Broken")  # naming it made it known; other tests in this process must not meet it


class BrokenPosterior(Posterior):
    """The weight is the mean; the prior is standard normal."""

    noise: Tensor

    def __init__(self, layer: BayesianLayer, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.log_std = torch.nn.Parameter(torch.full(layer.weight.shape, math.log(0.5)))
        self.register_buffer("noise", torch.zeros_like(layer.weight), persistent=False)
        self.signs = torch.randn(layer.weight.shape).sign()

    @property
    def has_moments(self) -> bool:
        return self.fault not in ("refilled buffer", "unregistered state")

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        std = self._std()
        bias = None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)
        mean = self.mean(layer)[0]
        if self.fault != "refilled buffer":
            noise = torch.randn(samples, *std.shape, dtype=std.dtype)
            return mean + std * (noise * self.signs.to(noise) if self.fault == "unregistered state" else noise), bias
        draws = []
        for _ in range(samples):
            self.noise.data.normal_()
            draws.append(mean + std * self.noise)
        return torch.stack(draws), bias

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        if self.fault == "noise of predictions" and not torch.is_grad_enabled():
            return self.outputs(layer, x, *layer.draw())
        return super().forward(layer, x)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if not self.has_moments:
            return None
        variance = self._std() ** 2 * (2 if self.fault == "variance" else 1)
        if self.fault == "variances of other weights":
            variance = variance.flip(0)
        return layer.op(x, *self.mean(layer)), layer.op(layer.square(x), variance, None)

    def kl(self, layer: BayesianLayer) -> Tensor:
        log_std = self.log_std.mean().expand_as(self.log_std) if self.fault == "KL of one variance" else self.log_std
        kl = gaussian_kl_sum(at_least_float32(self.mean(layer)[0]), at_least_float32(log_std))
        return kl / self.log_std.numel() if self.fault == "mean KL" else kl

    def _std(self) -> Tensor:
        """The standard deviation; with the fault, of the right value and half the gradient."""
        std = self.log_std.exp()
        return 0.5 * (std + std.detach()) if self.fault == "gradient of sigma" else std


class ReplacingPosterior(BrokenPosterior):
    """The same with a mean of its own."""

    means = ("weight",)

    def __init__(self, layer: BayesianLayer, fault: str) -> None:
        super().__init__(layer, fault)
        if fault == "misspelled means":
            self.means = ("wieght",)
        self.weight = torch.nn.Parameter(layer.weight.detach().clone())
        layer.weight = None

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return self.weight, layer.bias

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        if self.fault != "ignored checkpoint":
            self.weight.copy_(weight)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimating(Method):
    """Independent normal weights, whose KL in a pass is an estimate with its draws."""

    sums_draws: bool = False

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return EstimatingPosterior(layer, self.sums_draws)


class EstimatingPosterior(BrokenPosterior):
    """Draws weights in every pass."""

    has_moments = False

    def __init__(self, layer: BayesianLayer, sums_draws: bool) -> None:
        super().__init__(layer, "")
        self.sums_draws = sums_draws

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        weight, bias = layer.draw()
        ratios = _log_ratio(layer, weight, None)
        layer.forward_pass.kl(self, ratios.sum() if self.sums_draws else ratios.mean())
        return self.outputs(layer, x, weight, bias)


def _log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    std = layer.posterior.get_parameter("log_std").exp()
    mean = layer.posterior.mean(layer)[0]
    return (Normal(mean, std).log_prob(weight) - Normal(0, torch.ones_like(std)).log_prob(weight)).flatten(1).sum(1)


REFERENCES = References(log_ratio=_log_ratio)
_LAYER = "Linear without bias, on sequences"


def verdict(fault: str) -> str:
    """What the contract says of a fault: the text of its error, or nothing if the method passes."""
    layer: dict[str, Callable] = {_LAYER: LAYERS[_LAYER]}
    try:
        check_method(Broken(fault=fault), layer, REFERENCES, nets=())
    except ContractError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    for each in FAULTS:
        print(f"{each}\t{' '.join(verdict(each).split())}")

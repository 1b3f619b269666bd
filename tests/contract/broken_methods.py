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

FAULTS = ("", "variance", "mean KL", "refilled buffer", "gradient of sigma", "noise of predictions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken(Method):
    """Independent normal weights and a certain bias, with a fault; the fault "" is none."""

    fault: str = ""

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return BrokenPosterior(layer, self.fault)


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

    @property
    def has_moments(self) -> bool:
        return self.fault != "refilled buffer"

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        std = self._std()
        bias = None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)
        if self.fault != "refilled buffer":
            return layer.weight + std * torch.randn(samples, *std.shape, dtype=std.dtype), bias
        draws = []
        for _ in range(samples):
            self.noise.data.normal_()
            draws.append(layer.weight + std * self.noise)
        return torch.stack(draws), bias

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        if self.fault == "noise of predictions" and not torch.is_grad_enabled():
            return self.outputs(layer, x, *layer.draw())
        return super().forward(layer, x)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if not self.has_moments:
            return None
        variance = self._std() ** 2 * (2 if self.fault == "variance" else 1)
        return layer.op(x, layer.weight, layer.bias), layer.op(layer.square(x), variance, None)

    def kl(self, layer: BayesianLayer) -> Tensor:
        kl = gaussian_kl_sum(at_least_float32(layer.weight), at_least_float32(self.log_std))
        return kl / self.log_std.numel() if self.fault == "mean KL" else kl

    def _std(self) -> Tensor:
        """The standard deviation; with the fault, of the right value and half the gradient."""
        std = self.log_std.exp()
        return 0.5 * (std + std.detach()) if self.fault == "gradient of sigma" else std


def _log_ratio(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    std = layer.posterior.get_parameter("log_std").exp()
    return (Normal(layer.weight, std).log_prob(weight) - Normal(0, torch.ones_like(std)).log_prob(weight)).flatten(1).sum(1)


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

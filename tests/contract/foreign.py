"""Networks of other libraries, and how their outputs are compared."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from architectures import load_torchvision
from torch import Tensor, nn

from bayesify.core.packed import Unpacking

__all__ = ["F64", "Arguments", "Foreign", "differences", "library", "normal"]

F64 = torch.float64
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def library(name: str) -> Any:
    """A module of another library; most import torchvision."""
    load_torchvision()
    return importlib.import_module(name)


def normal(*shapes: tuple[int, ...], **kwargs: Any) -> Callable[[], Arguments]:
    """Positional inputs of normal numbers, and keyword inputs."""
    return lambda: (tuple(torch.randn(shape, dtype=F64) for shape in shapes), kwargs)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A network of another library, small and with random weights.

    Attributes:
        package: what has to be installed.
        make: returns the network.
        inputs: returns its positional and keyword inputs.
        pick: from its output to one tensor, rows first.
        rounding: largest relative difference of two computations.
        trains: whether it runs in training mode, and has gradients in eval mode.
    """

    package: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Arguments]
    pick: Callable[[Any], Tensor] = lambda y: y
    rounding: float = 1e-5
    trains: bool = True

    def network(self, seed: int = 0) -> nn.Module:
        """A new network, always with the same weights; moved, because many are zero and hide what lies behind them."""
        torch.manual_seed(seed)
        net = self.make()
        with torch.no_grad():
            for parameter in net.parameters():
                if type(parameter) is nn.Parameter:  # others are quantized
                    parameter.add_(0.05 * torch.randn_like(parameter))
            for module in net.modules():
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0
        return net.eval()

    def unpacked(self) -> nn.Module:
        """The plain network with the layers that it has when it is converted."""
        net = self.network()
        Unpacking.of(net, ())
        for module in net.modules():
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False  # of kernels for packed weights
        return net

    def arguments(self) -> Arguments:
        torch.manual_seed(1)
        return self.inputs()

    def outputs(self, net: Callable[..., Any]) -> Tensor:
        args, kwargs = self.arguments()
        torch.manual_seed(2)
        return self.pick(net(*args, **kwargs)).detach()


def differences(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> Iterator[str]:
    if actual.shape != expected.shape:
        yield f"{name} have shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
        return
    if type(expected) not in (Tensor, nn.Parameter):
        actual, expected = actual.dequantize(), expected.dequantize()
    finite = expected.isfinite()
    if not torch.equal(actual.isfinite(), finite):
        yield f"{name} are finite elsewhere"
        return
    a, b = actual.detach().double()[finite], expected.detach().double()[finite]
    if b.numel() and not float((a - b).abs().max()) <= 10 * tolerance * max(1e-12, float(b.abs().max())):
        yield f"{name} differ by {float((a - b).abs().max() / b.abs().max()):.2g} of the largest value"

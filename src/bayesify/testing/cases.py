"""Cases of the contract suite: one small instance of every supported layer, and independent references for a method."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesify.core.convert import bayesify
from bayesify.core.generators import own_noise
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.outputs import Draws
from bayesify.objectives import elbo

__all__ = ["LAYERS", "Case", "References", "seeded_outputs"]


def _trained_norm(norm: nn.Module, x: Tensor) -> nn.Module:
    """Give a normalization layer random scales and shifts, and running statistics of x."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1.0, 0.3)
    norm(x)
    return norm


class _InputMajorLinear(nn.Module):
    """A linear layer with a weight (I, O), as libraries of transformers have it; recognized by its values."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class _StandardizedConv2d(nn.Conv2d):
    """A convolution with a weight of mean 0 and variance 1 for every output channel, as in networks without batch normalization."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(input, weight / (weight.square().mean((1, 2, 3), keepdim=True) + 1e-3).sqrt(), self.bias)


# One small instance of every supported layer, with an input of B = 3 examples.
LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "Linear": lambda: (nn.Linear(4, 3), torch.randn(3, 4)),
    "Linear without bias, on sequences": lambda: (nn.Linear(4, 3, bias=False), torch.randn(3, 2, 4)),
    "Linear with weight (I, O)": lambda: (_InputMajorLinear(4, 3), torch.randn(3, 2, 4)),
    "Conv1d": lambda: (nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), torch.randn(3, 2, 5)),
    "Conv2d": lambda: (nn.Conv2d(4, 4, (2, 3), stride=2, padding=1, groups=2), torch.randn(3, 4, 4, 5)),
    "Conv2d, reflected": lambda: (nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect", bias=False), torch.randn(3, 2, 4, 4)),
    "Conv2d, standardized": lambda: (_StandardizedConv2d(2, 3, 3, padding=1), torch.randn(3, 2, 3, 4)),
    "Conv3d": lambda: (nn.Conv3d(2, 2, 2, dilation=2), torch.randn(3, 2, 3, 4, 3)),
    "ConvTranspose1d": lambda: (nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), torch.randn(3, 2, 4)),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(4, 4, 2, groups=2), torch.randn(3, 4, 3, 3)),
    "ConvTranspose3d": lambda: (nn.ConvTranspose3d(2, 2, 2, bias=False), torch.randn(3, 2, 2, 3, 2)),
    "BatchNorm1d": lambda: (_trained_norm(nn.BatchNorm1d(4), torch.randn(9, 4)), torch.randn(3, 4)),
    "BatchNorm2d": lambda: (_trained_norm(nn.BatchNorm2d(2), torch.randn(9, 2, 3, 3)), torch.randn(3, 2, 3, 3)),
    "BatchNorm3d": lambda: (_trained_norm(nn.BatchNorm3d(2), torch.randn(9, 2, 2, 2, 2)), torch.randn(3, 2, 2, 2, 2)),
    "InstanceNorm1d": lambda: (_trained_norm(nn.InstanceNorm1d(2, affine=True), torch.randn(9, 2, 5)), torch.randn(3, 2, 5)),
    "InstanceNorm2d, running statistics": lambda: (
        _trained_norm(nn.InstanceNorm2d(2, affine=True, track_running_stats=True), torch.randn(9, 2, 3, 3)),
        torch.randn(3, 2, 3, 3),
    ),
    "InstanceNorm3d": lambda: (
        _trained_norm(nn.InstanceNorm3d(2, affine=True), torch.randn(9, 2, 2, 2, 2)),
        torch.randn(3, 2, 2, 2, 2),
    ),
    "LayerNorm": lambda: (_trained_norm(nn.LayerNorm([2, 3]), torch.randn(9, 2, 3)), torch.randn(3, 2, 2, 3)),
    "RMSNorm": lambda: (_trained_norm(nn.RMSNorm(3), torch.randn(9, 3)), torch.randn(3, 2, 3)),
    "GroupNorm": lambda: (_trained_norm(nn.GroupNorm(2, 4), torch.randn(9, 4, 3)), torch.randn(3, 4, 3)),
    "Embedding": lambda: (nn.Embedding(5, 3, padding_idx=0), torch.tensor([[1, 4], [2, 2], [0, 3]])),
}


@dataclass(frozen=True, kw_only=True)
class References:
    """Independent references for `check_method`; each is optional.

    Attributes:
        collapse: changes a layer's posterior in place so that its variance vanishes.
        to_prior: changes a layer's posterior in place so that it equals the prior.
        log_ratio: from (layer, weight (S, *), bias (S, *) or None) to log q - log p of each draw (S,), in nats, computed
            independently of the method (`torch.distributions`) from the present parameters, whatever their values.
        noisy_kl: whether the KL is a Monte Carlo estimate.

    Example:
        >>> from bayesify.testing import check_method
        >>> def to_prior(layer):  # of MeanField(prior_std=1.0): mean 0, log standard deviation 0
        ...     with torch.no_grad():
        ...         for parameter in layer.parameters():
        ...             parameter.zero_()
        >>> check_method(MeanField(prior_std=1.0), {"Linear": LAYERS["Linear"]}, References(to_prior=to_prior), nets=())
        ['Linear']
    """

    collapse: Callable[[BayesianLayer], None] | None = None
    to_prior: Callable[[BayesianLayer], None] | None = None
    log_ratio: Callable[[BayesianLayer, Tensor, Tensor | None], Tensor] | None = None
    noisy_kl: bool = False


class Case:
    """A method on a layer: new networks, one input, and the references.

    Example:
        >>> case = Case(MeanField(), LAYERS["Linear"], References())
        >>> bnn = case.fresh()
        >>> bnn(case.x, samples=2).outputs.shape, case.layer(bnn).original.__name__
        (torch.Size([2, 3, 3]), 'Linear')
    """

    def __init__(self, method: Method, make: Callable[[], tuple[nn.Module, Tensor]], references: References) -> None:
        self.method = method
        self.references = references
        self.plain, x = self._made(make, seed=7)
        self.other_plain, _ = self._made(make, seed=8)
        self.x = x.double() if x.is_floating_point() else x

    @staticmethod
    def _made(make: Callable[[], tuple[nn.Module, Tensor]], seed: int) -> tuple[nn.Sequential, Tensor]:
        torch.manual_seed(seed)
        layer, x = make()
        return nn.Sequential(layer).double().eval(), x

    def fresh(self) -> Bayesian:
        """A new Bayesian network in eval mode, with the same initial weights every time."""
        return self._converted(self.plain, seed=7)

    def other(self, seed: int = 8) -> Bayesian:
        """As `fresh`, from other weights, and by default from other random numbers."""
        return self._converted(self.other_plain, seed)

    def uneven(self) -> Bayesian:
        """As `fresh`, with unequal parameters, as after training: equal ones do not show which belongs to which weight."""
        bnn, generator = self.fresh(), torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in bnn.parameters():
                if parameter.requires_grad:
                    noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64, device="cpu").to(parameter)
                    parameter.add_(_sizes(parameter) * (1.2 * noise - 0.6))  # equal parameters keep their sign
        return bnn

    def _converted(self, plain: nn.Module, seed: int) -> Bayesian:
        with own_noise((self.x,)) as reseed:
            reseed(seed)
            return bayesify(copy.deepcopy(plain), self.method)

    def layer(self, bnn: Bayesian) -> BayesianLayer:
        """The random layer of a network of `fresh`."""
        return next(layer for _, layer in bnn.random_layers())

    def loss(self, draws: Draws) -> Tensor:
        """A loss of every draw and the KL."""
        log_prob = -draws.outputs.square().flatten(2).sum(-1)
        return -elbo(draws, log_prob, n=100)


def _sizes(parameter: Tensor) -> Tensor:
    """How much to change elements of a parameter: by its size, or if it is zero by 0.5. Vectors of padding stay zero."""
    size = parameter.square().mean().sqrt()
    is_padding = (parameter == 0).all(-1, keepdim=True) & (size > 0)
    return torch.where(is_padding, 0.0, torch.where(size > 0, size, 0.5))


def seeded_outputs(bnn: Callable[..., Draws], x: Tensor, coherent: bool) -> Tensor:
    """Outputs of two draws, always of the same random numbers."""
    torch.manual_seed(13)
    return bnn(x, samples=2, coherent=coherent).outputs

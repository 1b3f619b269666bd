"""A training step by the library against the same formulas and kernels written out: what the library around them costs.

    python -m benchmarks.by_hand [--nets LeNet5 ...] [--rounds 41] [--threads 2]

The written-out steps check nothing, and draw and differentiate as the library does, so that no step in eager PyTorch takes much
less time. Writes results/by_hand.json, ratios to the plain network.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.functional import gaussian_factors_and_kl, standard_normal, structured_noise_and_kl
from bayesify.native.channels import scale_channels
from bayesify.native.gaussians import draws_and_kl, local_draw, variances_and_kl, with_square
from bayesify.native.local_linear import local_linear
from benchmarks.measure import interleave, parser, print_timings, settings_of, write
from benchmarks.nets import WORKLOADS, Workload
from benchmarks.training_step import METHODS, bayesian_step, plain_step

_NETS = ("MLP 784-400-400-10", "LeNet5", "AlexNet", "ResNet18")
_ROWS = 50_000
_FEW = 4  # channels
_SMALL = 2**16  # weights
_TINY = torch.finfo(torch.float32).tiny


class _Layer(nn.Module):
    """A random layer: its parameters beside those of the plain one. It appends its KL to a list."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, kls: list[Tensor]) -> None:
        super().__init__()
        self.layer, self.kls = layer, kls
        self.own = nn.ParameterList()

    def forward(self, x: Tensor) -> Tensor:
        y, kl = self.outputs(x)
        if kl is not None:
            self.kls.append(kl)
        return y

    @abstractmethod
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Output and KL; None if it is already in the list."""

    @staticmethod
    def begin(layers: Sequence[_Layer]) -> None:
        """What is done before the network runs."""

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, bias)
        return self.layer._conv_forward(x, weight, bias)

    def scaled(self, x: Tensor, factors: Tensor, shift: Tensor | None = None) -> Tensor:
        if x.dim() == 4:
            return scale_channels(x, factors, shift)
        return x * factors


class _Gaussian(_Layer):
    def __init__(self, layer: nn.Linear | nn.Conv2d, kls: list[Tensor]) -> None:
        super().__init__(layer, kls)
        self.means = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        self.own.extend(nn.Parameter(torch.full_like(mean, -4.0)) for mean in self.means)
        self.log_stds, self.centers = list(self.own), [None] * len(self.means)


class _SharedNoise(_Gaussian):
    """Small layers are drawn together."""

    drawn: list[Tensor] | None = None

    @staticmethod
    def begin(layers: Sequence[_Layer]) -> None:
        small = [each for each in layers if isinstance(each, _SharedNoise) and each.means[0].numel() <= _SMALL]
        if small:
            drawn, kl = _draw(small)
            small[0].kls.append(kl)
            found = iter(drawn)
            for layer in small:
                layer.drawn = [next(found) for _ in layer.means]

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        drawn, kl = (self.drawn, None) if self.drawn is not None else _draw([self])
        self.drawn = None
        return self.op(x, *(w.squeeze(0) for w in drawn)), kl


def _draw(layers: Sequence[_SharedNoise]) -> tuple[list[Tensor], Tensor]:
    means = [mean for layer in layers for mean in layer.means]
    log_stds = [log_std for layer in layers for log_std in layer.log_stds]
    eps = [standard_normal(*mean.shape, like=mean) for mean in means]
    return draws_and_kl(means, log_stds, [None] * len(means), 1.0, eps)


class _LocalNoise(_Gaussian):
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.layer, nn.Linear):
            eps = standard_normal(len(x), self.layer.out_features, like=x)
            return local_linear(x, eps, self.means, self.log_stds, self.centers, 1.0)
        means, variances, kl = variances_and_kl(self.means, self.log_stds, self.centers, 1.0)
        plain, square = with_square(x)
        mean, variance = self.op(plain, *means), self.op(square, *variances)
        return local_draw(mean, variance, standard_normal(*mean.shape, like=mean), _TINY), kl


class _Dropout(_Layer):
    """Noise on the inputs, or on an output of every channel where these are few, which saves the gradient of the input."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, kls: list[Tensor]) -> None:
        super().__init__(layer, kls)
        self.size = layer.weight.shape[1]
        self.own.append(nn.Parameter(torch.full((self.size,), -1.4)))

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_alpha, layer = self.own[0], self.layer
        factors, kl = gaussian_factors_and_kl(log_alpha, len(x), 0.0)
        if self.size <= _FEW and x.dim() == 4:
            outputs = [self.op(part, weight) for part, weight in zip(x.split(1, 1), layer.weight.split(1, 1), strict=True)]
            biases = [layer.bias, *[None] * (self.size - 1)]
            spread = [factor.expand(-1, len(layer.weight)) for factor in factors.split(1, 1)]
            return sum(map(self.scaled, outputs[1:], spread[1:], biases[1:]), self.scaled(outputs[0], spread[0], biases[0])), kl
        return self.op(self.scaled(x, factors), layer.weight, layer.bias), kl


class _StructuredDropout(_Layer):
    """Two reflections; noise on the outputs of convolutions, and on the inputs of linear layers."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, kls: list[Tensor]) -> None:
        super().__init__(layer, kls)
        size = layer.weight.shape[1 if isinstance(layer, nn.Linear) else 0]
        self.columns = layer.weight.numel() // size
        shapes = (size,), (1, size), (10, size), (10,), (size, 10), (size,)
        self.own.extend(nn.Parameter(torch.randn(shape)) for shape in shapes)
        self.parts = list(self.own)

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_alpha, first, w1, b1, w2, b2 = self.parts
        eps = standard_normal(len(x), len(log_alpha), like=log_alpha)
        noise, kl = structured_noise_and_kl(log_alpha, first, eps, self.columns, [(w1, b1, w2, b2)])
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return self.op(self.scaled(x, noise), layer.weight, layer.bias), kl
        return self.scaled(self.op(x, layer.weight), noise, layer.bias), kl


LAYERS: dict[str, type[_Layer]] = {
    "MeanField": _LocalNoise,
    "MeanField, shared noise": _SharedNoise,
    "VariationalDropout": _Dropout,
    "VSD, T = 2": _StructuredDropout,
}


def step_by_hand(workload: Workload, kind: type[_Layer], x: Tensor, y: Tensor) -> Callable[[], None]:
    """A training step of the network with all linear layers and convolutions random."""
    net, kls, layers = workload.net().train(), list[Tensor](), list[_Layer]()
    for name, module in list(net.named_modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            parent, _, own = name.rpartition(".")
            layers.append(kind(module, kls))
            setattr(net.get_submodule(parent), own, layers[-1])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        kls.clear()
        kind.begin(layers)
        outputs = net(x)
        (F.cross_entropy(outputs, y) + torch.stack(kls).sum() / _ROWS).backward()
        optimizer.step()

    return step


def main() -> None:
    options = parser(__doc__, rounds=41)
    options.add_argument("--nets", nargs="*", default=list(_NETS), choices=_NETS)
    options.add_argument("--methods", nargs="*", default=list(LAYERS), choices=list(LAYERS))
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    nets: dict[str, object] = {}
    for name in arguments.nets:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        x, y = workload.inputs(), torch.randint(0, 10, (workload.batch,))
        candidates = {"plain": plain_step(workload, x, y)}
        for method in arguments.methods:
            candidates[method] = bayesian_step(workload, METHODS[method], x, y)
            candidates[f"{method}, by hand"] = step_by_hand(workload, LAYERS[method], x, y)
        nets[name] = timed = interleave(candidates, arguments.rounds, warmup=4, clock=time.perf_counter)
        print_timings(name, timed)
    if not arguments.dry:
        write("by_hand", {"settings": settings_of(arguments), "nets": nets})


if __name__ == "__main__":
    main()

"""What is right for methods whose draws are members, or whose posterior is made along or after training.

Each check compares with an independent computation: the plain network with hooks, copies of the plain network, averages of the
snapshots, the Jacobian of the plain network and its differences.

Shapes: S draws, B batch, K components.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator

import torch
from foreign import Arguments, Foreign, differences
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import ECMP, BatchEnsemble, Bayesian, Gaussian, Laplace, bayesify, unbayesify
from bayesify.core.layer import BayesianLayer
from bayesify.core.layers.own_forward import OwnForward
from bayesify.core.packed import Unpacked
from bayesify.errors import BayesifyWarning
from bayesify.testing.trial import captured_weights

__all__ = ["collect", "complete", "components", "factored_members", "linearized", "separate_members", "snapshot_mean"]

_SNAPSHOTS, _NOISE, _STEP = 3, 0.7, 1e-7


def components(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """Every draw of a patched layer is one of its components, weight and bias of the same; with `ECMP`, every element is."""
    args, kwargs = foreign.arguments()
    with captured_weights(bnn) as weights, torch.no_grad():
        bnn(*args, samples=4, **kwargs)
    for name, layer in bnn.random_layers():
        stored = {part: values for part, values in layer.posterior.named_parameters() if part in ("weight", "bias")}
        for draw in weights[-4:] if layer.posterior.is_random else ():
            equal = torch.cat([(draw[f"{name}.{part}".lstrip(".")] == each).flatten(1) for part, each in stored.items()], 1)
            if not (equal.any(0).all() if isinstance(layer.posterior.method, ECMP) else equal.all(1).any()):
                yield f"a draw of {name} is none of its components"


def factored_members(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """The K draws of a pass are the K members: plain networks whose layers get scaled inputs and give scaled outputs.

    A layer with a `forward` of its own gets a scaled weight.
    """
    layers = dict(bnn.random_layers())
    if any(layer.is_read for layer in layers.values()):
        return  # hooks see calls only; draws are compared with their weights elsewhere
    args, kwargs = foreign.arguments()
    method = next(iter(layers.values())).posterior.method
    assert isinstance(method, BatchEnsemble)
    with torch.no_grad():
        draws = bnn(*args, samples=method.components, **kwargs).outputs
        members = [_factored(foreign, layers, k) for k in range(method.components)]
    left = list(range(len(members)))
    for draw in draws:
        found = next((k for k in left if not list(differences("", draw, members[k], foreign.rounding))), None)
        if found is None:
            yield "a draw is none of the members that are left"
            return
        left.remove(found)


def _factored(foreign: Foreign, layers: dict[str, BayesianLayer], k: int) -> Tensor:
    """Outputs of member k, from the plain network and its factors alone."""
    plain = foreign.unpacked()
    for name, layer in layers.items():
        r, s = (layer.posterior.get_parameter(f"{side}_mean")[k].detach() for side in ("input", "output"))
        module = plain.get_submodule(name)
        if isinstance(layer, OwnForward) or not is_called(plain, name):
            with torch.no_grad():
                module.weight.mul_(_factors(r, s, module))
            continue

        def before(module: nn.Module, inputs: tuple[Tensor], r: Tensor = r) -> tuple[Tensor]:
            return (inputs[0] * _along_channels(r, module),)

        def after(module: nn.Module, inputs: object, y: Tensor, s: Tensor = s) -> Tensor:
            bias = getattr(module, "bias", None)
            shift = 0 if bias is None else _along_channels(bias, module)
            return (y - shift) * _along_channels(s, module) + shift

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    return foreign.outputs(plain)


def _factors(r: Tensor, s: Tensor, module: nn.Module) -> Tensor:
    """A factor of every weight (O, I/G, ...), by its input channel and its output channel, in G groups."""
    groups = getattr(module, "groups", 1)
    outer = torch.einsum("go,gi->goi", s.view(groups, -1), r.view(groups, -1)).flatten(0, 1)
    return outer.view(*outer.shape, *[1] * (module.weight.dim() - 2))


def is_called(net: nn.Module, name: str) -> bool:
    """Whether the network calls this layer, and is no recurrent network that computes with its weight."""
    owner = net.get_submodule(name.rpartition(".")[0])
    return not isinstance(owner, Unpacked) or owner.calls_parts


def _along_channels(v: Tensor, module: nn.Module) -> Tensor:
    """Factors of channels, which are the first dimension after the batch in convolutions, and the last in other layers."""
    positions = len(module.kernel_size) if isinstance(module, nn.modules.conv._ConvNd) else 0
    return v.view(-1, *[1] * positions)


def separate_members(bnn: Bayesian, foreign: Foreign, nets: int) -> Iterator[str]:
    """Draw k is the k-th network, alone; all of its parameters get the gradients that they have alone, divided by the members."""
    args, kwargs = foreign.arguments()
    with torch.no_grad():
        draws = bnn(*args, samples=nets, **kwargs).outputs
    plain = [foreign.network(seed=k) for k in range(nets)]
    yield from differences("members", draws, torch.stack([foreign.outputs(net) for net in plain]), foreign.rounding)
    for k, net in enumerate(plain):
        expected = foreign.outputs(net)
        yield from differences("sample_network", foreign.outputs(bnn.sample_network(k)), expected, foreign.rounding)
        yield from differences("function", bnn.function(k)(*args, **kwargs).detach(), expected, foreign.rounding)
    if not foreign.trains:
        return
    bnn.zero_grad()
    bnn(*args, samples=nets, **kwargs).outputs.double().square().mean().backward()
    for member, net in zip(bnn.members, plain, strict=True):
        foreign.pick(net(*args, **kwargs)).double().square().mean().div(nets).backward()
        trained = dict(member.net.named_parameters())
        for name, parameter in net.named_parameters():
            gradient = trained[name].grad
            if (gradient is None) != (parameter.grad is None):
                yield f"{name} has {'no' if gradient is None else 'a'} gradient, unlike alone"
            elif gradient is not None and parameter.grad is not None and parameter.grad.abs().max() > 1e-9:
                yield from differences(f"gradients of {name}", gradient, parameter.grad, max(1e-4, foreign.rounding))
    bnn.zero_grad()


@torch.no_grad()
def collect(bnn: Bayesian) -> dict[str, Tensor]:
    """Take snapshots of weights that move, as in training; return their mean by parameter name, computed from copies."""
    torch.manual_seed(5)
    snapshots: dict[str, list[Tensor]] = {}
    for _ in range(_SNAPSHOTS):
        for name, layer in bnn.random_layers():
            for part, parameter in layer.named_parameters(recurse=False):
                parameter.add_(0.05 * torch.randn_like(parameter))
                snapshots.setdefault(f"{name}.{part}".lstrip("."), []).append(parameter.double().clone())
        bnn.collect()
    return {name: torch.stack(values).mean(0) for name, values in snapshots.items()}


def snapshot_mean(bnn: Bayesian, foreign: Foreign, mean: dict[str, Tensor]) -> Iterator[str]:
    """The restored network has the mean of the snapshots. It ends the checks, because it takes the network apart."""
    plain = foreign.unpacked()
    args, kwargs = foreign.arguments()
    with torch.no_grad():
        torch.manual_seed(2)
        values = {name: value.to(plain.get_parameter(name).dtype) for name, value in mean.items()}
        expected = foreign.pick(functional_call(plain, values, args, kwargs))
        yield from differences("the restored network's outputs", foreign.outputs(unbayesify(bnn)), expected, foreign.rounding)


def complete(bnn: Bayesian, foreign: Foreign) -> tuple[Tensor, Tensor]:
    """Make a Laplace posterior of random targets; return inputs and targets.

    Raises:
        BayesifyError: as `Bayesian.complete`.
    """
    inputs = _positional(foreign)
    y = torch.randn_like(foreign.outputs(foreign.network()))
    bnn.complete([(inputs, y)], Gaussian(std=_NOISE).to(y.dtype), progress=False)
    return inputs, y


def _positional(foreign: Foreign) -> Tensor | Arguments:
    """The only input of the network if it takes it by position, as Laplace needs it; else all inputs."""
    args, kwargs = foreign.arguments()
    first = next(iter(inspect.signature(foreign.network().forward).parameters))
    if len(args) == 1 and not kwargs:
        return args[0]
    return kwargs[first] if not args and list(kwargs) == [first] else (args or kwargs)


def linearized(bnn: Bayesian, foreign: Foreign, method: Laplace) -> Iterator[str]:
    """Draws are linear in their weights, and the variances are those of the Jacobian of the plain network."""
    args, kwargs = foreign.arguments()
    plain = foreign.unpacked()
    names = [name for name, _ in bnn.random_layers()]
    with torch.no_grad():
        torch.manual_seed(6)
        draw = bnn(*args, samples=1, **kwargs).outputs[0]
        torch.manual_seed(6)
        drawn = bnn.passes.draw([layer for _, layer in bnn.random_layers()], 1)
    ends = dict(zip(names, drawn.values(), strict=True))
    deviations = {
        parameter: end[0] - plain.get_parameter(parameter).detach()
        for name, pair in ends.items()
        for parameter, end in zip((f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")), pair, strict=True)
        if end is not None
    }

    def moved(step: float) -> Tensor:
        weights = {name: plain.get_parameter(name).detach() + step * d for name, d in deviations.items()}
        with torch.no_grad():
            return foreign.pick(functional_call(plain, weights, args, kwargs))

    change = (moved(_STEP) - moved(-_STEP)) / (2 * _STEP)
    yield from differences("linearized draws", draw, moved(0.0) + change, max(1e-5, foreign.rounding))
    if not bool(change.any()):
        yield "draws do not differ from the mean"
    yield from _curvature(foreign, method, list(deviations))


def _curvature(foreign: Foreign, method: Laplace, names: list[str]) -> Iterator[str]:
    """The standard deviations of a diagonal posterior are those of the generalized Gauss-Newton matrix of the plain network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        diagonal = method.replace(structure="diagonal", tune_prior=False)
        bnn = bayesify(foreign.network(), diagonal, output=foreign.pick).eval()
        complete(bnn, foreign)
    found = torch.cat([layer.posterior.get_buffer("std") for _, layer in bnn.random_layers()])
    plain = foreign.unpacked()
    args, kwargs = foreign.arguments()
    parameters = [plain.get_parameter(name).requires_grad_() for name in names]
    precision = [torch.full_like(p, method.prior_std**-2) for p in parameters]
    for y in foreign.pick(plain(*args, **kwargs)).flatten():
        gradients = torch.autograd.grad(y, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        precision = [p + g.square() / _NOISE**2 for p, g in zip(precision, gradients, strict=True)]
    expected = torch.cat([p.rsqrt().flatten() for p in precision])
    yield from differences("standard deviations", found, expected, max(1e-5, foreign.rounding))

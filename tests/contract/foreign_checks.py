"""What must be true of a network of another library that was made Bayesian, compared with the plain network.

Shapes: S draws, B batch.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from foreign import Foreign, differences
from foreign_kinds import collect, complete, components, factored_members, linearized, separate_members, snapshot_mean
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import (
    EMP,
    SWAG,
    VIFO,
    VSD,
    BatchEnsemble,
    Bayesian,
    DeepEnsemble,
    Deterministic,
    Gaussian,
    Laplace,
    MeanField,
    VariationalDropout,
    bayesify,
    predict,
    unbayesify,
)
from bayesify.core.method import Method
from bayesify.core.noise_free import NoiseFree
from bayesify.core.switches import observer
from bayesify.errors import BayesifyError, BayesifyWarning
from bayesify.testing.trial import captured_weights

__all__ = ["Found", "check", "collapsed_problems"]

_DRAWS = 3
_MANY = 10  # so many draws of few components differ


@dataclasses.dataclass
class Found:
    """What was found of a method on a network.

    Attributes:
        random: the number of random layers.
        folded: whether draws share a pass.
        refused: the error of the conversion or of the first pass, which says what to do.
        problems: what is wrong.
    """

    random: int = 0
    folded: bool = False
    refused: str = ""
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "wrong" if self.problems else "refused" if self.refused else "right"


def check(foreign: Foreign, method: Method) -> Found:
    """Make a network Bayesian and compare what it computes with the plain network."""
    found = Found()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        try:
            nets = [foreign.network(seed=k) for k in range(method.members if isinstance(method, DeepEnsemble) else 1)]
            bnn = bayesify(nets, method, output=foreign.pick).eval()
            args, kwargs = foreign.arguments()
            with torch.set_grad_enabled(foreign.trains):
                bnn(*args, samples=2, **kwargs)
                if isinstance(method, Laplace):
                    complete(bnn, foreign)
                    bnn(*args, samples=2, **kwargs)
        except BayesifyError as error:
            found.refused = str(error)
            return found
        bnn(*args, samples=_DRAWS, **kwargs)  # which compares passes of this size
        calls: list[None] = []
        handle = (bnn.members or (bnn,))[0].net.register_forward_hook(observer(lambda *_: calls.append(None)))
        bnn(*args, samples=_DRAWS, **kwargs)
        handle.remove()
        found.random = sum(layer.posterior.is_random for _, layer in bnn.random_layers())
        found.folded = len(calls) == 1
        for each in _checks(foreign, method, bnn):
            found.problems.extend(each(bnn, foreign))
    return found


def _checks(foreign: Foreign, method: Method, bnn: Bayesian) -> Iterator[Callable[[Bayesian, Foreign], Iterator[str]]]:
    """What must be true of this kind of method."""
    if isinstance(method, VIFO):
        yield from (_means, _predictions)
    elif isinstance(method, DeepEnsemble):
        yield from (partial(separate_members, nets=method.members), _predictions)
    elif isinstance(method, Laplace):
        yield from (partial(linearized, method=method), _kl, _predictions)
    else:
        if foreign.trains:
            yield _gradients
        mean = collect(bnn) if isinstance(method, SWAG) else {}
        yield from (_draws, _kl, _predictions, _copies)
        if isinstance(method, EMP):
            yield components
        if isinstance(method, BatchEnsemble):
            yield factored_members
        if mean:
            yield partial(snapshot_mean, mean=mean)


def collapsed_problems(foreign: Foreign) -> list[str]:
    """What differs between the plain network and one whose draws are all equal to its weights, in both modes."""
    problems = list[str]()
    for training in (False, True) if foreign.trains else (False,):
        for method in _COLLAPSED:
            for samples in (1, 2) if method in _COLLAPSED[:2] else (2,):
                name = f"{'training' if training else 'eval'} mode, {type(method).__name__}, {samples} draws: "
                problems.extend(name + problem for problem in _collapsed(foreign, method, samples, training))
    return problems


# The initial draws of these are the weights of the plain network, but for noise that `NoiseFree` leaves out.
_COLLAPSED: list[Method] = [
    Deterministic(),
    MeanField(initial_std=1e-10),
    VariationalDropout(p=1e-18),
    VSD(p=1e-18),
    EMP(spread=0),
    BatchEnsemble(spread=0),
    SWAG(),
    Laplace(layers="all", structure="diagonal"),
]


def _collapsed(foreign: Foreign, method: Method, samples: int, training: bool) -> Iterator[str]:
    plain = foreign.network().train(training)
    args, kwargs = foreign.arguments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        try:
            bnn = bayesify(foreign.network().train(training), method, output=foreign.pick)
            with NoiseFree():
                draws = bnn(*args, samples=samples, **kwargs).outputs
        except BayesifyError:
            return
    with NoiseFree():
        expected = foreign.pick(plain(*args, **kwargs)).detach()
    for draw in draws:
        yield from differences("outputs", draw, expected, foreign.rounding)
    buffers = dict(bnn.net.named_buffers()) if samples == 1 else {}
    for name, value in plain.named_buffers():
        if name in buffers and value.is_floating_point():
            yield from differences(name, buffers[name], value, foreign.rounding)
    restored = unbayesify(bnn)
    if [*map(_class, restored.modules())] != [*map(_class, plain.modules())]:
        yield "unbayesify gives other classes"
    if [name for name, _ in restored.named_parameters()] != [name for name, _ in plain.named_parameters()]:
        yield "unbayesify gives other parameters"
    for (name, value), original in zip(restored.named_parameters(), plain.parameters(), strict=False):
        yield from differences(f"the restored {name}", value, original, foreign.rounding)


def _class(module: nn.Module) -> tuple[str, str]:
    """A module's class; classes that PyTorch's tracer makes for every copy (`GraphModule`) have one name."""
    return type(module).__module__, type(module).__qualname__


def _draws(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """Coherent draws are the plain network with their weights."""
    plain = foreign.unpacked()
    args, kwargs = foreign.arguments()
    with captured_weights(bnn) as weights, torch.no_grad():
        draws = bnn(*args, samples=_DRAWS, coherent=True, **kwargs).outputs
        expected = torch.stack([foreign.pick(functional_call(plain, each, args, kwargs)) for each in weights[-_DRAWS:]])
        default = bnn(*args, samples=_MANY, **kwargs).outputs
    yield from differences("draws", draws, expected, foreign.rounding)
    if float((expected - expected[:1]).abs().max()) > 1e-4 * float(expected.abs().max()) and bool((default == default[:1]).all()):
        yield "all draws of a default pass are equal"


def _means(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """The means of VIFO's outputs are the outputs of the plain network."""
    args, kwargs = foreign.arguments()
    moments = bnn.normal_outputs(*args, **kwargs)
    assert moments is not None
    yield from differences("means", moments.mean, foreign.outputs(foreign.network()), foreign.rounding)


def _gradients(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """All parameters of the layers in use have finite gradients, where the plain network has some."""
    plain = foreign.unpacked()
    args, kwargs = foreign.arguments()
    foreign.pick(plain(*args, **kwargs)).double().square().mean().backward()
    reached = {name.rpartition(".")[0] for name, p in plain.named_parameters() if p.grad is not None and bool(p.grad.any())}
    bnn.zero_grad()
    draws = bnn(*foreign.arguments()[0], samples=2, **kwargs)
    (draws.outputs.double().square().mean() + 1e-3 * draws.kl).backward()
    for name, layer in bnn.random_layers():
        for key, parameter in layer.named_parameters():
            if name in reached and parameter.requires_grad and parameter.grad is None:
                yield f"{name}.{key} has no gradient"
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                yield f"the gradient of {name}.{key} is not finite"
    bnn.zero_grad()


def _kl(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """The KL of a pass is that of the layers, none of which share a parameter."""
    args, kwargs = foreign.arguments()
    layers = [layer for _, layer in bnn.random_layers()]
    expected = torch.stack([layer.posterior.kl(layer) for layer in layers]).sum()
    yield from differences("KL", bnn(*args, samples=2, **kwargs).kl, expected, 1e-4)
    parameters = [id(p) for layer in layers for p in layer.parameters()]
    if bool(expected.detach()) and len(parameters) != len(set(parameters)):
        yield "the KL counts a parameter twice"


def _predictions(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """Replayed predictions are those of ordinary passes; rows alone are predicted as in a batch, as by the plain network."""
    args, kwargs = foreign.arguments()
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if (args and kwargs) or len(tensors) < len(args) + len(kwargs) or len({len(x) for x in tensors}) > 1:
        return  # no rows that `predict` could cut, such as a graph

    def predicted(**options: Any) -> Tensor:
        inputs = kwargs or args
        return predict(bnn, inputs, Gaussian(std=1.0), samples=4, chunk=2, seed=0, coherent=True, progress=False, **options).mean

    whole = predicted()
    handle = bnn.net.register_forward_hook(observer(lambda *_: None))  # predictions through hooks are not replayed
    yield from differences("replayed predictions", whole, predicted(), foreign.rounding)
    handle.remove()
    if not _mixes_rows(foreign):
        yield from differences("predictions of single rows", predicted(batch_size=1), whole, foreign.rounding)


def _mixes_rows(foreign: Foreign) -> bool:
    """Whether the plain network gives a row other outputs in a batch of one, or does not accept one."""
    args, kwargs = foreign.arguments()
    first = [x[:1] for x in args], {name: x[:1] for name, x in kwargs.items()}
    plain = foreign.network()
    try:
        with torch.no_grad():
            alone = foreign.pick(plain(*first[0], **first[1]))
    except (RuntimeError, ValueError, IndexError):
        return True
    return bool(list(differences("", alone, foreign.outputs(plain)[:1], foreign.rounding)))


def _copies(bnn: Bayesian, foreign: Foreign) -> Iterator[str]:
    """A drawn function is the same in a copy of the network as plain one."""
    args, kwargs = foreign.arguments()
    function = bnn.function(3)(*args, **kwargs).detach()
    yield from differences("sample_network", foreign.outputs(bnn.sample_network(3)), function, foreign.rounding)

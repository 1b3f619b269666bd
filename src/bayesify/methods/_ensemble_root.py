"""Root of an ensemble of several networks, and the networks of its members."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.checks import check_integer
from bayesify.core.copies import copied_module
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.generators import generator_states, own_noise
from bayesify.core.initialization import looks_initialized
from bayesify.core.inputs import Inputs
from bayesify.core.layer_report import LayerReport
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.modes import buffers_kept, can_compare, eval_mode
from bayesify.core.noise_free import NOISE_IN_EVAL_MODE, depends_on_noise
from bayesify.core.outputs import Draws
from bayesify.core.unfolding import copied
from bayesify.errors import ConfigurationError

__all__ = ["Ensemble", "PlainMember", "nets_of_members", "reset_parameters"]


def nets_of_members(nets: Sequence[nn.Module], members: int, method: str) -> Sequence[nn.Module]:
    """Return one network per member: those given, or a freshly initialized one and copies with new initial weights.

    Raises:
        ConfigurationError: a wrong number of networks, networks that share parameters, or one that was trained.
    """
    if len(nets) == 1 < members:
        check_initialized(nets[0], method)
        nets = [nets[0], *(copied_module(nets[0]) for _ in range(members - 1))]
        for fresh in nets[1:]:
            reset_parameters(fresh)
    elif len(nets) != members:
        raise ConfigurationError(f"{method}(members={members}) needs {members} networks, got {len(nets)}")
    elif len({id(parameter) for net in nets for parameter in net.parameters()}) != sum(len(list(net.parameters())) for net in nets):
        raise ConfigurationError(
            "the networks of an ensemble must not share parameters; build each separately: [make() for _ in range(5)]"
        )
    return nets


class PlainMember(Bayesian):
    """A plain network: all draws are equal.

    Attributes:
        is_examined: whether a pass in eval mode has shown if the network draws noise.
    """

    one_pass = True

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.is_examined = False

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        check_integer("samples", samples)
        call = self.inputs_of(inputs, kwargs)
        examines = not (self.is_examined or self.training) and can_compare(self.net)
        states = generator_states(self.parameters()) if examines else {}
        outputs = tree_map(lambda y: self._expanded(y, samples), self._run(*inputs, **kwargs))
        if examines:
            self.is_examined = True
            now = generator_states(self.parameters())
            if not all(torch.equal(state, now[device]) for device, state in states.items()):
                self._tell_of_noise(call)
        kl = self.kl_of_pass({})
        return Draws(outputs, kl, kl.new_zeros(call.examples(outputs, 1)))

    def function(self, seed: int) -> Callable[..., Any]:
        return DrawnFunction(self.net, self._run, self.batch_dim)

    def _run(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.passes.run(ForwardPass(), self.net, inputs, kwargs)

    def _tell_of_noise(self, call: Inputs) -> None:
        """Tell of noise on which outputs depend, which differs between members."""

        def run() -> list[Tensor]:
            args, kwargs = call.map(torch.clone)
            return [y for y in tree_leaves(self._run(*args, **kwargs)) if isinstance(y, Tensor)]

        with torch.no_grad(), own_noise(self.parameters()), buffers_kept(self.net):
            is_noisy = depends_on_noise(run)
        if is_noisy:
            self.tell(NOISE_IN_EVAL_MODE)

    @contextmanager
    def drawn(self, seed: int) -> Iterator[nn.Module]:
        with eval_mode(self.net):
            yield self.net

    def sample_network(self, seed: int) -> nn.Module:
        return copied_module(self.net)

    def _expanded(self, y: Any, samples: int) -> Any:
        if not isinstance(y, Tensor):
            return y
        y = y.movedim(self.batch_dim, 0)
        return y.expand(samples, *y.shape)


class Ensemble(Bayesian):
    """Root of an ensemble: S draws are divided among the M members, the first S mod M of which make one more.

    In training mode S is rounded up to a multiple of M, so that every step trains every member. The loss is then the mean over
    members; its gradient is 1/M of that of a member trained alone (Adam's steps do not depend on this factor). `fit` trains
    members separately.
    """

    net: nn.ModuleList

    def __init__(self, members: Sequence[Bayesian], method: Method) -> None:
        super().__init__(nn.ModuleList(members))
        for member in members:
            member.findings = self.findings  # so that all tell a fact once
        self.one_pass = all(member.one_pass for member in members)
        self.local_beta, self.auxiliary_beta = members[0].local_beta, members[0].auxiliary_beta
        self.report = tuple(
            dataclasses.replace(report, name=f"{k}.net.{report.name}".rstrip("."))
            for k, member in enumerate(members)
            for report in member.report or _plain_report(member, method)
        )

    @property
    def members(self) -> tuple[Bayesian, ...]:
        return tuple(member for member in self.net if isinstance(member, Bayesian))

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        check_integer("samples", samples)
        members = self.members
        if self.training:
            samples = -(-samples // len(members)) * len(members)
        counts = [samples // len(members) + (k < samples % len(members)) for k in range(len(members))]
        call = self.inputs_of(inputs, kwargs)
        draws: list[Draws] = []
        for member, n in zip(members, counts, strict=True):
            if n:
                args, kwargs = call.map(torch.clone)  # a member may change them in place
                drawn = member(*args, samples=n, coherent=coherent, **kwargs)
                # copies of a network may share memory
                draws.append(drawn._replace(outputs=copied(drawn.outputs)) if torch.is_grad_enabled() else drawn)
        outputs = tree_map(lambda *ys: torch.cat(ys) if isinstance(ys[0], Tensor) else ys[0], *(d.outputs for d in draws))
        shares = [n / samples for n in counts if n]
        kl = torch.stack([share * d.kl for share, d in zip(shares, draws, strict=True)]).sum()
        local_kl = torch.stack([share * d.local_kl for share, d in zip(shares, draws, strict=True)]).sum(0)
        scores = [d.score if d.score is not None else d.kl.new_zeros(n) for d, n in zip(draws, filter(None, counts), strict=True)]
        score = torch.cat(scores) if any(d.score is not None for d in draws) else None
        return Draws(outputs, kl, local_kl, score, self.local_beta)

    @contextmanager
    def predicting(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        coherent: bool,
        reseed: Callable[[int], object],
        believed: dict[object, bool] | None = None,
        samples: int = 100,
    ) -> Iterator[None]:
        with ExitStack() as stack:
            each = samples // len(self.members)
            for member in self.members:
                stack.enter_context(member.predicting(inputs, kwargs, coherent, reseed, believed, each))
            yield

    def stop_replay(self) -> bool:
        stopped = [member.stop_replay() for member in self.members]
        return any(stopped)

    def function(self, seed: int) -> Callable[..., Any]:
        check_integer("seed", seed, least=0)
        return self.members[seed % len(self.members)].function(seed)

    def drawn(self, seed: int) -> AbstractContextManager[nn.Module]:
        check_integer("seed", seed, least=0)
        return self.members[seed % len(self.members)].drawn(seed)

    def sample_network(self, seed: int) -> nn.Module:
        check_integer("seed", seed, least=0)
        return self.members[seed % len(self.members)].sample_network(seed)

    def kl(self) -> Tensor:
        """Mean of the members' KLs: nats, a scalar of at least float32."""
        return torch.stack([member.kl() for member in self.members]).mean()


def _plain_report(member: Bayesian, method: Method) -> list[LayerReport]:
    layers = ((name, layer) for name, layer in member.net.named_modules() if any(True for _ in layer.parameters(recurse=False)))
    return [LayerReport(name, type(layer).__name__, method, "") for name, layer in layers]


def check_initialized(net: nn.Module, method: str = "DeepEnsemble") -> None:
    """Raise a ConfigurationError unless a network's weights look as if `reset_parameters` of its layers had drawn them.

    The initial weights of an ensemble's members must have the same distribution.
    """
    for name, module in net.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None and weight.requires_grad and looks_initialized(type(module), weight) is False:
            raise ConfigurationError(
                f"{name or 'the network'} ({type(module).__name__}) has weights that its reset_parameters() would not draw: it "
                "was trained or initialized differently. Give all members: bayesify([make() for _ in range(5)], "
                f"{method}(members=5))"
            )


@torch.no_grad()
def reset_parameters(net: nn.Module) -> None:
    """Draw new initial weights in place, with `reset_parameters` of every layer; frozen layers keep theirs.

    Raises:
        ConfigurationError: a layer with parameters has no such method. Nothing has changed.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> before = net.weight.clone()
        >>> reset_parameters(net)
        >>> bool((net.weight == before).any())
        False
    """
    resets = []
    for name, module in net.named_modules():
        own = list(module.parameters(recurse=False))
        # attention and transformers have a private one
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if own and not any(parameter.requires_grad for parameter in own):
            continue
        if own and not callable(reset):
            raise ConfigurationError(
                f"{name or 'the network'} ({type(module).__name__}) has parameters but no method reset_parameters(), which draws "
                "the initial weights of ensemble members; add one"
            )
        if callable(reset) and (own or any(True for _ in module.buffers(recurse=False))):
            resets.append(reset)
    for reset in reversed(resets):  # children first: a parent may overwrite them
        reset()

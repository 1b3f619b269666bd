"""What the first steps of training reveal: optimizers that lack parameters, untrained layers, losses without the KL or a minus."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bayesify.core.outputs import Draws
from bayesify.core.values import may_look_at
from bayesify.formatting import plural

__all__ = ["FirstSteps"]

_STEPS = 3  # of an optimizer, after which what has not happened is taken for a mistake
_PASSES = 20  # in training mode that changed no parameter at all: more than most accumulate gradients for
_GIVEN_UP = 200  # passes, after which the network is not observed any longer


class _Place(NamedTuple):
    """Where a module has a parameter.

    Sharding replaces parameters, whose memory is needed, and modules do not convert parameters of other types to another device if
    there are weak references.
    """

    module: weakref.ref[nn.Module]
    name: str
    identity: int

    def __call__(self) -> nn.Parameter | None:
        """The parameter, unless it has been replaced."""
        module = self.module()
        parameter = None if module is None else module._parameters.get(self.name)
        return parameter if id(parameter) == self.identity else None


def _places(root: nn.Module) -> dict[str, _Place]:
    """Where each parameter is, by its name in `root`; not those of TorchScript."""
    return {
        f"{prefix}.{name}".removeprefix("."): _Place(weakref.ref(module), name, id(parameter))
        for prefix, module in root.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


class FirstSteps:
    """Observes which parameters change between the first passes in training mode, and the gradient of the KL.

    In most networks the second of these passes shows that all is well, and is the last one that is observed. Copies do not observe.

    Args:
        before: the parameters of the plain network.
        bnn: the root of the converted network.

    Attributes:
        begun: whether there was a pass in training mode.
        uses_kl: whether the loss depends on the KL; None before the first pass.
        is_maximized: whether the optimizer maximizes what it gets.

    Example:
        >>> net = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> bnn = bayesify(net, MeanField()).train()
        >>> for _ in range(4):
        ...     bnn(torch.zeros(5, 3)).outputs.sum().backward()
        ...     optimizer.step()
        >>> len(bnn.findings)
        1
    """

    def __init__(self, before: Iterable[nn.Parameter] = (), bnn: nn.Module | None = None) -> None:
        parameters = {} if bnn is None else dict(bnn.named_parameters())
        places = {} if bnn is None else _places(bnn)
        named = {name: places[name] for name, p in parameters.items() if name in places and _has_version(p)}
        old = {id(p): p for p in before if _has_version(p)}
        present = {id(p) for p in parameters.values()}
        self.kept = [place for place in named.values() if place.identity in old]
        self.added = {name: place for name, place in named.items() if place.identity not in old}
        self.dropped = [weakref.ref(p) for key, p in old.items() if key not in present]
        self.first = next((id(p) for p in parameters.values()), None)
        self.initial = _versions(self.added.values())
        self.begun = False
        self.uses_kl: bool | None = None
        self.is_local = False  # the KL is one per example
        self.is_maximized = False
        self.kl_gradient: Tensor | None = None  # of the loss
        self.output_gradient: Tensor | None = None
        self.passes = self.steps = 0
        self.trained: set[str] = set()  # names of those added
        self.versions: tuple[list[int], list[int]] | None = None

    def __reduce__(self) -> tuple[type[FirstSteps], tuple[()]]:
        return FirstSteps, ()

    def finding(self, bnn: nn.Module, has_optimizer: bool = False) -> str | None:
        """What a pass in training mode shows: a sentence, an empty string if there is nothing more to observe, else None.

        Args:
            bnn: the root of the converted network.
            has_optimizer: whether it has made an optimizer, which has all parameters and may leave some for a few steps.
        """
        if self.first is None or self.passes == _GIVEN_UP or not any(_is_trainable(place()) for place in self.added.values()):
            return ""
        if id(next(bnn.parameters(), None)) != self.first:  # in a functional call
            return None
        self.passes += 1
        versions = _versions(self.kept), _versions(self.added.values())
        before, self.versions = self.versions or versions, versions
        self.steps += before != versions
        self.trained |= {name for name, old, new in zip(self.added, before[1], versions[1], strict=True) if old != new}
        if not self.trained:
            return None if has_optimizer else self._stale_optimizer()
        if self._rewards_kl():
            return (
                "the loss falls as the KL grows, so that training makes predictions worse: elbo(...) is what to maximize, and the "
                "loss is -elbo(draws, log_prob, n)"
            )
        if text := self._of_overweight():
            return text
        untrained = [] if has_optimizer else self._untrained(bnn)
        if not untrained and self.uses_kl is not False:
            return ""
        if self.steps < _STEPS:
            return None
        if untrained:
            count = len({_layer(name) for name in self.added})
            return (
                f"{len(untrained)} of {plural(count, 'random layer')}, such as {untrained[0]!r}, are not trained: they are frozen, "
                "or the optimizer lacks the parameters of their posteriors. Their noise stays as it was initialized, whatever the "
                "data. Make the optimizer from bnn.parameters(), or name the layers that should be random: bayesify(net, {pattern: "
                "method})"
            )
        if self.is_local:
            return (
                "the loss lacks `draws.local_kl`, the regularizer of the outputs, without which their variance becomes too small: "
                "train with -elbo(draws, log_prob, n), or add draws.local_beta * draws.local_kl.mean() to the loss"
            )
        return (
            "the loss lacks `draws.kl`, the KL of the posterior from the prior, without which the posterior becomes too narrow: "
            "train with -elbo(draws, log_prob, n), or add draws.kl / n to the loss, where n is the number of training examples"
        )

    def observe(self, draws: Draws) -> None:
        """Notice whether the gradient of the loss, after an observed pass, reaches its KL, or that per example (VIFO)."""
        self.is_local = not draws.kl.requires_grad and draws.local_beta != 0
        kl = draws.local_kl if self.is_local else draws.kl
        if self.uses_kl or not kl.requires_grad or not may_look_at(kl):
            return
        self.uses_kl = False
        kl.register_hook(self._notice_kl)
        if not self.is_local and isinstance(draws.outputs, Tensor) and draws.outputs.requires_grad:
            draws.outputs.register_hook(self._notice_outputs)

    def _notice_kl(self, gradient: Tensor) -> None:
        self.uses_kl = True
        self.kl_gradient = gradient.detach()

    def _notice_outputs(self, gradient: Tensor) -> None:
        self.output_gradient = gradient.detach()

    def _of_overweight(self) -> str:
        """What is wrong if the loss has a mean of cross entropies, and the KL with a weight far above 1 / n; empty if nothing.

        The gradient of a cross entropy, probabilities minus a one-hot vector, adds up to 0 and has a norm below 2. A sum over
        examples has one as small as a mean only after training.
        """
        kl, outputs = self.kl_gradient, self.output_gradient
        if kl is None or outputs is None or outputs.dim() < 3 or not may_look_at(kl, outputs):
            return ""
        weight, size = float(kl), float(outputs.abs().sum())
        examples = int(outputs.flatten(2).abs().sum((0, 2)).count_nonzero())  # not the nodes without a label
        is_softmax = any(float(outputs.sum(dim).abs().sum()) < 1e-3 * size for dim in {2, outputs.dim() - 1})
        if not is_softmax or size > 2 or examples < 2 or weight <= 2 / examples:
            return ""
        return (
            f"the loss has `draws.kl` with the weight {weight:.2g}, beside a mean over {examples} examples: the posterior stays at "
            "the prior, and the network hardly learns. Train with -elbo(draws, log_prob, n), or add draws.kl / n to a mean over "
            "examples, where n is the number of training examples"
        )

    def _rewards_kl(self) -> bool:
        gradient = self.kl_gradient
        return gradient is not None and not self.is_maximized and may_look_at(gradient) and bool(gradient.sum() < 0)

    def _stale_optimizer(self) -> str | None:
        if self.steps < _STEPS and (self.passes <= _PASSES or self.steps or all(p() is None for p in self.dropped)):
            return None
        return (
            f"the parameters that `bayesify` added, such as {next(iter(self.added))!r}, have not changed in training. An optimizer "
            "made before `bayesify` lacks them: make it from bnn.parameters()"
        )

    def _untrained(self, bnn: nn.Module) -> list[str]:
        """Names of the layers whose posterior is that of the conversion, although others are trained."""
        layers = dict[str, list[nn.Parameter]]()
        changed = set[str]()
        for (name, place), initial in zip(self.added.items(), self.initial, strict=True):
            parameter = place()
            if parameter is None or parameter._version != initial or ".posterior." not in name:
                changed.add(_layer(name))
            else:
                layers.setdefault(_layer(name), []).append(parameter)
        modules = dict(bnn.named_modules())
        return [
            name
            for name, added in layers.items()
            if name not in changed
            and getattr(modules[name], "is_used", None) is not False
            and (any(p.requires_grad for p in added) or not any(p.requires_grad for p in modules[name].parameters()))
        ]


def _layer(name: str) -> str:
    """The name of the layer that a parameter belongs to."""
    return name.partition(".posterior.")[0]


def _versions(places: Iterable[_Place]) -> list[int]:
    """How often parameters have been changed, as PyTorch counts."""
    found = [place() for place in places]
    return [-1 if p is None else p._version for p in found]


def _is_trainable(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and parameter.requires_grad


def _has_version(parameter: nn.Parameter) -> bool:
    """Whether PyTorch counts the changes of a parameter."""
    return not isinstance(parameter, nn.UninitializedParameter) and not parameter.is_inference()

"""Notice optimizers whose weight decay pulls variational parameters to 0, whatever the prior."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from bayesify.core.layer import BayesianLayer
from bayesify.formatting import plural

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["exempt_from_decay", "notice_decay", "variational_parameters"]


def variational_parameters(bnn: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of posteriors that are no means of weights, such as log standard deviations, by name."""
    return {
        f"{prefix}.posterior.{name}".removeprefix("."): parameter
        for prefix, layer in bnn.named_modules()
        if isinstance(layer, BayesianLayer)
        for name, parameter in layer.posterior.named_parameters()
        if name not in layer.posterior.means
    }


def exempt_from_decay(optimizer: Optimizer, exempt: set[nn.Parameter]) -> None:
    """Move parameters to groups without weight decay; for an optimizer that has taken no step."""
    for group in list(optimizer.param_groups):
        moved = [p for p in group["params"] if p in exempt]
        if not group.get("weight_decay") or not moved:
            continue
        if len(moved) == len(group["params"]):
            group["weight_decay"] = 0.0
            continue
        group["params"] = [p for p in group["params"] if p not in exempt]
        optimizer.add_param_group({**group, "params": moved, "weight_decay": 0.0})


_observed: dict[int, weakref.ref[Bayesian]] = {}  # until the first step, by id of the parameter
_hooks: list[RemovableHandle] = []


def notice_decay(bnn: Bayesian) -> None:
    """Warn at the first step of an optimizer that decays variational parameters of the network."""
    for key in [key for key, root in _observed.items() if root() is None]:
        del _observed[key]
    _observed.update({id(p): weakref.ref(bnn) for p in variational_parameters(bnn).values()})
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_look_at))


def _look_at(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A hook of all optimizers' steps."""
    if torch.compiler.is_compiling() or not _observed:
        return
    decaying: dict[Bayesian, tuple[float, set[nn.Parameter]]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            root = _observed.pop(id(parameter), None)
            bnn = None if root is None else root()
            if bnn is not None and bnn.first_steps is not None and group.get("maximize"):
                bnn.first_steps.is_maximized = True
            if bnn is not None and parameter.requires_grad and group.get("weight_decay"):
                decaying.setdefault(bnn, (float(group["weight_decay"]), set()))[1].add(parameter)
    for bnn, (rate, parameters) in decaying.items():
        names = [name for name, p in variational_parameters(bnn).items() if p in parameters]
        if not names:  # other parameters, at the places in memory of those that sharding replaced
            continue
        others = "" if len(names) == 1 else f" and {plural(len(names) - 1, 'other variational parameter')}"
        bnn.tell(
            f"weight decay of {type(optimizer).__name__} pulls {names[0]!r}{others} to 0, whatever the prior. Make the optimizer "
            f"from bnn.parameter_groups(weight_decay={rate:g}), in which only weights and their means decay"
        )

"""Temporary modes: of networks, of their buffers and attributes, of autocast, and of the tensors that autograd saves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

__all__ = [
    "attributes_kept",
    "buffers_kept",
    "can_compare",
    "constants_moved",
    "current_saved_tensors_hooks",
    "eval_mode",
    "hooks_kept",
    "in_custom_function",
    "is_compiler_loaded",
    "keeping_saved_tensors",
    "modes_kept",
    "own_casts",
    "without_autocast",
    "without_compiler",
]

_OF_MODULE = frozenset(vars(nn.Module()))  # the attributes of every module
_HOOKS = tuple(name for name, value in vars(nn.Module()).items() if name.endswith("hooks") and value is not None)


@contextmanager
def modes_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore the train or eval mode of every module on exit."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Put a network into eval mode; restore the mode of every module on exit."""
    with modes_kept(net.modules()):
        net.eval()
        yield


@contextmanager
def buffers_kept(net: nn.Module) -> Iterator[None]:
    """Restore buffers that are changed in place (running statistics) on exit."""
    values = [(buffer, buffer.clone()) for buffer in net.buffers()]
    try:
        yield
    finally:
        for buffer, value in values:
            _write_back(buffer, value)


@contextmanager
def attributes_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore attributes of modules on exit: counters, flags and caches, what lists, dicts and sets contain, and values of tensors.

    Parameters and submodules stay as they are.
    """
    before = [(vars(module), {k: v for k, v in vars(module).items() if k not in _OF_MODULE}) for module in modules]
    values = [x for attributes, kept in before for x in (attributes["_buffers"], *kept.values())]
    contents = [(x, x.copy()) for x in values if type(x) in (list, dict, set)]
    numbers = [(x, x.clone()) for x in values if type(x) is Tensor and x.layout is torch.strided and not x.is_meta]
    try:
        yield
    finally:
        for attributes, kept in before:
            for name in attributes.keys() - kept.keys() - _OF_MODULE:
                del attributes[name]
            attributes.update(kept)
        for container, items in contents:
            if len(container) != len(items) or any(a is not b for a, b in zip(_parts(container), _parts(items), strict=True)):
                container.clear()
                container.extend(items) if isinstance(container, list) else container.update(items)
        for x, value in numbers:
            _write_back(x, value)


@contextmanager
def hooks_kept(net: nn.Module) -> Iterator[None]:
    """Remove hooks on exit that a network registered on its modules: what remembers them is an attribute, which is restored.

    Hidden states of transformers are collected by such hooks, that the first pass registers.
    """
    found = (vars(module).get(name) for module in net.modules() for name in _HOOKS)
    before = [(hooks, set(hooks)) for hooks in found if hooks is not None]  # scripted modules have none
    try:
        yield
    finally:
        for hooks, kept in before:
            for key in hooks.keys() - kept:  # those that are gone, as of lazy layers, have done their work
                del hooks[key]


@contextmanager
def constants_moved(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Add 0.5 to trainable parameters whose values are all equal: gates of 0 and factors of 1 hide what they act on.

    Their data is replaced, not written to, because autograd may have saved them; restored on exit.
    """
    parameters = {p for module in modules for p in module._parameters.values() if p is not None and _is_constant(p)}
    before = [(parameter, parameter.data) for parameter in parameters]
    for parameter, values in before:
        parameter.data = values + 0.5
    try:
        yield
    finally:
        for parameter, values in before:
            parameter.data = values


@torch.no_grad()
def _is_constant(p: nn.Parameter) -> bool:
    plain = type(p) is nn.Parameter and not p.is_meta and p.is_floating_point()  # sharded and uninitialized ones differ in class
    if not (plain and p.requires_grad and p.numel()):
        return False
    least, largest = p.aminmax()
    return bool(least == largest)


def _parts(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _write_back(x: Tensor, value: Tensor) -> None:
    # Autograd may have saved the tensor: write only if it changed. Batch normalization changes no version counter.
    if not torch.equal(x, value):
        x.copy_(value)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off for a device that has it."""
    # Dynamo of PyTorch 2.8 cannot trace is_autocast_available; of the devices that are compiled for, all have autocast.
    kind = device.type
    available = kind != "meta" if torch.compiler.is_compiling() else kind == "cpu" or torch.amp.is_autocast_available(kind)
    return torch.autocast(kind, enabled=False) if available and torch.is_autocast_enabled(kind) else nullcontext()


@contextmanager
def own_casts() -> Iterator[None]:
    """Forget on entry and exit what autocast keeps: parameters in lower precision, whatever happens to their values meanwhile."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def without_compiler() -> AbstractContextManager[object]:
    """Run compiled modules and functions as eager code, in which modes see what they do."""
    is_used = is_compiler_loaded() and not torch.compiler.is_compiling()
    return torch.compiler.set_stance("force_eager") if is_used else nullcontext()


def is_compiler_loaded() -> bool:
    """Whether PyTorch's compiler has been imported, which takes a second; `flex_attention` does so when it is called."""
    return "torch._dynamo" in sys.modules


def can_compare(net: nn.Module) -> bool:
    """Whether tensors have values: not while operators are traced, inside transforms of `torch.func`, or on the meta device."""
    if torch.compiler.is_compiling() or any(parameter.is_meta for parameter in net.parameters()):
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and cast(Any, torch._C)._functorch.peek_interpreter_stack() is None


def keeping_saved_tensors() -> saved_tensors_hooks:
    """Keep the tensors that a draw saves: a checkpoint in which only its result is used cannot recompute them."""
    return saved_tensors_hooks(lambda x: x, lambda x: x)


def in_custom_function() -> bool:
    """Whether gradients are off, as in the forward of a `torch.autograd.Function`, also where that turns them on for itself."""
    return not (torch.is_grad_enabled() and cast(Any, torch._C)._is_fwd_grad_enabled())


def current_saved_tensors_hooks() -> object:
    """The hooks on tensors that autograd saves here, as a checkpoint sets them; None without any."""
    return cast(Any, torch._C)._autograd._top_saved_tensors_default_hooks(True)

"""Training steps under `torch.compile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from torch._dynamo.types import GuardFilterEntry

    from bayesify.core.model import Bayesian
    from bayesify.train.objective import Objective

_PACKAGES = ("G['__builtins_dict", "G['__import_bayesify_dot_", "G['__import_torch")

__all__ = ["check_compilable", "compile_steps", "compiler_errors_explained"]


def check_compilable(bnn: Bayesian, *, is_sharded: bool) -> None:
    """Raise a `ConfigurationError` for a network whose steps depend on more than the gradient of the loss, or that is sharded."""
    if is_sharded:
        raise ConfigurationError("compile=True is not possible with strategy='fsdp', which gathers parameters between layers")
    if bnn.has_optimizer:
        raise ConfigurationError(
            "compile=True is not possible for the method of bnn: its own optimizer observes the passes of a step, which compiled "
            "code does not record; leave compile out"
        )


def compile_steps(objective: Objective, device: torch.device, *, sizes_vary: bool) -> None:
    """Compile the calls of an objective, in place: its modules and the keys of its state stay as they are.

    Args:
        objective: to compile, as one graph.
        device: where it computes.
        sizes_vary: whether batches may have many sizes. Otherwise each size has code of its own, which is faster than code for all
            sizes, and on a GPU a CUDA graph, whose kernels are launched at once.
    """
    # The compiler's own draws are slower than PyTorch's on a CPU, and others than those without a compiler (nn.Dropout).
    compiler = {"fallback_random": device.type == "cpu", "guard_filter_fn": _kept_guards}
    if device.type == "cuda" and not sizes_vary:
        compiler["triton.cudagraphs"] = True
    # PyTorch limits the versions of one code object: with its own, networks that were trained before do not count.
    call = FunctionType(_call.__code__.replace(), globals(), _call.__name__)
    dynamic = None if sizes_vary else False
    objective._compiled_call_impl = torch.compile(MethodType(call, objective), fullgraph=True, dynamic=dynamic, options=compiler)


def _call(objective: Objective, /, *arguments: Any, **options: Any) -> Any:
    return objective.forward(*arguments, **options)


def _kept_guards(guards: Sequence[GuardFilterEntry]) -> list[bool]:
    """Whether to check each before a call: not whether functions of these packages were replaced."""
    return [not guard.name.startswith(_PACKAGES) for guard in guards]


@contextmanager
def compiler_errors_explained() -> Iterator[None]:
    """Raise errors of the compiler as a `ConfigurationError`."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException  # importing the compiler takes a second
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    try:
        yield
    except FailOnRecompileLimitHit as error:
        raise ConfigurationError(
            "compile=True: the inputs of the network have too many different shapes to compile each; make batches of equal shapes, "
            "or leave compile out"
        ) from error
    except (TorchDynamoException, CppCompileError, InvalidCxxCompiler) as error:
        cause = getattr(error, "inner_exception", error)
        reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise ConfigurationError(
            f"compile=True: PyTorch cannot compile the training step ({reason.strip():.300}). The loss has to be one graph without "
            "Python code that looks at values, and a CPU needs a C++ compiler such as g++; leave compile out to train without"
        ) from error

"""`Node`: custom autograd functions that cost little per call."""

import inspect
from typing import Any, ClassVar

import torch
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

__all__ = ["Node"]


class Node(torch.autograd.Function):
    """An autograd function that transforms of `torch.func` can pass through, with `forward`, `setup_context` and `backward`.

    PyTorch binds the arguments of such a function to its signature in every call, which takes longer than a small operator. Outside
    of transforms, `call` therefore runs an equivalent function whose `forward` has the context.

    Example:
        >>> class Double(Node):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output): ...
        ...
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return 2 * grad
        >>> x = torch.ones(1, requires_grad=True)
        >>> torch.autograd.grad(Double.call(x), x), torch.func.vmap(Double.call)(torch.ones(2))
        ((tensor([2.]),), tensor([2., 2.]))
    """

    generate_vmap_rule = True
    _outside: ClassVar[type[torch.autograd.Function]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        inside: Any = cls  # whose `forward` has no context
        inside.forward.__signature__ = inspect.signature(inside.forward)  # which PyTorch would inspect in every call

        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs = inside.forward(*inputs)
            inside.setup_context(ctx, inputs, outputs)
            return outputs

        members = {"forward": staticmethod(forward), "backward": staticmethod(cls.backward)}
        cls._outside = type(cls.__name__, (torch.autograd.Function,), members)

    @classmethod
    def call(cls, *inputs: Any) -> Any:
        """Apply the function to positional arguments."""
        inside = torch.compiler.is_compiling() or _functorch.peek_interpreter_stack() is not None
        return (cls if inside else cls._outside).apply(*inputs)

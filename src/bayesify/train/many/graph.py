"""Graphs of operators: traced from functions, and simplified without a change of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen
from torch.utils._pytree import tree_flatten

__all__ = ["Function", "is_node", "simplify", "trace_graph"]

aten = torch.ops.aten

Function = Callable[..., tuple[Tensor, ...]]
"""From tensors to tensors; its values depend on these and PyTorch's random numbers alone."""

_RESHAPES = {aten.expand.default, aten.view.default, aten._unsafe_view.default}
_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
# Batch normalization updates its running statistics without declaring it in its schema; decomposed, every write is visible.
_DECOMPOSED = [
    aten.native_batch_norm, aten.cudnn_batch_norm, aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward,
]  # fmt: skip


def trace_graph(function: Function, arguments: Sequence[Tensor]) -> GraphModule:
    """Trace a function with fake tensors, which have no values, so that branches on values raise."""
    table = cast(Any, get_decompositions(_DECOMPOSED))
    return make_fx(function, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


def is_node(leaf: object) -> bool:
    """Return whether a leaf of an operator's arguments is the value of another operator."""
    return isinstance(leaf, Node)


def simplify(module: GraphModule) -> GraphModule:
    """Remove aliases, dead code and common subexpressions; the result takes tensors and returns a tuple."""
    graph = module.graph
    computed: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        replacement = _replacement(node)
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            graph.erase_node(node)
        elif _is_pure(node):
            key = (node.target, *_hashable((node.args, dict(node.kwargs))))
            if key in computed:
                node.replace_all_uses_with(computed[key])
                graph.erase_node(node)
            else:
                computed[key] = node
    graph.eliminate_dead_code()
    graph.set_codegen(CodeGen())
    module.recompile()
    return module


def _replacement(node: Node) -> Node | None:
    """Return the input that an operator only copies; None for other operators."""
    target, args = node.target, node.args
    if target in _ALIASES or (target is aten.mul.Scalar and args[1] == 1 and _same_metadata(node, args[0])):
        return args[0]  # pyright: ignore[reportReturnType] # a node, for these operators
    if target in _RESHAPES and _same_metadata(node, args[0]):
        return args[0]  # pyright: ignore[reportReturnType]
    if target is aten.copy.default and _same_metadata(*args[:2]):  # from an in-place operator; vmap has no rule for it
        return args[1]  # pyright: ignore[reportReturnType]
    # Inputs are never written to; other copies may change the memory layout.
    if target is aten.clone.default and not node.kwargs and cast(Node, args[0]).op == "placeholder":
        return args[0]  # pyright: ignore[reportReturnType]
    return None


def _same_metadata(x: Any, y: Any) -> bool:
    a, b = x.meta["val"], y.meta["val"]
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _is_pure(node: Node) -> bool:
    """Return whether equal arguments always give equal values, in memory that is not written to."""
    schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
    if schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in tags:
        return False
    return not schema.name.startswith("aten::empty")


def _hashable(tree: Any) -> Iterator[object]:
    """Yield a hashable object per leaf; 1, 1.0 and True differ."""
    leaves, structure = tree_flatten(tree, is_leaf=is_node)
    yield structure.__repr__()
    for leaf in leaves:
        yield (type(leaf), leaf if isinstance(leaf, Node) else str(leaf))

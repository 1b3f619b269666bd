"""Functions as graphs of operators: traced, and tidied without a change of value."""

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

__all__ = ["Function", "graph_of", "is_node", "tidy"]

aten = torch.ops.aten

Function = Callable[..., tuple[Tensor, ...]]
"""From tensors to tensors; besides them only PyTorch's random numbers may decide its values."""

_RESHAPES = {aten.expand.default, aten.view.default, aten._unsafe_view.default}
_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
# Batch normalisation writes into its running statistics without saying so in its schema; written out, every write is seen.
_WRITTEN_OUT = [
    aten.native_batch_norm, aten.cudnn_batch_norm, aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward,
]  # fmt: skip


def graph_of(function: Function, arguments: Sequence[Tensor]) -> GraphModule:
    """The operators of a function; fake tensors, which have no values, show where it would branch on values."""
    table = cast(Any, get_decompositions(_WRITTEN_OUT))
    return make_fx(function, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


def is_node(leaf: object) -> bool:
    """Whether a leaf of an operator's arguments is another operator's value."""
    return isinstance(leaf, Node)


def tidy(module: GraphModule) -> GraphModule:
    """Drop aliases, unused operators and second computations of the same value; call with tensors, return a tuple."""
    graph = module.graph
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        same = _same_value(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif _repeatable(node):
            key = (node.target, *_frozen((node.args, dict(node.kwargs))))
            if key in known:
                node.replace_all_uses_with(known[key])
                graph.erase_node(node)
            else:
                known[key] = node
    graph.eliminate_dead_code()
    graph.set_codegen(CodeGen())
    module.recompile()
    return module


def _same_value(node: Node) -> Node | None:
    """The input that an operator only repeats, if it does."""
    target, args = node.target, node.args
    if target in _ALIASES or (target is aten.mul.Scalar and args[1] == 1 and _alike(node, args[0])):
        return args[0]  # pyright: ignore[reportReturnType] # a node, for these operators
    if target in _RESHAPES and _alike(node, args[0]):
        return args[0]  # pyright: ignore[reportReturnType]
    if target is aten.copy.default and _alike(*args[:2]):  # from an in-place operator; vmap has no rule for it
        return args[1]  # pyright: ignore[reportReturnType]
    # Nobody writes into inputs; other copies may be there for their memory layout.
    if target is aten.clone.default and not node.kwargs and cast(Node, args[0]).op == "placeholder":
        return args[0]  # pyright: ignore[reportReturnType]
    return None


def _alike(x: Any, y: Any) -> bool:
    a, b = x.meta["val"], y.meta["val"]
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _repeatable(node: Node) -> bool:
    """Whether the same arguments always give the same value, which nobody writes into."""
    schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
    if schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in tags:
        return False
    return not schema.name.startswith("aten::empty")


def _frozen(tree: Any) -> Iterator[object]:
    """Something hashable for every leaf; 1, 1.0 and True are different."""
    leaves, structure = tree_flatten(tree, is_leaf=is_node)
    yield structure.__repr__()
    for leaf in leaves:
        yield (type(leaf), leaf if isinstance(leaf, Node) else str(leaf))

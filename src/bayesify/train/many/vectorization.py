"""One function of K models from the functions of each: traced to a graph, then vectorized over the models.

The graph of one model has every operator of its forward and backward pass. Its random operators become inputs, so that every model
draws the numbers that it would draw alone, from its random stream. Numbers that differ between models (the standard deviation of a
prior) become inputs too. The remaining deterministic graph is vectorized once (`torch.func.vmap`) and replayed without the overhead
of modules, autograd and vmap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import functionalize, vmap
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.functional.drawing import OPERATORS
from bayesify.train.many.graph import Function, is_node, simplify, trace_graph
from bayesify.train.many.random_streams import Draw, Noise, Streams

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["UNTRACEABLE", "UntraceableError", "VectorizedFunction"]

# Random operators whose distribution depends on shapes and numbers alone, not on the values of a tensor.
_DRAWS = {
    "bernoulli.p", "cauchy", "exponential", "geometric", "log_normal", "normal_functional", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "random", "randperm", "uniform",
}  # fmt: skip


class UntraceableError(Exception):
    """The functions cannot become one graph of all models, which have to run one after another."""


class _Graph(NamedTuple):
    """A traced function: a deterministic graph whose last inputs are the values of `draws`."""

    module: GraphModule
    draws: list[Draw]


class VectorizedFunction:
    """K functions of one model each, such as training steps, as one function of stacked tensors.

    Args:
        functions: one per model; models that share a function object share its graph.
        arguments: the tensors of each model.
        stacked: those of all models (K, ...).
        compile: whether to compile the graph, which needs a C++ compiler.

    Raises:
        UntraceableError: the functions branch on values, have random operators that depend on values, or have graphs that differ in
            more than numbers.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        arguments: Sequence[Sequence[Tensor]],
        stacked: Sequence[Tensor],
        compile: bool = False,
    ) -> None:
        unique = list(dict.fromkeys(functions))
        indices = [unique.index(function) for function in functions]
        try:
            graphs = [_trace(function, arguments[indices.index(i)]) for i, function in enumerate(unique)]
            self.noise = Noise([graphs[i].draws for i in indices])
            module, constants = _merge(graphs)
            self.constants = [constant[torch.tensor(indices, device=constant.device)] for constant in constants]
            with torch.no_grad():
                replay = simplify(trace_graph(vmap(module), [*stacked, *self.noise.buffers, *self.constants]))
        except UNTRACEABLE as error:
            raise UntraceableError(str(error)) from error
        self.replay = torch.compile(replay, dynamic=False, fullgraph=True) if compile else replay

    def __call__(self, arguments: Sequence[Tensor], streams: Streams) -> tuple[Tensor, ...]:
        """Return the stacked outputs for stacked arguments (K, ...)."""
        with torch.no_grad():
            return self.replay(*arguments, *self.noise(streams), *self.constants)


# Raised in tracing by branches on values and .item() (several types), by graphs that differ, by operators without a vmap rule.
UNTRACEABLE = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, AssertionError)


def _trace(function: Function, arguments: Sequence[Tensor]) -> _Graph:
    """Trace one model; make in-place operators functional, and random operators inputs."""
    module = trace_graph(function, arguments)
    if any(getattr(node.target, "_schema", None) and node.target._schema.is_mutable for node in module.graph.nodes):
        module = trace_graph(functionalize(module), arguments)
    module = simplify(module)
    graph, draws = module.graph, []
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default  # stacked, a tensor may have other strides
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        name = str(node.target).removeprefix("aten.")
        if node.target not in OPERATORS and not {name, name.split(".")[0]} & _DRAWS:
            raise UntraceableError(f"the values of {name} depend on tensors")
        with graph.inserting_after(last):
            last = graph.placeholder(f"draw_{len(draws)}")
        last.meta = node.meta
        args, kwargs = tree_map(_shape_only, (node.args, dict(node.kwargs)), is_leaf=is_node)
        draws.append(Draw(node.target, tuple(args), kwargs))
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return _Graph(simplify(module), draws)


def _shape_only(argument: Any) -> Any:
    if not isinstance(argument, Node):
        return argument
    value = argument.meta["val"]
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _merge(graphs: list[_Graph]) -> tuple[GraphModule, list[Tensor]]:
    """Merge graphs that differ in numbers alone; these become the last inputs, (G, ...) each, one value per graph."""
    module = graphs[0].module
    if len(graphs) == 1:
        return module, []
    graph, constants = module.graph, list[Tensor]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for nodes in itertools.zip_longest(*(list(g.module.graph.nodes) for g in graphs)):
        if len({None if node is None else (node.op, str(node.target)) for node in nodes}) > 1:
            raise UntraceableError("the models' graphs differ")
        first: Node = nodes[0]
        if first.op == "get_attr":
            values = [getattr(g.module, node.target) for g, node in zip(graphs, nodes, strict=True)]
            if all(torch.equal(value, values[0]) for value in values):
                continue
            with graph.inserting_after(last):
                last = graph.placeholder(f"constant_{len(constants)}")
            constants.append(torch.stack(values))
            first.replace_all_uses_with(last)
            continue
        leaves = [tree_leaves((node.args, dict(node.kwargs)), is_leaf=is_node) for node in nodes]
        differing: dict[int, Node] = {}
        for position, values in enumerate(zip(*leaves, strict=True)):
            if isinstance(values[0], Node) or all(value == values[0] for value in values):
                continue
            if not all(isinstance(value, float) for value in values):
                raise UntraceableError(f"the arguments {values} of {first.target} differ")
            tensor = next(leaf for leaf in leaves[0] if isinstance(leaf, Node)).meta["val"]
            with graph.inserting_after(last):
                last = graph.placeholder(f"constant_{len(constants)}")
            constants.append(torch.tensor(values, dtype=tensor.dtype, device=tensor.device))
            differing[position] = last
        if differing:
            counter = itertools.count()
            first.args, first.kwargs = tree_map(
                lambda leaf, d=differing, c=counter: d.get(next(c), leaf), (first.args, dict(first.kwargs)), is_leaf=is_node
            )
            first.target = cast("OpOverload", first.target).overloadpacket  # for the overload that takes tensors
    module.recompile()
    return module, constants

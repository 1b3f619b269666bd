"""One function of K models at once, made from the function of one: traced to a flat graph, then vectorised over the models.

The graph of one model holds every operator of its forward and backward pass; its random operators become inputs, so that every
model draws the very numbers it would draw alone, from a random stream of its own. Numbers that differ between models (the standard
deviation of a prior) become inputs too. What is left is a deterministic graph of tensors, vectorised once (`torch.func.vmap`) and
then replayed without the overhead of modules, autograd and vmap.
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

from bayesify.train.many.graph import Function, graph_of, is_node, tidy
from bayesify.train.many.streams import Draw, Noise, Streams

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["Together", "UntraceableError"]

# Random operators whose values depend on the shapes and numbers they are given, not on the values of a tensor.
_DRAWS = {
    "bernoulli.p", "cauchy", "exponential", "geometric", "log_normal", "normal_functional", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "random", "randperm", "uniform",
}  # fmt: skip


class UntraceableError(Exception):
    """The function cannot be turned into one graph of all models; they are to be run one after another."""


class _Graph(NamedTuple):
    """One function, traced: a deterministic graph whose last inputs are what `draws` draw."""

    module: GraphModule
    draws: list[Draw]


class Together:
    """K functions of one model each, such as training steps, as one function of stacked tensors.

    Args:
        functions: one per model; models that share a function object share its trace.
        arguments: the tensors of each model.
        compile: turn the graph into machine code (a C++ compiler is needed).

    Raises:
        UntraceableError: the functions do something a graph cannot hold (branches on values, random operators that depend on
            values), or their graphs differ in more than numbers.
    """

    def __init__(self, functions: Sequence[Function], arguments: Sequence[Sequence[Tensor]], compile: bool = False) -> None:
        kinds = list(dict.fromkeys(functions))
        kind_of = [kinds.index(function) for function in functions]
        try:
            graphs = [_trace(kind, arguments[kind_of.index(number)]) for number, kind in enumerate(kinds)]
            self.noise = Noise([graphs[kind].draws for kind in kind_of])
            module, constants = _merge(graphs)
            self.constants = [constant[torch.tensor(kind_of, device=constant.device)] for constant in constants]
            stacked = [torch.stack(tensors) for tensors in zip(*arguments, strict=True)]
            with torch.no_grad():
                replay = tidy(graph_of(vmap(module), [*stacked, *self.noise.buffers, *self.constants]))
        except _UNTRACEABLE as error:
            raise UntraceableError(str(error)) from error
        self.replay = torch.compile(replay, dynamic=False, fullgraph=True) if compile else replay

    def __call__(self, arguments: Sequence[Tensor], streams: Streams) -> tuple[Tensor, ...]:
        """The outputs of all models, stacked, for stacked arguments (K, ...)."""
        with torch.no_grad():
            return self.replay(*arguments, *self.noise(streams), *self.constants)


# What tracing raises: branches on values and calls of .item() (several kinds), graphs that do not fit, operators without a rule.
_UNTRACEABLE = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, AssertionError)


def _trace(function: Function, arguments: Sequence[Tensor]) -> _Graph:
    """The graph of one model, its in-place operators made functional and its random ones lifted out."""
    module = graph_of(function, arguments)
    module = tidy(graph_of(functionalize(module), arguments))
    graph, draws = module.graph, []
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        name = str(node.target).removeprefix("aten.")
        if not {name, name.split(".")[0]} & _DRAWS:
            raise UntraceableError(f"the values of {name} depend on tensors")
        with graph.inserting_after(last):
            last = graph.placeholder(f"draw_{len(draws)}")
        last.meta = node.meta
        args, kwargs = tree_map(_shape_only, (node.args, dict(node.kwargs)), is_leaf=is_node)
        draws.append(Draw(node.target, tuple(args), kwargs))
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return _Graph(tidy(module), draws)


def _shape_only(argument: Any) -> Any:
    if not isinstance(argument, Node):
        return argument
    value = argument.meta["val"]
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _merge(graphs: list[_Graph]) -> tuple[GraphModule, list[Tensor]]:
    """One graph for several that differ in numbers alone, which become its last inputs: one value (G, ...) per graph each."""
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
                raise UntraceableError(f"{first.target} is given {values}")
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
            first.target = cast("OpOverload", first.target).overloadpacket  # finds the form that takes a tensor for a number
    module.recompile()
    return module, constants

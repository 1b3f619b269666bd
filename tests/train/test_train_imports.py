"""Imports inside `bayesify.train` go one way, also those inside functions."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import bayesify.train

FOLDER = Path(bayesify.train.__file__).parent


def imported(path):
    """The modules of `bayesify.train` that a file imports when it runs."""
    tree = ast.parse(path.read_text())
    for_types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(child) for node in for_types for child in ast.walk(node)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in skipped]
    return {node.module for node in nodes if (node.module or "").startswith("bayesify.train")}


def test_imports_go_one_way():
    graph = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER.parent.parent).with_suffix("").parts
        graph[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = imported(path)
    assert graph["bayesify.train.api"] >= {"bayesify.train.one", "bayesify.train.many.api"}
    list(TopologicalSorter(graph).static_order())  # CycleError names the files of a circle

"""Every public name has a runnable example and names its errors, except names of the kinds that are listed here."""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "generator"))

pytest.importorskip("method_pages", reason="needs bayesify[cli]", exc_type=ImportError)
for package in ("lightning", "transformers", "numba", "sklearn", "jinja2", "matplotlib"):
    pytest.importorskip(package)

from reference_pages import entries

from bayesify import Method

PATHS = sorted(entry.path for names in entries().values() for entry in names)

FOR_METHODS = {
    "bayesify.CollectedPosterior",
    "bayesify.CompletedPosterior",
    "bayesify.ForwardPass",
    "bayesify.NaturalPosterior",
    "bayesify.NaturalStep",
}
"""Base classes of posteriors, and what these get from the library: methods are examples, and docs/writing-a-method.md has one."""

NEEDS_A_CLUSTER = {"bayesify.errors.ClusterError", "bayesify.jobs.Channel", "bayesify.jobs.Event", "bayesify.jobs.run_jobs"}
"""docs/clusters.md starts one."""

NEEDS_DATA_FILES = {"bayesify.datasets.load_images", "bayesify.datasets.load_uci"}
"""They have examples as text, which cannot run where the files are missing."""

SHOWN_BY = {
    "bayesify.Folded": "bayesify.bayesify",
    "bayesify.NaturalGradient": "bayesify.Bayesian.optimizer",
    "bayesify.Summary": "bayesify.summary",
    "bayesify.TokenScores": "bayesify.prediction.score_tokens",
    "bayesify.calibration.ProbabilityMap": "bayesify.calibration.VectorScaling",
    "bayesify.estimators.BayesianEstimator": "bayesify.estimators.BayesianRegressor",
    "bayesify.estimators.CrossValidation": "bayesify.estimators.cross_validate",
    "bayesify.functional.CompactForm": "bayesify.functional.compact_form",
    "bayesify.inspection.Dependence": "bayesify.inspection.partial_dependence",
    "bayesify.inspection.Explanation": "bayesify.inspection.explain",
    "bayesify.integrations.pretrained.Pretrained": "bayesify.integrations.pretrained.save_pretrained",
    "bayesify.integrations.pretrained.from_pretrained": "bayesify.integrations.pretrained.save_pretrained",
    "bayesify.metrics.CorruptionErrors": "bayesify.metrics.corruption_errors",
    "bayesify.metrics.Reliability": "bayesify.metrics.reliability",
    "bayesify.persistence.load_model": "bayesify.persistence.save_model",
    "bayesify.predictive.NumericPredictive": "bayesify.predictive.GaussianPredictive",
    "bayesify.report.Assessment": "bayesify.report.assess",
    "bayesify.tracking.Run": "bayesify.tracking.open_run",
    "bayesify.train.Training": "bayesify.train.fit_many",
}
"""Results, base classes and inverses, by the function or subclass whose example shows them."""


def resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:  # a member of a class
        return getattr(resolve(module), name)


def has_example(path: str) -> bool:
    return ">>>" in (inspect.getdoc(resolve(path)) or "")


def needs_example(path: str) -> bool:
    return inspect.isfunction(resolve(path)) or inspect.isclass(resolve(path))


def raised(function: Callable[..., Any]) -> set[str]:
    """Names of the errors that the body of a function raises; "checks" for a check of its arguments."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = {
        ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc
    }
    calls = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return found | {"checks" for call in calls if call.rpartition(".")[2].lstrip("_").startswith("check_")}


def silent(value: Any) -> Iterator[str]:
    """Members of a public function or class, or "", whose errors its documentation does not name."""
    if inspect.isfunction(value):
        if raised(value) and not names_errors(value):
            yield ""
        return
    for name, member in vars(value).items():
        function = getattr(member, "__func__", member)  # of class methods and static methods
        if not inspect.isfunction(function) or function.__code__.co_filename == "<string>":  # that dataclasses generate
            continue
        if name in ("__init__", "__post_init__"):
            if raised(function) and not names_errors(value):
                yield name
        elif name[0] != "_" and raised(function) - {"NotImplementedError"} and not names_errors(getattr(value, name)):
            yield name


def names_errors(value: Any) -> bool:
    return re.search(r"\braises?\b", inspect.getdoc(value) or "", re.IGNORECASE) is not None


def test_every_public_name_has_a_runnable_example() -> None:
    exempt = FOR_METHODS | NEEDS_A_CLUSTER | NEEDS_DATA_FILES | set(SHOWN_BY)
    assert {path for path in PATHS if needs_example(path) and not has_example(path)} == exempt


@pytest.mark.parametrize("path", sorted(set(SHOWN_BY.values())))
def test_what_shows_others_has_an_example(path: str) -> None:
    assert has_example(path)


def test_every_public_name_documents_its_errors() -> None:
    """Those of hyperparameters are documented once, by `Method`."""
    assert names_errors(Method)
    members = {(path, member) for path in PATHS if needs_example(path) for member in silent(resolve(path))}
    hyperparameters = {(path, name) for path, name in members if name == "__post_init__" and issubclass(resolve(path), Method)}
    assert not sorted(members - hyperparameters)

"""Every test starts from the same random state; processes that share a machine take one thread each."""

import fnmatch
import gc
import importlib.util
import os
import shutil
import sys
from collections.abc import Generator

import numpy as np
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start: sums are rounded differently by more threads
    torch.set_num_threads(1)

if "BAYESIFY_TEST_DEVICE" in os.environ:
    torch.set_default_device(os.environ["BAYESIFY_TEST_DEVICE"])

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"

gc.set_threshold(50_000, 20, 50)  # tracing by the compiler makes many objects, and garbage collection took an eighth of its time

if getattr(importlib.util.find_spec("datasets"), "origin", None) is None:
    sys.modules["datasets"] = None  # the folder of that name, which transformers would take for the library


@pytest.hookimpl(tryfirst=True)  # before the choice by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cells as extended or slow that `pytest.mark.default` does not name as default ones."""
    unmatched = {}
    for item in items:
        for marker in item.iter_markers("default"):
            cell = item.nodeid.partition("[")[2].removesuffix("]")
            patterns = {*marker.args, *marker.kwargs.get("extended", ())}
            matched = {pattern for pattern in patterns if fnmatch.fnmatchcase(cell, pattern)}
            if matched.isdisjoint(marker.args):
                item.add_marker(pytest.mark.extended if matched or "extended" not in marker.kwargs else pytest.mark.slow)
            unmatched.setdefault(item.nodeid.partition("[")[0], patterns).difference_update(matched)
    missing = {name: patterns for name, patterns in unmatched.items() if patterns}
    if missing and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"patterns of pytest.mark.default that match no cell: {missing}")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Modules draw the same on import, whichever modules are imported before."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Fixtures that tests share draw the same, whichever test is the first to use them."""
    if fixturedef.scope == "function":
        return (yield)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return (yield)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()


@pytest.fixture
def rng() -> np.random.Generator:
    """Data of one test, whichever tests run before."""
    return np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _replay_of_small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of the small networks of tests are replayed where those of large ones are."""
    monkeypatch.setattr("bayesify.core.replay.prefix.WORTH_REPLAY", 0)


@pytest.fixture(scope="module", autouse=True)
def _undrawn_figures(request):
    """Tests of the command line write reports without drawn figures, which take most of its time; tests/report draws them."""
    if request.path.parent.name != "cli" or any(importlib.util.find_spec(name) is None for name in ("matplotlib", "jinja2")):
        yield
        return
    from bayesify.report import reasons, sections
    from bayesify.report.figures import Picture

    def undrawn(title, alt, caption, *_, **__):
        return Picture(title, caption, "<svg></svg>")

    with pytest.MonkeyPatch.context() as patch:
        for module in (reasons, sections):
            patch.setattr(module, "picture", undrawn)
        yield


@pytest.fixture(params=["two layers", pytest.param("all layers", marks=pytest.mark.slow)])
def layers_of_examples(request, monkeypatch):
    """The layers that `check_method` of an example meets: all of them take a minute."""
    from bayesify import testing

    if request.param == "two layers":
        monkeypatch.setattr(testing, "LAYERS", {name: testing.LAYERS[name] for name in ("Linear", "Conv2d")})


@pytest.fixture(scope="session")
def empty_mlflow(tmp_path_factory):
    """An empty database of MLflow, whose creation takes seconds."""
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'bayesify[tracking]'")
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("database") / "runs.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(params=["mlflow", "tensorboard"])
def track(request, tmp_path, monkeypatch):
    """A place to track runs in, in `tmp_path`."""
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'bayesify[tracking]'")
        return f"tensorboard:{tmp_path}/logs"
    shutil.copy(request.getfixturevalue("empty_mlflow"), tmp_path / "runs.db")
    monkeypatch.chdir(tmp_path)  # where MLflow writes artifacts
    return f"mlflow:sqlite:///{tmp_path}/runs.db"

"""Software and hardware facts of results."""

import torch

import bayesify
from bayesify import environment as module
from bayesify.environment import environment, machine


def test_machine_has_the_keys_of_committed_results() -> None:
    facts = machine()
    assert set(facts) - {"gpu"} == {"cpu", "threads", "torch", "python", "bayesify", "commit", "dirty"}
    assert (facts["torch"], facts["bayesify"]) == (torch.__version__, bayesify.__version__)
    assert environment()["processor"].startswith(f"{facts['cpu']}, {facts['threads']} thread")


def test_without_a_checkout(monkeypatch) -> None:
    monkeypatch.setattr(module, "_git", lambda *arguments: "")
    assert (machine()["commit"], machine()["dirty"]) == ("", False)
    assert environment()["bayesify"] == bayesify.__version__

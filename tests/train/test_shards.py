"""Training in shards (FSDP2) is training of one process; methods that cannot be sharded are refused; checkpoints are whole."""

import functools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bayesify import MeanField, bayesify
from bayesify.errors import ConfigurationError
from bayesify.likelihoods import Gaussian
from bayesify.train import fit

sys.path.insert(0, str(Path(__file__).parent))
from host_cases import METHODS, Sampled, Silent, reference, without_noise
from launching import torchrun
from shard_cases import REGISTRY

needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
# Methods of the registry that are refused, and why.
REFUSED = {
    "natural-gradient steps": {"IVON", "VOGN", "NoisyAdam", "NoisyKFAC", "SLANG"},
    "collects weights": {"SWA", "SWAG"},
    "made after training": {"Laplace", "SNGP", "HMC", "SGLD", "SGHMC"},
    "without calling their layers": {"DVI"},
    "needs one process": {"DeepEnsemble"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that returns what two processes, or four, have found."""
    folder = tmp_path_factory.mktemp("shards")
    for name in ("shard_cases.py", "host_cases.py"):
        (folder / name).symlink_to(Path(__file__).with_name(name))

    @functools.cache
    def found(*cases: str, processes: int = 2) -> list[dict[str, Any]]:
        code, output = torchrun(folder / "shard_cases.py", folder, *cases, processes=processes)
        return [{"output": output} if code else torch.load(folder / f"{rank}.pt") for rank in range(processes)]

    def checked(*cases: str, processes: int = 2) -> list[dict[str, Any]]:
        results = found(*cases, processes=processes)
        assert "output" not in results[0], results[0]["output"]
        return results

    return checked


def _equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], rtol: float, atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_trajectories_are_those_of_one_process(run, name):
    """The KL is paid once, and gradients of the data are those of the joint batch."""
    for found in run("trajectories", "shares"):
        kl, expected = found["trajectories"]["kl"][name], reference(name, Silent(), 1)
        expected |= {key: kl[key] for key in expected if "running" in key}  # of batches, which processes normalize in parts
        _equal(kl, expected, rtol=1e-10, atol=1e-12)
        expected = without_noise(lambda: reference(name, Sampled(), 2))
        _equal(found["trajectories"]["data"][name], expected, rtol=1e-10, atol=1e-12)
        _equal(found["trajectories"]["more"][name], found["trajectories"]["as ddp"][name], rtol=1e-10, atol=1e-12)


@needs_gloo
@pytest.mark.slow
def test_every_process_holds_its_share_of_parameters_gradients_and_moments(run):
    for found in run("trajectories", "shares"):
        assert found["shares"] == [pytest.approx(0.5, abs=0.01)] * 3


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_methods_are_sharded_or_refused(run, name):
    """Trained by the KL alone, which is equal in shards and on whole parameters; nothing fails in another way."""
    reasons = [reason for reason, names in REFUSED.items() if name in names]
    for found in run("registry"):
        sharded, whole = found["registry"][name]
        if reasons:
            assert sharded.startswith("ConfigurationError")
            assert reasons[0] in sharded
        elif REGISTRY[name][1]:
            assert sharded.keys() == whole.keys()
        else:
            _equal(sharded, whole, rtol=1e-9, atol=1e-11)


@needs_gloo
@pytest.mark.slow
def test_interrupted_runs_end_with_the_same_bits(run):
    for found in run("checkpoint"):
        for name, expected in found["checkpoint"]["uninterrupted"].items():
            _equal(found["checkpoint"]["resumed"][name], expected, rtol=0, atol=0)


@needs_gloo
@pytest.mark.slow
def test_checkpoints_that_cannot_be_written_or_read(run):
    first, second = (found["checkpoint"] for found in run("checkpoint"))
    assert "No space left on device" in first["full disk"]
    assert second["full disk"].startswith("OSError")
    for found in (first, second):
        _equal(found["after it"], found["six epochs"], rtol=0, atol=0)
        assert "parts of it are missing or damaged" in found["damaged"] or "ClusterError" in found["damaged"]
        assert found["of ddp"].startswith("CheckpointError: training cannot continue")
        assert "it is a folder" in found["of ddp"]


@needs_gloo
@pytest.mark.slow
def test_four_processes_continue_the_checkpoint_of_two(run):
    run("one epoch")
    for found in run("all epochs", processes=4):
        expected = without_noise(lambda: reference("VSD", Sampled(), 1))
        _equal(found["continued"], expected, rtol=1e-10, atol=1e-12)


@needs_gloo
@pytest.mark.slow
def test_the_guide(tmp_path):
    """The script of the page and its line with shards, by two processes that torchrun starts."""
    page = (Path(__file__).parents[2] / "docs" / "distributed-training.md").read_text()
    blocks = re.findall(r"<!-- tested: \w+ -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "train.py").write_text("\n".join(blocks))
    code, output = torchrun(tmp_path / "train.py")
    assert code == 0, output
    assert len(set(re.findall(r"loss (\S+)", output))) == 1
    assert len(re.findall(r"loss (\S+)", output)) == 2
    assert (tmp_path / "run.ckpt").is_file()
    assert (tmp_path / "shards" / "run.pt").is_file()


def test_one_process_has_nothing_to_shard():
    with pytest.raises(ConfigurationError, match="strategy='fsdp' shards parameters among processes, but there is one"):
        fit(bayesify(nn.Linear(3, 1), MeanField()), (torch.zeros(4, 3), torch.zeros(4)), Gaussian(), strategy="fsdp")

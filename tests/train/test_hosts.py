"""Processes started by torchrun or SLURM, also as of two hosts, train as one process does; noise differs."""

import functools
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bayesify import DeepEnsemble, MeanField, bayesify
from bayesify.errors import BayesifyWarning, CheckpointError, ConfigurationError
from bayesify.likelihoods import Gaussian
from bayesify.train import fit
from bayesify.train.launch import launched, processes_of

sys.path.insert(0, str(Path(__file__).parent))
from host_cases import EPOCHS, JOINT, METHODS, SGD, STD, Sampled, Silent, data, model, reference, state, without_noise
from launching import environment, free_port, together, torchrun

SCRIPT = Path(__file__).with_name("host_cases.py")
needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
TORCHRUN = {"TORCHELASTIC_RUN_ID": "0", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NAME": "train"}


def _run(*cases: str, processes: int = 1, agents: int = 2, restarts: int = 0) -> list[dict[str, Any]]:
    """What the processes have found, by default those of two agents, as of two hosts."""
    with tempfile.TemporaryDirectory() as folder:
        (script := Path(folder, "script.py")).symlink_to(SCRIPT)
        code, output = torchrun(script, folder, *cases, processes=processes, agents=agents, restarts=restarts)
        assert code == 0, output
        return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(agents * processes)]


@functools.cache
def _trained(world: int) -> list[dict[str, Any]]:
    return _run("trajectories", "noise", processes=world // 2)


@functools.cache
def _two() -> list[dict[str, Any]]:
    return _run("checkpoint", "differences")


def _equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("world", [2, 4])
def test_the_kl_is_paid_once(world, name):
    expected = reference(name, Silent(), 1)
    for found in _trained(world):
        if name == "EMP":  # those of the data, which the processes normalize in parts
            expected |= {key: found["kl"][name][key] for key in expected if "running" in key}
        _equal(found["kl"][name], expected, rtol=1e-10, atol=1e-12)


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("world", [2, 4])
def test_without_noise_training_is_that_of_one_process(world, name):
    expected = without_noise(lambda: reference(name, Sampled(), world))
    for found in _trained(world):
        _equal(found["data"][name], expected, rtol=1e-10, atol=1e-12)
        _equal(found["data"][name], _trained(world)[0]["data"][name], rtol=0, atol=0)


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_noise_differs_between_processes_and_draws(world):
    """The gradient is the mean of as many independent draws as there are processes."""
    gradients = _trained(world)[0]["gradients"]
    centered = gradients + 1  # the mean: weight 0, targets 1
    assert abs(float(centered.mean())) < 4 * STD / (world * len(gradients)) ** 0.5
    assert float(centered.square().mean()) == pytest.approx(STD**2 / world, rel=0.25)
    assert abs(float(torch.corrcoef(torch.stack((centered[1:], centered[:-1])))[0, 1])) < 0.15


@needs_gloo
@pytest.mark.slow
def test_the_first_process_reads_and_writes_checkpoints():
    first, second = (found["checkpoint"] for found in _two())
    assert (first["files"], second["files"]) == (["run.ckpt"], [])
    assert (first["records"], second["records"]) == (2, 0)
    for found in (first, second):
        _equal(found["resumed"], first["uninterrupted"], rtol=0, atol=0)
        assert "present.ckpt" not in found["elsewhere"] or "exists for process 1" in found["elsewhere"]
        assert "not for process 0" in found["elsewhere"]


@needs_gloo
@pytest.mark.slow
def test_another_number_of_processes_continues_with_as_large_a_batch(tmp_path):
    path, likelihood, bnn = tmp_path / "run.ckpt", Sampled(), model("MeanField")
    path.write_bytes(_two()[0]["checkpoint"]["one epoch"])
    arguments = {"epochs": EPOCHS, "optimizer": SGD, "accelerator": "cpu", "checkpoint": path}
    with pytest.raises(CheckpointError, match=f"batch_size was {JOINT} and is {JOINT // 2}"):
        fit(model("MeanField"), data(), Sampled(), **arguments, batch_size=JOINT // 2)
    without_noise(lambda: fit(bnn, data(), likelihood, **arguments, batch_size=JOINT))
    expected = without_noise(lambda: reference("MeanField", Sampled(), 1))
    _equal(state(bnn, likelihood), expected, rtol=1e-10, atol=1e-12)


@needs_gloo
@pytest.mark.slow
def test_killed_processes_are_started_again_and_end_with_the_same_bits():
    """Each of two processes is killed once, by SIGKILL in the middle of an epoch, and both resume from the last checkpoint."""
    for found in _run("elastic", processes=2, agents=1, restarts=2):
        assert found["elastic"]["starts"] == 3
        for name in METHODS:
            _equal(found["elastic"]["resumed"][name], found["elastic"]["uninterrupted"][name], rtol=0, atol=0)


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("settings", r"ConfigurationError: process 0 on \S+ and process 1 on \S+ differ: clip_norm is 1.0 and 2.0; give all"),
        ("data", "checksum of data is"),
        ("rows", "examples of data is 32 and 16"),
        ("weights", "checksum of the initial .*call torch.manual_seed"),
        ("versions", "bayesify is .* and 0.0.1"),
        ("nothing", "^trained$"),
    ],
)
def test_processes_that_differ_say_so(what, message):
    for found in _two():
        assert re.search(message, found["differences"][what]), found["differences"][what]


@needs_gloo
@pytest.mark.slow
def test_the_error_of_one_process_is_raised_in_all():
    first, second = (found["differences"]["bad data"] for found in _two())
    assert second.startswith("DataError: inputs of data has NaN or infinity in 32 of 32 rows")
    assert first.startswith("ClusterError: process 1 on ")
    assert first.endswith(second)


@needs_gloo
@pytest.mark.slow
def test_processes_of_slurm(tmp_path):
    common = {**SLURM, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "127.0.0.1"}
    port = str(free_port())
    commands = []
    for rank in ("0", "1"):
        places = {"SLURM_PROCID": rank, "SLURM_NODEID": rank, "SLURM_LOCALID": "0", "MASTER_PORT": port}
        commands.append(([sys.executable, str(SCRIPT), str(tmp_path), "trajectories"], {**environment(), **common, **places}))
    code, output = together(commands, tmp_path)
    assert code == 0, output
    expected = without_noise(lambda: reference("MeanField", Sampled(), 2))
    for rank in range(2):
        _equal(torch.load(tmp_path / f"{rank}.pt")["data"]["MeanField"], expected, rtol=1e-10, atol=1e-12)


# -- arguments and environment variables ------------------------------------------------------------------------------------------


@pytest.fixture
def variables(monkeypatch):
    """A function that sets environment variables, with those of launchers removed."""
    for name in os.environ:
        if name not in environment():
            monkeypatch.delenv(name)
    return lambda values: [monkeypatch.setenv(name, value) for name, value in values.items()]


def test_arguments_default_to_what_was_started(variables):
    assert launched() is None
    assert processes_of(None, None) == (1, 1)
    assert processes_of(3, None) == (3, 1)
    variables(SLURM)
    assert processes_of(None, None) == (2, 2)
    variables(TORCHRUN)
    assert processes_of(None, None) == processes_of(2, None) == processes_of(None, 2) == (2, 2)
    assert processes_of([0, 3], 2) == ([0, 3], 2)


@pytest.mark.parametrize(
    ("values", "devices", "nodes", "message"),
    [
        ({}, None, 0, "num_nodes must be"),
        ({}, None, True, "num_nodes must be"),
        ({}, 0, None, "devices must be"),
        ({}, 1, 2, r"num_nodes=2 needs the address .* set MASTER_ADDR, MASTER_PORT, NODE_RANK"),
        (TORCHRUN, 1, None, r"devices=1 does not match torchrun, which started 2 processes on each of 2 hosts; pass devices=2"),
        (TORCHRUN, [0], None, "devices=1 does not match torchrun"),
        (TORCHRUN, None, 1, "num_nodes=1 does not match torchrun.*pass num_nodes=2"),
        ({**TORCHRUN, "WORLD_SIZE": "3"}, None, None, "torchrun started 3 processes on 2 hosts, with 2 on this one"),
        (SLURM, 4, None, "devices=4 does not match SLURM"),
        ({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}, 4, 1, "write srun before the command"),
        ({name: value for name, value in SLURM.items() if "PER" not in name}, None, None, "use --ntasks-per-node"),
    ],
)
def test_arguments_that_do_not_match(variables, values, devices, nodes, message):
    variables(values)
    with pytest.raises(ConfigurationError, match=message):
        fit(
            bayesify(nn.Linear(3, 1), MeanField()),
            (torch.zeros(4, 3), torch.zeros(4)),
            Gaussian(),
            devices=devices,
            num_nodes=nodes,
        )


def test_restarts_that_would_not_work_are_a_warning(variables):
    variables({**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    with pytest.warns(BayesifyWarning, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        launched()


def test_members_of_an_ensemble_need_one_process(variables):
    variables(TORCHRUN)
    bnn = bayesify(nn.Linear(3, 1), DeepEnsemble(members=2))
    with pytest.raises(ConfigurationError, match="torchrun started 4; start one"):
        fit(bnn, (torch.zeros(4, 3), torch.zeros(4)), Gaussian())

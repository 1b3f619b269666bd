"""Ray Train as the launcher: `fit` in its workers trains one network, as with torchrun."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from host_cases import Sampled, reference, train, without_noise


def _work(config: dict[str, Any]) -> None:
    state = without_noise(lambda: train("MeanField", Sampled()))
    torch.save(state, Path(config["folder"], f"{os.environ['RANK']}.pt"))


@pytest.mark.slow
def test_workers_train_one_network(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bayesify[ray]'")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray_servers import ray_cluster

    with ray_cluster(3) as servers:
        monkeypatch.setenv("RAY_ADDRESS", servers.address)
        ray.init(servers.address, runtime_env={"env_vars": {"RAY_ADDRESS": servers.address, "OMP_NUM_THREADS": "1"}})
        TorchTrainer(
            _work, train_loop_config={"folder": str(tmp_path)}, scaling_config=ScalingConfig(num_workers=2),
            torch_config=TorchConfig(backend="gloo"), run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        ).fit()  # fmt: skip
    expected = without_noise(lambda: reference("MeanField", Sampled(), 2))
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)

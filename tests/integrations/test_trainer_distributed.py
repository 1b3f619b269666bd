"""`BayesianTrainer` in two processes: the weights and metrics of one process with batches of twice the size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

ROWS = 13


def _run(folder: str, size: int) -> None:
    """Train, evaluate, and let the first process write weights and results."""
    import transformers
    from tiny_models import bert, tokens

    from bayesify import Deterministic, MeanField, bayesify
    from bayesify.integrations.transformers import BayesianTrainer

    x = tokens(ROWS).tolist()
    data = [{"input_ids": x[i], "labels": i % 3} for i in range(ROWS)]
    settings = {"max_steps": 4, "per_device_train_batch_size": size, "per_device_eval_batch_size": size, "learning_rate": 0.1}
    settings |= {
        "train_sampling_strategy": "sequential",
        "optim": "sgd",
        "use_cpu": True,
        "ddp_backend": "gloo",
        "report_to": "none",
    }
    settings |= {"save_strategy": "no", "disable_tqdm": True, "ddp_backend": "gloo" if "RANK" in os.environ else None}
    args = transformers.TrainingArguments(folder, **settings)
    results = {}
    for name, method in (("exact", Deterministic(prior_std=1.0)), ("noisy", MeanField())):
        torch.manual_seed(0)
        bnn = bayesify(bert(dropout=0.0), method, output="logits")
        trainer = BayesianTrainer(bnn, args, train_dataset=data[:12], eval_dataset=data)
        trainer.train()
        results[name] = trainer.evaluate()
        assert trainer.predict(data).predictions.shape == (ROWS, 3)
        state = {key: value.double().sum().item() for key, value in bnn.state_dict().items()}
        if dist.is_initialized():
            states = [None, None]
            dist.all_gather_object(states, state)
            assert states[0] == states[1]
        if args.process_index == 0:
            trainer.save_model(f"{folder}/{name}")
    if args.process_index == 0:
        Path(folder, "results.json").write_text(json.dumps(results))


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
def test_two_processes_train_like_one_with_batches_of_twice_the_size(tmp_path):
    from bayesify.integrations.pretrained import from_pretrained

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parallel = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    nets, results = [], []
    for name, launcher, size in (("one", [], "6"), ("two", parallel, "3")):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, *launcher, __file__, str(tmp_path / name), size], check=True, env=environment)
        nets.append(from_pretrained(tmp_path / name / "exact").bnn.state_dict())
        results.append(json.loads((tmp_path / name / "results.json").read_text()))
    assert nets[0].keys() == nets[1].keys()
    for key, x in nets[0].items():
        torch.testing.assert_close(nets[1][key], x, rtol=1e-4, atol=1e-6)
    one, two = (result["exact"] for result in results)
    assert {name: one[name] for name in ("eval_nll", "eval_accuracy", "eval_ece")} == pytest.approx(
        {name: two[name] for name in ("eval_nll", "eval_accuracy", "eval_ece")}, rel=1e-3
    )


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))

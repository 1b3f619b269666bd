"""Row groups: every row once per pass over parts and processes, the results of tensors, resuming."""

import copy
import importlib.util
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from bayesify import DeepEnsemble, Deterministic, Laplace, MeanField, bayesify
from bayesify.errors import CheckpointError, DataError
from bayesify.likelihoods import Gaussian
from bayesify.train import RowGroups, Training, Weighted, fit, fit_many
from bayesify.train.batch import ToDevice
from bayesify.train.data_loading import RowGroupBatches
from bayesify.train.row_groups import Windows

SIZES = (40, 0, 7, 120, 33, 1, 64)
N = sum(SIZES)


class Table(RowGroups):
    """Rows of tensors, in pieces of 16 rows; counts the rows that are read."""

    def __init__(self, x, y, weights=None, **settings):
        self.sizes, self.tensors, self.weights = SIZES, (x, y), weights
        self.starts = [sum(SIZES[:i]) for i in range(len(SIZES))]
        self.rows_read = 0
        self.fingerprint = "a"
        vars(self).update(settings)

    def read(self, group, start, stop):
        for first in range(start, stop, 16):
            rows = slice(self.starts[group] + first, self.starts[group] + min(first + 16, stop))
            self.rows_read += rows.stop - rows.start
            data = tuple(tensor[rows] for tensor in self.tensors)
            yield data if self.weights is None else Weighted(data, self.weights[rows])


def _numbers(**settings):
    numbers = torch.arange(float(N))
    return Table(numbers[:, None], numbers, **settings)


def _batches(data, epoch, batch_size=16, rank=0, world_size=1, seed=0):
    to_device = ToDevice(torch.device("cpu"), torch.float32)
    return list(RowGroupBatches("data", data, batch_size, seed, rank, world_size, to_device, Gaussian()).epoch(epoch))


@pytest.mark.parametrize(("parts", "world_size", "buffer"), [(1, 1, 1000), (1, 1, 50), (3, 1, 30), (1, 4, 25), (2, 3, 20)])
def test_every_row_is_seen_once_per_pass(parts, world_size, buffer):
    data = _numbers(parts=parts, buffer=buffer)
    orders = []
    for number in range(2):
        epochs = [
            [_batches(data, number * parts + part + 1, rank=rank, world_size=world_size) for rank in range(world_size)]
            for part in range(parts)
        ]
        rows = [row for epoch in epochs for rank in epoch for batch in rank for row in batch.y.tolist()]
        assert sorted(rows) == list(range(N))
        assert len({len(rank) for epoch in epochs for rank in epoch}) == 1  # DDP needs equal numbers of steps
        sizes = [batch.size for epoch in epochs for rank in epoch for batch in rank]
        assert max(sizes) <= 16
        assert all(torch.equal(batch.inputs[:, 0], batch.y) for epoch in epochs for rank in epoch for batch in rank)
        orders.append(rows)
    assert orders[0] != orders[1]
    assert data.rows_read < 2 * N + 2 * 16 * parts * world_size  # no group is read twice but where a share ends


def test_the_order_depends_on_seed_and_epoch_alone():
    def rows(epoch, seed):
        return torch.cat([batch.y for batch in _batches(_numbers(buffer=60), epoch, seed=seed)]).tolist()

    assert rows(3, 1) == rows(3, 1)
    assert rows(3, 1) != rows(4, 1)
    assert rows(3, 1) != rows(3, 2)


def test_windows_fit_into_the_buffer_and_mix_groups():
    data = _numbers(buffer=50)
    windows = list(Windows("data", data, 16, 0, 1).read(1))
    assert max(window.size for window in windows) <= 50
    groups = torch.bucketize(windows[0].y, torch.tensor(data.starts).float(), right=True)
    assert len(groups.unique()) >= 3


def _net(method, seed=0):
    torch.manual_seed(seed)
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), method)


def _regression(**settings):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 3, generator=generator)
    y = x.sum(1, keepdim=True).sin() + 0.1 * torch.randn(N, 1, generator=generator)
    return x, y, Table(x, y, **settings)


SETTINGS = {"epochs": 5, "batch_size": N, "learning_rate": 0.05, "accelerator": "cpu", "progress": False}


@pytest.mark.parametrize(
    ("method", "weighted"),
    [
        (Deterministic(prior_std=0.3), False),
        (Deterministic(prior_std=0.3), True),
        (DeepEnsemble(members=3), False),
        (DeepEnsemble(members=3), True),
        pytest.param(
            Laplace(),
            False,
            marks=pytest.mark.skipif(importlib.util.find_spec("laplace") is None, reason="needs bayesify[laplace]"),
        ),
    ],
)
def test_steps_with_all_rows_are_those_of_tensors(method, weighted):
    x, y, data = _regression()
    data.weights = torch.linspace(0.1, 3, N) if weighted else None
    validation = (x[:20], y[:20])
    results = []
    for source in (Weighted((x, y), data.weights) if weighted else (x, y), data):
        bnn, likelihood = _net(method), Gaussian(learn=True)
        history = fit(bnn, source, likelihood, validation=validation, **SETTINGS)
        results.append((history, {**bnn.state_dict(), **likelihood.state_dict()}))
    (expected, state), (found, other) = results
    assert found.n == expected.n == N
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.validation_nll == pytest.approx(expected.validation_nll, rel=1e-4)
    for name, value in state.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-4)


def test_members_are_trained_together_and_read_the_data_once():
    _, _, data = _regression(parts=2, buffer=50)
    nets = [_net(MeanField(), seed) for seed in range(3)]
    trainings = [Training(bnn=net, data=data, likelihood=Gaussian(), seed=k) for k, net in enumerate(nets)]
    alone = copy.deepcopy(trainings[1])
    histories = fit_many(trainings, epochs=4, batch_size=16, accelerator="cpu", together=True)
    assert data.rows_read < 2.5 * N  # two passes, not six
    fit(alone.bnn, data, alone.likelihood, seed=1, epochs=4, batch_size=16, accelerator="cpu", progress=False)
    for name, value in alone.bnn.state_dict().items():
        torch.testing.assert_close(nets[1].state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert [len(history) for history in histories] == [4, 4, 4]


def test_a_posterior_after_training_uses_all_parts():
    _, _, data = _regression(parts=3, buffer=40)
    batches = RowGroupBatches("data", data, 16, 0, 0, 1, ToDevice(torch.device("cpu"), torch.float32), Gaussian())
    assert sum(batch.size for batch in batches.full_pass(0)) == N
    assert sum(batch.size for batch in batches.full_pass(1)) == N


@pytest.mark.default("MeanField", extended=[])
@pytest.mark.parametrize("method", [MeanField(), DeepEnsemble(members=2)], ids=lambda m: type(m).__name__)
def test_resuming(method, tmp_path):
    x, y, data = _regression(parts=2, buffer=50)
    settings = {**SETTINGS, "batch_size": 16, "validation": (x[:20], y[:20])}
    whole = _net(method)
    fit(whole, data, Gaussian(), **{**settings, "epochs": 6})
    part = _net(method)
    fit(part, data, Gaussian(), **{**settings, "epochs": 3}, checkpoint=tmp_path / "run")
    fit(part, data, Gaussian(), **{**settings, "epochs": 6}, checkpoint=tmp_path / "run")
    for name, value in whole.state_dict().items():
        assert torch.equal(part.state_dict()[name], value), name
    data.fingerprint = "b"
    with pytest.raises(CheckpointError, match="checksum of data"):
        fit(part, data, Gaussian(), **{**settings, "epochs": 6}, checkpoint=tmp_path / "run")


def test_mistakes():
    x, y, data = _regression()
    with pytest.raises(DataError, match="validation='folds' needs data=\\(inputs, y\\), tensors"):
        fit(_net(DeepEnsemble(members=2)), data, Gaussian(), validation="folds", **SETTINGS)
    data.sizes = (0, 0)
    with pytest.raises(DataError, match="data is empty"):
        fit(_net(MeanField()), data, Gaussian(), **SETTINGS)
    with pytest.raises(DataError, match=f"data has {N} rows, too few for 400 parts"):
        fit(_net(MeanField()), Table(x, y, parts=400), Gaussian(), **SETTINGS)
    x[100, 1] = torch.nan
    with pytest.raises(DataError, match="data has NaN or infinity in 1 of"):
        fit(_net(MeanField()), Table(x, y), Gaussian(), **SETTINGS)
    short = _regression(buffer=30)[2]
    read = short.read
    short.read = lambda group, start, stop: read(group, start, min(stop, 20))
    with pytest.raises(DataError, match="fewer rows than its sizes say"):
        fit(_net(MeanField()), short, Gaussian(), **SETTINGS)


_PROCESSES = """
import json, os, sys
import torch
from bayesify import MeanField, bayesify
from bayesify.likelihoods import Gaussian
from bayesify.train import RowGroups, data_loading, fit

class Table(RowGroups):
    sizes, parts, buffer = [50, 70, 31], 2, 40
    def read(self, group, start, stop):
        x = torch.arange(start, stop)[:, None] + float(sum(self.sizes[:group]))
        yield x / 151, x / 151

seen, epoch = [], data_loading.RowGroupBatches.epoch
def spy(self, number):
    for batch in epoch(self, number):
        seen.extend((151 * batch.y).round().flatten().tolist())
        yield batch
data_loading.RowGroupBatches.epoch = spy
torch.manual_seed(0)
bnn = bayesify(torch.nn.Linear(1, 1), MeanField())
history = fit(bnn, Table(), Gaussian(), epochs=4, batch_size=8, devices=2, accelerator="cpu", progress=False)
weights = [p.tolist() for p in bnn.parameters()]
with open(sys.argv[1] + os.environ.get("LOCAL_RANK", "0"), "w") as file:
    json.dump([seen, history.loss, weights], file)
"""


@pytest.mark.slow
def test_two_processes_see_every_row_once_and_stay_equal(tmp_path):
    (tmp_path / "train.py").write_text(_PROCESSES)
    subprocess.run([sys.executable, tmp_path / "train.py", f"{tmp_path}/rank"], check=True, timeout=300)
    (first, *results), (second, *others) = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2))
    assert sorted(first + second) == sorted(2 * list(range(151)))
    assert results == others

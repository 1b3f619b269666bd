"""Small training steps use one thread of the CPU: several wait for each other, several times longer on a busy machine."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesify import MeanField, bayesify
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, fit, fit_many
from bayesify.train.many.loop import Loop
from bayesify.train.row_groups import RowGroups
from bayesify.train.threads import one_thread

x, y = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(24, 1)
images = torch.randn(24, 1, 3, 3, generator=torch.Generator().manual_seed(0))
sequences = torch.randn(24, 5, 2, generator=torch.Generator().manual_seed(0))


class Group(RowGroups):
    sizes = (24,)

    def read(self, group, start, stop):
        yield x[start:stop], y[start:stop]


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


class Convolution(nn.Module):
    """Means over channels."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3)

    def forward(self, images):
        return self.conv(images).mean(1).flatten(1)


class Last(nn.Module):
    """What an LSTM says after the last step."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 1, batch_first=True)

    def forward(self, sequences):
        return self.rnn(sequences)[0][:, -1]


def dense():
    return bayesify(nn.Linear(3, 1), MeanField())


def test_one_thread_for_little_work():
    with one_thread(torch.device("cpu"), work=1e9):
        assert torch.get_num_threads() == 2
    with one_thread(torch.device("cpu"), work=1e3):
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("make", "data", "batch_size", "threads"),
    [
        (dense, (x, y), 8, 1),
        (dense, Group(), 8, 1),
        (dense, DataLoader(TensorDataset(x, y), batch_size=8), 8, 2),  # whose batches are not known
        (lambda: bayesify(Convolution(100), MeanField()), (images, y), 8, 1),
        (
            lambda: bayesify(Convolution(100), MeanField()),
            (images, y),
            10_000,
            2,
        ),  # 1000 weights, 2 numbers each, 9 pixels
        (lambda: bayesify(Last(), MeanField()), (sequences, y), 8, 1),
        (lambda: bayesify(nn.Linear(3, 1000), MeanField()), (x, torch.zeros(24, 1000)), 10_000, 2),
    ],
    ids=["vectors", "row groups", "loader", "images", "images, large", "sequences", "large"],
)
def test_training_of_a_network_with_little_work_uses_one_thread(make, data, batch_size, threads):
    seen = []
    fit(
        make(),
        data,
        Gaussian(),
        epochs=1,
        batch_size=batch_size,
        accelerator="cpu",
        loggers=[lambda _: seen.append(torch.get_num_threads())],
    )
    assert seen == [threads]


@pytest.mark.parametrize(
    ("net", "inputs", "batch_size", "threads"), [(nn.Linear(3, 1), x, 8, 1), (Convolution(100), images, 10_000, 2)]
)
def test_models_that_are_trained_together_follow_the_same_rule(net, inputs, batch_size, threads, monkeypatch):
    seen, run_epoch = [], Loop.run_epoch
    monkeypatch.setattr(Loop, "run_epoch", lambda loop, epoch: [seen.append(torch.get_num_threads()), run_epoch(loop, epoch)])
    bnns = [bayesify(copy.deepcopy(net), MeanField()) for _ in range(2)]
    trainings = [Training(bnn=bnn, data=(inputs, y), likelihood=Gaussian()) for bnn in bnns]
    fit_many(trainings, epochs=1, batch_size=batch_size, accelerator="cpu", together=True)
    assert seen == [threads]

"""Ensembles whose members are validated on different parts of the rows."""

import copy

import pytest
import torch
from torch import nn

from bayesify import DeepEnsemble, MeanField, bayesify
from bayesify.errors import ConfigurationError, DataError
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, fit, fit_many
from bayesify.train.many.ensemble import fold_rows, split_members
from bayesify.train.process_state import seed_for

x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
y = x[:, :1].sin()


def ensemble(members=4):
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), DeepEnsemble(members=members))


def test_every_row_validates_at_most_one_member_and_trains_the_others():
    parts = split_members(Training(bnn=ensemble(), data=(x, y), likelihood=Gaussian(), validation="folds", seed=3))
    held_out = torch.cat([part.validation[0] for part in parts])
    assert len(held_out.unique(dim=0)) == 4 * (50 // 4)
    for part in parts:
        rows = torch.cat([part.data[0], part.validation[0]])
        assert len(rows) == len(rows.unique(dim=0)) == 50
        torch.testing.assert_close(part.data[1], part.data[0][:, :1].sin())


def test_members_are_trained_as_alone_on_their_rows():
    together = ensemble()
    alone = copy.deepcopy(together)
    settings = {"epochs": 6, "batch_size": 10, "patience": 3, "accelerator": "cpu"}
    history = fit(together, (x, y), Gaussian(std=0.1), validation="folds", seed=1, learning_rate=0.05, **settings)
    trainings = []
    for k, rows in enumerate(fold_rows(50, 4, seed=1)):
        kept = torch.tensor([row for row in range(50) if row not in set(rows.tolist())])
        data, validation = (x[kept], y[kept]), (x[rows], y[rows])
        seed = seed_for(1, "member", k)
        member = alone.members[k]
        trainings.append(
            Training(bnn=member, data=data, validation=validation, likelihood=Gaussian(std=0.1), seed=seed, learning_rate=0.05)
        )
    histories = fit_many(trainings, **settings)
    assert history.kept_epochs == [one.best_epoch for one in histories]
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, msg=name)
    assert len(history.validation_nll) == len(history)


def test_what_folds_need():
    with pytest.raises(ConfigurationError, match="'folds' for an ensemble"):
        fit(bayesify(nn.Linear(3, 1), MeanField()), (x, y), Gaussian(), validation="folds", accelerator="cpu")
    with pytest.raises(ConfigurationError, match="got 'halves'"):
        fit(ensemble(), (x, y), Gaussian(), validation="halves", accelerator="cpu")
    with pytest.raises(DataError, match="two rows per member, 8, got 7"):
        fit(ensemble(), (x[:7], y[:7]), Gaussian(), validation="folds", accelerator="cpu")
    dataset = torch.utils.data.TensorDataset(x, y)
    with pytest.raises(DataError, match="needs data="):
        fit(ensemble(), dataset, Gaussian(), validation="folds", accelerator="cpu")
    with pytest.raises(ConfigurationError, match="two members or more"):
        fit(ensemble(1), (x, y), Gaussian(), validation="folds", accelerator="cpu")


def test_stacked_networks_may_have_views_of_transposed_tensors():
    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("columns", torch.tensor([2, 0]))
            self.linear = nn.Linear(8, 1)

        def forward(self, x):
            return self.linear((x[..., self.columns].unsqueeze(-1) * torch.arange(4.0)).flatten(-2))

    nets = [bayesify(Picks(), MeanField()) for _ in range(3)]
    trainings = [Training(bnn=net, data=(x, y), likelihood=Gaussian(std=0.1), seed=k) for k, net in enumerate(nets)]
    assert len(fit_many(trainings, epochs=2, accelerator="cpu", together=True)[0]) == 2

"""Ensembles whose members hold out whole groups of rows."""

import copy

import pytest
import torch
from torch import nn

from bayesify import DeepEnsemble, bayesify
from bayesify.errors import ConfigurationError, DataError
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, Weighted, fit, fit_many
from bayesify.train.group_folds import fold_groups, hold_out_groups
from bayesify.train.many.ensemble import split_members
from bayesify.train.process_state import seed_for


def table(sizes, seed=0):
    """Rows with their group in the first column, in a random order, and targets."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    groups = groups[torch.randperm(len(groups), generator=generator)]
    x = torch.cat([groups[:, None].float(), torch.randn(len(groups), 2, generator=generator)], 1)
    return x, x[:, 1:2].sin() + 0.1 * x[:, :1], groups


def ensemble(members=4):
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), DeepEnsemble(members=members))


def parts_of(x, y, groups, members=4, seed=3):
    return split_members(
        Training(bnn=ensemble(members), data=(x, y), likelihood=Gaussian(), validation="folds", groups=groups, seed=seed)
    )


def tensors(data):
    """Inputs, targets and weights."""
    return (*data.data, data.weights) if isinstance(data, Weighted) else (*data, torch.ones(len(data[1])))


@pytest.mark.parametrize("sizes", [[5] * 12, [1, 2, 3, 4, 5, 6, 7, 8, 9], [40, 1, 1, 1, 1, 1], [4, 5]])
def test_no_group_is_on_both_sides(sizes):
    x, y, groups = table(sizes)
    for seed in range(5):
        folds = fold_groups(groups * 7 - 3, 4, seed)
        assert len(folds) == min(4, len(sizes))
        assert sorted(torch.cat(folds).tolist()) == list(range(len(groups)))
        of = [set(groups[rows].tolist()) for rows in folds]
        assert sum(map(len, of)) == len(sizes)
        assert max(map(len, folds)) - min(map(len, folds)) <= max(sizes)
        held_out = hold_out_groups(groups, 4, seed)
        assert 0 < held_out.sum() < len(groups)
        assert not set(groups[held_out].tolist()) & set(groups[~held_out].tolist())
        for part in parts_of(x, y, groups, seed=seed):
            assert not set(tensors(part.data)[0][:, 0].tolist()) & set(tensors(part.validation)[0][:, 0].tolist())


def test_ties_depend_on_the_seed_and_folds_of_equal_groups_are_equal():
    groups = torch.arange(60) // 5
    found = {tuple(map(tuple, (rows.tolist() for rows in fold_groups(groups, 4, seed)))) for seed in range(6)}
    assert len(found) == 6
    assert all(len(rows) == 15 for folds in found for rows in folds)


def test_few_rows_are_left_out_so_that_members_train_together():
    x, y, groups = table([30, 29, 31, 27, 33, 28, 26, 34])
    parts = parts_of(x, y, groups)
    counts = {len(part.data[1]) for part in parts}
    assert len(counts) == 1
    assert len({len(part.validation.weights) for part in parts}) == 1
    rows = [tuple(row) for row in x.tolist()]
    for part in parts:
        inputs, _, weights = tensors(part.validation)
        trained, held_out = {tuple(r) for r in part.data[0].tolist()}, {tuple(r) for r in inputs[weights > 0].tolist()}
        assert len(held_out) == int((weights > 0).sum())
        assert held_out == {row for row in rows if row[0] in {r[0] for r in held_out}}, "validation loses no row"
        assert len(rows) - len(held_out) - len(trained) <= 0.05 * len(rows)


def test_members_of_unequal_groups_are_trained_as_alone_on_their_rows():
    x, y, groups = table([3, 9, 14, 5, 8, 11, 4, 2])
    together = ensemble()
    alone = copy.deepcopy(together)
    settings = {"epochs": 6, "batch_size": 10, "patience": 3, "accelerator": "cpu"}
    parts = parts_of(x, y, groups, seed=1)
    assert any(isinstance(part.validation, Weighted) for part in parts)
    history = fit(together, (x, y), Gaussian(std=0.1), validation="folds", groups=groups, seed=1, learning_rate=0.05, **settings)
    trainings = []
    for k, part in enumerate(parts):
        inputs, target, weights = tensors(part.validation)
        held_out = inputs[weights > 0], target[weights > 0]  # without the rows of weight 0
        trainings.append(
            Training(
                bnn=alone.members[k], data=part.data, validation=held_out, likelihood=Gaussian(std=0.1),
                seed=seed_for(1, "member", k), learning_rate=0.05,
            )
        )  # fmt: skip
    histories = fit_many(trainings, **settings)
    assert history.kept_epochs == [one.best_epoch for one in histories]
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, msg=name)


def test_several_members_hold_out_the_same_of_few_groups():
    x, y, groups = table([20, 20])
    held_out = [set(tensors(part.validation)[0][:, 0].tolist()) for part in parts_of(x, y, groups)]
    assert held_out[:2] in ([{0.0}, {1.0}], [{1.0}, {0.0}])
    assert held_out[2:] == held_out[:2]


def test_what_groups_need():
    x, y, groups = table([5, 5, 5])
    with pytest.raises(ConfigurationError, match=r"groups says which rows stay together .* needs validation='folds'"):
        fit(ensemble(), (x, y), Gaussian(), groups=groups, accelerator="cpu")
    with pytest.raises(ConfigurationError, match="needs validation='folds'"):
        fit(ensemble(), (x, y), Gaussian(), validation=(x, y), groups=groups, accelerator="cpu")
    with pytest.raises(TypeError, match=r"groups must be a tensor of integers, one per row, got torch.float32"):
        parts_of(x, y, groups.float())
    with pytest.raises(DataError, match=r"groups must be \(15,\), one integer per row of data, got \(14,\)"):
        parts_of(x, y, groups[1:])
    with pytest.raises(DataError, match="groups has a single group in the 15 rows"):
        parts_of(x, y, 0 * groups)

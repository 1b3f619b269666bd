"""Interrupted training of many models, and of ensembles, ends exactly where an uninterrupted one does."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from bayesify import SWAG, DeepEnsemble, MeanField, bayesify
from bayesify.errors import CheckpointError
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, fit, fit_many, single_model
from bayesify.train.many import loop, stack_checkpoint

EPOCHS = 6


class StopError(Exception):
    pass


@pytest.fixture(autouse=True)
def checkpoint_every_epoch(monkeypatch):
    monkeypatch.setattr(stack_checkpoint, "_SECONDS", 0.0)


@pytest.fixture
def stop_in(monkeypatch):
    """Make training stop in a certain epoch of the process, before it is done; returns the function that lets it go on."""

    def arm(epoch):
        count = [0]

        def stopping(original):
            def run(self, number):
                count[0] += 1
                if count[0] >= epoch:
                    raise StopError
                return original(self, number)

            return run

        monkeypatch.setattr(loop.Loop, "run_epoch", stopping(loop.Loop.run_epoch))
        monkeypatch.setattr(single_model._Loop, "_run_epoch", stopping(single_model._Loop._run_epoch))
        return monkeypatch.undo

    return arm


def data(n=32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=generator)


def net(width=8):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 1))


class Branching(nn.Module):
    """Cannot be traced."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x) if bool(x.sum() > 1e9) else self.layer(2 * x)


def ensemble(method, make=net):
    torch.manual_seed(3)
    return bayesify(make(), method), Gaussian(std=0.5, learn=True)


def train(model, **arguments):
    settings = {"epochs": EPOCHS, "batch_size": 8, "learning_rate": 0.02, "seed": 5, "accelerator": "cpu"}
    return fit(model[0], data(), model[1], **{**settings, **arguments})


def assert_same(one, other):
    states = [[*bnn.state_dict().values(), *likelihood.state_dict().values()] for bnn, likelihood in (one, other)]
    for a, b in zip(*states, strict=True):
        assert torch.equal(a, b)


VARIANTS = {
    "plain": (DeepEnsemble(members=3), {}),
    "folds": (DeepEnsemble(members=3), {"validation": "folds", "scheduler": partial(CosineAnnealingLR, T_max=EPOCHS)}),
    "early stops": (DeepEnsemble(members=3), {"validation": "folds", "patience": 1, "learning_rate": 0.2}),
    "plateau": (DeepEnsemble(members=2), {"validation": "folds", "scheduler": partial(ReduceLROnPlateau, patience=0)}),
    "momentum": (
        DeepEnsemble(members=2, base=MeanField()),
        {"optimizer": partial(torch.optim.SGD, lr=0.01, momentum=0.9), "clip_norm": 1.0, "samples": 2},
    ),
    "collected": (DeepEnsemble(members=2, base=SWAG(rank=2)), {}),
}


@pytest.mark.default("plain-5", extended=["folds-5", "collected-5"])
@pytest.mark.parametrize("stop", [pytest.param(2, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resuming_an_ensemble_is_exact(tmp_path, stop_in, variant, stop):
    method, arguments = VARIANTS[variant]
    straight = ensemble(method)
    history = train(straight, **arguments)
    go_on = stop_in(min(stop, len(history)))
    with pytest.raises(StopError):
        train(ensemble(method), checkpoint=tmp_path / "run.ckpt", **arguments)
    go_on()
    resumed = ensemble(method)
    torch.manual_seed(77)  # the state of the world does not matter
    again = train(resumed, checkpoint=tmp_path / "run.ckpt", **arguments)
    assert_same(resumed, straight)
    assert {**again.to_dict(), "seconds": 0} == {**history.to_dict(), "seconds": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["run.ckpt"]


@pytest.mark.default("3-Branching-files1", extended=[])
@pytest.mark.parametrize(("make", "files"), [(net, {"run.ckpt", "run.ckpt.2-3"}), (Branching, {f"run.ckpt.{i}" for i in range(4)})])
@pytest.mark.parametrize("stop", [3, pytest.param(EPOCHS + 3, marks=pytest.mark.slow)])
def test_groups_and_models_one_after_another(tmp_path, stop_in, make, files, stop):
    """Two pairs of models with other numbers of rows, of which the second is not begun, or interrupted."""

    def models():
        result = []
        for k in range(4):
            bnn, likelihood = ensemble(MeanField(), make)
            result.append(Training(bnn=bnn, data=data(32 + 8 * (k // 2)), likelihood=likelihood, seed=k, learning_rate=0.02))
        return result

    def train_many(trainings, **arguments):
        fit_many(trainings, epochs=EPOCHS, batch_size=8, accelerator="cpu", **arguments)
        return [(t.bnn, t.likelihood) for t in trainings]

    straight = train_many(models())
    go_on = stop_in(stop)
    with pytest.raises(StopError):
        train_many(models(), checkpoint=tmp_path / "run.ckpt")
    go_on()
    resumed = train_many(models(), checkpoint=tmp_path / "run.ckpt")
    for one, other in zip(straight, resumed, strict=True):
        assert_same(one, other)
    assert {path.name for path in tmp_path.iterdir()} == files


def test_a_finished_run_returns_at_once_and_more_epochs_continue_it(tmp_path, stop_in):
    path = tmp_path / "run.ckpt"
    first = ensemble(DeepEnsemble(members=2))
    train(first, checkpoint=path)
    stop_in(1)
    second = ensemble(DeepEnsemble(members=2))
    assert len(train(second, checkpoint=path)) == EPOCHS
    assert_same(first, second)
    with pytest.raises(StopError):
        train(ensemble(DeepEnsemble(members=2)), checkpoint=path, resume=False)
    with pytest.raises(StopError):
        train(ensemble(DeepEnsemble(members=2)), checkpoint=path, epochs=EPOCHS + 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": 6}, r"\(seed was \d+ and is \d+\)"),
        ({"batch_size": 9}, r"\(batch_size was 8 and is 9[,)]"),
        ({"members": 3}, "models was 2"),
    ],
)
def test_checkpoints_of_other_runs_are_refused(tmp_path, arguments, message):
    train(ensemble(DeepEnsemble(members=2)), checkpoint=tmp_path / "run.ckpt", epochs=1)
    members = arguments.pop("members", 2)
    with pytest.raises(CheckpointError, match=message):
        train(ensemble(DeepEnsemble(members=members)), checkpoint=tmp_path / "run.ckpt", epochs=1, **arguments)


def test_a_difference_of_all_models_is_named_once(tmp_path):
    train(ensemble(DeepEnsemble(members=5)), checkpoint=tmp_path / "run.ckpt", epochs=1)
    with pytest.raises(CheckpointError) as caught:
        train(ensemble(DeepEnsemble(members=5)), checkpoint=tmp_path / "run.ckpt", epochs=1, learning_rate=0.5, batch_size=9)
    assert caught.value.reason.count("learning_rate was") == caught.value.reason.count("batch_size was 8 and is 9") == 1
    assert " of model " not in caught.value.reason


def test_unwritable_places_are_known_before_the_work(tmp_path, stop_in):
    stop_in(1)
    with pytest.raises(OSError, match="could not be written"):
        train(ensemble(DeepEnsemble(members=2)), checkpoint=tmp_path / "absent" / "run.ckpt")

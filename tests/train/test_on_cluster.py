"""`fit_many`, ensembles and estimators on a Ray cluster: equal to this machine, also where processes die."""

import copy
import dataclasses
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesify import DeepEnsemble, MeanField, bayesify
from bayesify.errors import ConfigurationError, DataError
from bayesify.jobs import RayCluster
from bayesify.jobs.cluster import Event
from bayesify.jobs.where import cluster_of
from bayesify.likelihoods import Gaussian
from bayesify.train import Training, fit, fit_many
from bayesify.train.history import History
from bayesify.train.many import on_cluster

sys.path.insert(0, str(Path(__file__).parents[1]))
passes_on = pytest.mark.slow  # reaches the cluster by `fit_many`, whose tests are not slow; every call starts a process of Ray
ARGUMENTS = {"epochs": 3, "batch_size": 16, "accelerator": "cpu", "progress": False}


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bayesify[ray]'")
    from ray_servers import ray_cluster

    with ray_cluster(1, 1) as servers:
        yield RayCluster(address=servers.address)


def _trainings(count=4, **changes):
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(count)]
    return [
        Training(bnn=bayesify(net, MeanField()), data=(x, 2 * x), likelihood=Gaussian(learn=True), seed=k, **changes)
        for k, net in enumerate(nets)
    ]


def _state(training):
    return {**training.bnn.state_dict(), **{f"likelihood.{k}": v for k, v in training.likelihood.state_dict().items()}}


def _equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(_state(first).values(), _state(second).values(), strict=True))


def _with(cluster, **changes):
    return dataclasses.replace(cluster, **changes)


@pytest.mark.slow
def test_results_are_those_of_this_machine(cluster):
    here, whole, parts = (_trainings() for _ in range(3))
    shares = []
    histories = fit_many(here, **ARGUMENTS)
    again = fit_many(whole, **{**ARGUMENTS, "progress": shares.append}, on=_with(cluster, jobs=1))
    split = fit_many(parts, **ARGUMENTS, on=_with(cluster, jobs=2))
    assert all(_equal(a, b) for a, b in zip(here, whole, strict=True))
    assert [h.loss for h in histories] == [h.loss for h in again]
    assert shares[-1] == 1.0
    chunks = _trainings()
    fit_many(chunks[:2], **ARGUMENTS)
    fit_many(chunks[2:], **ARGUMENTS)
    assert all(_equal(a, b) for a, b in zip(chunks, parts, strict=True))
    for a, b, first, second in zip(here, parts, histories, split, strict=True):
        for value, expected in zip(_state(b).values(), _state(a).values(), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
        assert second.loss == pytest.approx(first.loss, rel=1e-4)


class _DiesOnce:
    """A schedule of the learning rate whose construction kills the process, the first time that it happens in another one."""

    def __init__(self, marker, own):
        self.marker, self.own = marker, own

    def __call__(self, optimizer):
        if os.getpid() != self.own and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@pytest.mark.slow
def test_a_killed_process_changes_nothing(cluster, tmp_path):
    scheduler = _DiesOnce(tmp_path / "died", os.getpid())
    here, there = _trainings(), _trainings()
    fit_many(here[:2], **ARGUMENTS, scheduler=scheduler)
    fit_many(here[2:], **ARGUMENTS, scheduler=scheduler)
    fit_many(there, **ARGUMENTS, scheduler=scheduler, on=_with(cluster, jobs=2), checkpoint=tmp_path / "run.ckpt")
    assert scheduler.marker.exists()
    assert all(_equal(a, b) for a, b in zip(here, there, strict=True))
    scheduler.marker.unlink()
    with pytest.warns(RuntimeWarning, match="its process died 1 times"):
        histories = fit_many(_trainings(1), **ARGUMENTS, scheduler=scheduler, on=_with(cluster, max_retries=0))
    assert "its process died" in histories[0].failure


def test_a_machine_without_the_folder_of_the_checkpoint_says_so(tmp_path):
    settings = {name: value for name, value in ARGUMENTS.items() if name != "progress"}
    part = on_cluster._Part(0, _trainings(1), fit_many, settings, tmp_path / "elsewhere" / "run.ckpt")
    with pytest.warns(UserWarning, match="elsewhere is no folder on this machine of the cluster"):
        (trained,) = on_cluster._train(part, SimpleNamespace(progress=lambda share: None))
    assert len(trained.history) == 3


def test_parts_have_checkpoints_of_their_own(tmp_path):
    places = []

    def train(trainings, checkpoint, **settings):
        places.append(checkpoint.name)
        return [None for _ in trainings]

    for first in (0, 2):
        part = on_cluster._Part(first, _trainings(2), train, {}, tmp_path / "run.ckpt")
        on_cluster._train(part, SimpleNamespace(progress=lambda share: None))
    assert places == ["run.ckpt.models0-1", "run.ckpt.models2-3"]


@passes_on
def test_members_of_an_ensemble(cluster):
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    torch.manual_seed(0)
    net = bayesify(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), DeepEnsemble(members=3))
    other, likelihoods = copy.deepcopy(net), (Gaussian(learn=True), Gaussian(learn=True))
    first = fit(net, (x, 2 * x), likelihoods[0], validation="folds", **ARGUMENTS)
    second = fit(other, (x, 2 * x), likelihoods[1], validation="folds", **ARGUMENTS, on=_with(cluster, jobs=1))
    assert first.loss == second.loss
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True))
    assert likelihoods[0].state_dict() == likelihoods[1].state_dict()


def test_progress_counts_every_epoch_once(monkeypatch):
    """Of what jobs report, some of it late or never."""
    trainings, advanced = _trainings(2), []
    results = [[on_cluster._Trained(History(), t.bnn.state_dict(), t.likelihood.state_dict())] for t in trainings]
    reports = [
        (0, "progress", 0.25),
        (1, "progress", 0.5),
        (0, "progress", 0.75),
        (0, "result", results[0]),
        (1, "result", results[1]),
    ]
    monkeypatch.setattr(on_cluster, "connected", nullcontext)
    monkeypatch.setattr(on_cluster, "run_jobs", lambda *_: (Event(*report) for report in reports))
    on_cluster.train_on_cluster(fit_many, trainings, {"epochs": 8}, RayCluster(jobs=2), None, advanced.append)
    assert advanced == [2, 4, 4, 2, 4]


@passes_on
def test_estimators_and_cross_validation(cluster):
    pytest.importorskip("sklearn")
    import numpy as np

    from bayesify.estimators import BayesianRegressor, cross_validate

    X = np.linspace(-1, 1, 60).reshape(-1, 1)
    settings = {"epochs": 3, "random_state": 0, "method": "MeanField", "progress": False}
    here = cross_validate(BayesianRegressor(**settings), X, 2 * X[:, 0], cv=3, progress=False)
    there = cross_validate(BayesianRegressor(**settings, on=_with(cluster, jobs=1)), X, 2 * X[:, 0], cv=3, progress=False)
    assert here.scores.equals(there.scores)
    model = BayesianRegressor(**settings, on=cluster).fit(X, 2 * X[:, 0])
    expected = BayesianRegressor(**settings).fit(X, 2 * X[:, 0])
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-4, atol=1e-5)


@passes_on
def test_auto(cluster, monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    import numpy as np

    from bayesify.estimators import BayesianRegressor

    small = {"method": "DeepEnsemble", "hidden": (4,), "epochs": 2}
    monkeypatch.setattr(BayesianRegressor, "portfolio", {"small": small, "smooth": small | {"activation": "silu"}})
    X = np.linspace(-1, 1, 40).reshape(-1, 1)
    settings = {"random_state": 0, "method": "auto", "progress": False}
    here = BayesianRegressor(**settings).fit(X, X[:, 0] ** 2)
    there = BayesianRegressor(**settings, on=_with(cluster, jobs=1)).fit(X, X[:, 0] ** 2, checkpoint=tmp_path / "auto.ckpt")
    assert there.stack_weights_ == here.stack_weights_
    assert there.leaderboard_[["weight", "log_score"]].equals(here.leaderboard_[["weight", "log_score"]])
    np.testing.assert_array_equal(there.predict(X), here.predict(X))
    again = BayesianRegressor(**settings, on=_with(cluster, jobs=1)).fit(X, X[:, 0] ** 2, checkpoint=tmp_path / "auto.ckpt")
    np.testing.assert_array_equal(again.predict(X), here.predict(X))
    # In two jobs, other models share their operators, and sums are rounded differently.
    split = BayesianRegressor(**settings, on=_with(cluster, jobs=2)).fit(X, X[:, 0] ** 2)
    np.testing.assert_allclose(split.leaderboard_["log_score"], here.leaderboard_["log_score"], rtol=1e-4)
    np.testing.assert_allclose(split.predict(X), here.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_errors(cluster):
    x, (training,) = torch.full((8, 1), torch.nan), _trainings(1)
    with pytest.raises(DataError, match="NaN"):
        fit_many([dataclasses.replace(training, data=(x, x))], **ARGUMENTS, on=cluster)
    with pytest.raises(ConfigurationError, match="which has no accumulate; leave it out"):
        fit(training.bnn, training.data, training.likelihood, **ARGUMENTS, accumulate=2, on=cluster)


def test_where_jobs_run():
    assert cluster_of("local") is None
    assert cluster_of("ray") == RayCluster()
    assert cluster_of("ray://head:10001") == RayCluster(address="ray://head:10001")
    for wrong in ("", "ray://", "dask", None):
        with pytest.raises(ConfigurationError, match="on must be 'local', 'ray'"):
            cluster_of(wrong)
    for field in ({"num_cpus": 0}, {"max_retries": -1}, {"jobs": 0}, {"num_gpus": -1}):
        with pytest.raises(ConfigurationError, match=next(iter(field))):
            RayCluster(**field)


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'on=.ray. requires Ray; install it with: pip install "bayesify\[ray\]"'):
        fit_many(_trainings(1), **ARGUMENTS, on="ray")

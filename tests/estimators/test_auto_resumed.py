"""An interrupted `method="auto"` continues with the model that it was training, and ends where an uninterrupted one does."""

import numpy as np
import pytest
from sklearn.base import clone

from bayesify.errors import BayesifyWarning, CheckpointError
from bayesify.estimators import BayesianRegressor
from bayesify.train import single_model
from bayesify.train.many import loop, stack_checkpoint

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
y = X[:, 0] + X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=60)
SMALL = {"method": "Deterministic", "hidden": (8,), "activation": "tanh", "epochs": 8, "validation_fraction": 0.0}
MODELS = {
    "together": SMALL,
    "sampled": {"method": "MCDropout", "hidden": (8,), "epochs": 4},
}
FAST = {"method": "auto", "random_state": 0, "progress": False}


class StopError(Exception):
    pass


@pytest.fixture
def epochs(monkeypatch):
    """Small models, a checkpoint after every epoch, and a list of the epochs that have run, which stops at length `stop`."""
    monkeypatch.setattr(BayesianRegressor, "portfolio", MODELS)
    monkeypatch.setattr(stack_checkpoint, "_SECONDS", 0.0)

    class Epochs(list):
        stop = None

    run = Epochs()

    def counted(original):
        def run_epoch(self, number):
            if run.stop is not None and len(run) >= run.stop:
                raise StopError
            run.append(number)
            return original(self, number)

        return run_epoch

    monkeypatch.setattr(loop.Loop, "run_epoch", counted(loop.Loop.run_epoch))
    monkeypatch.setattr(single_model._Loop, "_run_epoch", counted(single_model._Loop._run_epoch))
    return run


def stopped(epochs, path, after, **params):
    epochs.clear()
    epochs.stop = after
    with pytest.raises(StopError):
        BayesianRegressor(**FAST, **params).fit(X, y, checkpoint=path)
    epochs.clear()
    epochs.stop = None


@pytest.mark.slow
def test_the_result_is_that_of_an_uninterrupted_run(tmp_path, epochs):
    straight = BayesianRegressor(**FAST).fit(X, y)
    total = len(epochs)
    for after in (3, total - 3):
        path = tmp_path / f"{after}.ckpt"
        stopped(epochs, path, after)
        resumed = BayesianRegressor(**FAST).fit(X, y, checkpoint=path)
        assert len(epochs) == total - after
        np.testing.assert_array_equal(resumed.predict(X), straight.predict(X))
        np.testing.assert_array_equal(resumed.predict_interval(X, 0.9), straight.predict_interval(X, 0.9))
        assert resumed.stack_weights_ == straight.stack_weights_
        assert resumed.leaderboard_[["weight", "log_score"]].equals(straight.leaderboard_[["weight", "log_score"]])
        assert [part.history_.loss for part in resumed.stack_] == [part.history_.loss for part in straight.stack_]


@pytest.mark.slow
def test_the_time_of_finished_models_counts(tmp_path, epochs):
    path = tmp_path / "a.ckpt"
    stopped(epochs, path, 20)  # in the second model
    resumed = BayesianRegressor(**FAST).fit(X, y, checkpoint=path)
    again = clone(resumed).fit(X, y, checkpoint=path)
    assert again.leaderboard_["seconds"].equals(resumed.leaderboard_["seconds"])
    epochs.clear()
    with pytest.warns(BayesifyWarning, match="more than time_limit=0.001"):  # all are known: none is left out
        limited = BayesianRegressor(**FAST, time_limit=1e-3).fit(X, y, checkpoint=path)
    assert limited.leaderboard_.equals(resumed.leaderboard_)
    assert not epochs


def test_a_time_limit_leaves_out_the_same_models(tmp_path, epochs):
    path = tmp_path / "a.ckpt"
    for _ in range(2):
        with pytest.warns(BayesifyWarning, match="more than time_limit=0.001"):
            model = BayesianRegressor(**FAST, time_limit=1e-3).fit(X, y, checkpoint=path)
        assert model.leaderboard_["seconds"].isna().tolist() == [False, True]
        assert model.leaderboard_["weight"].tolist() == [1.0, 0.0]


def test_a_checkpoint_of_another_run_is_refused(tmp_path, epochs):
    path = tmp_path / "a.ckpt"
    stopped(epochs, path, 5)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match="seed was"):
        BayesianRegressor(**FAST | {"random_state": 1}).fit(X, y, checkpoint=path)
    with pytest.raises(CheckpointError, match="checksum of data"):
        BayesianRegressor(**FAST).fit(X, -y, checkpoint=path)
    with pytest.raises(CheckpointError, match="method was 'auto' and is not set"):
        BayesianRegressor(**FAST | {"method": "MCDropout"}).fit(X, y, checkpoint=path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    single = tmp_path / "single.ckpt"
    BayesianRegressor(method="MCDropout", epochs=1, random_state=0, progress=False).fit(X, y, checkpoint=single)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        BayesianRegressor(**FAST).fit(X, y, checkpoint=single)
    path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="damaged"):
        BayesianRegressor(**FAST).fit(X, y, checkpoint=path)

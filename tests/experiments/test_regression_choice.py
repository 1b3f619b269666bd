"""Choosing hyperparameters, with a stand-in for training whose validation score is known."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from experiments.protocols.tabular import choice as choice_module
from experiments.protocols.tabular.choice import choose
from experiments.protocols.tabular.settings import Choose, Setup
from experiments.protocols.tabular.splits import make_split
from experiments.protocols.tabular.training import train

from bayesify.errors import ConfigurationError
from bayesify.train import History

METHOD = {"method": "Deterministic"}


def _splits(*names):
    """In place of splits: nothing but a name and targets to count."""
    return [SimpleNamespace(name=name, y=torch.zeros(100)) for name in names]


def _fake_training(score):
    """In place of `train`: a model whose validation score is a function of its setup and the split's name; None is a failure."""
    calls = []

    def train(setups, splits, seeds, progress, share):
        train.share = share
        calls.append([(setup, split.name, seed) for setup, split, seed in zip(setups, splits, seeds, strict=True)])
        progress(1.0)
        models = []
        for setup, split in zip(setups, splits, strict=True):
            value = score(setup, split.name)
            history = History()
            history.failure = "broken" if value is None else None
            density = SimpleNamespace(log_prob=lambda y, value=value: torch.tensor([value - 1.0, value + 1.0]))

            def predictive(samples, density=density):
                train.draws.append(samples)
                return density

            rows = SimpleNamespace(y_test=torch.zeros(2))
            models.append(SimpleNamespace(history=history, predictive=predictive, split=rows, setup=setup))
        return models

    train.draws = []
    return train, calls


def test_a_grid_is_all_combinations_in_one_pass(monkeypatch):
    among = {"method.p": [0.1, 0.2], "beta": [0.0, 0.5, 1.0]}
    setup = Setup(method={"method": "MCDropout"}, choose=Choose(among=among, share=0.3), epochs=30)
    train, calls = _fake_training(lambda setup, split: setup.beta if setup.method["p"] == split else -setup.beta)
    monkeypatch.setattr(choice_module, "train", train)
    choices = choose(setup, _splits(0.1, 0.2), [4, 5], lambda share: None)
    assert [choice.fields for choice in choices] == [{"method.p": 0.1, "beta": 1.0}, {"method.p": 0.2, "beta": 1.0}]
    assert [choice.log_likelihood for choice in choices] == [1.0, 1.0]
    assert choices[1].setup.method["p"] == 0.2
    (call,) = calls
    assert len(call) == 12 == 2 * len(setup.trials())
    assert train.share == 0.3
    assert train.draws == [None] * 12  # as many as in prediction
    assert [seed for _, _, seed in call] == [4] * 6 + [5] * 6


def test_candidates_that_fail_are_not_chosen(monkeypatch):
    setup = Setup(method={"method": "MCDropout"}, choose=Choose(among={"beta": [0.1, 0.2, 0.3]}))
    train, _ = _fake_training(lambda setup, split: None if setup.beta == 0.1 or split == "bad" else -setup.beta)
    monkeypatch.setattr(choice_module, "train", train)
    good, bad = choose(setup, _splits("good", "bad"), [0, 1], lambda share: None)
    assert good.fields == {"beta": 0.2}
    assert bad is None


def test_a_search_tries_some_at_a_time_and_keeps_the_best(monkeypatch):
    pytest.importorskip("optuna")
    among = {"beta": {"low": 1e-4, "high": 1.0, "log": True}, "method.p": [0.1, 0.2]}
    setup = Setup(method={"method": "MCDropout"}, choose=Choose(among=among, trials=30, together=8, samples=7))
    train, calls = _fake_training(
        lambda setup, peak: None if setup.beta > 0.5 else -abs(math.log(setup.beta / peak)) - setup.method["p"]
    )
    monkeypatch.setattr(choice_module, "train", train)
    shares = []
    choices = choose(setup, _splits(1e-3, 1e-1), [0, 1], shares.append)
    assert [len(call) for call in calls] == [16, 16, 16, 12]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert set(train.draws) == {7}
    for place, (choice, peak) in enumerate(zip(choices, (1e-3, 1e-1), strict=True)):
        tried = [setup for call in calls for setup, split, _ in call if split == peak]
        assert len(tried) == 30
        assert all(1e-4 <= setup.beta <= 1.0 for setup in tried)
        best = max(-abs(math.log(setup.beta / peak)) - setup.method["p"] for setup in tried if setup.beta <= 0.5)
        assert choice.log_likelihood == pytest.approx(best, rel=1e-5), place
        assert choice.fields["method.p"] == 0.1
        # It learns: a quarter of log-uniform draws would be within a factor of 3.2, its last rounds do better.
        late = [setup.beta for call in calls[2:] for setup, split, _ in call if split == peak]
        assert sum(abs(math.log10(beta / peak)) < 0.5 for beta in late) > len(late) / 3


def test_epochs_are_chosen_and_models_are_those_trained_on_their_own() -> None:
    setups = [Setup(method={"method": "MeanField"}, hidden=[8], epochs=epochs, batch_size=16) for epochs in (2, 5, 2)]
    rows = np.random.default_rng(0).normal(size=(40, 3))
    split = make_split(rows, rows[:, 0], np.arange(32), np.arange(32, 40))
    shares = []
    models = train(setups, [split] * 3, [0, 1, 2], shares.append)
    assert [len(model.history) for model in models] == [2, 5, 2]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    for setup, seed, model in zip(setups, range(3), models, strict=True):
        (alone,) = train([setup], [split], [seed], lambda share: None)
        assert model.history.loss == pytest.approx(alone.history.loss, rel=1e-4)
    assert [len(model.history) for model in train(setups, [split] * 3, [0, 1, 2], shares.append, share=0.4)] == [1, 2, 1]
    assert [trial.epochs for trial in Setup(method=METHOD, choose=Choose(among={"epochs": [3, 7]})).trials()] == [3, 7]
    with pytest.raises(ConfigurationError, match="epochs cannot be chosen with steps=10"):
        Setup(method=METHOD, steps=10, choose=Choose(among={"epochs": [3, 7]}))


def test_the_network_predicts_the_noise_of_every_row() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 2))
    y = 3.0 * np.exp(rows[:, 0]) * np.random.default_rng(1).normal(size=400)
    split = make_split(rows, y, np.arange(300), np.arange(300, 400))
    setup = Setup(method=METHOD, noise={"heteroscedastic": 0.3}, hidden=[20], epochs=60, batch_size=50)
    (start,) = train([dataclasses.replace(setup, epochs=1, learning_rate=1e-12)], [split], [0], lambda share: None)
    spread = start.predictive().std / split.std
    assert 0.2 < spread.median() < 0.45  # the second output starts at 0.3, plus what the initial weights add
    (model,) = train([setup], [split], [0], lambda share: None)
    assert model.noise_std is None
    learned = model.predictive().std.log()
    assert np.corrcoef(learned, rows[300:, 0])[0, 1] > 0.9
    (same,) = train([dataclasses.replace(setup, noise={"learned": 0.3})], [split], [0], lambda share: None)
    gain = (model.predictive().log_prob(split.y_test) - same.predictive().log_prob(split.y_test)).mean()
    assert gain > 0.2

"""The regression protocol: standardization, choices on training rows alone, scores in the unit of the targets."""

import math

import numpy as np
import pytest
import torch
from experiments.harness.protocol import UnitError
from experiments.protocols.tabular import evaluate
from experiments.protocols.tabular import training as training_module
from experiments.protocols.tabular.settings import Setup
from experiments.protocols.tabular.splits import hold_out, make_split
from experiments.protocols.tabular.training import Model
from regression_table import make_data, make_table, method, run_job
from scipy import special, stats

from bayesify import Deterministic, Gaussian, MeanField, bayesify
from bayesify.datasets import UCI
from bayesify.prediction import predict
from bayesify.train import History

# --- data


def test_everything_is_standardized_by_training_rows():
    data = make_data()
    X = np.column_stack([data.X, np.full(60, 0.1), np.arange(60) == 0])  # constant everywhere, and on the training rows
    train, test = np.arange(10, 60), np.arange(10)
    split = make_split(X, data.y, train, test)
    torch.testing.assert_close(split.X[:, :3].double(), torch.from_numpy(stats.zscore(X[train, :3])), rtol=1e-5, atol=1e-6)
    expected = stats.zmap(X[test, :3], X[train, :3])
    torch.testing.assert_close(split.X_test[:, :3].double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)
    assert split.X[:, 3:].eq(0).all()
    assert split.X_test[:, 3].eq(0).all()
    assert split.X_test[:, 4].tolist() == [1.0] + [0.0] * 9
    torch.testing.assert_close(split.mean + split.std * split.y.double(), torch.from_numpy(data.y[train]), rtol=1e-6, atol=1e-4)
    assert split.y_test.tolist() == data.y[test].tolist()
    with pytest.raises(ValueError, match=r"all 50 training targets are 7.0"):
        make_split(X, np.full(60, 7.0), train, test)


def test_validation_rows_are_part_of_the_training_rows():
    train = np.arange(100, 200)
    fit, held_out = hold_out(train, 0.2, seed=3)
    assert (len(fit), len(held_out)) == (80, 20)
    assert sorted([*fit, *held_out]) == train.tolist()
    assert set(held_out) != set(hold_out(train, 0.2, seed=4)[1])
    with pytest.raises(ValueError, match="leaves one part empty"):
        hold_out(np.arange(2), 0.1, seed=0)


# --- scores


def test_scores_are_those_of_the_targets_own_unit():
    data = make_data()
    split = make_split(data.X, data.y, *data.split(0))
    torch.manual_seed(3)
    bnn = bayesify(torch.nn.Linear(3, 1), MeanField(initial_std=2.0))
    setup = Setup(method={"method": "MeanField"}, samples=25)
    history = History(loss=[0.0], nll=[0.5], kl=[4.0])
    result = evaluate(Model(bnn, Gaussian(std=0.4), split, history, 1.5, setup, seed=7))

    means = predict(bnn, split.X_test, Gaussian(std=0.4), 25, seed=7).means.double().numpy() * split.std + split.mean
    y, std = data.y[data.split(0)[1]], 0.4 * split.std
    densities = stats.norm.logpdf(y, loc=means, scale=std)  # (25, 6)
    assert result["log_likelihood"] == pytest.approx(np.mean(special.logsumexp(densities, axis=0) - math.log(25)), rel=1e-6)
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean((means.mean(0) - y) ** 2)), rel=1e-6)
    inside = np.abs(stats.norm.cdf(y, loc=means, scale=std).mean(0) - 0.5) <= 0.475
    assert result["coverage_95"] == pytest.approx(inside.mean())
    draws = means[:, None] + std * np.random.default_rng(0).normal(size=(25, 4000, 6))
    a, b = draws.reshape(-1, 6), np.random.default_rng(1).permutation(draws.reshape(-1, 6))
    crps = np.mean(np.abs(a - y).mean(0) - 0.5 * np.abs(a - b).mean(0))
    assert result["crps"] == pytest.approx(crps, rel=0.02)
    low, high = np.quantile(a, [0.025, 0.975], axis=0)
    assert result["width_95"] == pytest.approx((high - low).mean(), rel=0.02)
    assert result["noise_std"] == pytest.approx(std)
    assert result["parameters"] == 2 * 4
    assert (result["kl"], result["nll"], result["seed"], result["train_seconds"]) == (4.0, 0.5, 7, 1.5)
    assert (result["n_train"], result["n_test"], result["epochs"]) == (54, 6, 1)


@pytest.mark.slow
def test_training_may_have_another_noise_than_prediction(tmp_path, monkeypatch):
    """With far more noise than the targets vary, nothing would be learned against the weight decay."""
    data = make_data()
    alone, both = (
        run_job(make_table(tmp_path, noise=noise, weight_decay=0.01, epochs=200), data, monkeypatch)
        for noise in ({"fixed": 1e4}, {"fixed": 1e4, "training": 0.5})
    )
    for split in alone:
        assert alone[split]["noise_std"] == both[split]["noise_std"] == pytest.approx(1e4)
        assert both[split]["rmse"] < 0.5 * alone[split]["rmse"]


@pytest.mark.default("noise0", extended=[])
@pytest.mark.parametrize("noise", [{"learned": 0.3}, {"fixed": 3.0}])
def test_another_unit_changes_scores_as_it_should(tmp_path, monkeypatch, noise):
    results = run_job(make_table(tmp_path, noise=noise), make_data(), monkeypatch)
    noise = {name: value * (100 if name == "fixed" else 1) for name, value in noise.items()}
    data = make_data()
    other = run_job(make_table(tmp_path, noise=noise), UCI("boston", data.X, 100 * data.y - 3, None, 20), monkeypatch)
    for unit, result in results.items():
        for key in ("rmse", "crps", "width_95", "noise_std"):
            assert other[unit][key] == pytest.approx(100 * result[key], rel=1e-3)
        assert other[unit]["log_likelihood"] == pytest.approx(result["log_likelihood"] - math.log(100), abs=2e-3)
        assert other[unit]["coverage_95"] == result["coverage_95"]
    if "fixed" in noise:
        assert all(result["noise_std"] == pytest.approx(3.0) for result in results.values())


# --- runs


def test_a_job_learns_and_repeats_itself(tmp_path, monkeypatch):
    table = make_table(tmp_path, epochs=150, methods=[method("MCDropout", method={"method": "MCDropout", "p": 0.01})])
    data = make_data()
    results = run_job(table, data, monkeypatch)
    assert list(results) == ["0", "1", "2"]
    for unit, result in results.items():
        assert result["rmse"] < 0.5 * data.y[data.split(int(unit))[1]].std()
        assert 1.0 < result["noise_std"] < 9.0  # 3, with few rows to tell
        assert result["seed"] == int(unit)
    alone = run_job(table, data, monkeypatch, units=("1",))
    assert alone["1"]["rmse"] == pytest.approx(results["1"]["rmse"], rel=1e-3)
    assert alone["1"]["log_likelihood"] == pytest.approx(results["1"]["log_likelihood"], abs=1e-3)
    again = run_job(table, data, monkeypatch)
    assert {unit: result["rmse"] for unit, result in again.items()} == {unit: result["rmse"] for unit, result in results.items()}


def test_test_rows_decide_nothing(tmp_path, monkeypatch):
    choose_ = {"among": {"noise.fixed": [1.0, 10.0], "learning_rate": [1e-2, 1e-3]}}
    table, data = make_table(tmp_path, choose=choose_, epochs=10), make_data()
    first = run_job(table, data, monkeypatch, units=("0",))["0"]
    X, y, test = data.X.copy(), data.y.copy(), data.split(0)[1]
    X[test], y[test] = X[test][::-1] + 1.0, -y[test]
    second = run_job(table, UCI("boston", X, y, None, 20), monkeypatch, units=("0",))["0"]
    for key in ("chosen", "validation_log_likelihood", "noise_std", "nll", "kl"):
        assert second[key] == first[key]
    assert second["rmse"] != first["rmse"]


@pytest.mark.slow
def test_the_better_candidate_is_chosen(tmp_path, monkeypatch):
    among = {"noise": {"fixed": [0.05, 3.0, 200.0]}, "learning_rate": [1e-2, 1e-9]}
    results = run_job(make_table(tmp_path, choose={"among": among}, epochs=100), make_data(), monkeypatch)
    for result in results.values():
        assert result["chosen"] == {"noise.fixed": 3.0, "learning_rate": 1e-2}
        assert result["noise_std"] == pytest.approx(3.0)
        assert result["epochs"] == 100
        assert result["choice_seconds"] > 0


def test_a_failed_split_does_not_take_the_others_along(tmp_path, monkeypatch):
    real = training_module.fit_many

    def one_fails(trainings, **settings):
        histories = real(trainings, **settings)
        histories[1].failure = "the loss became nan"
        return histories

    monkeypatch.setattr(training_module, "fit_many", one_fails)
    saved = {}
    with pytest.raises(UnitError, match=r"^split 1: the loss became nan$"):
        run_job(make_table(tmp_path), make_data(), monkeypatch, saved=saved)
    assert list(saved) == ["0", "2"]


@pytest.mark.extended
def test_a_search_runs_end_to_end(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    choose_ = {"among": {"noise": {"fixed": {"low": 0.1, "high": 100.0, "log": True}}}, "trials": 3, "together": 2}
    results = run_job(make_table(tmp_path, choose=choose_), make_data(), monkeypatch, units=("0", "1"))
    for result in results.values():
        assert 0.1 <= result["chosen"]["noise.fixed"] <= 100.0
        assert result["noise_std"] == pytest.approx(result["chosen"]["noise.fixed"])


# --- methods by layer, lengths in steps


def test_methods_by_layer_and_lengths_in_steps(tmp_path, monkeypatch):
    by_layer = {"2": {"method": "MeanField"}, "*": {"method": "Deterministic"}}
    setup = Setup(method=by_layer, steps=100, batch_size=16)
    assert setup.methods() == {"2": MeanField(), "*": Deterministic()}
    assert setup.method["2"] == MeanField().to_dict()
    assert Setup.from_dict(setup.to_dict()) == setup
    assert (setup.passes(54), setup.passes(16), setup.passes(10_000)) == (25, 100, 1)
    changed = setup.with_fields({"method.2.prior_std": 0.5})
    assert changed.methods() == {"2": MeanField(prior_std=0.5), "*": Deterministic()}
    with pytest.raises(ValueError, match=r"method\.2\.p cannot be chosen; the fields to choose are .*method\.2\.prior_std"):
        setup.with_fields({"method.2.p": 0.5})
    table = make_table(tmp_path, steps=8, schedule="power", methods=[{"name": "X", "method": by_layer}])
    results = run_job(table, make_data(), monkeypatch)
    assert {result["epochs"] for result in results.values()} == {2}
    assert {result["parameters"] for result in results.values()} == {3 * 8 + 8 + 2 * (8 + 1)}


def test_the_power_schedule_is_the_papers(tmp_path, monkeypatch):
    rates = []
    real = training_module.fit_many

    def look(trainings, **settings):
        parameter = torch.nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([parameter], lr=1e-3)
        scheduler = settings["scheduler"](optimizer)
        for _ in range(101):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return real(trainings, **settings)

    monkeypatch.setattr(training_module, "fit_many", look)
    run_job(make_table(tmp_path, schedule="power", splits=1), make_data(), monkeypatch)
    # 54 rows in batches of 16: 4 steps per pass
    assert rates[50] == pytest.approx(1e-3 * 1.1**-0.3)
    assert rates[100] == pytest.approx(1e-3 * 1.2**-0.3)


@pytest.mark.slow
def test_evidential_regression_is_scored_in_the_unit_of_the_targets(tmp_path, monkeypatch):
    table = make_table(tmp_path, methods=[method(likelihood="evidential")], epochs=300, learning_rate=0.01)
    results = run_job(table, make_data(), monkeypatch)
    for result in results.values():
        assert 2.0 < result["rmse"] < 12.0  # noise of 3, and a network of 8 units
        assert 6.0 < result["width_95"] < 60.0
        assert "noise_std" not in result

"""What ensemble model patching needs of the regression protocol: batch normalization, weight decay; and its configuration."""

import math

import pytest
import torch
from experiments.harness.config import read_table
from experiments.harness.experiment import Experiment
from experiments.harness.protocol import Job
from experiments.protocols.tabular import evaluate, training
from experiments.protocols.tabular.settings import Setup
from experiments.protocols.tabular.splits import make_split
from experiments.protocols.tabular.tables import write_tables
from torch import nn
from torch.distributions import Normal

from bayesify import EMP, summary

SMALL = {"hidden": [6], "epochs": 2, "batch_size": 8, "samples": 3, "noise": {"fixed": 2.0}}
PATCHED = {**SMALL, "method": {"method": "EMP", "where": "bn", "prior_std": None, "spread": 0.0}, "batch_norm": 0.2}


def _split():
    random = torch.Generator().manual_seed(0)
    X = torch.randn(40, 3, generator=random).double().numpy()
    return make_split(X, 10 * X[:, 0], torch.arange(33).numpy(), torch.arange(33, 40).numpy())


def test_normalizations_follow_the_input_and_the_hidden_layer() -> None:
    (model,) = training.train([Setup.from_dict({**PATCHED, "epochs": 1})], [_split()], [0], lambda done: None)
    assert [type(layer).__name__.removeprefix("Bayes") for layer in model.bnn.net] == [
        "BatchNorm1d", "Linear", "ReLU", "BatchNorm1d", "Linear"
    ]  # fmt: skip
    result = summary(model.bnn)
    assert [row.parameters for row in result.layers] == [2 * 3 * 5, 4 * 6, 2 * 6 * 5, 7]
    assert result.log_ensemble == pytest.approx(2 * math.log(5))
    assert all(row.method == "EMP" for row in result.layers if "Norm" in row.layer)
    # one step of Adam away, or five, from where the scales start
    assert (model.bnn.net[0].posterior.weight - 0.2).abs().max() < 0.06
    assert model.predictive().log_prob(_split().y_test).isfinite().all()


def test_weight_decay_is_that_of_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizers = []
    monkeypatch.setattr(training, "fit_many", lambda trainings, optimizer, **_: optimizers.append(optimizer) or [])
    for decay in (0.0, 0.01):
        with pytest.raises(ValueError, match=r"zip\(\)"):  # no histories
            training.train([Setup.from_dict({**PATCHED, "weight_decay": decay})], [_split()], [0], lambda done: None)
    assert optimizers[0] is None
    made = optimizers[1]([nn.Parameter(torch.ones(1))])
    assert isinstance(made, torch.optim.Adam)
    assert (made.defaults["weight_decay"], made.defaults["lr"]) == (0.01, 1e-2)


@pytest.mark.slow
def test_models_with_weight_decay_can_be_trained_and_it_shrinks_their_weights() -> None:
    norms = []
    for decay in (0.0, 10.0):
        setups = [Setup.from_dict({**PATCHED, "weight_decay": decay, "epochs": 8})] * 2
        models = training.train(setups, [_split()] * 2, [0, 1], lambda done: None)
        assert not any(model.history.failure for model in models)
        norms.append(sum(float(p.detach().square().sum()) for p in models[0].bnn.parameters()))
    assert norms[1] < 0.8 * norms[0]


def test_models_are_judged_by_every_number_of_draws() -> None:
    setup = Setup.from_dict({**PATCHED, "sample_counts": [1, 40]})
    (model,) = training.train([setup], [_split()], [0], lambda done: None)
    result = evaluate(model)
    assert list(result["by_samples"]) == ["1", "40"]
    y = model.split.y_test
    for count, scores in result["by_samples"].items():
        p = model.predictive(int(count))
        density = (
            Normal(p.means.reshape(int(count), -1), p.stds.expand_as(p.means).reshape(int(count), -1)).log_prob(y).exp().mean(0)
        )
        assert scores["log_likelihood"] == pytest.approx(float(density.log().mean()), rel=1e-6)
        assert scores["rmse"] == pytest.approx(
            float((p.means.reshape(int(count), -1).mean(0) - y).square().mean().sqrt()), rel=1e-6
        )
    assert result["by_samples"]["1"]["rmse"] != result["by_samples"]["40"]["rmse"]
    assert "by_samples" not in evaluate(model._replace(setup=Setup.from_dict(PATCHED)))


def test_own_statistics_are_those_of_the_training_rows_in_every_draw() -> None:
    """Against the net written out: every choice of components with the moments that the training rows have in it."""
    setup = Setup.from_dict({**PATCHED, "method": {**PATCHED["method"], "spread": 1.0}, "samples": 60, "statistics": "own"})
    (model,) = training.train([setup], [_split()], [3], lambda done: None)
    before = {name: value.clone() for name, value in model.bnn.state_dict().items()}
    means = model.predictive().means.reshape(60, -1)
    assert all(torch.equal(value, before[name]) for name, value in model.bnn.state_dict().items())

    first, dense, _, second, last = model.bnn.net
    rows, test = model.split.X, model.split.X_test

    def normalized(x: torch.Tensor, by: torch.Tensor, norm: nn.Module, component: int) -> torch.Tensor:
        variance = by.var(0, correction=0 if x is by else 1)  # as PyTorch has it: of the batch itself, and to keep
        standard = (x - by.mean(0)) / (variance + norm.eps).sqrt()
        return standard * norm.posterior.weight[component] + norm.posterior.bias[component]

    with torch.no_grad():
        every = []
        for i in range(5):
            hidden = [(normalized(x, rows, first, i) @ dense.weight.T + dense.bias).relu() for x in (test, rows)]
            for k in range(5):
                out = normalized(hidden[0], hidden[1], second, k) @ last.weight.T + last.bias
                every.append(out[:, 0].double() * model.split.std + model.split.mean)
    distances = torch.cdist(means, torch.stack(every))
    assert distances.amin(1).max() < 1e-3
    assert len(set(distances.argmin(1).tolist())) > 15  # of 25 choices, and of 60 draws


def test_numbers_of_draws_are_set_side_by_side() -> None:
    job = Job("boston-EMP", {"dataset": "boston", "method": "EMP"}, ("0", "1"), ("boston",))
    scores = {"rmse": 2.0, "log_likelihood": -3.0, "crps": 1.0, "coverage_95": 0.9, "width_95": 1.0, "parameters": 9}
    by_samples = [{"1": {**scores, "rmse": rmse, "coverage_95": coverage}} for rmse, coverage in ((2.0, 0.8), (4.0, 0.7))]
    units = {str(i): {**scores, "train_seconds": 1.0, "by_samples": counts} for i, counts in enumerate(by_samples)}
    section = write_tables([job], {"boston-EMP": units}, {}, {}).split("## Number of draws")[1].split("##")[0]
    assert section.strip().splitlines()[-1] == "| boston | EMP | 1 | 3.0 ± 1.0 | -3 | 0.750 ± 0.050 |"


def test_members_of_the_explicit_ensemble_differ_and_are_mixed() -> None:
    setup = Setup.from_dict({**SMALL, "method": {"method": "DeepEnsemble", "members": 3}, "samples": 6, "weight_decay": 0.01})
    (model,) = training.train([setup], [_split()], [0], lambda done: None)
    means = model.predictive().means.reshape(6, -1)
    assert len({tuple(row) for row in means.tolist()}) == 3
    assert {"rmse", "log_likelihood", "nll", "kl"} <= evaluate(model).keys()


def test_setups_with_batch_normalization_survive_json() -> None:
    setup = Setup.from_dict({**PATCHED, "weight_decay": 0.01})
    assert Setup.from_dict(setup.to_dict()) == setup
    assert setup.to_dict()["batch_norm"] == 0.2


def test_bad_settings() -> None:
    for settings, message in (
        ({"batch_norm": 0.0}, "batch_norm must be a finite number above 0"), ({"weight_decay": -1.0}, "weight_decay"),
        ({"sample_counts": [0]}, "sample_counts"), ({"sample_counts": 3}, "sample_counts must be a list"),
        ({"statistics": "batch"}, "statistics must be"),
        ({"weight_decay": 0.1, "choose": {"among": {"learning_rate": [0.1]}}}, "cannot be chosen with weight_decay=0.1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Setup.from_dict({**PATCHED, **settings})


def test_the_configuration_is_that_of_the_paper() -> None:
    table = read_table("emp/uci")
    jobs = {job.key: Setup.from_dict(job.settings["setup"]) for job in Experiment(table).jobs}
    assert len(jobs) == 7 * 5
    assert set(table.published) == {"ECMP", "EMP", "MCDropout", "DeepEnsemble"}
    setup = jobs["boston-EMP"]
    assert setup.noise["fixed"] ** -2 == pytest.approx(0.1)
    assert (setup.epochs, setup.batch_size, setup.samples, setup.batch_norm) == (4000, 100, 200, 0.2)
    assert EMP.from_dict(dict(setup.method)) == EMP(where="bn", prior_std=None)
    assert jobs["boston-MCDropout"].batch_norm is None
    assert jobs["boston-MCDropout"].method["p"] == 0.005

"""The experiments of the variational dropout paper: estimators against loops and enumeration, protocols end to end."""

import dataclasses
import json
import re

import experiments.protocols  # noqa: F401 # fills the registry
import numpy as np
import pytest
import torch
from experiments.harness.config import UsageError, overlay, read_table
from experiments.harness.experiment import Experiment
from experiments.harness.numbers import estimate
from experiments.harness.protocol import Context
from experiments.protocols import digits_net
from experiments.protocols.digits_net import bayesian_net, per_example, posterior_mean, sites
from experiments.protocols.digits_training import TemporalAverage
from experiments.protocols.estimator_speed import explicit_step
from experiments.protocols.gradient_variance import ESTIMATORS, deviations, gradients
from experiments.protocols.kl_curves import expected_log_noise
from scipy import integrate, optimize, special, stats

from bayesify.datasets import Images

RATES = {"input": 0.2, "hidden": 0.5}
TYPES = {"A": {"method": "VariationalDropout", "noise": "input"}, "B": {"method": "VariationalDropout", "noise": "weight"}}


def tiny(kind, pixels=4, hidden=8):
    """A net in float64 most of whose units are active, and data for it."""
    bnn = bayesian_net(pixels, hidden, TYPES[kind], RATES, seed=1).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for site in sites(bnn):
            site.bias.copy_(torch.rand(site.bias.shape, generator=generator))
    x = torch.rand(6, pixels, generator=generator, dtype=torch.float64)
    return bnn, x, torch.tensor([0, 9, 3, 3, 1, 7])


def backpropagate(theta, noise, biases, x, label):
    """One row through weights theta * noise, in NumPy: the gradients by theta of its log likelihood, layer by layer, by hand."""
    inputs, pre = [x], []
    for place, (t, e, b) in enumerate(zip(theta, noise, biases, strict=True)):
        pre.append((t * e) @ inputs[-1] + b)
        inputs.append(np.maximum(pre[-1], 0) if place < len(theta) - 1 else pre[-1])
    probs = np.exp(pre[-1] - pre[-1].max())
    delta = -probs / probs.sum()
    delta[label] += 1
    found = []
    for place in reversed(range(len(theta))):
        found.append(np.outer(delta, inputs[place]) * noise[place])
        if place:
            delta = ((theta[place] * noise[place]).T @ delta) * (pre[place - 1] > 0)
    return found[::-1]


@pytest.mark.parametrize("kind", ["A", "B"])
@pytest.mark.parametrize("rows", [None, 2])
def test_per_example_gradient_is_that_of_a_loop_over_rows_with_the_same_draws(kind, rows):
    bnn, x, y = tiny(kind)
    n = 600
    torch.manual_seed(5)
    found = gradients(per_example, bnn, x, y, n, rows)

    torch.manual_seed(5)
    layers = sites(bnn)
    theta = [site.weight.detach().numpy() for site in layers]
    biases = [site.bias.detach().numpy() for site in layers]
    total = [np.zeros_like(t) for t in theta]
    for start in range(0, len(x), rows or len(x)):
        part = range(start, min(start + (rows or len(x)), len(x)))
        drawn = [site.posterior.sample(site, len(part))[0].detach().numpy() for site in layers]
        assert not np.allclose(drawn[0][0], drawn[0][1])  # a draw of its own for every row
        for place, row in enumerate(part):
            noise = [w[place] / t for w, t in zip(drawn, theta, strict=True)]
            for part_total, gradient in zip(total, backpropagate(theta, noise, biases, x[row].numpy(), int(y[row])), strict=True):
                part_total += gradient * n / len(x)  # noqa: PLW2901 - in place
    np.testing.assert_allclose(found["bottom"].numpy(), total[0], rtol=1e-9)
    np.testing.assert_allclose(found["top"].numpy(), total[-1], rtol=1e-9)


def test_gradient_without_noise_is_that_of_the_plain_net():
    bnn, x, y = tiny("B")
    found = gradients(posterior_mean, bnn, x, y, n=60)
    layers = sites(bnn)
    theta, biases = [s.weight.detach().numpy() for s in layers], [s.bias.detach().numpy() for s in layers]
    ones = [np.ones_like(t) for t in theta]
    total = sum(backpropagate(theta, ones, biases, row.numpy(), int(label))[0] for row, label in zip(x, y, strict=True))
    np.testing.assert_allclose(found["bottom"].numpy(), 10 * total, rtol=1e-9)


def estimates(kind, count, name):
    bnn, x, y = tiny(kind)
    torch.manual_seed(0)
    return {
        layer: torch.stack(each)
        for layer, each in _transposed([gradients(ESTIMATORS[name][1], bnn, x, y, len(x)) for _ in range(count)]).items()
    }


def _transposed(dicts):
    return {key: [one[key] for one in dicts] for key in dicts[0]}


@pytest.mark.parametrize("kind", ["A", "B"])
@pytest.mark.default("A")
def test_estimators_are_unbiased_and_their_variances_in_order(kind):
    count = 400
    found = {name: estimates(kind, count, name) for name in ("local", "example", "minibatch")}
    for layer in ("top", "bottom"):
        mean = {name: each[layer].mean(0) for name, each in found.items()}
        variance = {name: each[layer].var(0) for name, each in found.items()}
        for one, other in (("local", "example"), ("local", "minibatch")):
            scores = (mean[one] - mean[other]) / ((variance[one] + variance[other]) / count).sqrt().clamp_min(1e-12)
            assert scores.square().mean() < 2, (layer, one, other)  # 1 is expected; a bias of an eighth of the noise would give 6
        average = {name: float(v.mean()) for name, v in variance.items()}
        if kind == "A":  # noise on the inputs of a row is a weight sample of its own
            torch.testing.assert_close(found["example"][layer], found["local"][layer])
        else:
            assert average["example"] > 1.2 * average["local"]
        assert average["minibatch"] > 1.3 * average["example"]


def test_kl_does_not_depend_on_the_weights_whose_gradient_is_measured():
    bnn, _, _ = tiny("B")
    weights = [site.weight for site in sites(bnn)]
    assert torch.autograd.grad(bnn.kl(), weights, allow_unused=True) == (None,) * 4


def test_deviations_have_the_mean_of_the_unbiased_variance():
    estimates = torch.randn(7, 3, 2, dtype=torch.float64) * 5 + 100
    found = deviations(list(estimates))
    assert len(found) == 7
    assert np.mean(found) == pytest.approx(np.var(estimates.numpy(), axis=0, ddof=1).mean(), rel=1e-12)
    distance = ((estimates[2] - estimates.mean(0)) ** 2).mean()
    assert found[2] == pytest.approx(float(distance) * 7 / 6, rel=1e-12)


def test_temporal_average_is_the_weighted_mean_of_what_it_saw():
    values = [np.array([1.0, -2.0]), np.array([4.0, 0.5]), np.array([-3.0, 8.0])]
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    average = TemporalAverage([parameter], decay=0.8)
    for value in values:
        parameter.data.copy_(torch.from_numpy(value))
        average.update()
    with average.in_place():
        expected = np.average(values, axis=0, weights=[0.8**2, 0.8, 1.0])
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(parameter.detach().numpy(), values[-1])


def test_monte_carlo_of_the_log_noise_agrees_with_quadrature():
    log_alpha = torch.tensor([-4.0, -0.5, 0.0, 2.0], dtype=torch.float64)
    for x, found in zip(log_alpha.tolist(), expected_log_noise(log_alpha, draws=200_000, seed=0), strict=True):
        std = np.exp(0.5 * x)

        def integrand(e, std=std):
            return np.log(abs(e)) * np.exp(-0.5 * ((e - 1) / std) ** 2) / (std * np.sqrt(2 * np.pi))

        exact = sum(integrate.quad(integrand, a, b, limit=200)[0] for a, b in ((1 - 9 * std, 0), (0, 1), (1, 1 + 9 * std)) if a < b)
        assert abs(found.mean - exact) < 4 * found.error
        assert found.error < 0.004


def test_training_step_with_weights_for_every_example_follows_the_bound():
    bnn, x, y = tiny("B")
    n = 60
    torch.manual_seed(3)
    explicit_step(bnn, torch.optim.SGD(bnn.parameters(), lr=0.0), x, y, n, rows=4)
    found = {name: p.grad.clone() for name, p in bnn.named_parameters()}

    torch.manual_seed(3)
    outputs = torch.cat([per_example(bnn, x[:4]), per_example(bnn, x[4:])])
    bound = torch.log_softmax(outputs, -1)[torch.arange(len(x)), y].mean() - bnn.kl() / n
    for (name, _), gradient in zip(bnn.named_parameters(), torch.autograd.grad(bound, list(bnn.parameters())), strict=True):
        torch.testing.assert_close(found[name], -gradient)


def noisy_digits(name, part, data_dir=None):
    """Images of 6 x 6 pixels, a bright bar for every label; no MNIST."""
    generator = torch.Generator().manual_seed(0 if part == "train" else 1)
    y = torch.randint(10, (240,), generator=generator)
    X = torch.randint(0, 90, (240, 1, 36), generator=generator, dtype=torch.uint8)
    X.scatter_(2, (3 * y.view(-1, 1, 1) + torch.arange(3)).long(), 250)
    return Images(name, part, X.view(-1, 1, 6, 6), y, tuple("0123456789"))


def run_table(name, changes, monkeypatch):
    """Units and report of a table's quick run on the images above."""
    monkeypatch.setattr(digits_net, "load_images", noisy_digits)
    table = read_table(f"variational-dropout/{name}", quick=True)
    table = dataclasses.replace(table, settings=overlay(table.settings, changes))
    protocol, jobs = Experiment(table).protocol, Experiment(table).jobs
    saved, shares, results = {}, [], {}
    for job in jobs:
        context = Context(data_dir=None, progress=shares.append, save=saved.update)
        results[job.key] = dict(protocol.run(job, job.units, context))
        assert set(results[job.key]) == set(job.units)
        json.dumps(results[job.key], allow_nan=False)
    assert shares == sorted(shares) or len(results) > 1
    assert all(0 < share < 1 + 1e-9 for share in shares)
    return results, protocol.report(table, jobs, json.loads(json.dumps(results))), protocol.figure(table, jobs, results)


def test_gradient_variance_table_from_end_to_end(monkeypatch):
    changes = {"rows": 60, "batch_size": 40, "hidden": 8, "epochs": [1, 3], "seeds": 2}
    results, report, figure = run_table("table1", changes, monkeypatch)
    assert set(results["variance"]) == {"0", "1"}
    unit = results["variance"]["0"]
    assert len(unit["1 top local"]) == 4
    assert len(unit["3 bottom example"]) == 3
    assert unit["3 test error"] < 95
    both = [np.mean(unit["1 top minibatch"]) / np.mean(unit["1 top local"]) for unit in results["variance"].values()]
    assert str(estimate(both)) in report
    assert "| top | 1 | weight sample per minibatch | 4.9e+04 |" in report
    assert figure is None


def test_training_is_not_disturbed_by_what_is_measured_on_the_way(monkeypatch):
    nothing, everything = (
        run_table("table2", {"rows": 60, "batch_size": 40, "hidden": 8, "epochs": epochs}, monkeypatch)[0]["variance"]["0"]
        for epochs in ([3], [1, 2, 3])
    )
    assert nothing["3 training nll"] == everything["3 training nll"]
    assert nothing["3 top local"] == everything["3 top local"]


@pytest.mark.extended
def test_error_by_method_from_end_to_end(monkeypatch):
    changes = {"validation": 60, "batch_size": 30, "hidden": [24], "epochs": 10, "averaging": 0.8, "learning_rate": 0.01}
    results, report, figure = run_table("figure1a", changes | {"seeds": 2}, monkeypatch)
    assert len(results) == 7
    unit = results["no-dropout-24"]["1"]
    assert unit["test error"] < 20  # the bars are easy
    assert unit["validation error"] == min(unit["validation errors"]) == unit["validation errors"][unit["kept epoch"] - 1]
    assert unit["parameters"] == 36 * 24 + 24 * 24 * 2 + 24 * 10 + 3 * 24 + 10
    fixed, learned = results["gaussian-a-24"]["0"], results["variational-a-24"]["0"]
    assert "hidden rate" not in fixed
    assert 0 < learned["hidden rate"] <= 0.5
    assert 0 < learned["input rate"] < 0.5
    errors = [results["binary-dropout-24"][seed]["test error"] for seed in "01"]
    assert f"| Binary dropout | {estimate(errors)} |" in report
    assert len(figure.axes[0].get_legend().get_texts()) == 7


def test_kl_curves_from_end_to_end(monkeypatch):
    results, report, figure = run_table("figure2", {"points": 1201, "draws": 10_000}, monkeypatch)
    unit = results["curves"]["0"]
    scores = (np.array(unit["Monte Carlo"]) - np.array(unit["exact"])) / np.array(unit["Monte Carlo error"])
    assert np.abs(scores).max() < 4
    # the paper's cubic with the printed coefficients, 0 at alpha = 1 as in the figure
    alpha = np.exp(np.array(unit["log alpha"]))
    printed = 0.5 * np.log(alpha) + 1.16145124 * alpha - 1.50204118 * alpha**2 + 0.58629921 * alpha**3
    at_one = int(np.argmin(np.abs(alpha - 1)))
    np.testing.assert_allclose(unit["cubic"][at_one] - np.array(unit["cubic"]), printed - printed[at_one], atol=1e-7, rtol=1e-7)
    assert f"alpha = {_root_of_log_noise():.3f}" in report
    assert len(figure.axes) == 2


def _root_of_log_noise():
    """The alpha at which E log|N(1, alpha)| = 0, by the expectation's series: Poisson weights of digamma(j + 1/2)."""

    def mean(alpha):
        j = np.arange(200)
        return 0.5 * (np.log(2 * alpha) + (stats.poisson.pmf(j, 0.5 / alpha) * special.digamma(j + 0.5)).sum())

    return optimize.brentq(mean, 1.5, 4.0)


def test_speed_from_end_to_end(monkeypatch):
    results, report, figure = run_table("speed", {"hidden": 6, "batch_sizes": [2, 12], "rows": [1, 5]}, monkeypatch)
    assert set(results) == {"batch-2", "batch-12"}
    assert set(results["batch-12"]["0"]) == {"local", "minibatch", "example 1", "example 5"}
    assert set(results["batch-2"]["0"]) == {"local", "minibatch", "example 1", "example 2"}  # no more rows than there are
    assert "| weight sample per data point, 5 rows at a time: ratio | 221 |" in report
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("table1", {"hiden": 3}, "hiden"),
        ("table1", {"epochs": [10, 1]}, "rising"),
        (
            "table1",
            {"batches": {"all": 3}},
            "must be one of 'local', 'example', 'minibatch', 'none', got 'all'",
        ),
        ("table1", {"batches": {"local": 2}}, "batches.local must be a whole number of at least 3"),
        ("table1", {"posterior": {"noise": "both"}}, "noise must be one of"),
        ("table2", {"rates": {"top": 0.5}}, "'input' and 'hidden'"),
        ("figure1a", {"averaging": 1.0}, "averaging must be"),
        ("figure1a", {"methods": [{"name": "x"}]}, "must have name, posterior and beta"),
        ("figure2", {"lowest": 1.0}, "must enclose"),
        ("speed", {"rounds": [1]}, "a number for each of batch_sizes"),
    ],
)
def test_settings_that_do_not_fit_are_named_before_any_work(table, changes, message):
    table = read_table(f"variational-dropout/{table}", quick=True)
    table = dataclasses.replace(table, settings=overlay(table.settings, changes))
    with pytest.raises(UsageError, match=re.escape(message)):
        list(Experiment(table).jobs)

"""The comparison of methods with Hamiltonian Monte Carlo."""

import math

import numpy as np
import pytest
import torch
from experiments.harness.protocol import Table
from experiments.harness.store import Results
from experiments.protocols import fidelity
from experiments.protocols.fidelity import Fidelity, tasks
from experiments.protocols.fidelity.comparison import distances, probabilities_of, targets_scored
from experiments.protocols.fidelity.tasks import make_net, make_task, regions_of
from scipy import stats

from bayesify import MeanField, predict
from bayesify.datasets import UCI
from bayesify.errors import ConfigurationError
from bayesify.predictive import CategoricalPredictive, GaussianPredictive

SETTINGS = {"data": "gap", "rows": 8, "hidden": 4, "epochs": 2, "learning_rate": 0.01, "samples": 4, "seeds": 1}


def table(tmp_path, **changes):
    methods = [{"name": "HMC", "method": {"method": "HMC"}}, {"name": "MeanField", "method": {"method": "MeanField"}, "epochs": 3}]
    settings = {**SETTINGS, "methods": methods, **changes}
    return Table("posterior/x", "x", "x", "fidelity", settings, {}, tmp_path)


def test_probabilities_of_bins():
    means, stds = torch.tensor([[[0.2]], [[-4.0]]]).double(), torch.tensor([[[0.5]], [[1.0]]]).double()
    found = probabilities_of(GaussianPredictive(means, stds))
    edges = np.linspace(-3, 3, 31)
    edges[0], edges[-1] = -np.inf, np.inf  # the outer bins have the tails
    expected = np.diff(0.5 * stats.norm.cdf(edges, 0.2, 0.5) + 0.5 * stats.norm.cdf(edges, -4.0, 1.0))
    np.testing.assert_allclose(found[0], expected, atol=1e-12)
    classes = CategoricalPredictive.from_logits(torch.tensor([[[0.0, math.log(3.0)]]]))
    np.testing.assert_allclose(probabilities_of(classes), [[0.25, 0.75]], rtol=1e-6)


def test_scores():
    mask = torch.tensor([True, True, False])
    one = {"probabilities": [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]], "epistemic": [0.04, 0.01, 9.0]}
    other = {"probabilities": [[0.5, 0.2, 0.3], [0.8, 0.2, 0.0], [0.0, 1.0, 0.0]], "epistemic": [0.01, 0.01, 1.0]}
    scores = distances(one, other, mask)
    assert scores["variation"] == pytest.approx((0.3 + 0.7) / 2)
    assert scores["agreement"] == 0.5
    assert scores["confidence"] == pytest.approx((0.0 - 0.1) / 2)
    assert scores["ratio"] == pytest.approx(math.sqrt(2.0))  # of standard deviations: 2 and 1


def test_data_sets():
    gap = make_task("gap", 200, 0)
    assert ((gap.x.abs() >= 0.3) & (gap.x.abs() <= 1)).all()
    assert float((gap.y - torch.sin(4 * gap.x)).std()) == pytest.approx(0.1, rel=0.2)
    moons = make_task("moons", 400, 0)
    assert moons.y.bincount().tolist() == [200, 200]
    turned = -moons.x[moons.y == 1]  # the second moon is the first, turned
    assert torch.allclose(turned.mean(0), moons.x[moons.y == 0].mean(0), atol=0.15)
    for task in (gap, moons):
        assert torch.stack(list(task.regions.values())).sum(0).eq(1).all()


def test_jobs_and_bad_settings(tmp_path):
    protocol = Fidelity()
    jobs = protocol.jobs(table(tmp_path))
    assert [(job.key, job.settings["epochs"], job.units) for job in jobs] == [("HMC", 2, ("0",)), ("MeanField", 3, ("0",))]
    with pytest.raises(ConfigurationError, match="one of them 'HMC'"):
        protocol.jobs(table(tmp_path, methods=[{"name": "MeanField", "method": {"method": "MeanField"}}]))
    with pytest.raises(ConfigurationError, match="data must be"):
        protocol.jobs(table(tmp_path, data="spiral"))


def test_further_rows_may_predict_with_the_noise_of_training(tmp_path, monkeypatch):
    row = {"name": "MeanField, noise of training", "method": {"method": "MeanField"}, "coherent": False}
    jobs, before = (Fidelity().jobs(table(tmp_path, **changes)) for changes in ({"further": [row]}, {}))
    assert [job.key for job in jobs] == ["HMC", "MeanField", "MeanField,-noise-of-training"]
    assert [job.settings for job in jobs[:2]] == [job.settings for job in before]  # whose results stay current
    coherent = []
    monkeypatch.setattr(
        fidelity, "predict", lambda *args, **kwargs: coherent.append(kwargs["coherent"]) or predict(*args, **kwargs)
    )
    for job in jobs[1:]:
        Fidelity().run_seed(job.settings, 0)
    assert coherent == [True, False]
    with pytest.raises(ConfigurationError, match="different names"):
        Fidelity().jobs(table(tmp_path, further=[{**row, "name": "HMC"}]))


def test_results_become_stale_when_a_default_changes(tmp_path, monkeypatch):
    protocol = Fidelity()

    def job():
        return protocol.jobs(table(tmp_path))[1]

    results = Results(job().fingerprint(protocol, {}), job().settings, {}, [], {})
    assert results.fits(job(), protocol)
    monkeypatch.setattr(MeanField.__init__, "__kwdefaults__", MeanField.__init__.__kwdefaults__ | {"prior_std": 2.0})
    monkeypatch.setattr(MeanField.__dataclass_fields__["prior_std"], "default", 2.0)
    assert not results.fits(job(), protocol)


def test_the_wasserstein_distance_of_two_normals_is_that_of_their_means():
    stds = torch.full((1, 1, 1), 0.4).double()
    units = [
        {
            "probabilities": probabilities_of(GaussianPredictive(torch.tensor([[[mean]]]).double(), stds)).tolist(),
            "epistemic": [1.0],
        }
        for mean in (0.1, 0.8)
    ]
    assert distances(units[0], units[1], torch.tensor([True]))["wasserstein"] == pytest.approx(0.7, rel=1e-3)


def test_targets_are_scored_by_the_mixture_over_draws():
    means, stds = torch.tensor([[[0.0], [0.0]], [[1.0], [1.0]]]).double(), torch.full((2, 2, 1), 0.5).double()
    y = torch.tensor([[0.5], [3.0]]).double()
    density = [np.mean([stats.norm.pdf(value, mean, 0.5) for mean in (0.0, 1.0)]) for value in (0.5, 3.0)]
    assert targets_scored(GaussianPredictive(means, stds), y) == pytest.approx(
        {"log_likelihood": np.log(density).mean(), "coverage_95": 0.5}
    )


def test_a_uci_set_is_standardized_by_its_training_rows(monkeypatch):
    random = np.random.default_rng(0)
    X = 5 + 2 * random.normal(size=(300, 3))
    monkeypatch.setattr(tasks, "load_uci", lambda name, folder: UCI(name, X, 7 + 3 * X[:, 0], None, 20))
    task = make_task("yacht", 1000, 0)
    assert task.x.shape == (270, 3)
    assert task.x.mean(0).numpy() == pytest.approx(np.zeros(3), abs=1e-5)
    assert float(task.y.std(correction=0)) == pytest.approx(1.0, abs=1e-3)
    assert task.scored is not None
    inputs, y = task.scored
    assert np.corrcoef(inputs[:, 0], y[:, 0])[0, 1] == pytest.approx(1.0)  # the same scaling for inputs and targets
    assert float(y.abs().max()) < 4
    own, far = regions_of("yacht", 1000, 0).values()
    assert torch.equal(2 * task.test[own], task.test[far])


def test_a_uci_set_reads_data_and_other_tasks_keep_their_settings(tmp_path):
    protocol = Fidelity()
    (job, _) = protocol.jobs(table(tmp_path, data="yacht", noise=0.3))
    assert (job.data, job.settings["noise"], "beta" in job.settings) == (("yacht",), 0.3, False)
    (job, _) = protocol.jobs(table(tmp_path, beta=0.1))
    assert (job.settings["beta"], "noise" in job.settings) == (0.1, False)
    (job, _) = protocol.jobs(table(tmp_path))
    assert not job.data
    assert "noise" not in job.settings  # results from before it was a setting stay current
    with pytest.raises(ConfigurationError, match="noise must be"):
        protocol.jobs(table(tmp_path, noise=0.0))


def test_digits_are_turned_and_classified(tmp_path):
    task = make_task("digits", 50, 0)
    shown, turned = task.test.chunk(2)
    assert torch.equal(turned, shown.transpose(2, 3).flip(2))  # a quarter turn to the left
    assert task.scored is not None
    assert (len(task.x), len(task.scored[1])) == (50, 1747)
    assert make_net({"data": "digits", "hidden": 4}, task)(task.x).shape == (50, 10)
    classes = CategoricalPredictive.from_logits(
        torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]], [[0.0, math.log(3.0)], [0.0, 9.0]]])
    )
    scores = targets_scored(classes, torch.tensor([1, 0]))
    expected = (math.log(0.75) + math.log((0.5 + 1 / (1 + math.exp(9))) / 2)) / 2
    assert scores == pytest.approx({"log_likelihood": expected, "accuracy": 0.5}, rel=1e-5)

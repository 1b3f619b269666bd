"""The comparison of methods with Hamiltonian Monte Carlo."""

import math

import numpy as np
import pytest
import torch
from experiments.harness.protocol import Table
from experiments.protocols import fidelity
from scipy import stats

from bayesify.errors import ConfigurationError
from bayesify.predictive import CategoricalPredictive, GaussianPredictive

SETTINGS = {"data": "gap", "rows": 8, "hidden": 4, "epochs": 2, "learning_rate": 0.01, "samples": 4, "seeds": 1}


def table(tmp_path, **changes):
    methods = [{"name": "HMC", "method": {"method": "HMC"}}, {"name": "MeanField", "method": {"method": "MeanField"}, "epochs": 3}]
    settings = {**SETTINGS, "methods": methods, **changes}
    return Table("posterior/x", "x", "x", "fidelity", settings, {}, tmp_path)


def test_probabilities_of_bins():
    means, stds = torch.tensor([[[0.2]], [[-4.0]]]).double(), torch.tensor([[[0.5]], [[1.0]]]).double()
    found = fidelity._probabilities(GaussianPredictive(means, stds))
    edges = np.linspace(-3, 3, 31)
    edges[0], edges[-1] = -np.inf, np.inf  # the outer bins have the tails
    expected = np.diff(0.5 * stats.norm.cdf(edges, 0.2, 0.5) + 0.5 * stats.norm.cdf(edges, -4.0, 1.0))
    np.testing.assert_allclose(found[0], expected, atol=1e-12)
    classes = CategoricalPredictive.from_logits(torch.tensor([[[0.0, math.log(3.0)]]]))
    np.testing.assert_allclose(fidelity._probabilities(classes), [[0.25, 0.75]], rtol=1e-6)


def test_scores():
    mask = torch.tensor([True, True, False])
    one = {"probabilities": [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]], "epistemic": [0.04, 0.01, 9.0]}
    other = {"probabilities": [[0.5, 0.2, 0.3], [0.8, 0.2, 0.0], [0.0, 1.0, 0.0]], "epistemic": [0.01, 0.01, 1.0]}
    scores = fidelity._scores(one, other, mask)
    assert scores["variation"] == pytest.approx((0.3 + 0.7) / 2)
    assert scores["agreement"] == 0.5
    assert scores["ratio"] == pytest.approx(math.sqrt(2.0))  # of standard deviations: 2 and 1


def test_data_sets():
    gap = fidelity.make_task("gap", 200, 0)
    assert ((gap.x.abs() >= 0.3) & (gap.x.abs() <= 1)).all()
    assert float((gap.y - torch.sin(4 * gap.x)).std()) == pytest.approx(0.1, rel=0.2)
    moons = fidelity.make_task("moons", 400, 0)
    assert moons.y.bincount().tolist() == [200, 200]
    turned = -moons.x[moons.y == 1]  # the second moon is the first, turned
    assert torch.allclose(turned.mean(0), moons.x[moons.y == 0].mean(0), atol=0.15)
    for task in (gap, moons):
        assert torch.stack(list(task.regions.values())).sum(0).eq(1).all()


def test_jobs_and_bad_settings(tmp_path):
    protocol = fidelity.Fidelity()
    jobs = protocol.jobs(table(tmp_path))
    assert [(job.key, job.settings["epochs"], job.units) for job in jobs] == [("HMC", 2, ("0",)), ("MeanField", 3, ("0",))]
    with pytest.raises(ConfigurationError, match="one of them 'HMC'"):
        protocol.jobs(table(tmp_path, methods=[{"name": "MeanField", "method": {"method": "MeanField"}}]))
    with pytest.raises(ConfigurationError, match="data must be"):
        protocol.jobs(table(tmp_path, data="spiral"))

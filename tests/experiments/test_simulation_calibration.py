"""Ranks of functions drawn from the prior."""

import numpy as np
import pytest
import torch
from experiments.harness.experiment import Experiment
from experiments.harness.protocol import Context, Table
from experiments.protocols.simulation_calibration import SimulationCalibration, relative_ranks, simulate
from scipy import integrate, stats

SETTINGS = {
    "data": "gap", "rows": 8, "hidden": 4, "epochs": 2, "learning_rate": 0.01, "samples": 10, "seeds": 2, "simulations": 3,
}  # fmt: skip


def _table(tmp_path, **changes):
    methods = [{"name": name, "method": {"method": name}} for name in ("HMC", "MeanField", "DeepEnsemble")]
    settings = {**SETTINGS, "methods": methods, **changes}
    return Table("posterior/x", "x", "x", "simulation-calibration", settings, {}, tmp_path)


def test_ranks_are_uniform_if_the_truth_is_one_more_draw():
    values = torch.randn(20, 4000, generator=torch.Generator().manual_seed(0))
    ranks = relative_ranks(values[1:], values[0], 0)
    expected = (stats.rankdata(values.numpy(), axis=0)[0] - 1) / 19
    np.testing.assert_allclose(ranks, expected, atol=1e-12)
    assert stats.chisquare(np.bincount((ranks * 19).round().long(), minlength=20)).pvalue > 0.01
    same = relative_ranks(torch.zeros(4, 5000), torch.zeros(5000), 0)  # of equal draws every rank is as likely
    assert stats.chisquare(np.bincount((same * 4).round().long(), minlength=5)).pvalue > 0.01


def test_functions_have_the_moments_of_the_prior():
    """Variance at an input: that of the bias, and per unit E[tanh(wx + b)^2], by quadrature."""
    draws = torch.stack([torch.cat([part.flatten() for part in simulate(SETTINGS, number)]) for number in range(3000)])
    for column, x in ((8, -1.5), (8 + 15, 0.0), (8 + 25, 1.0)):
        sigma = np.hypot(x, 1.0)
        unit = integrate.quad(lambda z, s=sigma: np.tanh(s * z) ** 2 * stats.norm.pdf(z), -10, 10)[0]
        assert draws[:, column].var().item() == pytest.approx(1 + 4 * unit, rel=0.1)  # 3 standard errors


@pytest.mark.extended
def test_a_run_ranks_every_input_of_every_data_set(tmp_path):
    table = _table(tmp_path)
    protocol, jobs = SimulationCalibration(), Experiment(table).jobs
    results = {}
    for job in jobs[1:]:
        saved = results.setdefault(job.key, {})
        protocol.run(job, job.units, Context(data_dir=None, progress=lambda share: None, save=saved.update))
        ranks = np.array([saved[unit]["ranks"] for unit in ("0", "1")])
        assert ranks.shape == (2, 3, 31)
        assert (ranks >= 0).all()
        assert (ranks <= 1).all()
    text = protocol.report(table, jobs, results)
    assert "| MeanField | 6 |" in text
    assert "HMC" not in text
    assert protocol.figure(table, jobs, results) is not None
    assert protocol.figure(table, jobs, {}) is None


def test_only_the_regression_has_a_prior_to_simulate(tmp_path):
    with pytest.raises(ValueError, match="data must be 'gap'"):
        SimulationCalibration().jobs(_table(tmp_path, data="moons"))


def test_a_slow_method_may_have_fewer_seeds(tmp_path):
    slow = {"name": "HMC", "method": {"method": "HMC"}, "seeds": 1}
    by_name = {job.key: job for job in Experiment(_table(tmp_path, instead=[slow])).jobs}
    assert {key: job.units for key, job in by_name.items()} == {"HMC": ("0",), "MeanField": ("0", "1"), "DeepEnsemble": ("0", "1")}
    usual = next(job for job in Experiment(_table(tmp_path)).jobs if job.key == "HMC")
    assert by_name["HMC"].settings == usual.settings  # the results that there are stay current

"""The configuration of ensemble model patching on images: the same footing for all methods, and what is patched."""

import pytest
from experiments.harness.config import read_table
from experiments.harness.experiment import Experiment
from experiments.protocols.images.networks import make_net
from experiments.protocols.images.settings import Setup

from bayesify import bayesify, summary


def test_the_configuration_patches_normalizations_and_output_and_all_methods_have_one_prior() -> None:
    jobs = {job.settings["method"]: Setup.from_dict(job.settings["setup"]) for job in Experiment(read_table("emp/cifar10")).jobs}
    assert list(jobs) == ["Vanilla", "MC dropout", "EMP", "ECMP"]
    assert {(setup.train_rows, setup.bins, setup.weight_decay) for setup in jobs.values()} == {(18_000, 20, 0.0)}
    assert not any(setup.choices for setup in jobs.values()), "nothing is tuned"
    plain = make_net(jobs["EMP"].net, (3, 32, 32), classes=10)
    squares = sum(float(p.detach().square().sum()) for p in plain.parameters())
    assert float(bayesify(plain, jobs["Vanilla"].methods()).kl().detach()) == pytest.approx(squares / 2, rel=1e-5)
    for name in ("EMP", "ECMP"):
        result = summary(bayesify(make_net(jobs[name].net, (3, 32, 32), classes=10), jobs[name].methods()))
        assert [row.layer for row in result.layers if row.random] == ["BatchNorm2d"] * 7 + ["Linear"]
        assert {row.parameters / row.plain for row in result.layers if row.random} == {5.0}

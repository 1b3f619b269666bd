"""A small regression table, its data, and a run of its only job, for tests of the regression protocol."""

import numpy as np
import pytest
from experiments.harness.experiment import Experiment
from experiments.harness.protocol import Context, Table
from experiments.protocols import tabular
from experiments.protocols.tabular import Regression

from bayesify.datasets import UCI

SMALL = {"hidden": [8], "epochs": 3, "samples": 4, "batch_size": 16, "splits": 3, "datasets": ["boston"]}


def method(name="Deterministic", **fields):
    return {"name": name, "method": {"method": name}, **fields}


def make_table(tmp_path, **settings):
    return Table("uci/test", "t", "s", "regression", {**SMALL, "methods": [method()], **settings}, {}, tmp_path)


def make_data(noise=3.0, scale=20.0, shift=100.0):
    random = np.random.default_rng(0)
    X = random.normal(5.0, 2.0, (60, 3))
    return UCI("boston", X, shift + scale * (X[:, 0] - 5) / 2 + noise * random.normal(size=60), None, 20)


def run_job(table, data, monkeypatch, units=None, saved=None):
    """Results of the table's only job."""
    monkeypatch.setattr(tabular, "load_uci", lambda name, data_dir: data)
    (job,) = Experiment(table).jobs
    shares = []
    context = Context(data_dir=None, progress=shares.append, save=(saved if saved is not None else {}).update)
    results = Regression().run(job, units or job.units, context)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    return results

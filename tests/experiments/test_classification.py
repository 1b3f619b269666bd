"""The classification protocol: classes instead of numbers, scores against scikit-learn, a table of the Walsh-Hadamard paper."""

import numpy as np
import pytest
import torch
from experiments.harness.config import read_table
from experiments.harness.experiment import Experiment
from experiments.harness.protocol import Context, Table
from experiments.protocols import tabular
from experiments.protocols.tabular import Classification, Regression
from experiments.protocols.tabular.settings import Setup
from experiments.protocols.tabular.splits import ClassificationSplit, make_split
from scipy import stats
from sklearn.metrics import accuracy_score, log_loss

from bayesify import Categorical, EvidentialCategorical
from bayesify.datasets import UCI
from bayesify.prediction import predict

SMALL = {"hidden": [8], "epochs": 60, "samples": 7, "batch_size": 16, "splits": 2, "datasets": ["letter"]}


def _data() -> UCI:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 90)
    X = random.normal(0.0, 0.5, (90, 2)) + np.stack([y == 1, y == 2], axis=1) * 3.0 + 5.0
    return UCI("letter", X, y, ("A", "B", "C"), 0)


def _table(tmp_path, **settings):
    methods = [{"name": "Dropout (0.1)", "method": {"method": "MCDropout", "p": 0.1}}]
    return Table("whvi/test", "t", "s", "classification", {**SMALL, "methods": methods, **settings}, {}, tmp_path)


def _run(table, monkeypatch):
    monkeypatch.setattr(tabular, "load_uci", lambda name, data_dir: _data())
    (job,) = Experiment(table).jobs
    assert job.key == "letter-Dropout-0.1"
    return Classification().run(job, job.units, Context(data_dir=None, progress=lambda share: None, save=lambda units: None))


def test_inputs_are_standardized_and_classes_stay() -> None:
    data = _data()
    train, test = data.split(0)
    split = make_split(data.X, data.y, train, test, 3)
    assert isinstance(split, ClassificationSplit)
    torch.testing.assert_close(split.X.double(), torch.from_numpy(stats.zscore(data.X[train])), rtol=1e-5, atol=1e-6)
    setup = Setup(method={"method": "MeanField"})
    assert (split.outputs(setup), split.y.dtype, split.y.tolist()) == (3, torch.int64, data.y[train].tolist())
    assert split.y_test.tolist() == data.y[test].tolist()
    assert isinstance(split.likelihood(setup), Categorical)
    assert isinstance(split.likelihood(Setup(method={"method": "Deterministic"}, likelihood="evidential")), EvidentialCategorical)
    with pytest.raises(ValueError, match="all 81 training targets are 1"):
        make_split(data.X, np.ones(90, dtype=int), train, test, 3)


def test_scores_are_those_of_scikit_learn(tmp_path, monkeypatch) -> None:
    models = []
    evaluate = tabular.evaluate
    monkeypatch.setattr(tabular, "evaluate", lambda model: models.append(model) or evaluate(model))
    results = _run(_table(tmp_path), monkeypatch)
    for result, model in zip(results.values(), models, strict=True):
        p = predict(model.bnn, model.split.X_test, Categorical(), 7, seed=model.seed)
        probs, y = p.log_probs.double().softmax(1).numpy(), model.split.y_test.numpy()
        assert result["log_likelihood"] == pytest.approx(-log_loss(y, probs, labels=[0, 1, 2]), rel=1e-4)
        assert result["error"] == pytest.approx(100 * (1 - accuracy_score(y, probs.argmax(1))))
        assert result["error"] < 30  # of three classes well apart
        assert {"ece", "brier", "mce", "parameters"} <= result.keys()
        assert not {"rmse", "noise_std", "coverage_95"} & result.keys()


@pytest.mark.extended
def test_choices_are_made_by_the_likelihood_of_classes(tmp_path, monkeypatch) -> None:
    results = _run(_table(tmp_path, choose={"among": {"learning_rate": [1e-2, 1e-9]}}), monkeypatch)
    assert all(result["chosen"] == {"learning_rate": 1e-2} for result in results.values())


def test_the_report_has_what_classes_have(tmp_path, monkeypatch) -> None:
    table = _table(tmp_path)
    (job,) = Experiment(table).jobs
    results = {job.key: _run(table, monkeypatch)}
    text = Classification().report(table, [job], results)
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Error", "Log-likelihood", "Calibration error", "Seconds", "Parameters"]
    figure = Classification().figure(table, [job], results)
    assert figure is not None
    assert Classification().figure(table, [job], {}) is None
    assert [ax.get_title() for ax in figure.axes] == ["letter", "letter"]


def test_every_protocol_has_its_own_data_sets(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"a data set must be one of 'eeg', 'letter'"):
        Classification().jobs(_table(tmp_path, datasets=["boston"]))
    with pytest.raises(ValueError, match=r"a data set must be one of 'boston'"):
        Regression().jobs(_table(tmp_path))


def test_the_structures_of_table_2_are_configured() -> None:
    methods = {job.settings["method"]: job.settings["setup"]["method"] for job in Experiment(read_table("whvi/table2")).jobs}
    found = {(m["*"]["structure"], m["*"]["scales"]) for m in methods.values() if "*" in m}
    learned = {("SHGH", "variational"), ("S1HGHS2H", "variational")}
    assert found == learned | {(structure, "optimized") for structure in ("GH", "SHGH", "S1HGHS2H", "S1HGHS2")}
    assert all(m["4"]["method"] == "MeanField" for m in methods.values() if "*" in m)

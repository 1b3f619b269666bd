"""Image classification from end to end on toy images: trials, networks, ensembles, saved units, and which images are read."""

import json

import numpy as np
import pytest
import torch
from experiments.harness.config import read_table
from experiments.harness.engine import execute
from experiments.harness.experiment import Experiment, find_experiments
from experiments.harness.plan import Filters, plan
from experiments.harness.protocol import Context, Table, UnitError
from experiments.harness.report import render
from experiments.harness.store import read
from experiments.protocols.images import data as data_module
from experiments.protocols.images import units as units_module
from experiments.protocols.images.units import Work

from bayesify.datasets import Images
from bayesify.errors import DivergenceError

ORIGIN = {"cpu": "abacus", "threads": 1, "commit": "abc", "dirty": False, "bayesify": "0", "torch": "2", "python": "3"}
SETTINGS = {
    "datasets": ["mnist"], "nets": {"small": {"kind": "mlp", "hidden": [12]}}, "epochs": 4, "batch_size": 20,
    "learning_rate": 0.01, "validation": 40, "samples": 3, "seeds": 2, "ood": ["fashion-mnist", "kmnist"], "ood_rows": 50,
    "methods": [{"name": "Mean field", "posterior": {"method": "MeanField"}, "choices": {"prior_std": [1e-3, 1.0]}}],
}  # fmt: skip


def bars(name, part, data_dir=None):
    """Images of 6 x 6 pixels, a bright bar for every label; other names have noise instead."""
    generator = torch.Generator().manual_seed(len(name) + len(part))
    y = torch.randint(10, (160,), generator=generator)
    X = torch.randint(0, 90, (160, 36), generator=generator, dtype=torch.uint8)
    if name == "mnist":
        X.scatter_(1, 3 * y.view(-1, 1) + torch.arange(3), 250)
    return Images(name, part, X.view(-1, 1, 6, 6), y, tuple("0123456789"))


@pytest.fixture(autouse=True)
def _toy_images(monkeypatch):
    monkeypatch.setattr(data_module, "load_images", bars)


def job_of(tmp_path, **changes):
    (job,) = Experiment(Table("vsd/test", "t", "s", "images", {**SETTINGS, **changes}, {}, tmp_path)).jobs
    return job


def run(job, cache=None, units=None, ready=None):
    """Results in the order they were saved."""
    saved, shares = {}, []
    Work(job, Context(None, shares.append, saved.update, ready or {}, cache), units or job.units).run()
    assert shares == sorted(shares)
    assert not shares or shares[-1] == pytest.approx(1.0)
    return json.loads(json.dumps(saved, allow_nan=False))


# --- order and choice


def test_units_build_on_each_other(tmp_path):
    job = job_of(tmp_path, ensemble=True)
    assert job.units == ("trial-0", "trial-1", "0", "1", "ensemble-2")
    results = run(job)
    assert tuple(results) == job.units
    scores = [results[f"trial-{number}"]["validation_nll"] for number in (0, 1)]
    assert scores[1] < scores[0] - 0.1  # such a narrow prior leaves nothing to learn with
    for seed in "01":
        assert results[seed]["chosen"] == {"prior_std": 1.0}
        assert results[seed]["error"] < 70  # chance gives 90
        assert results[seed]["parameters"] == 2 * (37 * 12 + 13 * 10)
        assert (results[seed]["epochs"], results[seed]["train_rows"]) == (4, 120)
    assert results["0"]["nll"] != results["1"]["nll"]
    assert results["ensemble-2"]["members"] == 2


def test_trials_are_shorter_and_repeat_themselves(tmp_path):
    job = job_of(tmp_path, choice_epochs=2)
    first, again = run(job, units=["trial-0"]), run(job, units=["trial-0"])
    del first["trial-0"]["seconds_per_epoch"], again["trial-0"]["seconds_per_epoch"]
    assert first == again
    assert first["trial-0"]["epochs"] == 2


def test_choosing_never_reads_test_images(tmp_path, monkeypatch):
    def training_only(name, part, data_dir=None):
        assert (name, part) == ("mnist", "train")
        return bars(name, part)

    job = job_of(tmp_path)
    monkeypatch.setattr(data_module, "load_images", training_only)
    trials = run(job, units=["trial-0", "trial-1"])
    assert set(trials) == {"trial-0", "trial-1"}
    with pytest.raises(AssertionError):
        run(job, ready=trials)


def test_test_images_decide_nothing(tmp_path, monkeypatch):
    def upside_down(name, part, data_dir=None):
        images = bars(name, part)
        return images if part == "train" else Images(name, part, images.X.flip(2), images.y, images.classes)

    first = run(job_of(tmp_path))
    monkeypatch.setattr(data_module, "load_images", upside_down)
    second = run(job_of(tmp_path))
    for unit in first:
        for key in ("fields", "chosen", "validation_nll", "validation_error", "train_loss", "kl"):
            assert first[unit].get(key) == second[unit].get(key)
    assert first["0"]["error"] != second["0"]["error"]


def test_nets_do_not_train_on_validation_rows(tmp_path, monkeypatch):
    def mislabeled(name, part, data_dir=None):
        images = bars(name, part)
        labels = torch.cat([images.y[:120], 9 - images.y[120:]]) if part == "train" else images.y
        return Images(name, part, images.X, labels, images.classes)

    job = job_of(tmp_path, methods=[{"name": "MAP", "posterior": {"method": "Deterministic"}}], seeds=1)
    first = run(job)["0"]
    monkeypatch.setattr(data_module, "load_images", mislabeled)
    second = run(job)["0"]
    assert (first["nll"], first["train_loss"]) == (second["nll"], second["train_loss"])
    assert second["validation_error"] > 60 > first["validation_error"]


def test_seeds_alone_bring_the_trials_they_need(tmp_path):
    job = job_of(tmp_path)
    assert list(run(job, units=["1"])) == ["trial-0", "trial-1", "1"]
    trials = {"trial-0": {"fields": {"prior_std": 1e-3}, "validation_nll": 0.1}}
    trials["trial-1"] = {"fields": {"prior_std": 1.0}, "validation_nll": 0.2}
    results = run(job, units=["1"], ready=trials)  # saved trials are reused
    assert list(results) == ["1"]
    assert results["1"]["chosen"] == {"prior_std": 1e-3}


def test_a_single_candidate_needs_no_trial(tmp_path):
    methods = [{"name": "M", "posterior": {"method": "MeanField"}, "choices": {"prior_std": [0.5], "beta": [0.1]}}]
    job = job_of(tmp_path, methods=methods, seeds=1)
    assert job.units == ("0",)
    assert run(job)["0"]["chosen"] == {"prior_std": 0.5, "beta": 0.1}


def test_candidates_that_fail_are_not_chosen(tmp_path, monkeypatch):
    real, broken = units_module.train, [1.0]

    def fails(setup, *rest):
        if setup.posterior["prior_std"] in broken:
            raise DivergenceError("the loss became nan")
        return real(setup, *rest)

    monkeypatch.setattr(units_module, "train", fails)
    results = run(job_of(tmp_path))
    assert results["trial-1"]["failure"] == "the loss became nan"
    assert results["0"]["chosen"] == {"prior_std": 1e-3}
    broken.append(1e-3)
    with pytest.raises(UnitError, match="all candidates failed"):
        run(job_of(tmp_path))


def test_a_failed_net_does_not_take_the_others_along(tmp_path, monkeypatch):
    real = units_module.train

    def fails(setup, data, classes, seed, progress):
        if seed == 1:
            raise DivergenceError("the loss became nan")
        return real(setup, data, classes, seed, progress)

    monkeypatch.setattr(units_module, "train", fails)
    job, saved = job_of(tmp_path, seeds=3, ensemble=True), {}
    with pytest.raises(UnitError, match=r"^seed 1: the loss became nan$"):
        Work(job, Context(None, lambda share: None, saved.update), job.units).run()
    assert list(saved) == ["trial-0", "trial-1", "0", "2"]


# --- ensembles


def test_an_ensemble_takes_cached_nets_and_trains_missing_ones(tmp_path, monkeypatch):
    job, trained = job_of(tmp_path, ensemble=True), []
    real = units_module.train

    def counts(setup, data, classes, seed, progress):
        trained.append(seed)
        return real(setup, data, classes, seed, progress)

    results = run(job, cache=tmp_path / "cache")
    ensemble = results.pop("ensemble-2")
    monkeypatch.setattr(units_module, "train", counts)
    assert run(job, tmp_path / "cache", ["ensemble-2"], results) == {"ensemble-2": ensemble}
    assert trained == []
    (tmp_path / "cache" / "1.safetensors").unlink()
    again = run(job, tmp_path / "cache", ["ensemble-2"], results)
    assert trained == [1]
    assert again["ensemble-2"] == ensemble
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["0.safetensors", "1.safetensors"]
    assert run(job, None, ["ensemble-2"], results)["ensemble-2"] == ensemble
    assert trained == [1, 0, 1]


def test_an_ensemble_of_a_run_is_that_of_its_nets(tmp_path):
    from safetensors.numpy import load_file

    job = job_of(tmp_path, ensemble=True)
    unit = run(job, cache=tmp_path)["ensemble-2"]
    probs = np.mean([np.exp(load_file(tmp_path / f"{seed}.safetensors")["test"].astype(float)) for seed in (0, 1)], axis=0)
    y = bars("mnist", "test").y.numpy()
    assert unit["nll"] == pytest.approx(-np.log(probs[np.arange(160), y]).mean(), rel=1e-9)
    assert unit["error"] == pytest.approx(100 * (probs.argmax(1) != y).mean())


# --- through the harness


def write_config(root):
    folder = root / "vsd" / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        """
        title = "Toy images"
        source = "none"
        protocol = "images"
        datasets = ["mnist"]
        epochs = 2
        batch_size = 20
        validation = 40
        samples = 2
        seeds = 2
        ensemble = true
        ood = ["kmnist"]
        [nets]
        small = { kind = "mlp", hidden = [5] }
        [[methods]]
        name = "MAP"
        posterior = { method = "Deterministic" }
        samples = 1
        [[methods]]
        name = "VSD"
        posterior = { method = "VSD", transforms = 1 }
        choices = { beta = [0.001, 0.1] }
        [published.mnist.small]
        VSD = { nll = [0.042, 0.002], error = 1.08 }
        """
    )


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    write_config(tmp_path)
    real, calls = units_module.train, []

    def stops(setup, data, classes, seed, progress):
        calls.append((type(setup.methods()).__name__, setup.beta, seed))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(setup, data, classes, seed, progress)

    monkeypatch.setattr(units_module, "train", stops)
    first, second = plan(find_experiments(["*"], tmp_path), Filters())
    execute(first, None, ORIGIN)
    with pytest.raises(KeyboardInterrupt):
        execute(second, None, ORIGIN)
    assert calls[:2] == [("Deterministic", 1.0, 0), ("Deterministic", 1.0, 1)]
    assert [(beta, seed) for _, beta, seed in calls[2:4]] == [(0.001, 0), (0.1, 0)]  # trials
    (rest,) = plan(find_experiments(["*"], tmp_path), Filters())
    assert (rest.job.key, rest.units) == ("mnist-small-VSD", ("1", "ensemble-2"))
    execute(rest, None, ORIGIN)
    assert len(calls) == 7
    table = read_table("vsd/mnist", tmp_path)
    assert list(read(table, "mnist-small-VSD").units) == ["trial-0", "trial-1", "0", "1", "ensemble-2"]
    text, figure = render(Experiment(table))
    assert "**Missing" not in text
    assert len(figure.axes) == 5  # four metrics, one set of out-of-distribution images


def test_other_settings_do_not_meet_old_nets(tmp_path):
    write_config(tmp_path)
    for task in plan(find_experiments(["*"], tmp_path), Filters(methods=("MAP",))):
        execute(task, None, ORIGIN)
    config = tmp_path / "vsd" / "mnist" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 2", "epochs = 1"))
    (task,) = plan(find_experiments(["*"], tmp_path), Filters(methods=("MAP",)))
    assert task.units == ("0", "1", "ensemble-2")
    execute(task, None, ORIGIN)
    caches = [path.name for path in (tmp_path / "vsd" / "mnist" / ".cache").iterdir()]
    assert len(caches) == 2
    assert all(name.startswith("mnist-small-MAP-") for name in caches)

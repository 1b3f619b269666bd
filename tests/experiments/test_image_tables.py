"""The report of an image table against numbers worked out with NumPy, from results that are made up."""

import itertools
import re

import numpy as np
import pytest
import torch
from experiments.harness.config import read_table
from experiments.harness.experiment import Experiment
from experiments.protocols.images.figure import draw_scores
from experiments.protocols.images.networks import make_net
from experiments.protocols.images.results import published_of, rows_of
from experiments.protocols.images.settings import Setup
from experiments.protocols.images.tables import write_tables

OOD = ("fashion-mnist", "kmnist")
METHODS = ("MAP", "MeanField", "MC dropout", "VD", "VSD")


def made_up():
    """The configured table, its jobs and results: all of MAP and VSD, two nets of VD, nothing but trials of MC dropout."""
    table = read_table("vsd/mnist")
    jobs = {job.settings["method"]: job for job in Experiment(table).jobs}
    random = np.random.default_rng(0)

    def scores():
        keys = ("nll", "error", "ece", "entropy", "validation_nll", "validation_error")
        values = dict(zip(keys, random.uniform(1, 2, 6).tolist(), strict=True))
        ood = {name: dict(zip(("entropy", "auroc"), random.uniform(size=2).tolist(), strict=True)) for name in OOD}
        return values | {"ood": ood}

    def net(seconds):
        facts = {"train_loss": 0.5, "train_nll": 0.4, "kl": 1234.5, "seconds_per_epoch": seconds, "parameters": 478_410}
        return scores() | facts

    def trial(number, nll):
        return {"fields": {"beta": 10.0**-number}, "epochs": 30, "validation_nll": nll, "validation_error": 2.5}

    results = {
        jobs["MAP"].key: {str(seed): net(2.0) for seed in range(5)} | {"ensemble-5": scores() | {"members": 5}},
        jobs["MC dropout"].key: {"trial-0": trial(0, 0.3)},
        jobs["VD"].key: {str(seed): net(3.0) for seed in range(2)},
        jobs["VSD"].key: {f"trial-{i}": trial(i, nll) for i, nll in enumerate((0.3, 0.1, 0.2, 0.4))}
        | {str(seed): net(5.0) for seed in range(5)},
    }
    results[jobs["VSD"].key]["trial-2"] = {"fields": {"beta": 0.01}, "epochs": 30, "failure": "the loss became nan"}
    return table, jobs, results


def section(text, title):
    """Cells of the table below a heading, by the first cell."""
    part = text.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    return lines[0], lines[2:]


def numbers(cell):
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*(?:e-?\d+)?", cell)]


@pytest.mark.parametrize(
    ("title", "key", "paper"),
    [("Negative log-likelihood", "nll", 0.042), ("Error", "error", 1.08), ("Calibration error", "ece", 0.006)],
)
def test_ours_and_the_papers_stand_side_by_side(title, key, paper):
    table, jobs, results = made_up()
    header, lines = section(Experiment(table).protocol.report(table, list(jobs.values()), results), title)
    assert header[:4] == ["method", "paper", "ours", "difference"]
    rows = {line[0]: line[1:] for line in lines}
    assert set(rows) == {"MAP", "VD", "VSD"}  # those that have been tested
    values = np.array([unit[key] for name, unit in results[jobs["VSD"].key].items() if name.isdigit()])
    error = np.sqrt(((values - values.mean()) ** 2).sum() / 4 / 5)
    assert numbers(rows["VSD"][0])[0] == pytest.approx(paper)
    assert numbers(rows["VSD"][1]) == pytest.approx([values.mean(), error], rel=0.05)
    theirs = published_of(table.published)["mnist", "400x2", "VSD"][key]
    assert numbers(rows["VSD"][2])[0] == pytest.approx(values.mean() - paper, abs=0.06)
    if key == "ece":
        assert "s.e." not in rows["VSD"][2]
    else:
        in_errors = (values.mean() - paper) / np.hypot(error, theirs.error)
        assert numbers(rows["VSD"][2])[1] == pytest.approx(in_errors, abs=0.06)
    assert rows["VD"][1].strip("*").endswith("(2 of 5)")
    means = {name: np.mean([u[key] for n, u in results[jobs[name].key].items() if n.isdigit()]) for name in rows}
    assert [name for name in rows if rows[name][1].startswith("**")] == [min(means, key=means.__getitem__)]
    if key != "ece":
        held_out = np.mean([unit[f"validation_{key}"] for name, unit in results[jobs["VSD"].key].items() if name.isdigit()])
        assert numbers(rows["VSD"][3])[0] == pytest.approx(held_out, abs=0.06)


def test_the_chosen_candidate_is_bold_where_all_have_been_tried():
    table, jobs, results = made_up()
    _, lines = section(Experiment(table).protocol.report(table, list(jobs.values()), results), "Chosen on validation images")
    assert lines == [
        ["MC dropout", "beta 1", "30", "0.3000", "2.50"],
        ["VSD", "beta 1", "30", "0.3000", "2.50"],
        ["VSD", "**beta 0.1**", "30", "0.1000", "2.50"],
        ["VSD", "beta 0.01", "30", "failed", "-"],
        ["VSD", "beta 0.001", "30", "0.4000", "2.50"],
    ]


def test_out_of_distribution_images_ensembles_and_cost():
    table, jobs, results = made_up()
    text = Experiment(table).protocol.report(table, list(jobs.values()), results)
    header, lines = section(text, "Out-of-distribution images")
    assert header == ["method", "test images", "fashion-mnist: entropy", "AUROC", "kmnist: entropy", "AUROC"]
    found = [unit["ood"]["kmnist"]["auroc"] for name, unit in results[jobs["VD"].key].items()]
    assert numbers(next(line for line in lines if line[0] == "VD")[5])[0] == pytest.approx(np.mean(found), abs=0.06)
    (ensemble,) = section(text, "Ensembles")[1]
    unit = results[jobs["MAP"].key]["ensemble-5"]
    assert ensemble[:2] == ["MAP", "5"]
    assert numbers(ensemble[2])[0] == pytest.approx(unit["nll"], rel=1e-3)
    kmnist = unit["ood"]["kmnist"]
    assert f"kmnist {kmnist['entropy']:.4g}, {kmnist['auroc']:.4f}" in ensemble[-1]
    _, lines = section(text, "Cost and training")
    assert [line[:4] for line in lines] == [
        ["MAP", "2.00", "1.00", "478,410"], ["VD", "3.00", "1.50", "478,410"], ["VSD", "5.00", "2.50", "478,410"]
    ]  # fmt: skip


def test_corruptions_stand_beside_the_first_method():
    _, jobs, results = made_up()
    random = np.random.default_rng(3)
    shares = {"MAP": [], "VSD": []}
    for method, found in shares.items():
        for unit in (unit for name, unit in results[jobs[method].key].items() if name.isdigit()):
            found.append((random.uniform(5, 60, (2, 5)), random.uniform(1, 5)))
            unit["corrupted"] = {"none": {"error": found[-1][1]}} | {
                name: {str(v): {"error": e, "nll": 1.0, "ece": 0.1} for v, e in enumerate(line, start=1)}
                for name, line in zip(("brightness", "contrast"), found[-1][0].tolist(), strict=True)
            }
            unit["by_draws"] = {count: {"error": 2.0, "nll": 1.0, "ece": 0.1} for count in ("200", "20")}
    text = write_tables(list(jobs.values()), {jobs[name].key: results[jobs[name].key] for name in shares}, {})
    header, lines = section(text, "Corrupted images")
    assert header == ["method", "error (%)", "NLL", "ECE", "mCE (%)", "rmCE (%)"]
    base, clean = (np.mean([pair[i] for pair in shares["MAP"]], axis=0) for i in (0, 1))
    ce = [100 * (e.sum(1) / base.sum(1)).mean() for e, _ in shares["VSD"]]
    rce = [100 * ((e - c).sum(1) / (base - clean).sum(1)).mean() for e, c in shares["VSD"]]
    found = next(line for line in lines if line[0] == "VSD")
    assert numbers(found[4])[0] == pytest.approx(np.mean(ce), rel=0.02)
    assert numbers(found[5])[0] == pytest.approx(np.mean(rce), rel=0.02)
    assert numbers(found[1])[0] == pytest.approx(np.mean([e.mean() for e, _ in shares["VSD"]]), rel=0.02)
    _, lines = section(text, "Number of draws")
    assert [line[:2] for line in lines] == [["MAP", "20"], ["MAP", "200"], ["VSD", "20"], ["VSD", "200"]]


def test_notes_of_image_sets_stand_with_the_numbers():
    table, jobs, results = made_up()
    for unit in results[jobs["VSD"].key].values():
        unit["note"] = "20k-image training subset"
    assert Experiment(table).protocol.report(table, list(jobs.values()), results).count("Note: 20k-image training subset.") == 1


def test_several_nets_and_sets_are_told_apart():
    table, jobs, results = made_up()
    settings = {**table.settings, "datasets": ["mnist", "fashion-mnist"], "ood": ["kmnist"]}
    other = Experiment(table.__class__(**{**table.__dict__, "settings": settings})).jobs
    made = {job.key: results[jobs["MAP"].key] for job in other if job.settings["method"] == "MAP"}
    header, lines = section(write_tables(other, made, {}), "Error")
    assert header == ["data set", "method", "ours", "validation"]
    assert [line[:2] for line in lines] == [["mnist", "MAP"], ["fashion-mnist", "MAP"]]
    assert not any(line[2].startswith("**") for line in lines)  # nothing to compare with
    assert len(draw_scores(other, made, {}).axes) == 2 * (3 + 2)  # three metrics, two sets of out-of-distribution images


def test_the_picture_shows_means_and_papers():
    table, jobs, results = made_up()
    figure = Experiment(table).protocol.figure(table, list(jobs.values()), results)
    error = figure.axes[1]
    drawn = [line.get_xdata()[0] for line in error.lines]
    ours = np.mean([unit["error"] for name, unit in results[jobs["VSD"].key].items() if name.isdigit()])
    assert any(np.isclose(x, ours) for x in drawn)
    assert any(np.isclose(x, 1.08) for x in drawn)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"ours", "ensemble", "paper"}
    assert draw_scores(list(jobs.values()), {}, {}) is None


def test_trials_alone_make_a_report():
    table, jobs, results = made_up()
    only = {jobs["MC dropout"].key: results[jobs["MC dropout"].key]}
    assert "## Error" not in Experiment(table).protocol.report(table, list(jobs.values()), only)
    assert Experiment(table).protocol.figure(table, list(jobs.values()), only) is None
    assert [row.nets for row in rows_of(list(jobs.values()), only)] == [[]]


@pytest.mark.parametrize(
    ("published", "message"),
    [
        ({"mnist": 3}, "published.mnist must be a table"),
        ({"mnist": {"400x2": {"MAP": 3}}}, "published.mnist.400x2.MAP must be a table"),
        ({"mnist": {"400x2": {"MAP": {"rmse": 3}}}}, "published.mnist.400x2.MAP must be a table of ece, error, mce, nll"),
        ({"mnist": {"400x2": {"MAP": {"nll": [1, 2, 3]}}}}, r"MAP.nll must be a mean or \[mean, standard error\]"),
    ],
)
def test_wrong_published_numbers_are_named(published, message):
    with pytest.raises(ValueError, match=message):
        published_of(published)


def test_the_table_is_that_of_the_paper():
    table = read_table("vsd/mnist")
    jobs = Experiment(table).jobs
    rivals = ("MAP, temperature", "SWAG", "ELRG", "VMG", "MNF")
    assert tuple(job.settings["method"] for job in jobs) == (*METHODS, *rivals)
    assert set(published_of(table.published)) == {("mnist", "400x2", method) for method in (*METHODS, "SWAG", "ELRG", "VMG")}
    for job in jobs:
        setup = job.settings["setup"]
        assert (setup["epochs"], setup["validation"], setup["net"]["hidden"]) == (100, 10_000, [400, 400])
        assert sum(unit.startswith("trial") for unit in job.units) == 4
        assert job.data == ("mnist", "fashion-mnist", "kmnist")
    assert all(
        job.settings["setup"]["epochs"] <= 2 and job.cost < 10 for job in Experiment(read_table("vsd/mnist", quick=True)).jobs
    )


@pytest.mark.parametrize(
    ("name", "nets", "epochs", "batch_size", "samples", "seeds"),
    [
        ("vsd/cifar10-gpu", {"32x64x128"}, 100, 100, 100, 5),
        ("vsd/alexnet-gpu", {"alexnet"}, 300, 200, 10, 5),
        ("vsd/resnet18-gpu", {"resnet18"}, 300, 200, 10, 5),
        ("whvi/cnn-gpu", {"vgg16", "alexnet", "resnet18"}, 711, 256, 64, 3),
    ],
)
def test_profiles_for_a_gpu_have_the_papers_settings(name, nets, epochs, batch_size, samples, seeds):
    table = read_table(name)
    jobs = Experiment(table).jobs
    assert {job.settings["net"] for job in jobs} == nets
    for job in jobs:
        setup = Setup.from_dict(job.settings["setup"])
        assert (setup.epochs, setup.trial().epochs, setup.batch_size) == (epochs, epochs, batch_size)
        assert setup.decay == 1.0 or not setup.milestones()
        assert setup.samples == (1 if job.settings["method"] == "MAP" else samples)
        assert sum(unit.isdigit() for unit in job.units) == seeds
    rows = {(job.settings["dataset"], job.settings["net"], job.settings["method"]) for job in jobs}
    assert set(published_of(table.published)) <= rows
    for job in Experiment(read_table(name, quick=True)).jobs:
        assert job.settings["setup"]["train_rows"] <= 300
        assert job.cost <= 6


def test_the_nets_of_whvi_have_the_papers_sizes():
    nets = read_table("whvi/cnn-gpu").settings["nets"]
    counts = {}
    for name, fields in nets.items():
        with torch.device("meta"):
            counts[name] = sum(p.numel() for p in make_net(fields, (3, 32, 32), 10).parameters())
    widths = [3, 32, 32, 64, 64, 128, 128, 128, 256, 256, 256, 256, 256, 256]
    vgg16 = sum(o * (9 * i + 2) for i, o in itertools.pairwise(widths)) + 10 * 257
    assert counts == {"vgg16": vgg16, "alexnet": 23_272_266, "resnet18": 11_173_962}  # 23.3 M in section 3.3


def test_what_only_some_rows_know_is_shown_of_those():
    table, jobs, results = made_up()
    assert "## Last layer" not in write_tables(list(jobs.values()), results, published_of(table.published))
    for seed in range(5):
        unit = results[jobs["MAP"].key][str(seed)]
        unit["last_layer"] = {"spectral_norm": 2.0 + seed, "stable_rank": 3.0}
        for found in unit["ood"].values():
            found.update(aupr_in=0.9, aupr_out=0.8, fpr95=0.1 * seed, detection_error=0.25)
    text = write_tables(list(jobs.values()), results, published_of(table.published))
    assert section(text, "Last layer")[1] == [["MAP", "4.00 ± 0.71", "3"]]
    _, rows = section(text, "Out-of-distribution detection")
    assert [row[:2] for row in rows] == [["MAP", "fashion-mnist"], ["MAP", "kmnist"]]
    assert rows[0][3:] == ["0.9", "0.8", "0.200 ± 0.071", "0.25"]


def test_near_and_far_sets_are_averaged():
    _, jobs, results = made_up()
    keys = ("auroc", "aupr_in", "aupr_out", "fpr95", "detection_error")
    values = {"fashion-mnist": 0.9, "kmnist": 0.7, "cifar10": 0.99}
    for net in results[jobs["VD"].key].values():
        net["ood"] = {name: {"entropy": 1.0, **dict.fromkeys(keys, value)} for name, value in values.items()}
    only = {jobs["VD"].key: results[jobs["VD"].key]}
    text = write_tables(list(jobs.values()), only, {}, near=["fashion-mnist", "kmnist"])
    _, lines = section(text, "Out-of-distribution detection")
    assert [(line[-6], float(line[-5])) for line in lines] == [
        ("near", 0.8), ("far", 0.99), ("fashion-mnist", 0.9), ("kmnist", 0.7), ("cifar10", 0.99)
    ]  # fmt: skip

"""Settings of image classification: candidates, the method they make, what is refused; the parts of image sets."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from experiments.harness.settings import without_defaults
from experiments.protocols.images import data as data_module
from experiments.protocols.images.data import load_test, load_train
from experiments.protocols.images.settings import Setup

from bayesify import VSD, MCDropout
from bayesify.datasets import Images

BASE = {
    "dataset": "mnist", "net": {"kind": "mlp", "hidden": [4]}, "posterior": {"method": "MeanField"},
    "epochs": 100, "batch_size": 10, "validation": 7, "samples": 2,
}  # fmt: skip
DROPOUT = {"fc1": {"method": "MCDropout", "p": 0.2}, "*": {"method": "MCDropout"}}


def test_candidates_are_all_combinations():
    setup = Setup(**BASE, choices={"beta": [0.1, 1.0], "prior_std": [0.3, 3.0]})
    found = [(each.beta, each.methods().prior_std) for each in map(setup.with_fields, setup.candidates())]
    assert found == [(0.1, 0.3), (0.1, 3.0), (1.0, 0.3), (1.0, 3.0)]
    assert Setup(**BASE).candidates() == [{}]
    assert Setup(**BASE).with_fields({}).methods() == Setup(**BASE).methods()


def test_a_field_goes_where_the_posterior_leaves_it_open():
    setup = Setup(**BASE | {"posterior": DROPOUT}, choices={"p": [0.5], "prior_std": [2.0], "weight_decay": [1e-4]})
    chosen = setup.with_fields(setup.candidates()[0])
    assert chosen.methods() == {"fc1": MCDropout(p=0.2, prior_std=2.0), "*": MCDropout(p=0.5, prior_std=2.0)}
    assert chosen.weight_decay == 1e-4
    mixed = Setup(**BASE | {"posterior": {"fc1": {"method": "VSD"}, "*": {"method": "MCDropout"}}}, choices={"rank": [3]})
    assert mixed.with_fields({"rank": 3}).methods() == {"fc1": VSD(rank=3), "*": MCDropout()}


def test_a_trial_has_as_many_falls_of_the_rate():
    setup = Setup(**BASE, decay=0.3, decay_every=20, choice_epochs=30)
    assert (setup.milestones(), setup.trial().milestones()) == ([20, 40, 60, 80], [6, 12, 18, 24])
    assert Setup(**BASE, decay_every=20).trial().epochs == 100
    assert Setup(**BASE, decay_every=20, choice_epochs=1).trial().decay_every == 1
    assert Setup(**BASE, choice_epochs=3).trial().milestones() == []


def test_setups_survive_json():
    setup = Setup(**BASE | {"posterior": DROPOUT}, choices={"p": [0.5, 0.1]}, ood=["kmnist"], decay_every=3)
    assert Setup.from_dict(json.loads(json.dumps(setup.to_dict()))) == setup


def test_fingerprints_contain_what_differs_from_defaults():
    def reduced(**changes):
        return without_defaults({"setup": Setup(**BASE | changes).to_dict()}, {"setup": Setup})["setup"]

    assert reduced(beta=1.0, ood=[], choice_epochs=None, precision="32-true") == BASE
    assert reduced(precision="bf16-mixed") == BASE | {"precision": "bf16-mixed"}
    assert reduced(beta=0.5) == BASE | {"beta": 0.5}
    assert reduced(posterior={"method": "meanfield", "prior_std": 1.0, "prior_mean": "zero"}) == reduced()
    open_, given = ({"method": "MCDropout"}, {"method": "MCDropout", "p": 0.1})  # 0.1 is the default
    found = [reduced(posterior={"fc1": fc1, "*": open_}, choices={"p": [0.5]}) for fc1 in (open_, given)]
    assert [one["posterior"]["fc1"] for one in found] == [{"method": "MCDropout", "p": "chosen"}, {"method": "MCDropout"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'; the settings are dataset, net"),
        ({"dataset": "minst"}, "'minst'"),
        ({"ood": ["minst"]}, "'minst'"),
        ({"net": {"kind": "vgg"}}, "kind of a net must be one of"),
        ({"posterior": {"method": "Magic"}}, "unknown method 'Magic'"),
        ({"posterior": {"fc1": {"method": "MeanField", "p": 0.1}}}, "MeanField has no field 'p'"),
        ({"posterior": {"fc1": "MeanField"}}, "posterior.fc1 must be a table such as"),
        ({"posterior": {}}, "posterior must be a table such as"),
        ({"choices": {"beta": 0.1}}, "choices.beta must be a list of values, got 0.1"),
        ({"choices": {"beta": [0.1, -1.0]}}, "beta must be a finite number of at least 0, got -1.0"),
        ({"choices": {"p": [0.1]}}, "choices.p changes nothing: no method of posterior has a field p that is not set there"),
        (
            {"choices": {"prior_std": [1.0]}, "posterior": {"method": "MeanField", "prior_std": 2.0}},
            "choices.prior_std changes nothing",
        ),
        ({"choices": {"prior_std": [1.0, -2.0]}}, "prior_std must be"),
        ({"validation": 0}, "validation must be a whole number"),
        ({"choice_epochs": 0}, "choice_epochs must be a whole number"),
        ({"decay": 0.0}, "decay must be"),
        ({"augment": "yes"}, "augment must be"),
        ({"precision": "16-mixed"}, "precision must be one of '32-true', 'bf16-mixed', got '16-mixed'"),
        ({"precision": 16}, "precision must be one of '32-true', 'bf16-mixed', got 16"),
        ({"net": {"kind": "convolutions", "channels": ["pol"], "hidden": []}}, "channels must be a list of whole numbers and"),
        ({"calibrate": 1.5}, "calibrate must be"),
        ({"likelihood": "gaussian"}, "likelihood must be one of 'categorical', 'evidential'"),
        ({"likelihood": "evidential", "calibrate": True}, "calibrate scales logits"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Setup.from_dict(BASE | changes)


def test_missing_settings_are_named():
    with pytest.raises(ValueError, match="settings are missing: epochs, samples"):
        Setup.from_dict({name: value for name, value in BASE.items() if name not in ("epochs", "samples")})


# --- parts


def colorful(name, part, data_dir=None):
    """Images whose colors differ in mean and spread, validation and test rows far off."""
    generator = torch.Generator().manual_seed(len(name) + len(part))
    X = torch.randint(0, 100, (30, 3, 4, 4), generator=generator, dtype=torch.uint8)
    X[:, 1] = 7
    X[:, 2] += 100
    X[20:] = 255 - X[20:]
    size = 5 if name == "kmnist" else 4
    return Images(name, part, torch.nn.functional.pad(X, (0, size - 4, 0, size - 4)), torch.arange(30) % 3, ("a", "b", "c"), "some")


def test_colours_are_standardized_by_the_rows_that_are_trained_on(monkeypatch):
    monkeypatch.setattr(data_module, "load_images", colorful)
    setup = Setup(**BASE | {"dataset": "cifar10", "train_rows": 12, "ood": ["fashion-mnist"], "ood_rows": 4})
    parts = load_train(setup, None)
    pixels = colorful("cifar10", "train").X.double().numpy() / 255
    mean, std = pixels[:12].mean((0, 2, 3)), pixels[:12].std((0, 2, 3))
    std[1] = 1.0  # of one color

    def expected(x):
        return (x - mean[:, None, None]) / std[:, None, None]

    np.testing.assert_allclose(parts.train[0].numpy(), expected(pixels[:12]), atol=1e-5)
    np.testing.assert_allclose(parts.validation[0].numpy(), expected(pixels[23:]), atol=1e-5)
    assert parts.train[1].tolist() == [0, 1, 2] * 4
    assert parts.validation[1].tolist() == [2, 0, 1, 2, 0, 1, 2]
    assert (parts.classes, parts.note) == (3, "some")
    test = load_test(setup, parts.scaling, None)
    np.testing.assert_allclose(test.test[0].numpy(), expected(colorful("cifar10", "test").X.double().numpy() / 255), atol=1e-5)
    others = colorful("fashion-mnist", "test").X[:4].double().numpy() / 255
    np.testing.assert_allclose(test.ood["fashion-mnist"].numpy(), expected(others), atol=1e-5)
    fewer = load_test(dataclasses.replace(setup, test_rows=5), parts.scaling, None)
    assert fewer.test[1].tolist() == [0, 1, 2, 0, 1]
    torch.testing.assert_close(fewer.test[0], test.test[0][:5])
    assert len(fewer.ood["fashion-mnist"]) == 4


def test_grey_images_stay_in_zero_to_one(monkeypatch):
    def gray(name, part, data_dir=None):
        images = colorful(name, part)
        return Images(name, part, images.X[:, :1], images.y, images.classes)

    monkeypatch.setattr(data_module, "load_images", gray)
    x = load_train(Setup(**BASE), None).train[0]
    torch.testing.assert_close(x, gray("mnist", "train").X[:23].float() / 255)


def test_color_images_become_gray_and_of_the_size_of_gray_ones(monkeypatch):
    def mixed(name, part, data_dir=None):
        images = colorful("mnist", part)
        if name == "cifar10":
            return Images(name, part, torch.full((2, 3, 8, 8), 200, dtype=torch.uint8), torch.arange(2), images.classes)
        return Images(name, part, images.X[:, :1], images.y, images.classes)

    monkeypatch.setattr(data_module, "load_images", mixed)
    setup = Setup(**BASE, ood=["cifar10"])
    found = load_test(setup, load_train(setup, None).scaling, None).ood["cifar10"]
    torch.testing.assert_close(found, torch.full((2, 1, 4, 4), 200 / 255))
    red = data_module.as_gray(torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1).expand(1, 3, 2, 2), (2, 2))
    assert red.flatten().tolist() == pytest.approx([0.299] * 4)


def test_parts_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr(data_module, "load_images", colorful)
    with pytest.raises(ValueError, match="mnist has 30 training images, too few for 30 rows for validation and some to train on"):
        load_train(Setup(**BASE | {"validation": 30}), None)
    with pytest.raises(ValueError, match="too few for 7 rows for validation and 24 to train on"):
        load_train(Setup(**BASE, train_rows=24), None)
    setup = Setup(**BASE, ood=["kmnist"])
    with pytest.raises(ValueError, match=re.escape("those of kmnist have (3, 5, 5), those of mnist (3, 4, 4)")):
        load_test(setup, load_train(setup, None).scaling, None)

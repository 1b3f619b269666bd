"""Training a net on toy images, and scores against NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from experiments.protocols.images.scores import average, entropy, evaluate
from experiments.protocols.images.settings import Setup
from experiments.protocols.images.training import Augmented, train
from scipy import stats

from bayesify import VIFO

# --- scores


def test_an_ensemble_averages_probabilities():
    random = np.random.default_rng(0)
    members = [random.dirichlet(np.ones(4), 50) for _ in range(3)]
    found = average([{"test": torch.from_numpy(np.log(member))} for member in members])["test"]
    np.testing.assert_allclose(found.exp().numpy(), np.mean(members, axis=0), rtol=1e-12)
    spread = average([{"a": torch.tensor([[-2000.0, 0.0]])}, {"a": torch.tensor([[-1000.0, 0.0]])}])["a"]
    assert float(spread[0, 0]) == pytest.approx(-1000 - math.log(2))  # where probabilities are 0 to a computer


def test_scores_against_numpy():
    random = np.random.default_rng(1)
    parts = {"validation": 30, "test": 80, "kmnist": 40}
    probs = {part: random.dirichlet(np.full(5, 0.4), rows) for part, rows in parts.items()}
    labels = {part: random.integers(0, 5, rows) for part, rows in parts.items()}
    tensors = {part: torch.from_numpy(np.log(p)) for part, p in probs.items()}
    unit = evaluate(tensors, torch.from_numpy(labels["validation"]), torch.from_numpy(labels["test"]), bins=7)
    p, y = probs["test"], labels["test"]
    assert unit["error"] == pytest.approx(100 * np.mean(p.argmax(1) != y))
    assert unit["nll"] == pytest.approx(-np.mean(np.log(p[np.arange(80), y])))
    which = np.floor(p.max(1) * 7).astype(int)
    gaps = [abs(np.sum((p.argmax(1) == y)[which == b]) - np.sum(p.max(1)[which == b])) for b in range(7)]
    assert unit["ece"] == pytest.approx(sum(gaps) / 80)
    counts = np.bincount(which, minlength=7)
    assert unit["mce"] == pytest.approx(max(gap / count for gap, count in zip(gaps, counts, strict=True) if count >= 6))
    entropies = {part: stats.entropy(probs[part], axis=1) for part in ("test", "kmnist")}
    assert unit["entropy"] == pytest.approx(entropies["test"].mean())
    assert unit["ood"]["kmnist"]["entropy"] == pytest.approx(entropies["kmnist"].mean())
    wins = (entropies["kmnist"][:, None] > entropies["test"]).mean()
    assert unit["ood"]["kmnist"]["auroc"] == pytest.approx(wins, abs=1e-6)
    assert set(unit["ood"]["kmnist"]) == {"entropy", "auroc", "aupr_in", "aupr_out", "fpr95", "detection_error"}
    assert unit["validation_error"] == pytest.approx(100 * np.mean(probs["validation"].argmax(1) != labels["validation"]))
    assert entropy(torch.tensor([[0.0, -math.inf]])).item() == 0.0


def test_corrupted_images_and_numbers_of_draws_are_judged_by_the_first_test_images():
    random = np.random.default_rng(2)
    names = ["contrast/1", "contrast/5", "draws/20"]
    probs = {name: random.dirichlet(np.ones(3), 10) for name in names} | {"test": random.dirichlet(np.ones(3), 30)}
    y = random.integers(0, 3, 30)
    predictions = {name: torch.from_numpy(np.log(p)) for name, p in {**probs, "validation": probs["test"]}.items()}
    unit = evaluate(predictions, torch.from_numpy(y), torch.from_numpy(y), bins=5)

    def error(p):
        return pytest.approx(100 * np.mean(p[:10].argmax(1) != y[:10]))

    assert unit["corrupted"]["contrast"]["5"]["error"] == error(probs["contrast/5"])
    assert unit["corrupted"]["none"]["error"] == error(probs["test"])
    assert set(unit["corrupted"]) == {"contrast", "none"}
    assert set(unit["corrupted"]["contrast"]) == {"1", "5"}
    assert unit["by_draws"]["20"]["error"] == error(probs["draws/20"])
    assert unit["ood"] == {}


# --- training


def setup_of(**changes):
    net = {"kind": "mlp", "hidden": [6]}
    base = {"dataset": "mnist", "net": net, "epochs": 7, "batch_size": 20, "validation": 40, "samples": 2}
    return Setup(**{**base, "posterior": {"method": "VariationalDropout"}, **changes})


def data_of():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(120, 1, 6, 6, generator=generator), torch.randint(10, (120,), generator=generator)


def test_the_rate_falls_at_every_milestone():
    history = train(setup_of(learning_rate=0.02, decay=0.3, decay_every=3), data_of(), 10, 0, lambda share: None).history
    np.testing.assert_allclose(history.learning_rate, [0.02 * 0.3 ** (epoch // 3) for epoch in range(7)], rtol=1e-9)
    steady = train(setup_of(learning_rate=0.02), data_of(), 10, 0, lambda share: None).history
    assert set(steady.learning_rate) == {0.02}


def test_weight_decay_is_for_the_nets_own_parameters():
    first, second = (
        dict(
            train(
                setup_of(epochs=1, batch_size=120, weight_decay=decay), data_of(), 10, 0, lambda share: None
            ).bnn.named_parameters()
        )
        for decay in (0.0, 10.0)
    )
    for name in first:
        assert torch.equal(first[name], second[name]) == (".posterior." in name), name


def test_the_weight_of_the_per_example_kl_is_the_methods_own_unless_set():
    own, same, other = (
        train(setup_of(epochs=1, posterior={"method": "VIFO"}, local_beta=beta), data_of(), 10, 0, lambda share: None).history.loss
        for beta in (None, VIFO().eta, 1.0)
    )
    assert own == same
    assert own != other


def test_images_are_moved_about_by_the_seed(monkeypatch):
    x, y = data_of()
    data = Augmented(x, y)
    pairs = data.__getitems__([5, 7])
    assert [int(label) for _, label in pairs] == [int(y[5]), int(y[7])]
    assert data[3][0].shape == x[3].shape
    assert not torch.equal(torch.stack([image for image, _ in data.__getitems__(list(range(120)))]), x)
    first, second = (train(setup_of(augment=True, epochs=2), (x, y), 10, seed=4, progress=lambda share: None) for _ in range(2))
    assert first.history.loss == second.history.loss
    assert first.history.loss != train(setup_of(epochs=2), (x, y), 10, seed=4, progress=lambda share: None).history.loss

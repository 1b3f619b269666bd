"""Training a net on toy images, and scores against NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from experiments.protocols.images.scores import average, entropy, evaluate
from experiments.protocols.images.settings import Setup
from experiments.protocols.images.training import Augmented, calibrate, predict_log_probs, train
from scipy import optimize, special, stats

from bayesify import VIFO
from bayesify.errors import ConfigurationError

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


def test_natural_gradient_steps_have_the_rate_and_no_weight_decay():
    setup = setup_of(posterior={"method": "IVON"}, learning_rate=0.02, decay=0.3, decay_every=3)
    history = train(setup, data_of(), 10, 0, lambda share: None).history
    np.testing.assert_allclose(history.learning_rate, [0.02 * 0.3 ** (epoch // 3) for epoch in range(7)], rtol=1e-9)
    decayed = setup_of(posterior={"method": "IVON"}, weight_decay=0.1)
    with pytest.raises(ConfigurationError, match="weight_decay must be 0"):
        train(decayed, data_of(), 10, 0, lambda share: None)


def test_the_weight_of_the_per_example_kl_is_the_methods_own_unless_set():
    own, same, other = (
        train(setup_of(epochs=1, posterior={"method": "VIFO"}, local_beta=beta), data_of(), 10, 0, lambda share: None).history.loss
        for beta in (None, VIFO().eta, 1.0)
    )
    assert own == same
    assert own != other


@pytest.mark.parametrize("method", ["Deterministic", "VariationalDropout"])
def test_bfloat16_is_of_training_only(method):
    net = {"kind": "convolutions", "channels": [4, "pool"], "hidden": [8]}
    x, _ = data_of()
    full, mixed = (
        train(setup_of(net=net, posterior={"method": method}, precision=precision), data_of(), 10, 0, lambda share: None)
        for precision in ("32-true", "bf16-mixed")
    )
    assert full.history.loss != mixed.history.loss  # rounded
    np.testing.assert_allclose(full.history.loss, mixed.history.loss, rtol=0.01)
    assert {p.dtype for p in mixed.bnn.parameters()} == {torch.float32}
    found = predict_log_probs(mixed, x, 1, 0)
    assert found.dtype == torch.float32
    if method == "Deterministic":
        with torch.no_grad():
            outputs = mixed.bnn(x).outputs[0]
        assert outputs.dtype == torch.float32
        torch.testing.assert_close(found, outputs.log_softmax(1), rtol=1e-5, atol=1e-6)  # bfloat16 has three digits


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


# --- rivals


def _toy(posterior, net=None, **changes):
    """A setup, and two parts of noisy images whose brightness depends on the label."""
    fields = {"dataset": "mnist", "net": net or {"kind": "mlp", "hidden": [8]}, "posterior": posterior, "epochs": 8}
    setup = Setup(**fields, batch_size=20, validation=60, samples=4, learning_rate=0.02, **changes)
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (120,), generator=generator)
    x = 0.3 * torch.randn(120, 1, 8, 8, generator=generator) + 0.3 * y.view(-1, 1, 1, 1)
    return setup, (x[:60], y[:60]), (x[60:], y[60:])


def test_the_temperature_minimizes_the_loss_of_the_validation_rows():
    setup, rows, validation = _toy({"method": "Deterministic"}, calibrate=True)
    plain = train(setup, rows, 3, 0, lambda share: None)
    logits, labels = predict_log_probs(plain, validation[0], 1, 0).double().numpy(), validation[1].numpy()

    def loss(log_temperature):
        return -special.log_softmax(logits / np.exp(log_temperature), axis=1)[np.arange(60), labels].mean()

    best = optimize.minimize_scalar(loss, bounds=(-2, 2), method="bounded")
    found = predict_log_probs(calibrate(plain, validation, 1, 0), validation[0], 1, 0).double().numpy()
    assert abs(best.x) > 0.05  # there is something to mend
    assert -found[np.arange(60), labels].mean() == pytest.approx(best.fun, abs=1e-5)
    np.testing.assert_allclose(found, special.log_softmax(logits / np.exp(best.x), axis=1), atol=0.02)


def test_evidence_becomes_the_mean_of_a_dirichlet_distribution():
    setup, rows, (x, y) = _toy({"method": "Deterministic"}, likelihood="evidential", beta=0.1)
    trained = train(setup, rows, 3, 0, lambda share: None)
    alpha = 1 + np.logaddexp(0, trained.bnn(x).outputs[0].detach().double().numpy())
    found = predict_log_probs(trained, x, 1, 0)
    np.testing.assert_allclose(found.exp().numpy(), alpha / alpha.sum(1, keepdims=True), rtol=1e-5)
    assert (found.argmax(1) == y).double().mean() > 0.5


def test_collected_weights_have_batch_statistics_of_their_own():
    net = {"kind": "preresnet", "depth": 8, "width": 2}
    setup, rows, (x, _) = _toy({"method": "SWAG", "snapshots": 5, "rank": 2}, net)
    trained = train(setup, rows, 3, 0, lambda share: None)
    assert trained.predictor is not trained.bnn
    draws = [trained.bnn.sample_network(s) for s in range(4)]
    kept = predict_log_probs(trained, x, 4, 0)
    for draw in draws:
        for module in draw.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
                module.reset_running_stats()
        with torch.no_grad():
            draw.train()(rows[0])  # all rows in one batch
    with torch.no_grad():
        outputs = torch.stack([draw.eval()(x).log_softmax(1) for draw in draws])
    np.testing.assert_allclose(kept.exp(), outputs.exp().mean(0), atol=0.02)
    plain, _, _ = _toy({"method": "SWAG", "snapshots": 5, "rank": 2})
    trained = train(plain, rows, 3, 0, lambda share: None)
    assert trained.predictor is trained.bnn  # nothing to renew

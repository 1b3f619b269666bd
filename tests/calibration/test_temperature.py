"""Temperature scaling: the minimum by other optimizers, and known temperatures."""

import pytest
import torch

from bayesify import Categorical, MCDropout, bayesify, predict
from bayesify.calibration import fit_temperature
from bayesify.errors import DivergenceError
from bayesify.predictive import CategoricalPredictive

optimize = pytest.importorskip("scipy.optimize")


def data(draws, rows, scale, seed=0):
    """Logits `scale` times those from which the labels are drawn, different in each draw."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    noise = 0.0 if draws == 1 else 0.5 * torch.randn(draws, rows, 4, generator=generator, dtype=torch.float64)
    return scale * (logits[None] + noise), labels


@pytest.mark.parametrize("draws", [1, 6])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_it_is_the_minimum(draws, scale):
    logits, y = data(draws, 300, scale)

    def loss(temperature):
        return -(logits / temperature).softmax(-1).mean(0).gather(1, y[:, None]).log().mean().item()

    expected = optimize.minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-6}).x
    found = fit_temperature(lambda t: CategoricalPredictive.from_logits(logits / t), y)
    assert found == pytest.approx(expected, rel=3e-3)


def test_it_agrees_with_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("scikit-learn 1.8 has temperature scaling")
    logits, y = data(1, 400, 3.0)
    reference = calibration._TemperatureScaling().fit(logits[0].numpy(), y.numpy())
    found = fit_temperature(lambda t: CategoricalPredictive.from_logits(logits / t), y)
    assert found == pytest.approx(1 / reference.beta_, rel=3e-3)


def test_a_known_temperature_is_found():
    """4,000 rows: the standard error of the temperature is about 2 %."""
    logits, y = data(1, 4000, 2.5, seed=1)
    assert fit_temperature(lambda t: CategoricalPredictive.from_logits(logits / t), y) == pytest.approx(2.5, rel=0.1)


def test_the_likelihood_divides_the_logits():
    logits, y = torch.randn(3, 5, 4), torch.tensor([0, 1, 2, 3, 0])
    likelihood = Categorical(temperature=2.0)
    torch.testing.assert_close(likelihood.predictive(logits).probs, (logits / 2).softmax(-1).mean(0))
    torch.testing.assert_close(likelihood.log_prob(logits, y), Categorical().log_prob(logits / 2, y))
    assert Categorical.from_dict(likelihood.to_dict()).temperature == 2.0
    with pytest.raises(ValueError, match="temperature must be a finite number above 0, got 0"):
        Categorical(temperature=0)


def test_a_network_of_your_own():
    torch.manual_seed(0)
    bnn = bayesify(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), MCDropout(p=0.2))
    x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))
    temperature = fit_temperature(lambda t: predict(bnn, x, Categorical(temperature=t), samples=8, seed=0, progress=False), y)
    assert 0.1 <= temperature <= 10


def test_a_diverged_model_is_refused():
    p = CategoricalPredictive.from_logits(torch.full((1, 3, 2), float("nan")))
    with pytest.raises(DivergenceError, match="not finite"):
        fit_temperature(lambda _: p, torch.zeros(3).long())

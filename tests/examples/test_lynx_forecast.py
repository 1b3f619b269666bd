"""The forecasts of the guide to sequences."""

from pathlib import Path

import pytest
import torch

from bayesify import Deterministic, MeanField

pytest.importorskip("matplotlib")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    import lynx_forecast

    return lynx_forecast


def test_paths_without_noise_are_those_of_the_network_fed_with_its_forecasts(example) -> None:
    past, future = example.series()
    assert len(past) == 94
    assert len(future) == 20
    bnn, likelihood = example.train(Deterministic(), past, epochs=1)
    with torch.no_grad():
        likelihood.log_std.fill_(-20.0)
    drawn = example.paths(bnn, likelihood, past, years=3, networks=1, each=2)
    values = past.tolist()
    for _ in range(3):
        values.append(float(bnn.net(torch.tensor(values[-20:])[None, :, None]).detach()))
    torch.testing.assert_close(drawn, torch.tensor(values[-3:]).expand(2, 3), atol=1e-5, rtol=0)


def test_a_path_keeps_its_network(example) -> None:
    """Without noise, paths of one network are equal, and those of two are not."""
    past, _ = example.series()
    bnn, likelihood = example.train(MeanField(initial_std=0.5), past, epochs=1)
    with torch.no_grad():
        likelihood.log_std.fill_(-20.0)
    first, second = example.paths(bnn, likelihood, past, years=3, networks=2, each=2).split(2)
    torch.testing.assert_close(first[0], first[1], atol=1e-5, rtol=0)
    assert (first - second).abs().min() > 1e-4


def test_the_first_year_has_the_noise_of_the_likelihood(example) -> None:
    past, _ = example.series()
    bnn, likelihood = example.train(Deterministic(), past, epochs=1)
    drawn = example.paths(bnn, likelihood, past, years=1, networks=1, each=4000)
    assert float(drawn.std()) == pytest.approx(float(likelihood.std.detach()), rel=0.05)  # 4.5 standard errors


def test_held_out_years_are_scored_one_by_one_and_not_trained_on(example, monkeypatch) -> None:
    past, _ = example.series()
    monkeypatch.setattr(example, "EPOCHS", (1,))
    found = example.scores(Deterministic(), past)
    bnn, likelihood = example.train(Deterministic(), past[:80], epochs=1)
    means = torch.stack([bnn.net(past[None, t - 20 : t, None])[0, 0] for t in range(80, 94)]).detach()
    expected = torch.distributions.Normal(means, likelihood.std.detach()).log_prob(past[80:]).mean()
    assert found == {1: pytest.approx(float(expected), abs=1e-5)}


def test_coverage_and_picture(example, tmp_path) -> None:
    drawn = torch.arange(101.0).unsqueeze(1).expand(101, 20)  # the central interval of 90 % is 5 to 95
    inside = torch.tensor([4.0, 5.5, 94.5, 96.0]).repeat(5)
    assert example.coverage(drawn, inside) == 0.5
    example.draw({"one": drawn / 100, "two": drawn / 50}, tmp_path / "lynx.png")
    assert (tmp_path / "lynx.png").stat().st_size > 10_000

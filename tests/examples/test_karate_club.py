"""The karate club of the guide to graph networks."""

from pathlib import Path

import pytest
import torch

from bayesify import Categorical, predict

pytest.importorskip("matplotlib")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    import karate_club

    return karate_club


def test_the_network_averages_over_neighbors(example) -> None:
    torch.manual_seed(0)
    net, (x, adjacency), club = example.GraphNetwork(34, 5, 2), example.inputs(), example.CLUB
    degree = torch.tensor([club.degree[member] + 1.0 for member in club])
    hidden = torch.zeros(34, 5)
    for member in club:
        for other in (member, *club.neighbors(member)):
            hidden[member] += net.first(x)[other].detach() / (degree[member] * degree[other]).sqrt()
    torch.testing.assert_close((adjacency @ net.first(x)).detach(), hidden)


def test_members_between_the_sides_are_the_most_uncertain(example, tmp_path) -> None:
    prediction = predict(example.train(), [(example.inputs(),)], Categorical(), samples=50, seed=0)
    y, club = example.sides(), example.CLUB
    right = prediction.probs.argmax(1) == y
    assert right[example.LABELED].all()
    assert right.float().mean() > 0.9
    shares = torch.tensor([float(y[list(club.neighbors(member))].float().mean()) for member in club])
    between, inside = (shares - 0.5).abs() < 0.2, (shares - 0.5).abs() == 0.5
    assert prediction.entropy[between].mean() > prediction.entropy[inside].mean() + 0.1
    example.draw(prediction, tmp_path / "club.png")
    assert (tmp_path / "club.png").stat().st_size > 10_000

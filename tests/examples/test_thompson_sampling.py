"""The example of Thompson sampling: its function, and a search of one round."""

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    import thompson_sampling

    return thompson_sampling


def test_the_function_is_lowest_at_its_three_known_minimizers(example) -> None:
    known = torch.tensor([[-math.pi, 12.275], [math.pi, 2.275], [9.42478, 2.475]], dtype=torch.float64)
    x = torch.stack([(known[:, 0] + 5) / 15, known[:, 1] / 15], -1)
    torch.testing.assert_close(example.branin(x), torch.full((3,), example.LOWEST, dtype=torch.float64), atol=1e-5, rtol=0)


def test_a_search_of_one_round(example) -> None:
    x, y = example.search(0, thompson=True, rounds=1)
    assert x.shape == (example.START + 1, 2)
    assert y.shape == (example.START + 1,)
    assert bool(((x >= 0) & (x <= 1)).all())
    assert float(y.min()) >= example.LOWEST - 1e-4

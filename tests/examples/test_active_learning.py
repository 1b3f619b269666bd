"""Acquisition scores of the example, against enumeration of all labels; one round of each strategy."""

import itertools
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import active_learning

    return active_learning


def mutual_information(p: torch.Tensor, chosen: tuple[int, ...]) -> float:
    """Mean divergence of the joint label distribution of each function from their mixture, label by label."""
    samples, _, classes = p.shape
    total = 0.0
    for labels in itertools.product(range(classes), repeat=len(chosen)):
        each = [float(torch.stack([p[s, i, k] for i, k in zip(chosen, labels, strict=True)]).prod()) for s in range(samples)]
        mixture = torch.tensor(sum(each) / samples, dtype=torch.float64).log().item()
        total += sum(q * (torch.tensor(q, dtype=torch.float64).log().item() - mixture) for q in each) / samples
    return total


def test_selections_maximize_the_mutual_information(example) -> None:
    generator = torch.Generator().manual_seed(0)
    p = (2 * torch.randn(6, 5, 3, generator=generator, dtype=torch.float64)).softmax(-1)
    p[:, 1] = p[:, 0]  # a duplicate, which BALD cannot see
    scores = [mutual_information(p, (i,)) for i in range(5)]
    assert set(example.bald(p, 3)) == set(sorted(range(5), key=lambda i: -scores[i])[:3])
    greedy: list[int] = []
    for _ in range(3):
        rest = [i for i in range(5) if i not in greedy]
        greedy.append(max(rest, key=lambda i: mutual_information(p, (*greedy, i))))
    selected = example.batch_bald(p, 3, generator)
    # The duplicates are interchangeable.
    assert [max(i, 1) for i in selected] == [max(i, 1) for i in greedy]


@pytest.mark.parametrize("strategy", ["random", "BALD", "BatchBALD"])
@pytest.mark.default("random", extended=["BALD"])
def test_a_round_runs(example, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "FUNCTIONS", 5)
    accuracies = example.run(strategy, seed=0, rounds=1)
    assert len(accuracies) == 2
    assert min(accuracies) > 30

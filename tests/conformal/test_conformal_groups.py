"""Calibration rows in groups: the coverage of rows of new groups, and the definition with weights written out."""

import math

import pytest
import torch

from bayesify.conformal import ConformalIntervals, ConformalSets, least_rows
from bayesify.errors import ConfigurationError, DataError
from bayesify.predictive import CategoricalPredictive, GaussianPredictive


def normal(mean, std=1.0):
    return GaussianPredictive(mean[None], torch.tensor(std, dtype=torch.float64))


def classes(logits):
    return CategoricalPredictive.from_logits(logits[None])


SIZES = {"equal": [50] * 20, "one large": [1000] + [5] * 19}


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_of_new_groups_are_covered(sizes, level):
    """Targets are an effect of the group, three times the noise; 2,000 draws of groups, each of which is one output."""
    trials, groups = 2000, torch.arange(20).repeat_interleave(torch.tensor(SIZES[sizes]))
    generator = torch.Generator().manual_seed(0)
    effects, noise = (
        torch.randn(n, trials, generator=generator, dtype=torch.float64) for n in (len(groups.unique()) + 1, len(groups) + 40)
    )
    y = torch.cat([3 * effects[groups], (3 * effects[-1:]).expand(40, -1)]) + noise
    cal, new = normal(torch.zeros_like(y[:-40])), normal(torch.zeros_like(y[:1]))

    def coverage(**given):
        low, high = ConformalIntervals.calibrate(cal, y[:-40], **given).interval(new, level)
        inside = ((low <= y[-40:]) & (y[-40:] <= high)).double().mean(0)
        return inside.mean().item(), inside.std().item() / math.sqrt(trials)

    mean, error = coverage(groups=groups)
    assert level - 4 * error <= mean <= level + 2 / 21 + 4 * error  # the bounds of Lee, Barber & Willett (2023)
    pooled, _ = coverage()
    assert pooled < (level - 0.1 if sizes == "one large" else mean - 0.01)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.93])
@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("outputs", [None, 2])
def test_copies_of_a_row_in_a_group_count_once(outputs, folds, level):
    """Intervals and sets are those of one row per group, without groups."""
    generator = torch.Generator().manual_seed(1)
    sizes = [20 // folds] * folds
    means, targets, logits, labels, copies, groups = [], [], [], [], [], []
    for fold, n in enumerate(sizes):
        shape = (n,) if outputs is None else (n, outputs)
        means.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        targets.append(means[-1] + torch.randn(shape, generator=generator, dtype=torch.float64))
        logits.append(torch.randn(n, 4, generator=generator, dtype=torch.float64))
        labels.append(torch.randint(4, (n,), generator=generator))
        copies.append(torch.arange(n).repeat_interleave(torch.randint(1, 30, (n,), generator=generator)))
        groups.append(100 * fold + copies[-1])
    new = [normal(torch.randn(means[0][:5].shape, generator=generator, dtype=torch.float64)) for _ in sizes]
    once = ConformalIntervals.calibrate([normal(m) for m in means], targets)
    many = ConformalIntervals.calibrate(
        [normal(m[rows]) for m, rows in zip(means, copies, strict=True)],
        [y[rows] for y, rows in zip(targets, copies, strict=True)],
        groups=groups,
    )
    assert many.groups == once.rows < many.rows
    torch.testing.assert_close(many.interval(new, level), once.interval(new, level), rtol=0, atol=1e-6)
    new = [classes(torch.randn(50, 4, generator=generator, dtype=torch.float64)) for _ in sizes]
    for score in ("lac", "aps"):
        once = ConformalSets.calibrate([classes(x) for x in logits], labels, score)
        many = ConformalSets.calibrate(
            [classes(x[rows]) for x, rows in zip(logits, copies, strict=True)],
            [y[rows] for y, rows in zip(labels, copies, strict=True)],
            score,
            groups=groups,
        )
        assert torch.equal(many.sets(new, level), once.sets(new, level))


def test_intervals_and_sets_are_those_of_the_definition():
    """Every candidate is tried: the weight of the scores below its own, summed by group."""
    generator = torch.Generator().manual_seed(2)
    groups = torch.randint(12, (80,), generator=generator)
    y = torch.randn(80, generator=generator, dtype=torch.float64)
    low, high = ConformalIntervals.calibrate(normal(torch.zeros_like(y)), y, groups=groups).interval(normal(y[:1] * 0), 0.7)
    grid = torch.linspace(0, 4, 40001, dtype=torch.float64)
    below = sum((y[groups == g].abs()[:, None] < grid).double().mean(0) for g in range(12))
    expected = grid[below < 13 * 0.7].max().item()
    assert high.item() == pytest.approx(expected, abs=2e-4)
    assert low.item() == pytest.approx(-expected, abs=2e-4)

    logits, labels = torch.randn(80, 4, generator=generator, dtype=torch.float64), torch.randint(4, (80,), generator=generator)
    new = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    sets = ConformalSets.calibrate(classes(logits), labels, groups=groups).sets(classes(new), 0.7)
    scores = logits.softmax(1)[torch.arange(80), labels]
    below = sum((scores[groups == g][:, None, None] > new.softmax(1)).double().mean(0) for g in range(12))
    expected = (below < 13 * 0.7) | (new == new.amax(1, keepdim=True))
    assert torch.equal(sets, expected)
    assert 0.3 < sets.double().mean() < 0.95


def test_levels_need_groups_not_rows():
    groups = torch.arange(10).repeat_interleave(100)
    calibration = ConformalIntervals.calibrate(normal(torch.zeros(1000)), torch.randn(1000), groups=groups)
    with pytest.raises(ConfigurationError, match=r"level=0.95 needs at least 19 calibration groups, got 10; .* at most 0.909"):
        calibration.interval(normal(torch.zeros(3)), 0.95)
    assert calibration.groups == 10 < least_rows(0.95)
    assert "rows of new groups on average, where every group counts alike (conformal, 1,000 calibration rows in 10 groups)" in (
        calibration.guarantee(0.9)
    )
    halves = ConformalIntervals.calibrate([normal(torch.zeros(500))] * 2, [torch.randn(500)] * 2, groups=groups.chunk(2))
    assert "at least 53.3% in the worst case" in halves.guarantee(0.85)  # with two folds of 5 groups: 0.7 - 1 / 6
    restored = ConformalIntervals.from_dict(halves.to_dict())
    new = [normal(torch.zeros(3)), normal(torch.ones(3))]
    assert torch.equal(torch.stack(restored.interval(new, 0.8)), torch.stack(halves.interval(new, 0.8)))


def test_bad_groups_are_refused():
    p, y = normal(torch.zeros(6)), torch.zeros(6)
    with pytest.raises(DataError, match=r"a label per row of each fold, \[6\], got shapes \[\(5,\)\]"):
        ConformalIntervals.calibrate(p, y, groups=torch.arange(5))
    with pytest.raises(DataError, match="group 5 has rows in several folds"):
        ConformalIntervals.calibrate([p, p], [y, y], groups=[torch.arange(6), torch.arange(5, 11)])
    with pytest.raises(ConfigurationError, match="weights must have the shapes of scores"):
        ConformalIntervals.from_dict({"scores": [[0.1, 0.2]], "weights": [[1.0]]})

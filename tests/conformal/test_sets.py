"""Conformal sets of labels: coverage, agreement with other implementations, and what is refused."""

import itertools
import math

import pytest
import torch

from bayesify.conformal import ConformalSets, conformal_rank
from bayesify.errors import ConfigurationError, DataError, DivergenceError
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive

np = pytest.importorskip("numpy")


def classes(rows, k=5, seed=0, scale=1.0):
    """A predictive distribution that is overconfident by `scale`, and labels from the distribution without it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(rows, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return CategoricalPredictive.from_logits(scale * logits[None]), labels


def part(p, rows):
    return CategoricalPredictive(p.log_probs[rows], p.expected_entropy[rows], p.draws)


@pytest.mark.default("19-0.95-*", extended=["10-0.9-*"])
@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize(("n", "level"), [(10, 0.9), (19, 0.95), (20, 0.9), (60, 0.8)])
def test_coverage_is_exact_although_the_model_is_wrong(n, level, score):
    """An overconfident model; 1,000 draws of calibration rows, 20 new rows each."""
    trials, new = 1000, 20
    p, y = classes(trials * (n + new), scale=2.0, seed=n)
    inside, below = [], []
    for rows in torch.arange(len(p)).reshape(trials, -1):
        cal, rest = rows[:n], rows[n:]
        calibration = ConformalSets.calibrate(part(p, cal), y[cal], score)
        inside.append(calibration.sets(part(p, rest), level).gather(1, y[rest, None]).double().mean().item())
        (scores,) = ConformalSets.calibrate(part(p, rest), y[rest], score).scores
        below.append((scores <= calibration.scores[0][conformal_rank(n, level) - 1]).double().mean().item())
    rank = conformal_rank(n, level)
    spread = math.sqrt((rank * (n + 1 - rank) / ((n + 1) ** 2 * (n + 2)) + 0.25 / new) / trials)
    ties = 0.02 if score == "aps" else 0.0  # the least probable label has the score 1
    assert rank / (n + 1) - 4 * spread <= np.mean(below) <= rank / (n + 1) + 4 * spread + ties
    assert np.mean(inside) >= np.mean(below)  # the most probable label is in sets that would be empty
    assert n == 60 or 1 / (n + 1) > 8 * spread  # one rank less would be noticed


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_lac_agrees_with_crepes_and_mapie(level):
    crepes = pytest.importorskip("crepes")
    classification = pytest.importorskip("mapie.classification")
    (cal, y), (new, _) = classes(150), classes(40, seed=1)
    ours = ConformalSets.calibrate(cal, y).sets(new, level).numpy()

    reference = crepes.ConformalClassifier()
    reference.fit((1 - cal.probs[torch.arange(150), y]).numpy())
    expected = reference.predict_set((1 - new.probs).numpy(), confidence=level, smoothing=False).astype(bool)
    assert (ours == with_best(expected, new)).all()

    fitted = classification.SplitConformalClassifier(Fixed(5), confidence_level=level, conformity_score="lac")
    fitted.conformalize(cal.probs.numpy(), y.numpy())
    expected = fitted.predict_set(new.probs.numpy())[1][..., 0].astype(bool)
    assert (ours == with_best(expected, new)).all()


def with_best(sets, predictive):
    sets = sets.copy()
    sets[np.arange(len(sets)), predictive.prediction.numpy()] = True
    return sets


class Fixed:
    """A fitted scikit-learn classifier whose inputs are the probabilities."""

    def __init__(self, k):
        self.classes_ = np.arange(k)
        self.is_fitted_ = True

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return x

    def predict(self, x):
        return x.argmax(1)

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_folds_count_the_rows_with_smaller_scores(score):
    """The definition, row by row."""
    folds = [classes(n, seed=n) for n in (20, 21, 22)]
    new = [classes(8, seed=90 + k, scale=1 + k)[0] for k in range(3)]
    calibration = ConformalSets.calibrate([p for p, _ in folds], [y for _, y in folds], score)
    sets = calibration.sets(new, 0.8)

    def score_of(p, row, k):
        probs = p.probs[row]
        return -probs[k].item() if score == "lac" else probs[probs >= probs[k]].sum().item() - 1e-12

    for row in range(8):
        for k in range(5):
            below = sum(
                score_of(p, i, y[i]) < score_of(q, row, k) for (p, y), q in zip(folds, new, strict=True) for i in range(len(y))
            )
            best = torch.stack([q.log_probs for q in new]).sum(0)[row].argmax() == k
            assert sets[row, k].item() == (below < conformal_rank(63, 0.8) or (best.item() and score == "lac")) or best


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_grow_with_the_level_and_are_never_empty(score):
    (cal, y), (new, _) = classes(99), classes(50, seed=1, scale=20.0)
    calibration = ConformalSets.calibrate(cal, y, score)
    sets = [calibration.sets(new, level) for level in np.linspace(0.02, 0.98, 49).tolist()]
    assert all((small <= large).all() for small, large in itertools.pairwise(sets))
    assert all(part.any(1).all() for part in sets)
    assert sets[-1].double().mean() > sets[0].double().mean()


def test_probabilities_of_zero_and_one():
    logits = torch.tensor([[900.0, 0.0, -900.0]]).repeat(40, 1)
    p = CategoricalPredictive.from_logits(logits[None])
    y = (torch.arange(40) % 3 == 2).long() * 2
    for score in ("lac", "aps"):
        sets = ConformalSets.calibrate(p, y, score).sets(p, 0.9)
        assert sets.gather(1, y[:, None]).double().mean() >= 0.9


def test_binary_targets():
    p = BernoulliPredictive.from_logits(torch.linspace(-3, 3, 60)[None])
    y = (torch.linspace(-3, 3, 60) + 2 * torch.randn(60) > 0).long()
    sets = ConformalSets.calibrate(p, y).sets(p, 0.9)
    assert sets.shape == (60, 2)
    assert sets.gather(1, y[:, None]).double().mean() >= 0.9


def test_saved_and_restored():
    p, y = classes(50)
    calibration = ConformalSets.calibrate(p, y, "aps")
    restored = ConformalSets.from_dict(calibration.to_dict())
    assert restored.score == "aps"
    assert torch.equal(restored.sets(p, 0.8), calibration.sets(p, 0.8))
    assert calibration.guarantee(0.9).startswith("Sets of labels contain the target of at least 90%")


def test_bad_input_is_refused():
    p, y = classes(30)
    with pytest.raises(ConfigurationError, match="needs at least 99 calibration rows, got 30"):
        ConformalSets.calibrate(p, y).sets(p, 0.99)
    with pytest.raises(ConfigurationError, match="score must be one of 'lac', 'aps', got 'raps'"):
        ConformalSets.calibrate(p, y, "raps")
    with pytest.raises(TypeError, match="got GaussianPredictive"):
        ConformalSets.calibrate(GaussianPredictive(torch.zeros(1, 30), torch.tensor(1.0)), y)
    with pytest.raises(TypeError, match="integer class labels"):
        ConformalSets.calibrate(p, y.double())
    with pytest.raises(DataError, match="from 0 to 4"):
        ConformalSets.calibrate(p, y + 1)
    with pytest.raises(DataError, match="shape"):
        ConformalSets.calibrate(p, y[:29])
    with pytest.raises(DataError, match="one label per row"):
        ConformalSets.calibrate(CategoricalPredictive.from_logits(torch.zeros(1, 4, 7, 3)), torch.zeros(4, 7).long())
    with pytest.raises(DivergenceError, match="NaN"):
        ConformalSets.calibrate(CategoricalPredictive.from_logits(torch.full((1, 30, 5), float("nan"))), y)

"""The verdict: false alarms at the stated rate, power for a stated miscalibration, and no judgment that the rows do not support."""

import math

import pytest
import torch
from known_predictions import categorical, gaussian

from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive
from bayesify.report import assess
from bayesify.report.calibration_tests import LEVELS, class_calibration, interval_calibration
from bayesify.report.skill import CONSTANT, constant_baseline, difference

pytest.importorskip("torchmetrics")


def sentences(p, y, **options):
    return assess(p, y, **options).verdict


def about(verdict, words):
    return next(sentence for sentence in verdict if words in sentence.finding)


@pytest.mark.parametrize(
    ("rows", "spread", "mark", "word"),
    [(1000, 1.0, "good", "Well calibrated"), (1000, 2.0, "bad", "Overconfident"), (1000, 0.4, "caution", "intervals are too wide"),
     (10, 1.0, "caution", "too few"), (2, 0.0, "caution", "too few"), (99, 1.0, "caution", "too few")],
)  # fmt: skip
def test_verdict_on_coverage(rows, spread, mark, word):
    first = sentences(*gaussian(rows, spread))[0]
    assert (first.mark, word in first.meaning) == (mark, True), first


def test_a_coverage_of_95_percent_does_not_make_a_model_calibrated():
    y = torch.distributions.Laplace(0.0, 0.5).sample((400,))  # sharp center, heavy tails
    scale = y.abs().quantile(0.95) / 1.96
    p = GaussianPredictive(torch.zeros(1, 400), scale)
    lower, upper = p.interval(0.95)
    assert ((lower <= y) & (y <= upper)).float().mean() == pytest.approx(0.95, abs=0.005)
    lower, upper = p.interval(0.5)
    assert ((lower <= y) & (y <= upper)).float().mean() > 0.6
    first = sentences(p, y)[0]
    assert first.mark == "caution"
    assert "too wide" in first.meaning


def test_a_bias_inside_the_intervals_is_named():
    y = torch.randn(600, generator=torch.Generator().manual_seed(0)).abs()
    first = sentences(GaussianPredictive(torch.zeros(1, 600), torch.tensor(1.0)), y)[0]
    assert first.mark == "caution"
    assert "predictions are too low: 100% of the targets are above the median" in first.meaning


def test_verdict_states_the_coverage_at_every_level():
    p, y = gaussian(200)
    shares = []
    for level in LEVELS:
        lower, upper = p.interval(level)
        shares.append(f"{100 * ((lower <= y) & (y <= upper)).double().mean().item():.1f}".removesuffix(".0"))
    finding = sentences(p, y)[0].finding
    assert f"contain {', '.join(shares[:-1])} and {shares[-1]}% of the targets (200 held-out rows)" in finding
    assert "held-out" not in sentences(p, y, held_out=False)[0].finding


def test_the_output_that_deviates_is_named():
    p, y = gaussian(500, outputs=3)
    y[:, 1] = p.mean[:, 1] + 2 * (y[:, 1] - p.mean[:, 1])
    first = sentences(p, y)[0]
    assert "too narrow" in first.meaning
    assert "Most of all output 2" in first.meaning
    assert "500 held-out rows \N{MULTIPLICATION SIGN} 3 outputs" in first.finding


def rate(p_values, level=0.05):
    return sum(p <= level for p in p_values) / len(p_values)


@pytest.mark.parametrize(("rows", "outputs"), [(5, 1), (40, 1), (150, 1), (1500, 1), (100, 4)])
def test_false_alarms_of_the_test_of_intervals(rows, outputs):
    pit = torch.rand(1500, rows, outputs)
    dependent = torch.where(torch.rand(1500, 1, 1) < 0.5, pit, pit[..., :1])  # outputs of half the tables are copies
    assert rate([interval_calibration(each).p for each in dependent]) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


@pytest.mark.parametrize(("rows", "spread", "least"), [(100, 1.5, 0.95), (300, 1.25, 0.95), (100, 0.6, 0.95), (300, 0.8, 0.9)])
def test_power_of_the_test_of_intervals(rows, spread, least):
    pit = torch.special.ndtr(spread * torch.randn(300, rows))
    assert rate([interval_calibration(each).p for each in pit]) >= least


@pytest.mark.parametrize(("rows", "k", "scale"), [(25, 2, 2.0), (120, 3, 2.0), (200, 2, 8.0)])
def test_false_alarms_of_the_test_of_classes(rows, k, scale):
    values = []
    for _ in range(150):
        probs = (scale * torch.randn(rows, k)).softmax(-1)
        values.append(class_calibration(probs, torch.multinomial(probs, 1)[:, 0]).p)
    assert rate(values) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)


def test_power_of_the_test_of_classes():
    """Logits twice as large as they should be; two classes of which one gets too much probability though confidence is right."""
    sharp, shifted = [], []
    for _ in range(30):
        logits = 2 * torch.randn(200, 3)
        y = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        sharp.append(class_calibration((2 * logits).softmax(-1), y).p)
        p = 0.5 + 0.4 * (torch.rand(400) - 0.5)
        swapped = (torch.rand(400) < p - 0.12).long()
        shifted.append(class_calibration(torch.stack([1 - p, p], 1), swapped).p)
    assert rate(sharp) >= 0.9
    assert rate(shifted) >= 0.9


def test_many_rows_are_tested_on_a_sample():
    p, y = categorical(60_000, k=2)
    assert class_calibration(p.probs, y).p > 0.001


@pytest.mark.parametrize(
    ("rows", "sharpen", "mark", "word"),
    [(3000, 1.0, "good", "Well calibrated"), (3000, 3.0, "bad", "Overconfident"), (3000, 0.3, "caution", "Underconfident"),
     (8, 1.0, "caution", "too few"), (2, 9.0, "caution", "too few")],
)  # fmt: skip
def test_verdict_on_confidence(rows, sharpen, mark, word):
    first = sentences(*categorical(rows, sharpen=sharpen))[0]
    assert (first.mark, word in first.meaning) == (mark, True), first


def test_a_class_with_too_much_probability_is_named():
    p = torch.full((2000, 3), 0.1)
    p[:, 0] = 0.8
    y = torch.zeros(2000, dtype=torch.long)
    y[:400] = 2
    first = sentences(CategoricalPredictive.from_logits(p.log().unsqueeze(0)), y, labels=["a", "b", "c"])[0]
    assert first.mark == "caution"
    assert "class c is too low: 10% on average, while its share is 20%" in first.meaning


@pytest.mark.parametrize("confidence", [0.7, 0.97, 1 - 1e-6])
@pytest.mark.parametrize("rows", [2, 60, 500])
@pytest.mark.parametrize("single", [False, True])
def test_a_perfect_classifier_gets_no_bad_sentence(rows, confidence, single):
    y = torch.zeros(rows).long() if single else torch.arange(rows) % 2
    logit = math.log(confidence / (1 - confidence)) * (2 * y - 1) * (1 + 0.01 * torch.rand(rows))
    p = BernoulliPredictive.from_logits(logit.unsqueeze(0))
    better = BernoulliPredictive.from_logits(3 * logit.unsqueeze(0))
    verdict = sentences(p, y, training_y=torch.arange(100) % 2, baselines={"gradient boosting": better})
    assert all(sentence.mark != "bad" for sentence in verdict), verdict
    assert not any("wrong" in sentence.meaning or "most uncertain" in sentence.finding for sentence in verdict)


def test_rare_classes_are_judged_by_probabilities_and_not_by_accuracy():
    generator = torch.Generator().manual_seed(0)
    logit = -6 + 2.2 * torch.randn(4000, generator=generator)
    y = torch.bernoulli(logit.sigmoid(), generator=generator)
    assert 0.005 < y.mean() < 0.03
    skill = about(sentences(BernoulliPredictive.from_logits(logit.unsqueeze(0)), y), "log loss")
    assert skill.mark == "good"
    assert "balanced accuracy" in skill.finding
    assert "ROC AUC 0.9" in skill.finding
    lazy = constant_baseline(BernoulliPredictive.from_logits(torch.zeros(1, 4000)), y)
    skill = about(sentences(lazy, y), "log loss")
    assert skill.mark != "good"
    assert "one class is predicted for every row" in skill.finding


def test_class_weights_are_no_fault_of_the_columns():
    generator = torch.Generator().manual_seed(0)
    logit = -3.5 + 1.5 * torch.randn(4000, generator=generator)
    y = torch.bernoulli(logit.sigmoid(), generator=generator)
    shift = (1 / y.mean() - 1).log()  # with equal totals of both classes, the odds are multiplied by the ratio of the weights
    weighted = BernoulliPredictive.from_logits((logit + shift).unsqueeze(0))
    assert "columns may not be informative" in about(sentences(weighted, y), "log loss").meaning
    calibration, skill, *_ = sentences(weighted, y, class_weights=True)
    assert calibration.mark == skill.mark == "caution"
    assert "those of the weighted training table" in calibration.meaning
    assert "informative" not in skill.meaning
    assert "compare the balanced accuracy" in skill.meaning
    right = BernoulliPredictive.from_logits(logit.unsqueeze(0))
    assert sentences(right, y, class_weights=True) == sentences(right, y)


def test_verdict_when_the_constant_is_as_good():
    p = GaussianPredictive(torch.zeros(2, 500), torch.tensor(1.0))
    y = torch.randn(500, generator=torch.Generator().manual_seed(0))
    worse = sentences(GaussianPredictive(p.means + y.mean() + 0.3, p.stds), y)[1]
    assert worse.mark == "bad"
    assert "No better than the constant prediction" in worse.meaning


def regression_against(factor, rows=300):
    """The verdict on a model with residuals `factor` times those of a baseline, and half of them its own."""
    y, shared, apart = 3 * torch.randn(rows), torch.randn(rows), torch.randn(2, rows)
    means = y + torch.stack([factor * (shared + apart[0]), shared + apart[1]]) / 2**0.5
    model, other = (GaussianPredictive(mean.unsqueeze(0), torch.tensor(1.0)) for mean in means)
    return about(sentences(model, y, baselines={"ridge regression": other}), "RMSE")


@pytest.mark.parametrize(
    ("factor", "mark", "word"),
    [
        (0.6, "good", "Better than ridge regression"),
        (1.0, "good", "About as good as"),
        (2.0, "bad", "Ridge regression is clearly better"),
    ],
)
def test_the_best_baseline_is_named(factor, mark, word):
    sentence = regression_against(factor)
    assert (sentence.mark, word in sentence.meaning) == (mark, True), sentence
    assert "for the constant prediction" in sentence.finding
    assert "--method" in sentence.meaning or mark == "good"
    assert mark == "bad" or sentence.meaning.startswith("The RMSE is ")


def test_a_model_of_twice_the_error_of_a_baseline_is_never_good():
    assert all(regression_against(2.05, rows=64).mark == "bad" for _ in range(50))  # 300 columns x 320 rows, a fifth held out


def test_few_rows_never_give_a_green_tick():
    for rows in (2, 5, 29):
        for p, y in (gaussian(rows, 1.0), categorical(rows)):
            assert all(sentence.mark != "good" for sentence in sentences(p, y))


def test_differences_have_the_standard_error_of_paired_values():
    stats = pytest.importorskip("scipy.stats")
    a, b = torch.randn(50), torch.randn(50) + 0.3
    gap = difference(a, b)
    assert gap.mean / gap.error == pytest.approx(stats.ttest_rel(a.double(), b.double()).statistic)
    assert not difference(torch.zeros(1), torch.ones(1)).is_better


def test_a_likelihood_below_that_of_a_baseline_is_named():
    p, y = gaussian(400)
    overconfident = GaussianPredictive(p.means, torch.tensor(0.3))
    other = GaussianPredictive(p.means, torch.tensor(1.0))
    sentence = about(sentences(overconfident, y, baselines={"ridge regression": other}), "negative log-likelihood")
    assert sentence.mark == "caution"
    near = GaussianPredictive(p.means, torch.tensor(0.9))
    finding = about(sentences(near, y, baselines={"ridge regression": other}), "negative log-likelihood").finding
    numbers = [word for word in finding.split() if word[0].isdigit()]
    assert len(set(numbers)) == 2, f"the difference must show: {finding}"
    assert not any("log-likelihood" in each.finding for each in sentences(other, y, baselines={"ridge regression": overconfident}))


def test_verdict_on_the_ranking_of_errors_by_uncertainty():
    std = torch.linspace(0.1, 3, 400)
    y = std * torch.randn(400, generator=torch.Generator().manual_seed(0))
    ranked = about(sentences(GaussianPredictive(torch.zeros(1, 400), std.view(1, -1)), y), "most uncertain")
    reversed_ranking = about(sentences(GaussianPredictive(torch.zeros(1, 400), std.flip(0).view(1, -1)), y), "most uncertain")
    assert (ranked.mark, reversed_ranking.mark) == ("good", "caution")
    assert about(sentences(*gaussian(400)), "same for all rows").mark == "caution"


def test_constant_baseline_of_regression():
    y, training_y = torch.tensor([0.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
    p = GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0))
    scores = assess(p, y, training_y=training_y).baselines[CONSTANT]
    assert scores["rmse"] == pytest.approx(2.0)
    std = math.sqrt(2 / 3)
    assert scores["nll"] == pytest.approx(0.5 * (2 / std) ** 2 + math.log(std) + 0.5 * math.log(2 * math.pi))


def test_constant_baseline_of_classification():
    p, _ = categorical(4, k=2)
    scores = assess(p, torch.tensor([0, 0, 0, 1]), training_y=torch.tensor([0] * 300 + [1] * 100)).baselines[CONSTANT]
    assert scores["accuracy"] == pytest.approx(0.75)
    assert scores["nll"] == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-3)
    b = BernoulliPredictive.from_logits(torch.randn(2, 4))
    assert assess(b, torch.tensor([0, 0, 0, 1])).baselines[CONSTANT]["accuracy"] == pytest.approx(0.75)

"""Metrics against sklearn, torchmetrics, scipy and enumeration by hand."""

import builtins
import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

from bayesify.metrics import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier,
    coverage,
    crps,
    evaluate,
    expected_calibration_error,
    interval_width,
    maximum_calibration_error,
    nll,
    ood_metrics,
    reliability,
    rmse,
    roc_auc,
)
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive

N, K = 500, 4


def classes():
    probs = torch.randn(N, K, dtype=torch.float64).mul(2).softmax(-1)
    y = torch.where(torch.rand(N) < 0.5, probs.argmax(1), torch.randint(0, K, (N,)))
    return probs, y


def test_proper_scores_match_sklearn():
    probs, y = classes()
    assert float(nll(probs, y)) == pytest.approx(sklearn.metrics.log_loss(y, probs))
    assert float(accuracy(probs, y)) == pytest.approx(sklearn.metrics.accuracy_score(y, probs.argmax(1)))
    assert float(brier(probs, y)) == pytest.approx(
        np.mean(
            [sum((p - (k == label)) ** 2 for k, p in enumerate(row)) for row, label in zip(probs.tolist(), y.tolist(), strict=True)]
        )
    )


def test_two_classes_as_one_probability():
    p, y = torch.rand(N, dtype=torch.float64), torch.randint(0, 2, (N,))
    assert float(nll(p, y)) == pytest.approx(sklearn.metrics.log_loss(y, p))
    assert float(brier(p, y)) == pytest.approx(2 * np.mean((p.numpy() - y.numpy()) ** 2))
    assert float(accuracy(p, y.bool())) == pytest.approx(np.mean((p.numpy() > 0.5) == y.numpy()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_of_imbalanced_classes_match_sklearn(ties, dtype):
    probs, y = classes()
    probs = probs.to(dtype)
    if ties:
        probs = (4 * probs).round() + 1
        probs = probs / probs.sum(1, keepdim=True)
    assert float(balanced_accuracy(probs, y)) == pytest.approx(sklearn.metrics.balanced_accuracy_score(y, probs.argmax(1)))
    one_vs_rest = [(y == k, probs[:, k]) for k in range(K)]
    auc = np.mean([sklearn.metrics.roc_auc_score(*each) for each in one_vs_rest])
    precision = np.mean([sklearn.metrics.average_precision_score(*each) for each in one_vs_rest])
    assert float(roc_auc(probs, y)) == pytest.approx(auc)
    assert float(average_precision(probs, y)) == pytest.approx(precision)
    p, rare = probs[:, 0], torch.rand(N) < 0.05 + 0.1 * probs[:, 0]
    assert float(roc_auc(p, rare)) == pytest.approx(sklearn.metrics.roc_auc_score(rare, p))
    assert float(average_precision(p, rare)) == pytest.approx(sklearn.metrics.average_precision_score(rare, p))
    assert float(average_precision(p, rare, positive=0)) == pytest.approx(sklearn.metrics.average_precision_score(~rare, 1 - p))


def test_the_area_under_the_curve_of_many_rows_is_exact_in_float32():
    p = torch.rand(300_000)
    y = torch.rand(300_000) < p
    assert float(roc_auc(p, y)) == pytest.approx(sklearn.metrics.roc_auc_score(y, p), abs=1e-6)


def test_evaluate_finds_the_rarer_of_two_classes_and_leaves_out_what_is_not_defined():
    p = torch.rand(N, dtype=torch.float64)
    y = (torch.rand(N) < 0.9 * p.sqrt()).long()
    for q, labels in ((p, y), (1 - p, 1 - y)):
        scores = evaluate(BernoulliPredictive.from_logits(q.logit().unsqueeze(0)), labels)
        rare = labels == (0 if labels.double().mean() > 0.5 else 1)
        score = q if labels.double().mean() <= 0.5 else 1 - q
        assert scores["average_precision"] == pytest.approx(sklearn.metrics.average_precision_score(rare, score))
        assert scores["roc_auc"] == pytest.approx(sklearn.metrics.roc_auc_score(labels, q))
    single = evaluate(BernoulliPredictive.from_logits(p.logit().unsqueeze(0)), torch.ones(N))
    assert "roc_auc" not in single
    assert single["balanced_accuracy"] == single["accuracy"]
    assert math.isnan(float(roc_auc(p, torch.ones(N).long())))
    assert math.isnan(float(average_precision(p, torch.ones(N).long())))


def gaps_by_hand(probs, y, bins, binning):
    """(rows, |accuracy - confidence|) of each bin, row by row."""
    confidence, correct = probs.max(1).values.tolist(), (probs.argmax(1) == y).tolist()
    rows = sorted(zip(confidence, correct, strict=True))
    if binning == "mass":
        groups = np.array_split(np.arange(len(rows)), bins)
        members = [[rows[i] for i in group] for group in groups]
    else:
        members = [[r for r in rows if min(int(r[0] * bins), bins - 1) == b] for b in range(bins)]
    return [(len(m), abs(np.mean([c for _, c in m]) - np.mean([p for p, _ in m]))) for m in members if m]


@pytest.mark.parametrize(("bins", "binning"), [(15, "width"), (10, "width"), (1, "width"), (10, "mass"), (20, "mass")])
def test_calibration_errors_match_enumeration(bins, binning):
    probs, y = classes()
    gaps = gaps_by_hand(probs, y, bins, binning)
    assert float(expected_calibration_error(probs, y, bins, binning)) == pytest.approx(sum(n * gap for n, gap in gaps) / N)
    assert float(maximum_calibration_error(probs, y, bins, binning)) == pytest.approx(max(gap for _, gap in gaps))


def test_the_maximum_calibration_error_can_leave_out_bins_of_a_few_rows():
    probs, y = classes()
    gaps = gaps_by_hand(probs, y, 20, "width")
    counts = sorted(n for n, _ in gaps)
    for least in (counts[0] + 1, counts[-1]):
        expected = max(gap for n, gap in gaps if n >= least)
        assert float(maximum_calibration_error(probs, y, 20, least=least)) == pytest.approx(expected)
    widest = max(gaps, key=lambda bin: bin[1])
    assert float(maximum_calibration_error(probs, y, 20, least=widest[0] + 1)) < widest[1] - 1e-3
    with pytest.raises(ValueError, match=f"least={counts[-1] + 1} rows, the largest has {counts[-1]}"):
        maximum_calibration_error(probs, y, 20, least=counts[-1] + 1)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_reliability_holds_what_the_calibration_error_sums(binning):
    probs, y = classes()
    r = reliability(probs, y, 12, binning)
    assert int(r.count.sum()) == N
    total = ((r.accuracy - r.confidence).abs() * r.count).nansum() / N
    torch.testing.assert_close(total, expected_calibration_error(probs, y, 12, binning))
    if binning == "width":
        assert r.confidence[:3].isnan().all()  # no confidence below 1 / K
    else:
        assert int(r.count.max() - r.count.min()) <= 1


def test_a_confidence_of_one_shares_the_last_bin():
    probs, y = torch.tensor([[1.0, 0.0], [0.99, 0.01]]), torch.tensor([1, 0])
    assert float(expected_calibration_error(probs, y, bins=10)) == pytest.approx(abs(0.5 - 0.995))
    assert reliability(probs, y, bins=10).count[-1] == 2
    # Rounding may put a probability above 1; it still counts as one.
    assert float(expected_calibration_error(probs * (1 + 1e-6), y, bins=10)) == pytest.approx(abs(0.5 - 0.995), abs=1e-5)


def test_rows_of_equal_confidence_stay_in_one_bin_of_equal_mass():
    probs, y = torch.full((100,), 0.75), torch.arange(100) % 4 != 0
    for order in (torch.arange(100), y.long().argsort()):
        assert float(expected_calibration_error(probs[order], y[order], 10, "mass")) == pytest.approx(0, abs=1e-6)


def test_regression_scores():
    mean, y = torch.randn(N, 2, dtype=torch.float64), torch.randn(N, 2, dtype=torch.float64)
    assert float(rmse(mean, y)) == pytest.approx(sklearn.metrics.mean_squared_error(y.flatten(), mean.flatten()) ** 0.5)
    lower, upper = torch.tensor([0.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 2.0, 4.0])
    assert float(coverage(lower, upper, torch.tensor([0.0, 1.0, 2.5, -1.0]))) == 0.5
    assert float(interval_width(lower, upper)) == 2.0
    with pytest.raises(ValueError, match="y has shape"):
        rmse(mean[:, 0], y)


def test_evaluate_numbers_against_scipy():
    torch.manual_seed(1)
    y = torch.randn(4000, dtype=torch.float64)
    scores = evaluate(GaussianPredictive(torch.zeros(1, 4000).double(), torch.tensor(1.0).double()), y.unsqueeze(-1))
    assert set(scores) == {"nll", "rmse", "crps", "coverage_95", "width_95"}
    assert scores["nll"] == pytest.approx(-scipy.stats.norm.logpdf(y).mean())
    assert scores["width_95"] == pytest.approx(2 * scipy.stats.norm.ppf(0.975))
    assert scores["coverage_95"] == pytest.approx(0.95, abs=0.014)  # four standard errors
    assert scores["crps"] == pytest.approx(1 / math.sqrt(math.pi), rel=0.04)  # the expectation for a calibrated normal
    assert scores["rmse"] == pytest.approx(1, rel=0.05)
    assert scores["crps"] == pytest.approx(float(crps(GaussianPredictive(torch.zeros(1, 4000).double(), torch.ones(())), y)))


def test_evaluate_classes():
    logits, y = torch.randn(6, N, K, dtype=torch.float64), torch.randint(0, K, (N,))
    p = CategoricalPredictive.from_logits(logits)
    scores = evaluate(p, y)
    probs = logits.softmax(-1).mean(0)
    assert set(scores) == {"nll", "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "brier", "ece", "mce"}
    assert scores["nll"] == pytest.approx(sklearn.metrics.log_loss(y, probs))
    assert scores["ece"] == pytest.approx(float(expected_calibration_error(probs, y)))


def test_evaluate_leaves_ignored_tokens_out():
    logits, y = torch.randn(2, 5, 7, K), torch.randint(0, K, (5, 7))
    y[:, 4:] = -100
    scores = evaluate(CategoricalPredictive.from_logits(logits), y)
    probs = logits.softmax(-1).mean(0)[:, :4].reshape(-1, K)
    assert scores["accuracy"] == pytest.approx(float((probs.argmax(1) == y[:, :4].flatten()).float().mean()))
    assert scores["nll"] == pytest.approx(
        4 * sklearn.metrics.log_loss(y[:, :4].flatten(), probs.double() / probs.double().sum(1, True), labels=range(K)), rel=1e-5
    )


@pytest.mark.parametrize("shape", [(6, N), (6, N, 3)])
def test_evaluate_yes_or_no(shape):
    logits, y = torch.randn(shape, dtype=torch.float64), torch.randint(0, 2, shape[1:])
    scores = evaluate(BernoulliPredictive.from_logits(logits), y.double())
    p = logits.sigmoid().mean(0).flatten()
    labels = shape[2] if len(shape) > 2 else 1
    assert scores["nll"] == pytest.approx(labels * sklearn.metrics.log_loss(y.flatten(), p))
    assert scores["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(y.flatten(), p > 0.5))
    assert scores["brier"] == pytest.approx(2 * float((p - y.flatten()).square().mean()))


@pytest.mark.parametrize("scale", [0.1, 1.0, 1000.0])  # beyond [0, 1] too, where a sigmoid would tie the scores
@pytest.mark.parametrize("ties", [False, True])
def test_ood_metrics_match_sklearn(scale, ties):
    score_in, score_out = torch.randn(300, dtype=torch.float64), torch.randn(200, dtype=torch.float64) + 1
    if ties:
        score_in, score_out = score_in.round(), score_out.round()
    score_in, score_out = score_in * scale + 50 * scale, score_out * scale + 50 * scale
    scores, is_in = torch.cat([score_in, score_out]).numpy(), np.arange(500) < 300
    result = ood_metrics(score_in, score_out)
    fpr, tpr, _ = sklearn.metrics.roc_curve(is_in, -scores, drop_intermediate=False)
    assert result["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(is_in, -scores), abs=1e-6)
    assert result["aupr_in"] == pytest.approx(sklearn.metrics.average_precision_score(is_in, -scores), abs=1e-6)
    assert result["aupr_out"] == pytest.approx(sklearn.metrics.average_precision_score(~is_in, scores), abs=1e-6)
    assert result["fpr95"] == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-6)
    assert result["detection_error"] == pytest.approx((0.5 * (1 - tpr) + 0.5 * fpr).min(), abs=1e-6)


def test_ood_metrics_by_hand():
    # Thresholds by enumeration: all four familiar inputs pass at 0.4, and so does one unfamiliar of two.
    result = ood_metrics(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.35, math.inf]))
    assert result["fpr95"] == pytest.approx(0.5)
    assert result["detection_error"] == pytest.approx(0.125)  # at 0.3: three of four pass, none of the unfamiliar
    assert result["auroc"] == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: accuracy(torch.tensor([[3.0, -1.0]]), torch.tensor([0])), ValueError, "softmax"),
        (lambda: accuracy(torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1])), ValueError, r"\(1, 2\) and \(2,\)"),
        (lambda: brier(torch.tensor([[0.5, 0.5]]), torch.tensor([2])), ValueError, "from 0 to 1"),
        (lambda: nll(torch.zeros(0, 2), torch.zeros(0)), ValueError, "N at least 1"),
        (lambda: reliability(torch.tensor([0.5]), torch.tensor([1]), bins=0), ValueError, "bins"),
        (
            lambda: expected_calibration_error(torch.tensor([0.5]), torch.tensor([1]), binning="even"),
            ValueError,
            "'width', 'mass', got 'even'",
        ),
        (lambda: ood_metrics(torch.zeros(0), torch.zeros(1)), ValueError, "score_in"),
        (lambda: ood_metrics(torch.zeros(1), torch.tensor([math.nan])), ValueError, "score_out"),
        (lambda: evaluate(GaussianPredictive(torch.zeros(1, 3), torch.ones(())), torch.zeros(4)), ValueError, "y has shape"),
    ],
)
def test_errors(act, error, message):
    with pytest.raises(error, match=message):
        act()


def test_missing_torchmetrics_names_the_extra(monkeypatch):
    def without(name, *args, real=builtins.__import__, **kwargs):
        if name.startswith("torchmetrics"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"bayesify\[metrics\]"):
        ood_metrics(torch.zeros(1), torch.ones(1))

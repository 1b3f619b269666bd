"""Figures: displayed values, all kinds and sizes of predictives, no global state."""

import math

import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from bayesify import plots
from bayesify.plots.statistics import binomial_interval, class_predictions, equal_count_bins, row_uncertainty, select_output
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive
from bayesify.train import History

pd = pytest.importorskip("pandas")


def gaussian(rows=60, outputs=None, draws=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (draws, rows) if outputs is None else (draws, rows, outputs)
    p = GaussianPredictive(torch.randn(shape, generator=generator), 0.5 + torch.rand(shape, generator=generator))
    return p, p.sample(generator)[0]


def categorical(rows=60, k=3, draws=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = CategoricalPredictive.from_logits(torch.randn(draws, rows, k, generator=generator))
    return p, torch.distributions.Categorical(p.probs).sample()


def line(ax, label):
    return next(artist for artist in ax.lines if artist.get_label() == label)


@pytest.mark.parametrize("n", [1, 7, 100, 20_000])
@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 0.95, 1.0])
def test_binomial_range_is_scipys(n, p):
    low, high = stats.binom.ppf([0.025, 0.975], n, p) / n
    assert binomial_interval(n, p) == pytest.approx((max(0, low), high))


def test_coverage_is_the_share_inside_the_intervals():
    p, y = gaussian(200)
    curve = line(plots.plot_coverage(p, y), "observed")
    for level in (0.5, 0.8, 0.95):
        lower, upper = p.interval(level)
        observed = curve.get_ydata()[round(200 * level)]
        assert observed == pytest.approx(((lower <= y) & (y <= upper)).double().mean().item(), abs=1 / 200)


def test_rejection_keeps_the_most_certain_rows():
    p, y = gaussian(200)
    curve = line(plots.plot_rejection(p, y), "remaining rows")
    remaining = p.std.argsort()[:100]
    x, error = curve.get_data()
    expected = math.sqrt(sum((float(y[i]) - float(p.mean[i])) ** 2 for i in remaining) / 100)
    assert error[abs(x - 0.5).argmin()] == pytest.approx(expected, rel=0.02)
    assert error[x.argmin()] == pytest.approx((y - p.mean).square().mean().sqrt().item(), rel=1e-5)


def test_bins_of_error_and_uncertainty():
    p, y = gaussian(50)
    points = plots.plot_uncertainty_error(p, y, bins=5).containers[0].lines[0]
    order = p.std.argsort()[:10]
    assert points.get_xdata()[0] == pytest.approx(p.variance[order].mean().sqrt().item(), rel=1e-5)
    assert points.get_ydata()[0] == pytest.approx((y - p.mean)[order].square().mean().sqrt().item(), rel=1e-5)


def test_reliability_counts_every_row():
    p, y = categorical(500)
    ax = plots.plot_reliability(p, y)
    assert sum(int(text.get_text().replace(",", "")) for text in ax.texts) == 500


def test_confusion_counts_are_sklearns():
    metrics = pytest.importorskip("sklearn.metrics")
    p, y = categorical(300)
    ax = plots.plot_confusion(p, y, names=["a", "b", "c"])
    shown = [int(text.get_text().replace("·", "0")) for text in ax.texts]
    assert shown == metrics.confusion_matrix(y, p.prediction).ravel().tolist()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b", "c"]


def test_uncertainty_splits_like_the_variance():
    p, _ = gaussian()
    total, noise, _ = row_uncertainty(p)
    torch.testing.assert_close(total, p.variance.sqrt().double())
    torch.testing.assert_close(noise / total, (p.aleatoric / p.variance).double())


@pytest.mark.default("2", extended=["3000"])
@pytest.mark.parametrize("rows", [1, 2, 9, 3000])
def test_any_number_of_rows(rows, tmp_path):
    features = pd.Series(range(rows), name="x")
    for p, y in (gaussian(rows), gaussian(rows, outputs=2), categorical(rows, k=2), categorical(rows, k=100)):
        figures = [plots.plot_rejection(p, y), plots.plot_uncertainty_error(p, y), plots.plot_uncertainty(p)]
        figures.append(plots.plot_feature(p, features))
        regression = isinstance(p, GaussianPredictive)
        more = (plots.plot_coverage, plots.plot_predictions) if regression else (plots.plot_reliability, plots.plot_confusion)
        figures += [plot(p, y) for plot in more]
        for ax in figures:
            assert isinstance(ax.figure, Figure)
            ax.figure.savefig(tmp_path / "figure.png", dpi=40)


def test_many_points_are_rasterized(tmp_path):
    p, y = gaussian(20_000, draws=2)
    ax = plots.plot_predictions(p, y)
    ax.figure.savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size < 400_000


def test_output_is_selected():
    p, y = gaussian(outputs=3)
    part, target = select_output(p, y, 2)
    torch.testing.assert_close(part.mean, p.mean[:, 2].double())
    torch.testing.assert_close(target, y[:, 2].double())
    with pytest.raises(ValueError, match="output must be below 3"):
        plots.plot_coverage(p, y, output=3)


def test_bernoulli_labels_are_rows():
    p = BernoulliPredictive.from_logits(torch.randn(4, 5, 2))
    values = class_predictions(p, torch.ones(5, 2))
    assert values.probs.shape == (10, 2)
    torch.testing.assert_close(values.probs[:, 1].view(5, 2), p.probs.double())


def test_ignored_tokens_are_not_rows():
    p = CategoricalPredictive.from_logits(torch.randn(4, 2, 3, 5))
    y = torch.tensor([[0, 1, -100], [2, -100, -100]])
    assert class_predictions(p, y).y.tolist() == [0, 1, 2]


def test_rejects_other_tasks():
    with pytest.raises(TypeError, match="predictive must be of regression, got CategoricalPredictive"):
        plots.plot_coverage(*categorical())
    with pytest.raises(TypeError, match="predictive must be of classification, got GaussianPredictive"):
        plots.plot_reliability(*gaussian())
    with pytest.raises(ValueError, match="feature must have 60 values, one per row, got 3"):
        plots.plot_feature(gaussian()[0], pd.Series([1, 2, 3]))


def test_draws_on_given_axes_without_global_state():
    import matplotlib

    before = dict(matplotlib.rcParams)
    ax = Figure().subplots()
    p, y = gaussian()
    assert plots.plot_coverage(p, y, ax) is ax
    assert plots.plot_bands(p, torch.arange(60), ax, data=(torch.zeros(3), torch.zeros(3))) is ax
    assert dict(matplotlib.rcParams) == before


def test_names_from_data_are_taken_literally(tmp_path):
    p, y = gaussian()
    ax = plots.plot_predictions(p, y, name=r"price $\frac$ <b>")
    plots.plot_feature(p, pd.Series(["$a_$", "b"] * 30, name="$x$")).figure.savefig(tmp_path / "figure.svg")
    ax.figure.savefig(tmp_path / "figure.svg")  # raises if mathtext is on
    assert r"price $\frac$ <b>" in ax.get_xlabel()


@pytest.mark.parametrize("values", [pd.Series([1.0, math.nan] * 30), pd.Series(["a", None] * 30), pd.Series([True, False] * 30),
                                    pd.Series(pd.date_range("2020-01-01", periods=60)), pd.Series([math.nan] * 60)])  # fmt: skip
def test_features_of_every_kind(values, tmp_path):
    plots.plot_feature(gaussian()[0], values.rename("x")).figure.savefig(tmp_path / "figure.png", dpi=40)


def test_training_marks_the_selected_epoch():
    history = History(loss=[3.0, 2, 1], nll=[2.0, 1, 1], kl=[5.0, 4, 3], beta=[0.0, 1, 1], validation_nll=[2.0, 1.0, 1.5],
                      kept_epochs=[2])  # fmt: skip
    assert any("epoch 2" in text.get_text() for text in plots.plot_training(history).get_legend().get_texts())
    assert plots.plot_kl(history).lines[0].get_ydata().tolist() == [5, 4, 3]
    history.kept_epochs = [2, 3]  # of two members: no epoch is that of the whole ensemble
    assert not any("epoch" in text.get_text() for text in plots.plot_training(history).get_legend().get_texts())
    history.loss = history.nll  # without a KL, one curve
    assert [line.get_label() for line in plots.plot_training(history).lines] == ["training NLL", "validation NLL"]
    plots.plot_training(History(loss=[1.0], nll=[1.0], kl=[0.0], beta=[1.0]))


def test_equal_bins_are_sorted_and_complete():
    values = torch.randn(47)
    groups = equal_count_bins(values, 6)
    assert torch.equal(torch.cat(groups), values.argsort())
    assert {len(group) for group in groups} <= {7, 8}
    assert len(equal_count_bins(torch.randn(3), 10)) == 1


def test_importance_shows_the_largest_changes_with_two_standard_errors():
    table = pd.DataFrame({"rmse": [0.5, -3.0, 2.0], "rmse_se": [0.1, 0.2, 0.3]}, index=["a", "$b$", "c"])
    ax = plots.plot_importance(table, "rmse", most=2)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["$b$", "c"]
    assert [bar.get_width() for bar in ax.patches] == [-3.0, 2.0]
    (low, high) = ax.collections[0].get_segments()[1][:, 0]
    assert (low, high) == pytest.approx((1.4, 2.6))
    with pytest.raises(ValueError, match="score must be one of 'rmse', got 'nll'"):
        plots.plot_importance(table, "nll")


def test_effects_have_the_color_of_their_sign():
    ax = plots.plot_effects(pd.Series({"a": 0.1, "b": -2.0, "c": 1.0}), most=2)
    assert [bar.get_width() for bar in ax.patches] == [1.0, -2.0]
    assert ax.patches[0].get_facecolor() != ax.patches[1].get_facecolor()


@pytest.mark.parametrize("regression", [True, False])
@pytest.mark.parametrize(
    ("kind", "values"),
    [("number", [1.0, 2.0, 4.0]), ("boolean", [0.0, 1.0]), ("category", ["a", "<b>", "$c$"]), ("number", [3.0]),
     ("datetime", list(pd.to_datetime(["2020-01-01", "2021-06-01", "2022-01-01"])))],
)  # fmt: skip
def test_dependence_shows_mean_and_bands(kind, values, regression, tmp_path):
    from bayesify.inspection import Dependence

    n = len(values)
    table = pd.DataFrame({"value": values, "mean": range(n), "lower": range(-1, n - 1), "upper": range(1, n + 1)})
    if regression:
        table = table.assign(predictive_lower=table["mean"] - 3, predictive_upper=table["mean"] + 3)
    ax = plots.plot_dependence(Dependence("x", kind, 0.9, table), name="price")
    assert line(ax, "mean").get_ydata().tolist() == list(range(n))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert ("90% with noise" in labels) is regression
    if kind == "boolean":
        assert [text.get_text() for text in ax.get_xticklabels()] == ["no", "yes"]
    ax.figure.savefig(tmp_path / "figure.png", dpi=40)


def test_legends_cover_no_data():
    p, y = gaussian(200)
    history = History(loss=[3.0, 2.0], nll=[2.0, 1.0], kl=[5.0, 4.0], beta=[1.0, 1.0], validation_nll=[2.0, 1.5])
    q, labels = categorical(200)
    for ax in (plots.plot_predictions(p, y), plots.plot_coverage(p, y), plots.plot_uncertainty(p), plots.plot_rejection(p, y),
               plots.plot_uncertainty_error(p, y), plots.plot_training(history), plots.plot_reliability(q, labels)):  # fmt: skip
        ax.figure.draw_without_rendering()
        legend, area = ax.get_legend().get_window_extent(), ax.get_window_extent()
        assert legend.y0 >= area.y1 - 1
        assert legend.x1 <= ax.figure.bbox.x1 + 1

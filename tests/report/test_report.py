"""The report: conclusions, baselines, escaping of data, self-contained pages of every kind and size."""

import html.parser
import math
import re

import pytest
import torch

from bayesify import MeanField
from bayesify.environment import environment
from bayesify.errors import DivergenceError
from bayesify.metrics import evaluate
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive
from bayesify.report import assess, render, write_report
from bayesify.report.assessment import baseline_scores
from bayesify.report.uncertain_rows import most_uncertain, related_columns
from bayesify.train import History

pd = pytest.importorskip("pandas")
pytest.importorskip("jinja2")
pytest.importorskip("torchmetrics")

HISTORY = History(loss=[3.0, 2.0], nll=[2.0, 1.0], kl=[5.0, 4.0], beta=[1.0, 1.0], learning_rate=[0.1, 0.1], seconds=[1.0, 1.0])


def gaussian(rows, spread=1.0, outputs=None, seed=0):
    """Predictions whose targets have standard deviation `spread` where the model says 1, and means that matter."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows,) if outputs is None else (rows, outputs)
    mean = 3 * torch.randn(shape, generator=generator)
    p = GaussianPredictive(mean.expand(4, *shape).contiguous(), torch.tensor(1.0))
    return p, mean + spread * torch.randn(shape, generator=generator)


def categorical(rows, k=3, sharpen=1.0, seed=0):
    """Predictions whose logits are `sharpen` times those the labels are drawn with."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(1, rows, k, generator=generator)
    y = torch.multinomial(logits[0].softmax(-1), 1, generator=generator)[:, 0]
    return CategoricalPredictive.from_logits(sharpen * logits), y


def sentences(p, y, **options):
    return assess(p, y, **options).verdict


@pytest.mark.parametrize(
    ("rows", "spread", "mark", "word"),
    [(1000, 1.0, "good", "Well calibrated"), (1000, 2.0, "bad", "Overconfident"), (1000, 0.4, "caution", "Underconfident"),
     (10, 1.0, "caution", "too few")],
)  # fmt: skip
def test_verdict_on_coverage(rows, spread, mark, word):
    first = sentences(*gaussian(rows, spread))[0]
    assert first.mark == mark
    assert word in first.meaning


def test_verdict_states_the_coverage():
    p, y = gaussian(200)
    lower, upper = p.interval(0.95)
    share = 100 * ((lower <= y) & (y <= upper)).double().mean().item()
    assert f"contain {share:.1f}".removesuffix(".0") in sentences(p, y)[0].finding
    assert "200 held-out rows" in sentences(p, y)[0].finding
    assert "held-out" not in sentences(p, y, held_out=False)[0].finding


@pytest.mark.parametrize(
    ("rows", "sharpen", "mark", "word"),
    [(3000, 1.0, "good", "Well calibrated"), (3000, 3.0, "bad", "Overconfident"), (3000, 0.3, "caution", "Underconfident"),
     (8, 1.0, "caution", "too few")],
)  # fmt: skip
def test_verdict_on_confidence(rows, sharpen, mark, word):
    first = sentences(*categorical(rows, sharpen=sharpen))[0]
    assert first.mark == mark
    assert word in first.meaning


def test_verdict_when_the_baseline_is_as_good():
    p = GaussianPredictive(torch.zeros(2, 500), torch.tensor(1.0))
    skill = sentences(p, torch.randn(500, generator=torch.Generator().manual_seed(0)))[1]
    assert skill.mark == "bad"
    assert "No better than the baseline" in skill.meaning


def test_verdict_on_the_ranking_of_errors_by_uncertainty():
    std = torch.linspace(0.1, 3, 400)
    y = std * torch.randn(400, generator=torch.Generator().manual_seed(0))
    ranked = sentences(GaussianPredictive(torch.zeros(1, 400), std.view(1, -1)), y)[2]
    reversed_ranking = sentences(GaussianPredictive(torch.zeros(1, 400), std.flip(0).view(1, -1)), y)[2]
    assert (ranked.mark, reversed_ranking.mark) == ("good", "caution")
    assert "same for all rows" in sentences(*gaussian(400))[2].finding


def test_an_assessment_is_computed_once_and_rendered(tmp_path):
    p, y = gaussian(60)
    assessment = assess(p, y, training_y=y, unit="m", held_out=False)
    assert assessment.scores == evaluate(p, y)
    assert assessment.baseline == baseline_scores(p, y, y)
    page = render(assessment)
    assert all(sentence.finding in page for sentence in assessment.verdict)
    path = write_report(tmp_path / "report.html", predictive=p, y=y, training_y=y, unit="m", held_out=False)
    assert path.read_text() == page


def test_predictions_that_are_not_finite(tmp_path):
    p = GaussianPredictive(torch.full((1, 3), math.inf), torch.tensor(1.0))
    with pytest.raises(DivergenceError, match="infinite or NaN"):
        write_report(tmp_path / "report.html", predictive=p, y=torch.zeros(3))
    assert list(tmp_path.iterdir()) == []


def test_baseline_of_regression():
    y, training_y = torch.tensor([0.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
    scores = baseline_scores(GaussianPredictive(torch.zeros(1, 2), torch.tensor(1.0)), y, training_y)
    assert scores["rmse"] == pytest.approx(2.0)
    std = math.sqrt(2 / 3)
    assert scores["nll"] == pytest.approx(0.5 * (2 / std) ** 2 + math.log(std) + 0.5 * math.log(2 * math.pi))


def test_baseline_of_classification():
    p, _ = categorical(4, k=2)
    scores = baseline_scores(p, torch.tensor([0, 0, 0, 1]), torch.tensor([0] * 300 + [1] * 100))
    assert scores["accuracy"] == pytest.approx(0.75)
    assert scores["nll"] == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-3)
    b = BernoulliPredictive.from_logits(torch.randn(2, 4))
    assert baseline_scores(b, torch.tensor([0, 0, 0, 1]), None)["accuracy"] == pytest.approx(0.75)


class Checker(html.parser.HTMLParser):
    """Collects tags, ids and attributes, and checks that elements nest."""

    VOID = ("meta", "link", "br", "path", "use", "rect", "image", "img")

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.ids, self.urls, self.images = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.urls += [attrs[name] for name in ("href", "src", "xlink:href") if name in attrs]
        self.images += [attrs.get("aria-label")] if tag == "svg" else []
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.stack.pop() == tag


def page_of(path, p, y, **options):
    text = write_report(path / "report.html", predictive=p, y=y, **options).read_text()
    checker = Checker(text)
    assert checker.stack == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert all(url.startswith(("#", "data:")) for url in checker.urls)  # nothing is fetched
    assert "script" not in checker.tags
    assert all(checker.images)  # every figure says what it shows
    assert all(name in checker.ids for name in re.findall(r"url\(#([^)]*)\)", text))
    assert [file.name for file in path.iterdir()] == ["report.html"]
    return text


@pytest.mark.parametrize("rows", [1, 3, 80, 5000])
def test_regression_with_any_number_of_rows(rows, tmp_path):
    p, y = gaussian(rows)
    features = pd.DataFrame({"a": range(rows), "b": ["x", "y", None, "z"] * (rows // 4) + ["x"] * (rows % 4)})
    text = page_of(tmp_path, p, y, features=features, training_y=y, unit="mmol/l")
    assert "mmol/l" in text
    assert "most uncertain rows" in text
    assert len(text) < 1_000_000


@pytest.mark.parametrize("k", [2, 12, 100])
@pytest.mark.parametrize("rows", [1, 200])
def test_classes_of_any_number(rows, k, tmp_path):
    p, y = categorical(rows, k)
    text = page_of(tmp_path, p, y, labels=[f"class {i}" for i in range(k)], history=HISTORY)
    assert "Reliability diagram" in text
    assert "2 epochs" in text


def test_several_outputs_and_bernoulli(tmp_path):
    p, y = gaussian(60, outputs=3)
    text = page_of(tmp_path, p, y, target=["heat", "load", "loss"])
    assert all(name in text for name in ("heat", "load", "loss"))
    assert "180" not in text.split("</h1>")[1].split("</ul>")[0]  # outputs of a row are not independent rows
    b = BernoulliPredictive.from_logits(torch.randn(5, 30))
    page_of(tmp_path, b, torch.randint(2, (30,)).float())


def test_tokens(tmp_path):
    p = CategoricalPredictive.from_logits(torch.randn(5, 6, 4, 3))
    page_of(tmp_path, p, torch.randint(3, (6, 4)))


def test_everything_from_data_is_escaped(tmp_path):
    evil = "<script>alert('&')</script>"
    p, y = categorical(60)
    entropy = p.entropy.numpy()
    features = pd.DataFrame({evil: entropy, "text": [evil] * 60}, index=[f"{evil}{i}" for i in range(60)])
    text = page_of(
        tmp_path, p, y, title=evil, target=evil, labels=[evil, "b", "c"], features=features, facts={evil: {evil: evil}},
        comparison=[{"method": evil, "NLL": 1.0}], history=HISTORY,
    )  # fmt: skip
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_facts_and_comparison(tmp_path):
    p, y = gaussian(40)
    method = MeanField(prior_std=0.25)
    facts = {"Method": method.to_dict(), "Environment": environment()}
    text = page_of(tmp_path, p, y, facts=facts, comparison=[{"method": "A", "RMSE": 1.5}, {"method": "B", "RMSE": 2.5}])
    assert all(name in text for name in method.to_dict())
    assert "0.25" in text
    assert torch.__version__ in text
    assert "2.5" in text


def test_held_out_rows_are_named_only_if_they_are_held_out(tmp_path):
    p, y = gaussian(40)
    assert "not trained on" in page_of(tmp_path, p, y)
    text = page_of(tmp_path, p, y, held_out=False)
    assert "not trained on" not in text
    assert "held-out" not in text


def test_most_uncertain_rows_and_their_values():
    std = torch.tensor([[1.0, 3.0, 2.0]])
    p = GaussianPredictive(torch.zeros(1, 3), std)
    features = pd.DataFrame({"a": [10, 11, 12]}, index=["x", "y", "z"])
    table = most_uncertain(p, torch.zeros(3), features, ["a"], ["t"], None, most=2)
    assert [row[0] for row in table.rows] == ["y", "z"]
    assert [row[-1] for row in table.rows] == ["11", "12"]
    assert table.rows[0][4] == "3"


def test_related_columns_see_curved_and_categorical_relations():
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(400, generator=generator), torch.randn(400, generator=generator)
    p = GaussianPredictive(torch.zeros(1, 400), (0.1 + x.square()).view(1, -1))
    features = pd.DataFrame({"noise": noise.numpy(), "curved": x.numpy(), "side": ["in" if v else "out" for v in x.abs() < 1]})
    assert set(related_columns(p, features, most=2)) == {"curved", "side"}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"y": torch.zeros(3)}, "same number of rows, at least 1, got 40 and 3"),
     ({"target": ["a", "b"]}, "one name per output, 1, got 2"),
     ({"features": pd.DataFrame({"a": [1]})}, "one row per target, 40, got 1"),
     ({"features": pd.DataFrame([[1, 2]] * 40, columns=["a", "a"])}, "distinct columns")],
)  # fmt: skip
def test_arguments_that_do_not_match(options, message, tmp_path):
    p, y = gaussian(40)
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / "report.html", **{"predictive": p, "y": y, **options})
    assert list(tmp_path.iterdir()) == []


def test_labels_must_name_the_classes(tmp_path):
    p, y = categorical(10)
    with pytest.raises(ValueError, match="name the 3 classes, got 1"):
        write_report(tmp_path / "report.html", predictive=p, y=y, labels=["a"])


def test_a_missing_folder_is_an_error_and_leaves_nothing(tmp_path):
    p, y = gaussian(10)
    with pytest.raises(OSError, match="nowhere"):
        write_report(tmp_path / "nowhere" / "report.html", predictive=p, y=y)
    assert list(tmp_path.iterdir()) == []

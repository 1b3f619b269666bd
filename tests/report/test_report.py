"""The report: conclusions, baselines, escaping of data, self-contained pages of every kind and size."""

import html.parser
import math
import re
import sys

import pytest
import torch
from known_predictions import categorical, gaussian

from bayesify import MeanField
from bayesify.environment import environment
from bayesify.errors import DivergenceError
from bayesify.metrics import evaluate
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, StudentTPredictive
from bayesify.report import assess, render, write_report
from bayesify.report.skill import CONSTANT, constant_baseline
from bayesify.report.uncertain_rows import most_uncertain, related_columns
from bayesify.train import History

pd = pytest.importorskip("pandas")
pytest.importorskip("jinja2")
pytest.importorskip("torchmetrics")

HISTORY = History(loss=[3.0, 2.0], nll=[2.0, 1.0], kl=[5.0, 4.0], beta=[1.0, 1.0], learning_rate=[0.1, 0.1], seconds=[1.0, 1.0])


def test_an_assessment_is_computed_once_and_rendered(tmp_path):
    p, y = gaussian(60)
    assessment = assess(p, y, training_y=y, unit="m", held_out=False)
    assert assessment.scores == evaluate(p, y)
    assert assessment.baselines == {CONSTANT: evaluate(constant_baseline(p, y, y), y)}
    page = render(assessment)
    assert all(sentence.finding in page for sentence in assessment.verdict)
    path = write_report(tmp_path / "report.html", predictive=p, y=y, training_y=y, unit="m", held_out=False)
    assert path.read_text() == page


def test_a_page_without_features_needs_no_pandas(monkeypatch):
    p, y = categorical(60)
    expected = render(assess(p, y))
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert render(assess(p, y)) == expected


def test_predictions_that_are_not_finite(tmp_path):
    one = torch.ones(1, 3)
    p = StudentTPredictive(math.inf * one, one, 4 * one, 3 * one)
    with pytest.raises(DivergenceError, match="infinite or NaN"):
        write_report(tmp_path / "report.html", predictive=p, y=torch.zeros(3))
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.default("1", "80")
@pytest.mark.parametrize("rows", [1, 3, 80, 5000])
def test_regression_with_any_number_of_rows(rows, tmp_path):
    p, y = gaussian(rows)
    features = pd.DataFrame({"a": range(rows), "b": ["x", "y", None, "z"] * (rows // 4) + ["x"] * (rows % 4)})
    text = page_of(tmp_path, p, y, features=features, training_y=y, unit="mmol/l")
    assert "mmol/l" in text
    assert "most uncertain rows" in text
    assert len(text) < 1_000_000


@pytest.mark.default("1-100", "200-2")
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


def test_columns_that_drive_the_predictions(tmp_path):
    from bayesify.inspection import Dependence, Explanation

    p, y = gaussian(40)
    names = [f"<column {i}>" for i in range(30)]
    importance = pd.DataFrame(
        {name: [0.5] * 30 for score in ("rmse", "nll", "std") for name in (score, f"{score}_se")}, index=names
    )
    curve = pd.DataFrame({"value": [1.0, 2.0], "mean": [0, 1], "lower": [-1, 0], "upper": [1, 2]})
    found = Explanation(importance, [Dependence("<column 3>", "number", 0.9, curve)], "Computed on 40 rows.")
    text = page_of(tmp_path, p, y, explanation=found, target="price")
    assert "Which columns drive the predictions" in text
    assert "Prediction by &lt;column 3&gt;" in text
    assert "the first 20 of 30 columns" in text
    assert "Computed on 40 rows." in text
    assert "0.50 ± 0.50" in text


@pytest.mark.parametrize(("make", "terms"), [(gaussian, ("std", "coverage")), (categorical, ("entropy", "mutual information"))])
def test_the_page_explains_its_terms(make, terms, tmp_path):
    text = page_of(tmp_path, *make(40))
    assert "How to read this page" in text
    assert all(f"<dt>{term}</dt>" in text for term in ("aleatoric", "epistemic", *terms))


@pytest.mark.parametrize(
    ("changes", "caption"),
    [({}, "lower is better."), ({"loss": [1.0, 3.0], "beta": [0.0, 1.0]}, "The loss rises because the weight of the KL does."),
     ({"validation_nll": [1.0, 2.0], "kept_epochs": [1]}, "Their NLL rises after epoch 1, so the weights of that epoch are used.")],
)  # fmt: skip
def test_a_curve_that_rises_is_explained(changes, caption, tmp_path):
    text = page_of(tmp_path, *gaussian(40), history=History(**{**vars(HISTORY), **changes}))
    assert caption in text
    assert ("rises" in text) is bool(changes)


def test_members_of_an_ensemble_keep_epochs_of_their_own(tmp_path):
    history = History(**{**vars(HISTORY), "validation_nll": [1.0, 2.0], "kept_epochs": [2, 1, 2]})
    text = page_of(tmp_path, *gaussian(40), history=history)
    assert "weights of epochs 1 to 2, by member" in text
    assert "Every member keeps the weights of the epoch" in text
    assert "of that epoch are used" not in text

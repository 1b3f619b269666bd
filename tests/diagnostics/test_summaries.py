"""The summary: its numbers are those of the parameters, its text says what stayed as it was and why."""

import math

import pytest
import torch
from torch import nn

from bayesify import Deterministic, MCDropout, MeanField, VariationalDropout, bayesify, summary, unbayesify


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _net() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(9, 4), nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), nn.Bilinear(6, 2, 5), nn.Linear(5, 2)
    )


@pytest.mark.parametrize("method", [MeanField(), VariationalDropout(alpha_per="layer"), MCDropout(), Deterministic(prior_std=1.0)])
def test_counts_are_those_of_the_parameters(method):
    net = _net()
    plain = _count(net)
    sizes = {str(i): _count(layer) for i, layer in enumerate(net)}
    bnn = bayesify(net, method)
    result = summary(bnn)
    assert result.plain == plain
    assert result.parameters == _count(bnn)
    assert {row.name: row.plain for row in result.layers} == sizes
    assert {row.name: row.parameters for row in result.layers} == {str(i): _count(layer) for i, layer in enumerate(net)}
    assert {row.name for row in result.layers if row.method} == {name for name, _ in bnn.random_layers()}
    assert all(bool(row.method) != bool(row.reason) for row in result.layers)
    assert result.kl == pytest.approx(float(bnn.kl().detach()))


def test_tied_and_shared_parameters_count_once():
    net = nn.ModuleDict({"a": nn.Embedding(6, 4), "b": nn.Linear(4, 6, bias=False), "c": nn.Linear(3, 3)})
    net["b"].weight = net["a"].weight
    net["again"] = net["c"]
    result = summary(bayesify(net, MeanField()))
    assert [(row.name, row.parameters) for row in result.layers] == [("a", 24), ("b", 0), ("c", 24)]
    assert result.parameters == _count(net)
    assert "b      Linear     -                   0         -" in str(result)


class Attention(nn.MultiheadAttention):
    """A subclass, which may compute something else."""


def test_text():
    net = nn.Sequential(nn.Linear(999, 1000), Attention(8, 2))
    text = str(summary(bayesify(net, MeanField(prior_std=2.0)))).splitlines()
    assert [line.split() for line in text[:7]] == [
        ["layer", "type", "method", "parameters", "overhead"],
        ["-" * len(text[1])],
        ["0", "Linear", "MeanField", "2,000,000", "+100.0%"],
        ["1", "Attention", "-", "216", "+0.0%"],
        ["1.out_proj", "NonDynamicallyQuantizableLinear", "-", "72", "+0.0%"],
        ["-" * len(text[1])],
        ["total", "2,000,288", "+100.0%"],
    ]
    assert text[8] == "not converted:"
    unsupported = "this type is not supported; its own parameters (in_proj_weight, in_proj_bias) stay as they are"
    assert text[9] == f"  1 (Attention): {unsupported}"
    assert text[10].startswith("  1.out_proj (NonDynamicallyQuantizableLinear): its nn.MultiheadAttention cannot be made random")
    assert len(text) == 11
    assert len(text[1]) == max(map(len, text[:7])), "the rule is as wide as the table"
    assert text[7].startswith("1 of 3 layers are random; KL ")
    assert text[7].endswith(" nats")
    assert float(text[7].split()[-2].replace(",", "")) > 1e6


def test_nothing_left_as_it_was():
    text = str(summary(bayesify(nn.Linear(2, 1), Deterministic())))
    assert "not converted" not in text
    assert "(net)  Linear  Deterministic           3     +0.0%" in text
    assert text.endswith("0 of 1 layers are random; KL 0.0 nats")


def test_layers_without_data_can_be_summarized():
    net = nn.Sequential(nn.Linear(4, 3, device="meta"), nn.LazyLinear(2))
    result = summary(bayesify(net, {"0": MeanField()}))
    assert math.isnan(result.kl)
    assert [row.parameters for row in result.layers] == [30, 0]


def test_a_frozen_layer_counts_too():
    net = nn.Linear(4, 3).requires_grad_(False)
    assert summary(bayesify(net, {"": MeanField()})).layers[0] == summary(bayesify(nn.Linear(4, 3), MeanField())).layers[0]


def test_summary_needs_a_bayesian_net():
    bnn = bayesify(nn.Linear(2, 1), MeanField())
    for wrong in (nn.Linear(2, 1), bnn.net, unbayesify(bnn), torch.zeros(2)):
        with pytest.raises(TypeError, match=f"bnn must be what bayesify returned, got {type(wrong).__name__}"):
            summary(wrong)


class Classifier(nn.Module):
    """Replaces its last layer, as timm's `reset_classifier` does."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(4, 8), nn.Linear(8, classes)

    def reset_classifier(self, classes: int) -> None:
        self.fc = nn.Linear(8, classes) if classes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


def test_a_layer_that_was_replaced_is_reported_as_it_is():
    bnn = bayesify(Classifier(3), MeanField())
    before = summary(bnn)
    bnn.net.reset_classifier(10)
    after = summary(bnn)
    body, head = after.layers
    assert body == before.layers[0]
    assert (head.name, head.layer, head.method, head.parameters, head.random) == ("fc", "Linear", "", 8 * 10 + 10, False)
    assert head.reason == "it was added after bayesify"
    assert "1 of 2 layers are random" in str(after)
    assert after.parameters == _count(bnn)
    assert after.kl == pytest.approx(float(bnn.kl().detach())) != pytest.approx(before.kl)
    assert bnn(torch.zeros(5, 4), samples=2).outputs.shape == (2, 5, 10)
    bnn.net.reset_classifier(0)
    assert [(row.name, row.layer, row.parameters) for row in summary(bnn).layers] == [("body", "Linear", 80), ("fc", "Identity", 0)]
    bnn.net.fc = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    assert {row.name: row.parameters for row in summary(bnn).layers if row.parameters} == {"body": 80, "fc.0": 36, "fc.2": 10}
    assert summary(bnn).parameters == _count(bnn)
    del bnn.net.fc
    assert [row.reason for row in summary(bnn).layers] == ["", "it is no longer in the network"]


def test_equal_reasons_and_remarks_are_said_once_with_the_first_layers_and_frozen_parameters_are_counted():
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)], nn.Linear(4, 2))
    for layer in net[:5]:
        layer.requires_grad_(False)
    found = summary(bayesify(net, MeanField()))
    assert (found.trained, found.parameters) == (2 * 20 + 2 * 10, 7 * 20 - 10 + 30)
    text = str(found)
    assert "; 60 of 160 parameters are trained" in text
    assert "  0 (Linear), 1 (Linear), 2 (Linear), ... and 2 more: it is frozen; a pattern that names it makes it random" in text
    assert "parameters are trained" not in str(summary(bayesify(nn.Linear(2, 1), MeanField())))

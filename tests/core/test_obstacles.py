"""A network of which a considerable part cannot be made random says so, once, when it is converted."""

import warnings

import pytest
import torch
from torch import nn

from bayesify import VIFO, VOGN, DeepEnsemble, Deterministic, MeanField, Method, bayesify, summary
from bayesify.errors import BayesifyWarning


def _bilinear(hidden: int = 8) -> nn.Module:
    return nn.ModuleDict({"layer": nn.Bilinear(3, 5, hidden), "embedding": nn.Embedding(5, 3), "head": nn.Linear(hidden, 2)})


def test_the_share_is_that_of_the_plain_network():
    bilinear, others = 8 * (3 * 5 + 1), 5 * 3 + 8 * 2 + 2
    with pytest.warns(BayesifyWarning, match=r"^(\d+)% of the parameters") as caught:
        bnn = bayesify(_bilinear(), MeanField())
    text = str(caught[0].message)
    assert text.startswith(f"{bilinear / (bilinear + others):.0%} ")
    assert "'layer' (Bilinear)" in text
    assert text in str(summary(bnn))
    assert len(caught) == 1


def test_the_largest_layers_are_named_first():
    net = nn.ModuleDict({"small": nn.Bilinear(2, 3, 4), "large": nn.Bilinear(2, 3, 9), "head": nn.Linear(4, 2)})
    with pytest.warns(BayesifyWarning, match=r"random: 'large' \(Bilinear\), 'small' \(Bilinear\)"):
        bayesify(net, MeanField())


def test_a_recurrent_network_that_a_method_cannot_serve_is_named_as_a_whole():
    net = nn.ModuleDict({"layer": nn.LSTM(3, 8), "head": nn.Linear(8, 2)})
    with pytest.warns(BayesifyWarning, match=r"^96% of the parameters .* random: 'layer' \(LSTM\);"):  # 416 of 434
        bnn = bayesify(net, VOGN())
    assert [(report.name, report.layer) for report in bnn.report] == [("layer", "LSTM"), ("head", "Linear")]


def test_a_tied_weight_is_counted_once():
    net = nn.ModuleDict({"embedding": nn.Embedding(6, 4), "body": nn.Linear(4, 4, bias=False), "head": nn.Linear(4, 6, bias=False)})
    net["head"].weight = net["embedding"].weight
    with pytest.warns(BayesifyWarning, match=r"^60% of the parameters"):  # 24 of 40
        bayesify(net, MeanField())


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"head": MeanField()}, id="named"),
        pytest.param({"layer": Deterministic(), "*": MeanField()}, id="the others named"),
        pytest.param(VIFO(), id="chosen by the method"),
        pytest.param(Deterministic(), id="no method to make it random"),
    ],
)
def test_what_someone_chose_needs_no_warning(method: Method | dict[str, Method]):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        bayesify(_bilinear(), method)


def test_neither_do_frozen_and_small_parts():
    frozen, small = _bilinear(), _bilinear(1)
    frozen["layer"].requires_grad_(False)
    small["body"] = nn.Linear(30, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        bayesify(frozen, MeanField())
        bayesify(small, MeanField())


def test_members_of_an_ensemble_do_not_repeat_it():
    with pytest.warns(BayesifyWarning, match="of the parameters") as caught:
        bayesify([_bilinear() for _ in range(3)], DeepEnsemble(members=3, base=MeanField()))
    assert len({str(warning.message) for warning in caught}) == 1


def test_layers_that_are_replaced_after_the_conversion_are_noticed():
    bnn = bayesify(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)), MeanField())
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(bnn).eval()
    with pytest.warns(BayesifyWarning, match=r"^1 random layer became deterministic .* \(replaced by SyncBatchNorm\)"):
        synchronized(torch.zeros(2, 3, 4, 4))
    unchanged = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 2))), {"0": MeanField(), "1*": Deterministic()})
    unchanged(torch.zeros(2, 3))
    assert not any("became" in finding for finding in unchanged.findings)


def test_layers_that_are_removed_after_a_pass_are_noticed():
    """Verdicts of earlier passes have the positions of layers, which then are those of others."""
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), MeanField()).eval()
    bnn(torch.zeros(2, 3))
    bnn.net[0] = nn.Identity()
    bnn.net[1] = nn.Sequential(nn.Linear(3, 5))
    with pytest.warns(BayesifyWarning, match=r"^2 random layers became deterministic .* \(replaced by Identity, Sequential\)"):
        assert bnn(torch.zeros(2, 3), samples=3).outputs.shape == (3, 2, 2)


class _Switch(nn.Module):
    """A layer that can be turned off, as an adapter that is merged."""

    def __init__(self):
        super().__init__()
        self.base, self.adapter, self.is_on = nn.Linear(3, 2), nn.Linear(3, 2), True

    def forward(self, x):
        return self.base(x) + self.adapter(x) if self.is_on else self.base(x)


@pytest.mark.parametrize("fold", [None, False])
def test_layers_that_are_no_longer_used_are_noticed(fold):
    net = nn.Sequential(nn.Linear(3, 3), _Switch())
    bnn = bayesify(net, {"*adapter": MeanField(initial_std=0.5)}, fold=fold).eval()
    x = torch.ones(4, 3)
    assert bnn(x, samples=5).outputs.std(0).min() > 0
    net[1].is_on = False
    with pytest.warns(BayesifyWarning, match=r"does not use 1 of its random layers .* 1\.adapter"):
        assert bnn(x, samples=5).outputs.std(0).max() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn(x, samples=5)
        net[1].is_on = True
        assert bnn(x, samples=5).outputs.std(0).min() > 0


def test_a_network_that_uses_other_layers_for_other_values_is_no_news():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))

        def forward(self, x):
            choice = x.argmax(1)
            y = x.new_zeros(len(x), 2)
            for i, expert in enumerate(self.experts):
                if (rows := choice == i).any():
                    y[rows] = expert(x[rows])
            return y

    bnn = bayesify(Experts(), MeanField()).eval()
    bnn(torch.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3):
            bnn(torch.eye(3)[[i, i, i]], samples=2)


class _InList(nn.Module):
    """Hidden layers in containers of Python."""

    def __init__(self, hidden: list[nn.Linear] | dict[str, nn.Linear]) -> None:
        super().__init__()
        self.hidden, self.head = hidden, nn.Linear(4, 2)


@pytest.mark.parametrize("hidden", [[nn.Linear(4, 4), nn.Linear(4, 4)], {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}])
def test_layers_in_containers_of_python_are_told(hidden):
    net = nn.ModuleDict({"block": _InList(hidden)})
    kind = type(hidden).__name__
    with pytest.warns(BayesifyWarning, match=rf"^PyTorch does not find 2 layers in 'block.hidden', which is a {kind}: ") as caught:
        bnn = bayesify(net, MeanField())
    assert len(caught) == 1
    assert [name for name, _ in bnn.random_layers()] == ["block.head"]


def test_containers_of_python_with_registered_or_frozen_layers_are_not_told(recwarn):
    net = _InList([nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)])
    net.first = net.hidden[0]
    bayesify(net, MeanField())
    assert not recwarn

"""A network of which a considerable part cannot be made random says so, once, when it is converted."""

import warnings

import pytest
from torch import nn

from bayesify import VIFO, DeepEnsemble, Deterministic, MeanField, Method, bayesify, summary
from bayesify.errors import BayesifyWarning


def _recurrent(hidden: int = 8) -> nn.Module:
    return nn.ModuleDict({"layer": nn.LSTM(3, hidden), "embedding": nn.Embedding(5, 3), "head": nn.Linear(hidden, 2)})


def test_the_share_is_that_of_the_plain_network():
    lstm, others = 4 * 8 * (3 + 8 + 2), 5 * 3 + 8 * 2 + 2
    with pytest.warns(BayesifyWarning, match=r"^(\d+)% of the parameters") as caught:
        bnn = bayesify(_recurrent(), MeanField())
    text = str(caught[0].message)
    assert text.startswith(f"{lstm / (lstm + others):.0%} ")
    assert "'layer' (LSTM)" in text
    assert text in str(summary(bnn))
    assert len(caught) == 1


def test_the_largest_layers_are_named_first():
    net = nn.TransformerEncoderLayer(16, 2, 8)
    with pytest.warns(BayesifyWarning, match=r"random: 'self_attn' \(MultiheadAttention\), 'self_attn.out_proj' \("):
        bayesify(net, MeanField())


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
        bayesify(_recurrent(), method)


def test_neither_do_frozen_and_small_parts():
    frozen, small = _recurrent(), _recurrent(1)
    frozen["layer"].requires_grad_(False)
    small["body"] = nn.Linear(30, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        bayesify(frozen, MeanField())
        bayesify(small, MeanField())


def test_members_of_an_ensemble_do_not_repeat_it():
    with pytest.warns(BayesifyWarning, match="of the parameters") as caught:
        bayesify([_recurrent() for _ in range(3)], DeepEnsemble(members=3, base=MeanField()))
    assert len({str(warning.message) for warning in caught}) == 1

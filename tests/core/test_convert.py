"""Conversion: what becomes random, what is reported, what stays exactly as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from bayesify import EMP, VSD, Bayesian, Deterministic, MCDropout, MeanField, NothingRandomError, bayesify, unbayesify
from bayesify.core.layers import layer_type
from bayesify.errors import ConfigurationError


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _reasons(bnn: Bayesian) -> dict[str, str]:
    return {report.name: report.reason for report in bnn.report}


def test_everything_but_the_class_of_a_layer_is_kept():
    net = _mlp()
    net[0].eval()
    net[2].weight.requires_grad_(False)
    fired = []
    net[2].register_forward_hook(lambda module, args, output: fired.append(output.shape))
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    layers, parameters, state = list(net), dict(net.named_parameters()), copy.deepcopy(net.state_dict())
    bnn = bayesify(net, MeanField())
    assert bnn.net is net
    assert [id(layer) for layer in net] == [id(layer) for layer in layers]
    assert all(isinstance(net[i], nn.Linear) and type(net[i]) is layer_type(nn.Linear) for i in (0, 2))
    after = dict(net.named_parameters())
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    assert not net[2].weight.requires_grad, "a frozen weight is a frozen mean"
    assert net[2].posterior.weight_log_std.requires_grad
    assert not net[0].training
    assert not net[0].posterior.training
    assert net[2].training
    assert bnn.training
    bnn(torch.randn(3, 4), samples=2).outputs.sum().backward()
    assert fired[-1] == (6, 2), "the pass itself, after those that look at the net"
    before = net[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(net[0].weight, before)
    assert net[2].weight.grad is None


@pytest.mark.parametrize("training", [True, False])
def test_mode_of_the_net_is_kept(training):
    bnn = bayesify(_mlp().train(training), MeanField())
    assert {module.training for module in bnn.modules()} == {training}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype):
    bnn = bayesify(_mlp().to(dtype), MeanField())
    assert {p.dtype for p in bnn.parameters()} == {dtype}
    draws = bnn(torch.randn(3, 4, dtype=dtype), samples=2)
    assert draws.outputs.dtype == dtype
    assert draws.kl.dtype == draws.local_kl.dtype == torch.promote_types(dtype, torch.float32)


def test_device_is_kept():
    net = nn.Sequential(nn.Embedding(5, 4, padding_idx=0, device="meta"), nn.Linear(4, 2, device="meta"))
    bnn = bayesify(net, MeanField(prior_mean="pretrained"))
    assert {t.device.type for t in (*bnn.parameters(), *bnn.buffers())} == {"meta"}
    draws = bnn(torch.zeros(3, dtype=torch.long, device="meta"), samples=2)
    assert draws.outputs.shape == (2, 3, 2)
    assert draws.kl.device.type == "meta"


def test_tied_weights_stay_as_they_are_and_are_reported():
    net = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False))
    net[2].weight = net[0].weight
    bnn = bayesify(net, MeanField())
    assert _reasons(bnn) == {
        "0": "its weight is tied: '0' and '2' share one parameter",
        "1": "",
        "2": "its weight is tied: '0' and '2' share one parameter",
    }
    assert net[2].weight is net[0].weight
    assert [name for name, _ in bnn.random_layers()] == ["1"]


class Attention(nn.MultiheadAttention):
    """A subclass, which may compute something else."""


@pytest.mark.parametrize(
    ("add", "remove"),
    [
        (nn.utils.weight_norm, nn.utils.remove_weight_norm),
        (nn.utils.parametrizations.weight_norm, lambda layer: parametrize.remove_parametrizations(layer, "weight")),
    ],
)
def test_layers_without_their_weight_normalization_compute_the_same_and_become_random(add, remove):
    net = nn.Sequential(add(nn.Conv1d(2, 3, 2)), nn.Flatten(), nn.Linear(9, 1))
    x = torch.randn(4, 2, 4)
    expected = net(x)
    remove(net[0])
    bnn = bayesify(net, MeanField(initial_std=1e-10))
    assert [name for name, _ in bnn.random_layers()] == ["0", "2"]
    torch.testing.assert_close(bnn(x, samples=2).outputs, expected.expand(2, 4, 1))


def test_layers_that_compute_their_weight_stay_as_they_are_and_are_reported():
    net = nn.Sequential(
        nn.utils.weight_norm(nn.Linear(4, 4)),
        nn.utils.spectral_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        Attention(4, 2),
        nn.Bilinear(4, 4, 4),
        nn.Linear(4, 4),
        nn.Linear(4, 4),
        nn.Embedding(3, 4, max_norm=1.0),
        nn.Embedding(3, 4, padding_idx=0),
        nn.Linear(4, 4, dtype=torch.complex64),
        prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5),
        nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    net[6].forward = nn.Linear(4, 4).forward
    nn.init.ones_(net[8].weight)
    types = [type(layer) for layer in net]
    reasons = _reasons(bayesify(net, MeanField()))
    expected = {
        "0": "computed, by weight_norm; first call torch.nn.utils.remove_weight_norm(layer)",
        "1": "computed, by spectral_norm",
        "2": "computed, by weight_norm; first call torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')",
        "3": "not supported",
        "3.out_proj": "its nn.MultiheadAttention cannot be made random, and reads its weight",
        "4": "not supported",
        "6": "forward was replaced",
        "7": "max_norm",
        "8": "padding vector is not zero",
        "9": "not of a real floating point type",
        "10": "computed, by pruning",
        "11": "computed, by the parametrization Orthogonal",
    }
    assert reasons.pop("5") == ""
    assert [text in reasons[name] for name, text in expected.items()] == [True] * len(expected), reasons
    assert [type(layer) for i, layer in enumerate(net) if i != 5] == [kind for i, kind in enumerate(types) if i != 5]


@pytest.mark.parametrize("inside", [False, True])
def test_a_network_that_is_wrapped_for_several_processes_is_refused(inside: bool) -> None:
    """Whose wrapper would not average the gradients of posteriors, so that processes would train different ones."""
    net = nn.DataParallel(_mlp())
    with pytest.raises(ConfigurationError, match=r"is in a DataParallel, .* DistributedDataParallel\(bayesify\(net, method\)\)"):
        bayesify(nn.Sequential(net, nn.Linear(2, 2)) if inside else net, MeanField())
    assert type(net.module[0]) is nn.Linear


@pytest.mark.parametrize("first", ["*", "[02]", "?"])
def test_a_pattern_that_others_hide_is_an_error(first):
    net = _mlp()
    with pytest.raises(ConfigurationError, match=r"^'2' would have no effect: the first pattern .* come first in "):
        bayesify(net, {first: MeanField(), "2": MCDropout()})
    assert type(net[0]) is nn.Linear
    bayesify(net, {"2": MCDropout(), "*": MeanField()})


def test_a_named_layer_that_cannot_be_made_random_is_an_error():
    net = nn.ModuleDict({"body": nn.Bilinear(3, 3, 4), "head": nn.Linear(4, 2)})
    with pytest.raises(NothingRandomError, match=r"no layer that 'body' names became random: body \(Bilinear\): this type is not"):
        bayesify(net, {"body": MCDropout(), "*": MeanField()})
    assert type(net["head"]) is nn.Linear
    bayesify(net, {"body": Deterministic(), "*": MeanField()})


def test_first_matching_pattern_wins_and_the_rest_stays():
    net = nn.ModuleDict({"a": _mlp(), "b": _mlp(), "c": nn.Linear(2, 2)})
    first, second = MeanField(), MCDropout()
    bnn = bayesify(net, {"a.2": second, "a.*": first, "b.*": first})
    assert {r.name: r.method for r in bnn.report} == {"a.0": first, "a.2": second, "b.0": first, "b.2": first, "c": None}
    assert _reasons(bnn)["c"] == "its name matches no pattern"
    unbayesify(bnn)
    everything = bayesify(net, {"c": second, "*": first})
    assert [r.method for r in everything.report] == [first] * 4 + [second]


def test_a_bare_layer_is_a_net():
    layer = nn.Linear(4, 2)
    bnn = bayesify(layer, MeanField())
    assert bnn.net is layer
    assert bnn(torch.zeros(3, 4), samples=2).outputs.shape == (2, 3, 2)
    assert type(unbayesify(bnn)) is nn.Linear


def test_frozen_layers_stay_unless_a_pattern_names_them():
    net = nn.ModuleDict({"body": nn.Linear(64, 64).requires_grad_(False), "adapter": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
    net["norm"].bias.requires_grad_(False)
    body = dict(net["body"].named_parameters())
    bnn = bayesify(net, MeanField())
    assert list(_reasons(bnn).values()) == ["it is frozen; a pattern that names it makes it random", "", ""]
    assert type(net["body"]) is nn.Linear
    assert all(net["body"].get_parameter(name) is p and not p.requires_grad for name, p in body.items())
    trained = sum(p.numel() for p in bnn.parameters() if p.requires_grad)
    assert trained == 2 * 20 + 2 * 8 - 4, "means that were frozen stay so"
    unbayesify(bnn)
    assert [r.method for r in bayesify(net, {"bo*": MeanField(), "*": MeanField()}).report] == [MeanField()] * 3


def test_a_net_that_is_frozen_as_a_whole_has_nothing_random():
    with pytest.raises(NothingRandomError, match=r"0 \(Linear\), 2 \(Linear\): it is frozen; a pattern that names it"):
        bayesify(_mlp().requires_grad_(False), MeanField())


def test_equal_reasons_are_said_once():
    net = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(NothingRandomError) as error:
        bayesify(net.requires_grad_(False), VSD())
    assert str(error.value).endswith(
        "became random: 0 (Embedding), 1 (Linear), 2 (Linear): it is frozen; a pattern that names it makes it random"
    )
    with pytest.raises(NothingRandomError) as error:
        bayesify(net, {"1": EMP(components=1), "0": VSD()})
    said = "0 (Embedding): VSD leaves Embedding as it is; 1 (Linear): a point estimate; 2 (Linear): its name matches no pattern"
    assert said in str(error.value)

"""Conversion that fails leaves the net untouched, and conversion undone gives it back."""

import copy
import dataclasses
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    ECMP,
    EMP,
    WHVI,
    Bayesian,
    BayesianLayer,
    Deterministic,
    Folded,
    MCDropout,
    MeanField,
    Method,
    Posterior,
    TensorFactorized,
    bayesify,
    unbayesify,
)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _snapshot(net: nn.Module) -> tuple:
    modules = [(name, id(m), type(m), set(vars(m)), m.training) for name, m in net.named_modules()]
    parameters = [(name, id(p), p._version, p.requires_grad) for name, p in net.named_parameters()]
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules()]
    return modules, parameters, hooks, list(net.state_dict())


class _Replacing(Posterior):
    """Takes the place of the layer's weight, as factorized posteriors do."""

    def __init__(self, layer: BayesianLayer) -> None:
        super().__init__()
        super().__init__()
        self.halved = nn.Parameter(layer.weight.detach() / 2)
        layer.weight = None  # type: ignore[assignment]

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return self.halved.square().sum()

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return 2 * self.halved, layer.bias


@pytest.fixture
def methods(monkeypatch):
    """Methods that only these tests know."""
    monkeypatch.setattr(Method, "registry", dict(Method.registry))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Replacing(Method):
        fails: bool = False

        def build(self, layer: BayesianLayer) -> Posterior | None:
            if self.fails and layer.weight_shape == (2, 8):
                raise RuntimeError("no posterior for this one")
            return _Replacing(layer)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Whole(Deterministic):
        has_root: ClassVar[bool] = True

        def root(self, net: nn.Module) -> Bayesian:
            return Folded(net)

    return Replacing, Whole


FAILURES = {
    "not a module": (
        lambda: torch.zeros(2),
        MeanField(),
        TypeError,
        "net must be a torch.nn.Module, or a list of them for an ensemble, got Tensor",
    ),
    "a class": (_mlp, MeanField, TypeError, r"method must be a Method such as MeanField\(\)"),
    "a name": (_mlp, "meanfield", TypeError, "method must be a Method"),
    "a name in a mapping": (_mlp, {"0": "meanfield"}, TypeError, "the method for '0' must be a Method"),
    "a number as a pattern": (_mlp, {0: MeanField()}, TypeError, "a pattern must be a string"),
    "typo": (
        _mlp,
        {"features.*": MeanField(), "0": MeanField()},
        ValueError,
        "no layer matches 'features.*'; the layers are '0', '2'",
    ),
    "no patterns": (_mlp, {}, ValueError, "its name matches no pattern"),
    "no parameters": (nn.ReLU, MeanField(), ValueError, "it has no parameters"),
    "nothing supported": (
        lambda: nn.Bilinear(2, 2, 2),
        MeanField(),
        ValueError,
        r"itself \(Bilinear\): this type is not supported",
    ),
    "left alone": (lambda: nn.LayerNorm(2), MCDropout(), ValueError, "MCDropout leaves LayerNorm as it is"),
    "lazy": (
        lambda: nn.Sequential(nn.Linear(4, 2), nn.LazyLinear(3)),
        MeanField(),
        ValueError,
        r"'1' \(LazyLinear\) has no weight",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_leave_the_net_untouched(case):
    make, method, kind, message = FAILURES[case]
    net = make()
    before = _snapshot(net) if isinstance(net, nn.Module) and case != "lazy" else None
    with pytest.raises(kind, match=message):
        bayesify(net, method)
    if before is not None:
        assert _snapshot(net) == before


def test_a_failure_halfway_is_rolled_back(methods):
    replacing, whole = methods
    net = nn.Sequential(nn.Embedding(4, 4), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), *_mlp()).eval()
    before = _snapshot(net)
    with pytest.raises(RuntimeError, match="no posterior for this one"):
        bayesify(net, replacing(fails=True))
    assert _snapshot(net) == before
    with pytest.raises(ValueError, match="Whole, Whole each need the whole network"):
        bayesify(net, {"1.*": MeanField(), "2": whole(), "4": whole(prior_std=1.0)})
    assert _snapshot(net) == before
    assert bayesify(net, {"2": whole(), "*": replacing()})(torch.zeros(3, 2, dtype=torch.long)).outputs.shape == (1, 3, 2, 2)


def test_bayesian_already():
    net = _mlp()
    bnn = bayesify(net, {"0": MeanField()})
    for again in (bnn, net, nn.Sequential(bnn), net[0]):
        with pytest.raises(ValueError, match="Bayesian already"):
            bayesify(again, MeanField())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"unbatched": "x"}, TypeError, r"unbatched must be a collection of input names, such as \['x'\]"),
        ({"unbatched": ["maks"]}, ValueError, "unbatched names 'maks', but the network's inputs are 'input'"),
        ({"batch_dim": -1}, ValueError, "batch_dim must be a whole number of at least 0"),
        ({"batch_dim": 1, "fold": True}, ValueError, "fold=True needs the batch in dimension 0"),
    ],
)
def test_layout_is_checked(options, kind, message):
    with pytest.raises(kind, match=message):
        bayesify(_mlp(), MeanField(), **options)


def test_unbayesify_gives_back_the_net(methods):
    replacing, _ = methods
    net = nn.Sequential(nn.Embedding(5, 4, padding_idx=0), nn.Conv1d(4, 4, 2), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()
    before, state = _snapshot(net), copy.deepcopy(net.state_dict())
    assert unbayesify(bayesify(net, MeanField())) is net
    assert _snapshot(net) == before, "MeanField leaves the very same parameters behind"
    unbayesify(bayesify(net, replacing()))
    assert _snapshot(net)[0] == before[0]
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    with pytest.raises(TypeError, match="bnn must be what bayesify returned, got Sequential"):
        unbayesify(net)


@pytest.mark.parametrize("method", [MeanField(), WHVI(), TensorFactorized(), EMP(where="*"), ECMP(where="*", components=2)])
@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias"), ()])
def test_unbayesify_keeps_frozen_weights_frozen(method, frozen):
    net = nn.Sequential(nn.Linear(4, 3))
    for name in frozen:
        net[0].get_parameter(name).requires_grad_(False)
    plain = unbayesify(bayesify(net, {"0": method}))
    assert {name: p.requires_grad for name, p in plain[0].named_parameters()} == {n: n not in frozen for n in ("weight", "bias")}
    assert all(isinstance(p, nn.Parameter) and p.is_leaf for p in plain.parameters())

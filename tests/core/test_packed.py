"""Attention and recurrent networks, whose weights become layers: they compute what PyTorch's modules do."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from bayesify import (
    EMP,
    HMC,
    SGHMC,
    VOGN,
    WHVI,
    Categorical,
    Deterministic,
    Laplace,
    MeanField,
    bayesify,
    elbo,
    predict,
    unbayesify,
)
from bayesify.core.packed import Unpacked, Unpacking, pack
from bayesify.errors import BayesifyWarning, ConfigurationError, NothingRandomError, PassError


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _require_equal(module: nn.Module, call: Callable[[nn.Module], Any]) -> None:
    """Values and gradients of a module are those of the packed one, which it becomes again."""
    plain = copy.deepcopy(module)
    keys = list(plain.state_dict())
    Unpacking.of(module, ())
    assert isinstance(module, Unpacked)
    assert {name for name, _ in module.named_parameters()} != {name for name, _ in plain.named_parameters()}
    results = [[y for y in tree_leaves(call(each)) if isinstance(y, Tensor) and y.is_floating_point()] for each in (module, plain)]
    assert len(results[0]) > 0
    torch.testing.assert_close(*results)
    for each, outputs in zip((module, plain), results, strict=True):
        each.zero_grad()
        sum((y.cos() * (i + 1)).sum() for i, y in enumerate(outputs)).backward()
    for part in [m for m in module.modules() if isinstance(m, nn.Linear)]:
        assert part.weight.grad is not None
    gradients = {name: [p.grad for p in _in_places(module, name)] for name in module.places}
    for name, found in gradients.items():
        torch.testing.assert_close(torch.cat(found), plain.get_parameter(name).grad)
    pack(module)
    assert type(module) is type(plain)
    assert list(module.state_dict()) == keys
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))
    torch.testing.assert_close(call(module), call(plain))


def _in_places(module: Any, name: str) -> list[nn.Parameter]:
    return [getattr(module.get_submodule(part), kind) for part, kind in module.places[name]]


_RECURRENT = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm-batch-first-deep-both": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    "lstm-projected": lambda: nn.LSTM(3, 5, num_layers=2, proj_size=2, batch_first=True),
    "lstm-without-bias": lambda: nn.LSTM(3, 4, bias=False, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4, num_layers=2, batch_first=True),
    "gru-both": lambda: nn.GRU(3, 4, bidirectional=True, bias=False),
    "tanh": lambda: nn.RNN(3, 4, num_layers=3),
    "relu": lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True, batch_first=True),
}


def _start(net: Any, *rows: int) -> Any:
    count = net.num_layers * (2 if net.bidirectional else 1)
    h = torch.randn(count, *rows, net.proj_size or net.hidden_size)
    return (h, torch.randn(count, *rows, net.hidden_size)) if net.mode == "LSTM" else h


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in _RECURRENT.items()])
def test_recurrent_networks(make):
    x = torch.randn(5, 2, 3) if not make().batch_first else torch.randn(2, 5, 3)
    start = _start(make(), 2)
    _require_equal(make(), lambda net: net(x))
    _require_equal(make(), lambda net: net(x, start))
    _require_equal(make(), lambda net: net(x[0]))
    one = _start(make())
    _require_equal(make(), lambda net: net(x[0], one))
    packed = pack_padded_sequence(torch.randn(5, 3, 3), [3, 5, 1], enforce_sorted=False)
    _require_equal(make(), lambda net: net(packed))
    start = _start(make(), 3)
    _require_equal(make(), lambda net: net(packed, start))


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in _RECURRENT.items()])
def test_recurrent_networks_step_by_step(make):
    """Under transforms, which PyTorch's kernels do not support: forward-mode derivatives against differences of the kernels."""
    plain = make()
    unpacked = copy.deepcopy(plain)
    Unpacking.of(unpacked, ())
    rows = 2 if plain.batch_first else 4
    for x, start in ((torch.randn(2, 4, 3), None), (torch.randn(4, 3), _start(plain)), (torch.randn(2, 4, 3), _start(plain, rows))):
        direction = 1e-5 * torch.randn_like(x)
        ends = [tree_leaves(plain(x + sign * direction, start)) for sign in (1, -1)]
        results: Any = torch.func.jvp(lambda x, start=start: tree_leaves(unpacked(x, start)), (x,), (direction,))
        torch.testing.assert_close(results[0], tree_leaves(plain(x, start)))
        torch.testing.assert_close(results[1], [(a - b) / 2 for a, b in zip(*ends, strict=True)], rtol=1e-5, atol=1e-11)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *args, **kw: nn.RNNCell(*args, nonlinearity="relu", **kw)]
)
def test_cells(make, bias):
    for rows in ((2,), ()):
        x, h, c = torch.randn(*rows, 3), torch.randn(*rows, 4), torch.randn(*rows, 4)
        start: Any = (h, c) if make is nn.LSTMCell else h
        _require_equal(make(3, 4, bias=bias), lambda net, x=x: net(x))
        _require_equal(make(3, 4, bias=bias), lambda net, x=x, start=start: net(x, start))


_ATTENTION = {
    "sequence-first": {},
    "batch-first": {"batch_first": True},
    "without-bias": {"bias": False},
    "other-inputs": {"kdim": 3, "vdim": 5},
    "more-positions": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


@pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in _ATTENTION.items()])
@pytest.mark.parametrize("mask", ["", "padding", "attention", "per-head", "both", "numbers", "causal", "causal-padding"])
def test_attention(options, mask):
    def make() -> nn.MultiheadAttention:
        torch.manual_seed(1)
        net = nn.MultiheadAttention(4, 2, **options)
        for p in net.parameters():
            nn.init.normal_(p, std=0.5)
        return net

    batch, queries, keys = 3, 5, 5 if mask.startswith("causal") else 4
    shapes = [(queries, 4), (keys, options.get("kdim", 4)), (keys, options.get("vdim", 4))]
    hidden = torch.zeros(batch, keys, dtype=torch.bool)
    hidden[0, 1] = hidden[2, :2] = True
    pairs = torch.rand(queries, keys) < 0.3
    pairs[:, 0] = False
    causal = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    masks: dict[str, Any] = {
        "": {},
        "padding": {"key_padding_mask": hidden},
        "attention": {"attn_mask": pairs},
        "per-head": {"attn_mask": pairs.expand(batch * 2, -1, -1)},
        "both": {"key_padding_mask": hidden & ~hidden.all(1, keepdim=True), "attn_mask": pairs & False},
        "numbers": {"attn_mask": torch.randn(queries, keys), "key_padding_mask": torch.randn(batch, keys)},
        "causal": {"attn_mask": causal, "is_causal": True},
        "causal-padding": {"attn_mask": causal, "is_causal": True, "key_padding_mask": hidden & False},
    }
    first = options.get("batch_first", False)
    inputs = [torch.randn(batch, *shape) if first else torch.randn(shape[0], batch, shape[1]) for shape in shapes]
    for extra in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        _require_equal(make(), lambda net, extra=extra: net(*inputs, **masks[mask], **extra))
    if mask in ("", "attention"):
        single = [torch.randn(*shape) for shape in shapes]
        _require_equal(make(), lambda net: net(*single, **masks[mask]))
    if mask == "padding":
        single = [torch.randn(*shape) for shape in shapes]
        _require_equal(make(), lambda net: net(*single, key_padding_mask=hidden[0]))


def test_dropout_of_attention_is_that_of_weights():
    net = nn.MultiheadAttention(4, 2, dropout=0.5).train()
    x = torch.randn(5, 3, 4)
    plain = copy.deepcopy(net)
    Unpacking.of(net, ())
    torch.manual_seed(3)
    values = net(x, x, x)
    torch.manual_seed(3)
    torch.testing.assert_close(values, plain(x, x, x))
    fast = torch.stack([net(x, x, x, need_weights=False)[0] for _ in range(4000)])
    torch.testing.assert_close(fast.mean(0), torch.stack([plain(x, x, x)[0] for _ in range(4000)]).mean(0), rtol=0.0, atol=0.03)
    assert fast.std(0).min() > 0.005


class _Sequence(nn.Module):
    """A recurrent network over x (B, T, 3), and a head."""

    def __init__(self, kind: Any = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.rnn, self.head = kind(3, 4, batch_first=True, **options), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class _Padded(_Sequence):
    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.arange(len(x)) % x.shape[1] + 1
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        assert isinstance(packed, PackedSequence)
        y, _ = self.rnn(packed)
        return self.head(pad_packed_sequence(y, batch_first=True)[0].sum(1))


class _Encoder(nn.Module):
    """Attention over x (B, T, 4) that reads nothing, and a head."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=batch_first), 2)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[:, 0])


_NETS = {
    "lstm": (lambda: _Sequence(num_layers=2, bidirectional=False), 3),
    "gru": (lambda: _Sequence(nn.GRU), 3),
    "packed": (_Padded, 3),
    "encoder": (_Encoder, 4),
    "encoder over rows": (lambda: _Encoder(batch_first=False), 4),
}


@pytest.mark.parametrize(("make", "features"), [pytest.param(*case, id=name) for name, case in _NETS.items()])
def test_draws_are_plain_networks(make, features):
    net = make()
    plain = copy.deepcopy(net)
    bnn, x = bayesify(net, MeanField(initial_std=0.5)).eval(), torch.randn(5, 6, features)
    assert not [entry for entry in bnn.report if entry.reason]
    bnn(x)
    for seed in (0, 1):
        drawn = bnn.sample_network(seed).eval()
        assert [type(m) for m in drawn.modules()] == [type(m) for m in plain.modules()]
        torch.testing.assert_close(bnn.function(seed)(x), drawn(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        p = predict(bnn, x, Categorical(), samples=3, seed=0, coherent=True)
        outputs = bnn(x, samples=3, coherent=True).outputs
    assert p.probs.shape == (5, 2)
    assert (outputs[0] != outputs[1]).all()


@pytest.mark.extended
def test_the_rows_of_draws_stay_apart_in_folded_passes():
    """Means and standard deviations of outputs are those of separate networks: 2,000 draws, within 6 standard errors."""
    bnn, x = bayesify(_Sequence(), MeanField(initial_std=0.3)).eval(), torch.randn(3, 4, 3)
    with torch.no_grad():
        for coherent in (False, True):
            draws = torch.cat([bnn(x, samples=50, coherent=coherent).outputs for _ in range(40)])
            reference = torch.stack([bnn.sample_network(s)(x) for s in range(2000)])
            error = 6 * (draws.var(0) / 1000).sqrt()
            assert ((draws.mean(0) - reference.mean(0)).abs() < error).all()
            assert (draws.std(0) / reference.std(0) - 1).abs().max() < 6 / 2000**0.5
    assert [verdict.independent_rows for verdict in bnn._verdicts.values()] == [True]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_draws_share_a_pass_if_the_batch_is_the_second_dimension(kind):
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(3, 4, bidirectional=True), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = x.mean(1).new_zeros(2, len(x), 4) + x.sum((1, 2)).unsqueeze(-1)
            y, _ = self.rnn(x.transpose(0, 1), (h, h) if kind is nn.LSTM else h)
            return self.head(y[-1])

    bnn = bayesify(Transposed(), MeanField(initial_std=0.5))
    bnn(torch.randn(5, 4, 3), samples=3)
    assert [verdict.independent_rows for verdict in bnn._verdicts.values()] == [True]


def test_the_kl_is_that_of_all_weights():
    bnn = bayesify(_Sequence(num_layers=2), MeanField(prior_std=0.7, initial_std=0.1))
    stds = torch.cat([p.flatten().exp() for name, p in bnn.named_parameters() if name.endswith("log_std")])
    means = torch.cat([p.flatten() for p in unbayesify(copy.deepcopy(bnn)).parameters()])
    assert len(means) == len(stds) == sum(p.numel() for p in _Sequence(num_layers=2).parameters())
    prior = torch.distributions.Normal(0.0, 0.7)
    spreads = torch.distributions.kl_divergence(torch.distributions.Normal(torch.zeros(len(stds)), stds), prior)
    expected = spreads.sum() + prior.log_prob(torch.zeros(())) * len(means) - prior.log_prob(means).sum()
    torch.testing.assert_close(bnn(torch.randn(2, 3, 3)).kl, expected)


def test_every_parameter_gets_a_gradient():
    for make, features in _NETS.values():
        bnn = bayesify(make(), MeanField())
        x, y = torch.randn(5, 6, features), torch.randint(0, 2, (5,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)
            draws = bnn(x, samples=2)
        (-elbo(draws, Categorical().log_prob(draws.outputs, y), n=5)).backward()
        assert not [name for name, p in bnn.named_parameters() if p.grad is None]


def test_checkpoints_of_plain_networks_load():
    for make, features in _NETS.values():
        plain, x = make().eval(), torch.randn(5, 6, features)
        for method in (MeanField(), WHVI(), EMP(components=2, spread=0.0)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", BayesifyWarning)
                bnn = bayesify(make(), method)
            missing, unexpected = bnn.net.load_state_dict(plain.state_dict(), strict=False)
            assert not unexpected
            assert all(".posterior." in name for name in missing)
            if isinstance(method, MeanField):
                torch.testing.assert_close(unbayesify(bnn).eval()(x), plain(x))


def test_states_copies_and_pickles():
    x = torch.randn(5, 6, 3)
    bnn = bayesify(_Sequence(num_layers=2), MeanField(initial_std=0.5))
    other = bayesify(_Sequence(num_layers=2), MeanField())
    other.load_state_dict(bnn.state_dict())
    buffer = io.BytesIO()
    pickle.dump(bnn, buffer)
    buffer.seek(0)
    expected = bnn.function(3)(x)
    for same in (other, copy.deepcopy(bnn), pickle.load(buffer)):
        assert torch.equal(same.function(3)(x), expected)
    assert bnn.float().function(3)(x.float()).dtype == torch.float32


def test_reading_a_packed_parameter_gives_the_draw():
    class Reading(_Sequence):
        def forward(self, x: Tensor) -> Tensor:
            attention = self.attention
            scale = attention.in_proj_weight.sum() + attention.in_proj_bias.sum() + self.rnn.weight_ih_l0.square().sum()
            return super().forward(x) * scale

    net = Reading()
    net.attention = nn.MultiheadAttention(4, 2)
    of_attention = bayesify(copy.deepcopy(net), {"attention": MeanField(initial_std=0.5), "*": Deterministic()})
    with pytest.warns(BayesifyWarning, match="reads the weights"):
        draws = of_attention(torch.randn(5, 6, 3), samples=2).outputs
    assert (draws[0] != draws[1]).all()
    bnn, x = bayesify(net, MeanField(initial_std=0.5)), torch.randn(5, 6, 3)
    with pytest.warns(BayesifyWarning, match="reads the weights"):
        bnn(x)
    for seed in range(3):
        torch.testing.assert_close(bnn.function(seed)(x), bnn.sample_network(seed)(x))
    assert torch.equal(net.attention.in_proj_weight, torch.cat([net.attention.get_submodule(f"{p}_proj").weight for p in "qkv"]))


def test_a_packed_parameter_cannot_be_replaced():
    net = _Sequence()
    net.attention = nn.MultiheadAttention(4, 2)
    bayesify(net, MeanField())
    for module, name, parts in ((net.rnn, "weight_hh_l0", "hh_l0.weight"), (net.attention, "in_proj_bias", "q_proj.bias, k_proj")):
        with pytest.raises(ConfigurationError, match=f"^{name} cannot be replaced, because it became {parts}"):
            setattr(module, name, nn.Parameter(torch.zeros(16, 4)))


def test_patterns_name_modules_and_parts():
    for pattern, expected in (
        ("rnn", ["rnn.ih_l0", "rnn.hh_l0"]),
        ("rnn.hh*", ["rnn.hh_l0"]),
        ("*", ["rnn.ih_l0", "rnn.hh_l0", "head"]),
        ("head", ["head"]),
    ):
        net = _Sequence()
        bnn = bayesify(net, {pattern: MeanField()})
        assert [name for name, _ in bnn.random_layers()] == expected
        assert isinstance(net.rnn, Unpacked) == (pattern != "head")
        torch.testing.assert_close(bnn.function(0)(x := torch.randn(2, 3, 3)), bnn.sample_network(0)(x))
    assert [(entry.name, entry.layer) for entry in bnn.report] == [("rnn", "LSTM"), ("head", "Linear")]


def test_the_network_is_unchanged_after_an_error():
    net = _Sequence()
    net.attention = nn.MultiheadAttention(4, 2)
    before = dict(net.named_parameters())
    for methods in ({"nothing": MeanField()}, {"head": MeanField(), "head*": MeanField()}):
        with pytest.raises(ConfigurationError):
            bayesify(net, methods)
        assert list(net.named_parameters()) == list(before.items())
        assert (type(net.rnn), type(net.attention)) == (nn.LSTM, nn.MultiheadAttention)
    assert net(torch.randn(2, 3, 3)).shape == (2, 2)


def test_modules_that_share_parameters_or_compute_them_stay_packed():
    net = nn.ModuleDict({"a": nn.LSTM(3, 3), "b": nn.LSTM(3, 3), "c": nn.utils.weight_norm(nn.LSTM(3, 3), "weight_hh_l0")})
    net["b"].weight_hh_l0 = net["a"].weight_hh_l0
    net["head"] = nn.Linear(3, 60)
    with pytest.warns(BayesifyWarning, match="stay deterministic"):
        bnn = bayesify(net, MeanField())
    assert [name for name, _ in bnn.random_layers()] == ["head"]
    assert net["b"].weight_hh_l0 is net["a"].weight_hh_l0


def test_methods_that_need_calls_leave_recurrent_networks_alone():
    for method in (VOGN(), Laplace(layers="all", structure="kronecker")):
        with pytest.raises(NothingRandomError, match="computes with weights alone"):
            bayesify(_Sequence(), {"rnn": method})
    bnn = bayesify(_Encoder(), {"body*": VOGN()})
    assert "body.layers.0.self_attn.q_proj" in dict(bnn.random_layers())


@pytest.mark.parametrize("method", [Laplace(layers="all", structure="diagonal", linearized=False), SGHMC(), HMC()], ids=repr)
def test_methods_after_training_find_all_weights(method):
    from bayesify.methods._weight_density import WeightDensity

    bnn = bayesify(_Sequence(), method)
    names = [name for name, _ in bnn.random_layers()]
    density = WeightDensity(bnn, names, Categorical(), 1.0, 1.0)
    x, y = torch.randn(5, 6, 3), torch.randint(0, 2, (5,))
    assert len(density.start) == sum(p.numel() for p in _Sequence().parameters())
    many = torch.randn(3, len(density.start))
    together = torch.func.vmap(lambda vector: density.log_likelihood(vector, x, y))(many)
    plain = _Sequence()
    for vector, value in zip(many, together, strict=True):
        weights = density.named(vector)
        plain.load_state_dict({_packed_name(name): w for name, w in weights.items()})
        logits = plain(x).detach()
        torch.testing.assert_close(value, logits.log_softmax(-1)[torch.arange(5), y].sum())


def _packed_name(name: str) -> str:
    head, part, kind = name.rpartition(".")[0].rpartition(".")[0], *name.split(".")[-2:]
    return name if not head else f"{head}.{kind}_{part}"


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", [MeanField(initial_std=0.5), MeanField(noise="shared", initial_std=0.5), WHVI()], ids=repr)
def test_activation_checkpoints_repeat_the_draw(method, reentrant):
    class Checkpointed(_Sequence):
        wraps = False

        def forward(self, x: Tensor) -> Tensor:
            h = x * self.scale
            y = checkpoint(lambda h: self.rnn(h)[0], h, use_reentrant=reentrant) if self.wraps else self.rnn(h)[0]
            return self.head(y[:, -1])

    net = Checkpointed()
    net.scale = nn.Parameter(torch.ones(3))
    bnn, x = bayesify(net, method), torch.randn(5, 6, 3)
    results = []
    for net.wraps in (False, True, True):
        torch.manual_seed(1)
        bnn.zero_grad()
        draws = bnn(x, coherent=True)
        (draws.outputs.square().sum() + draws.kl).backward()
        results.append([draws.outputs, draws.kl, *(p.grad for p in bnn.parameters())])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])


def test_a_layer_called_outside_its_network_warns_once():
    net = _Sequence()
    bayesify(net, MeanField())
    with pytest.warns(BayesifyWarning, match="outside a pass") as caught:
        assert net.rnn(torch.randn(2, 3, 3))[0].shape == (2, 3, 4)
    assert len(caught) == 1


def test_point_estimates_fold():
    net = _Sequence(num_layers=2)
    plain, x = copy.deepcopy(net), torch.randn(5, 6, 3)
    bnn = bayesify(net, Deterministic())
    torch.testing.assert_close(bnn(x, samples=3).outputs, plain(x).expand(3, 5, 2))


def test_a_fresh_module_is_known_to_be_one():
    """Methods that drop weights warn of lost training, and not of the initial distributions of attention and recurrence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        for net in (nn.LSTM(64, 16), nn.GRU(8, 64), nn.MultiheadAttention(32, 2), nn.MultiheadAttention(32, 2, kdim=8, vdim=64)):
            bayesify(nn.ModuleDict({"layer": net.float()}), {"layer": WHVI()})
    trained = nn.LSTM(64, 16)
    with torch.no_grad():
        trained.weight_hh_l0.mul_(3)
    with pytest.warns(BayesifyWarning, match=r"were dropped.*layer\.hh_l0"):
        bayesify(nn.ModuleDict({"layer": trained}), {"layer": WHVI()})


def test_a_state_that_is_kept_is_an_error():
    class Stateful(_Sequence):
        state: Any = None

        def forward(self, x: Tensor) -> Tensor:
            y, self.state = self.rnn(x, self.state)
            return self.head(y[:, -1])

    bnn = bayesify(Stateful(), MeanField(initial_std=0.5))
    with pytest.raises(PassError, match="keeps results"):
        bnn(torch.randn(2, 3, 3))

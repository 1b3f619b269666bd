"""What lies before the first random layer is computed once per batch, with the numbers of ordinary passes."""

import copy
import random
import weakref
from collections import Counter, OrderedDict, deque
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesify import EMP, VSD, Categorical, DeepEnsemble, MCDropout, MeanField, Method, VariationalDropout, bayesify, predict
from bayesify.core.folded import Folded
from bayesify.core.replay import leaves_stand_ins, mark
from bayesify.methods.mean_field import GaussianPosterior

F64 = torch.float64


class Residual(nn.Module):
    """Convolutions with a skip connection and a branch around the random ones."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.block, self.side = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.head = nn.Linear(12, 4)
        self.relu = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm(self.stem(x)))
        h = self.relu(h + self.block(h))
        both = torch.cat([h, self.side(x)], 1)
        return self.head(both.mean((2, 3)))


class Words(nn.Module):
    """Tokens, positions, attention: a padding mask made of the input meets random values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(5, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.block(h, src_key_padding_mask=x == 0)[:, 0])


class Rows(nn.Module):
    """Keeps the number of rows of its input for later: no prefix can follow that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        return self.second(torch.relu(self.first(x)).reshape(rows, -1))


class OwnNoise(nn.Module):
    """Dropout that is on when predicting, too: every draw has a mask of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.5, training=True))


class Gated(nn.Module):
    """Python decides by values of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.second = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) if bool(x.mean() > 0) else self.other(x)
        return self.second(h.tanh())


IMAGES, TABLE = torch.randn(9, 3, 5, 5, dtype=F64), torch.randn(9, 6, dtype=F64)
TOKENS = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 10, 0, 0, 0]] * 3)
CASES: dict[str, tuple[nn.Module, Any, Method | dict[str, Method]]] = {
    "a block": (Residual(), IMAGES, {"block": MeanField()}),
    "a block, dropout": (Residual(), IMAGES, {"block": MCDropout(p=0.4)}),
    "in place": (Residual(inplace=True), IMAGES, {"block": VSD(hierarchical=True)}),
    "the branch": (Residual(), IMAGES, {"side": VariationalDropout()}),
    "the stem": (Residual(), IMAGES, {"stem": MeanField()}),
    "the last layer": (Residual(), IMAGES, {"head": MeanField(noise="shared")}),
    "all": (Residual(), IMAGES, MeanField()),
    "patches": (Residual(), IMAGES, EMP(components=3)),
    "weight noise": (Residual(), IMAGES, VariationalDropout(noise="weight")),
    "an ensemble": (Residual(), IMAGES, DeepEnsemble(members=2, base=MCDropout(p=0.4))),
    "words": (Words(), TOKENS, {"head": MeanField()}),
    "inside attention": (Words(), TOKENS, {"block.linear1": MeanField()}),
    "positions": (Words(), TOKENS, {"places": EMP(components=3, spread=1.0)}),
    "values decide": (Gated(), TABLE, {"second": MeanField()}),
    "rows": (Rows(), TABLE, {"first": MeanField()}),
    "own noise": (OwnNoise(), TABLE, {"second": MeanField()}),
}


def made(name: str) -> tuple[Any, Any]:
    net, x, method = CASES[name]
    torch.manual_seed(1)
    return bayesify(copy.deepcopy(net).double().eval(), method), x


def decided(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether passes were replayed, by call of `predict`."""
    decisions, decide = [], Folded._replays

    def noted(self: Folded, *args: Any) -> bool:
        decisions.append(decide(self, *args))
        return decisions[-1]

    monkeypatch.setattr(Folded, "_replays", noted)
    return decisions


def without_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesify.core.folded.has_prefix", lambda net: False)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_ordinary_passes(name: str, coherent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, x = made(name)
    options: Any = {"samples": 11, "chunk": 4, "batch_size": 5, "seed": 2, "coherent": coherent}
    fast = predict(bnn, x, Categorical(), **options)
    without_prefix(monkeypatch)
    plain = predict(bnn, x, Categorical(), **options)
    torch.testing.assert_close(fast.mean, plain.mean, rtol=1e-10, atol=1e-12)
    assert float(plain.epistemic.max()) > 1e-9


def test_operators_in_place_do_not_change_what_later_passes_get(monkeypatch: pytest.MonkeyPatch) -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h += self.second(h.tanh())
            return h

    bnn = bayesify(Adding().double().eval(), {"second": MeanField(initial_std=0.5)})
    options: Any = {"samples": 4, "chunk": 1, "seed": 2}  # one draw per pass: nothing is repeated
    fast = predict(bnn, TABLE, Categorical(), **options)
    without_prefix(monkeypatch)
    torch.testing.assert_close(fast.mean, predict(bnn, TABLE, Categorical(), **options).mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "agrees"),
    [(name, name not in ("rows", "own noise")) for name in CASES if name != "an ensemble"],
)
def test_only_nets_that_it_cannot_follow_go_without(name: str, agrees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, x = made(name)
    decisions = decided(monkeypatch)
    predict(bnn, x, Categorical(), samples=3, seed=0)
    assert decisions == [agrees]


class Counts(TorchDispatchMode):
    """Rows that went through each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if "convolution" in str(func):
            self.rows[f"{tuple(args[1].shape)}"] += args[0].shape[0]
        return func(*args, **(kwargs or {}))


def test_certain_layers_see_every_row_once() -> None:
    bnn, x = made("a block")
    predict(bnn, x, Categorical(), samples=2, seed=0)  # looks at the net
    rows = []
    for chunk in (8, 25):
        with Counts() as counts:
            predict(bnn, x, Categorical(), samples=50, chunk=chunk, batch_size=4, seed=0)
        rows.append(counts.rows)
    stem, side, block = (str(shape) for shape in ((6, 3, 3, 3), (6, 3, 1, 1), (6, 6, 3, 3)))
    # two calls with replay over three rows, and one of two draws: the comparison that every call of `predict` makes
    compared = {stem: 3 + 6, side: 3 + 6, block: 2 * (3 + 6)}
    moments = 2 * 9  # mean and variance of the random layer
    assert rows == 2 * [{stem: 9 + compared[stem], side: 9 + compared[side], block: moments + compared[block]}]


def test_a_random_layer_draws_for_every_row() -> None:
    bnn, x = made("a block, dropout")
    predict(bnn, x, Categorical(), samples=2, seed=0)  # looks at the net
    with Counts() as counts:
        predict(bnn, x, Categorical(), samples=50, chunk=8, batch_size=4, seed=0)
    assert counts.rows[str((6, 6, 3, 3))] == 50 * 9 + 18, "and for the comparison"


def test_a_net_that_changes_its_mind_is_predicted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.passes = nn.Linear(6, 8), nn.Linear(8, 4), [0]  # no setting

        def forward(self, x: Tensor) -> Tensor:
            self.passes[0] += 1
            h = self.first(x)
            return self.second(h.tanh() if self.passes[0] < 12 else h)

    def net() -> Any:
        torch.manual_seed(0)
        return bayesify(Moody().double().eval(), {"second": MeanField()})

    bnn = net()
    predict(bnn, TABLE, Categorical(), samples=1, seed=0)
    assert bnn.net.passes == [4]  # three compare replays; those that look at the net are not counted
    fast = predict(bnn, TABLE, Categorical(), samples=6, chunk=2, seed=1)
    without_prefix(monkeypatch)
    other = net()
    other.net.passes = [4]
    plain = predict(other, TABLE, Categorical(), samples=6, chunk=2, seed=1)
    assert fast.mean.shape == plain.mean.shape
    assert bool(fast.mean.isfinite().all())
    assert bnn._prefix is None


class Switched(nn.Module):
    """Noise of its own before the random layer, with a switch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.noisy = nn.Linear(6, 16), nn.Linear(16, 4), False

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.5, training=self.noisy))


def test_every_call_of_predict_decides_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn = bayesify(Switched().double().eval(), {"second": MeanField()})
    decisions = decided(monkeypatch)
    for bnn.net.noisy in (False, True, False):
        predict(bnn, TABLE, Categorical(), samples=4, batch_size=3, seed=0)
    assert decisions == [True, False, True], "once for the three batches of a call"


PATCHES = EMP(where="head", components=3, spread=1.0)  # the prior is on the other layers as well


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize(
    ("method", "layer"),
    [({"head": MeanField()}, "stem"), ({"head": MeanField()}, "relu"), (PATCHES, "stem"), (PATCHES, "head"), (MeanField(), "stem")],
    ids=["certain", "without parameters", "point estimate", "random, after certain ones", "random"],
)
def test_hooks_of_others_see_what_they_see_in_ordinary_passes(
    method: Method | dict[str, Method], layer: str, register: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    bnn = bayesify(Residual().double().eval(), method)
    seen: list[list[Tensor]] = []

    def look(module: nn.Module, args: tuple[Tensor], output: Tensor | None = None) -> None:
        seen[-1].append((args[0] if output is None else output).detach().clone())

    getattr(bnn.net.get_submodule(layer), register)(look)
    for patched in (False, True):
        with monkeypatch.context() as patch:
            if patched:
                without_prefix(patch)
            seen.append([])
            predict(bnn, IMAGES, Categorical(), samples=6, chunk=2, seed=0)
    fast, plain = (tensors[-3:] for tensors in seen)  # three chunks, after passes that look at the net
    torch.testing.assert_close(fast, plain, rtol=0, atol=0)


def test_our_own_hooks_leave_replay_on(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1), nn.Linear(6, 2))
    bnn = bayesify(net.double().eval(), {"0.layers.0.linear2": MeanField(), "1": MeanField()})
    assert bnn.net[0]._forward_pre_hooks
    decisions = decided(monkeypatch)
    with torch.no_grad(), bnn.predicting((torch.randn(3, 4, 6, dtype=F64),), {}, False, torch.manual_seed):
        assert decisions == [True]


def test_a_net_that_fails_while_it_is_replayed_is_not_replayed() -> None:
    class Broken(nn.Module):
        """Fails in one pass, or from then on."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.passes, self.fails_at, self.recovers = nn.Linear(6, 8), nn.Linear(8, 4), [0], [0], True

        def forward(self, x: Tensor) -> Tensor:
            self.passes[0] += 1
            if self.passes == self.fails_at or (self.passes > self.fails_at > [0] and not self.recovers):
                raise KeyError("nothing to do with shapes")
            return self.second(self.first(x).tanh())

    bnn = bayesify(Broken().double().eval(), {"second": MeanField()})
    expected = predict(bnn, TABLE, Categorical(), samples=4, chunk=2, seed=0)  # looks at the net
    assert (before := bnn.net.passes[0]) == 3 + 2  # those that look at the net are not counted
    for number in (2, 5):  # the first pass of the comparison that replays, and the last one of the prediction
        bnn.net.passes, bnn.net.fails_at, bnn.net.recovers = [0], [number], True
        found = predict(bnn, TABLE, Categorical(), samples=4, chunk=2, seed=0)
        torch.testing.assert_close(found.probs, expected.probs)
        bnn.net.passes, bnn.net.recovers = [0], False
        with pytest.raises(KeyError, match="nothing to do with shapes"):
            predict(bnn, TABLE, Categorical(), samples=4, chunk=2, seed=0)
    bnn.net.passes, bnn.net.fails_at = [0], [0]
    predict(bnn, TABLE, Categorical(), samples=4, chunk=2, seed=0)
    assert bnn.net.passes == [before]
    assert bnn._prefix is None


class Wrapper(nn.Module):
    """Any module around a Bayesian network."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize("wrap", [torch.optim.swa_utils.AveragedModel, Wrapper], ids=["AveragedModel", "a module"])
def test_wrapped_networks_are_replayed(wrap: Any) -> None:
    bnn, x = made("a block")
    wrapped = wrap(bnn)
    counts = []
    for root in (bnn, wrapped):
        predict(root, x, Categorical(), samples=2, seed=0)  # looks at the net
        with Counts() as count:
            p = predict(root, x, Categorical(), samples=50, chunk=8, batch_size=4, seed=0)
        counts.append((count.rows, p.probs))
    torch.testing.assert_close(counts[0], counts[1], rtol=0, atol=0)
    assert counts[1][0][str((6, 3, 3, 3))] == 9 + 6 + 3, "every row once, and the comparison"


def test_inputs_and_random_state_are_left_alone() -> None:
    bnn, x = made("a block")
    before = torch.get_rng_state()
    predict(bnn, x, Categorical(), samples=3, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert not [name for name in vars(x) if name.startswith("bayesify")]


def test_no_kl_is_computed_while_predicting(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, x = made("all")

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("nobody asked for the KL")

    for owner, name in ((GaussianPosterior, "kl"), (GaussianPosterior, "_kl_and_spread")):  # afterwards, and on the way
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            predict(bnn, x, Categorical(), samples=3, seed=0)
            with pytest.raises(AssertionError, match="KL"):
                bnn.kl()


def test_training_mode_has_no_prefix() -> None:
    bnn, x = made("a block")
    with bnn.train().predicting((x,), {}, False, lambda seed: None):
        assert bnn._prefix is None


def test_nothing_but_what_random_layers_need_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deep(nn.Module):
        """Ten wide layers that nobody needs once the last of them is known, changed in place."""

        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
            self.head = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.wide:
                x = F.relu_(layer(x))
            alive.append(sum(ref() is not None for ref in refs))
            return self.head(x)

    refs: list[Any] = []
    alive: list[int] = []
    linear = F.linear

    def watched(*args: Any) -> Tensor:
        y = linear(*args)
        refs.append(weakref.ref(y))
        return y

    bnn = bayesify(Deep().double().eval(), {"head": MCDropout(p=0.5)})
    predict(bnn, torch.randn(5, 64, dtype=F64), Categorical(), samples=3, seed=0)  # the comparisons
    monkeypatch.setattr(F, "linear", watched)
    with torch.no_grad(), bnn.predicting((x := torch.randn(5, 64, dtype=F64),), {}, False, torch.manual_seed):
        refs.clear()
        alive.clear()
        bnn(x, samples=3)
        assert alive == [1], "the last one, which is in use"
        assert bnn._prefix is not None


def test_a_tensor_used_after_it_was_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inplace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h.relu_()  # the result is left alone
            return self.second(h)

    torch.manual_seed(0)
    bnn = bayesify(Inplace().double().eval(), {"second": MCDropout(p=0.5)})
    decisions = decided(monkeypatch)
    fast = predict(bnn, TABLE, Categorical(), samples=6, chunk=2, seed=1)
    assert decisions == [False]
    outputs = torch.cat([draw.outputs for draw in _chunks(bnn, TABLE, seed=1)])
    torch.testing.assert_close(fast.mean, outputs.softmax(-1).mean(0).detach())


def _chunks(bnn: Any, x: Tensor, seed: int) -> list[Any]:
    """The draws of `predict(samples=6, chunk=2)`."""
    draws = []
    for start in range(0, 6, 2):
        torch.manual_seed(random.Random(f"{seed} {start} 0").getrandbits(62))
        draws.append(bnn(x, samples=2))
    return draws


def test_nothing_to_share_is_noticed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 3))
    bnn = bayesify(net, {"0": MeanField(noise="shared")}).eval()
    x, few, original = torch.randn(64, 1, 28, 28), [], Folded._run
    predict(bnn, x, Categorical(), samples=2, seed=0)  # which examines the network

    def counted(self: Folded, *args: object) -> object:
        few.append(args[1].batch < 64)  # pyright: ignore[reportAttributeAccessIssue]
        return original(self, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Folded, "_run", counted)
    predict(bnn, x, Categorical(), samples=2, seed=0)
    assert few == [True, False]


@pytest.mark.parametrize(
    "container",
    [lambda x: x, lambda x: [1, (x,)], lambda x: {"a": {"b": x}}, lambda x: OrderedDict(a=x), lambda x: deque([x])],
    ids=["tensor", "list", "dict", "OrderedDict", "deque"],
)
def test_stand_ins_are_found_wherever_a_network_keeps_them(container: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net.kept, net.empty, net.number = container(torch.ones(2)), {}, 1.0
    assert not leaves_stand_ins(net)
    net.kept = container(mark(torch.ones(2), False))
    assert leaves_stand_ins(net)

"""Many models in one pass: every model as if it were trained alone."""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from bayesify import (
    DVI,
    ECMP,
    ELRG,
    EMP,
    MNF,
    SGLD,
    SNGP,
    SWA,
    SWAG,
    VIFO,
    VMG,
    VSD,
    WHVI,
    BatchEnsemble,
    BayesianLayer,
    BLoB,
    ConcreteDropout,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    MCDropout,
    MeanField,
    Method,
    Posterior,
    Radial,
    Rank1,
    RepulsiveEnsemble,
    ScalaBL,
    SpectralNorm,
    TensorFactorized,
    VariationalDropout,
    bayesify,
)
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.native import draws, switch
from bayesify.objectives import LinearWarmup
from bayesify.train import History, Training, fit, fit_many
from bayesify.train.many import dispatch
from bayesify.train.many.optimizers import Optimizers
from bayesify.train.many.random_streams import Draw, Noise, Streams
from bayesify.train.many.stack import _joined

F64 = torch.float64
COLUMNS = ("loss", "nll", "kl", "beta", "learning_rate", "validation_nll")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


def training(k: int, method: Method | None = None, net: Callable[[], nn.Module] = mlp, n: int = 24, **changes: Any) -> Training:
    """Model k: its own initial weights, rows, seed, KL weight and learning rate.

    24 rows are three batches of one size; a smaller last batch is traced once more, which doubles the time.
    """
    torch.manual_seed(100 + k)
    x = torch.randn(n, 3, dtype=F64)
    y = x[:, 0].sin() + 0.1 * torch.randn(n, dtype=F64)
    bnn = bayesify(net(), method or MeanField(initial_std=0.3)).to(F64)
    own = {"seed": k, "beta": LinearWarmup(fraction=0.5) if k % 2 else 0.3 + 0.1 * k, "learning_rate": (0.05, 0.01, 0.05)[k % 3]}
    likelihood = Gaussian(std=0.5 + 0.1 * k, learn=k != 7).to(F64)
    return Training(**({"bnn": bnn, "data": (x, y), "likelihood": likelihood} | own | changes))


def alone(one: Training, **settings: Any) -> History:
    return fit(
        one.bnn, one.data, one.likelihood, validation=one.validation, seed=one.seed, beta=one.beta, local_beta=one.local_beta,
        learning_rate=one.learning_rate, accelerator="cpu", progress=False, **settings,
    )  # fmt: skip


def state(one: Training) -> list[Tensor]:
    return [*one.bnn.state_dict().values(), *one.likelihood.state_dict().values()]


def check_equal(trainings: list[Training], together: bool | None = True, tolerance: float = 1e-9, **settings: Any) -> list[History]:
    """Train together and alone, from the same start: histories and weights agree."""
    settings = {"epochs": 3, "batch_size": 8, **settings}
    copies = copy.deepcopy(trainings)
    histories = fit_many(trainings, together=together, accelerator="cpu", progress=False, **settings)
    for one, history, twin in zip(trainings, histories, copies, strict=True):
        expected = alone(twin, **settings)
        assert len(history) == len(expected)
        assert (history.stopped_early, history.kept_epochs) == (expected.stopped_early, expected.kept_epochs)
        for column in COLUMNS:
            torch.testing.assert_close(
                torch.tensor(getattr(history, column)), torch.tensor(getattr(expected, column)), rtol=tolerance, atol=tolerance
            )
        for x, y in zip(state(one), state(twin), strict=True):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
    return histories


METHODS: list[Callable[[int], Method]] = [
    lambda k: Deterministic(prior_std=1.0),
    lambda k: Deterministic(),
    lambda k: DropConnect(p=0.2, prior_std=0.5),
    lambda k: EMP(),
    lambda k: EMP(where="*", components=3, probabilities=(0.5, 0.3, 0.2), learn_probabilities=True),
    lambda k: ECMP(probabilities=(0.5, 0.3, 0.1, 0.05, 0.05), bias_prior_std=1.4, decay="plain"),
    lambda k: ECMP(where="*", learn_probabilities=True),
    lambda k: MCDropout(p=0.2, prior_std=0.5),
    lambda k: MeanField(noise="shared"),
    lambda k: MeanField(noise="flipout"),
    lambda k: MeanField(prior_mean="pretrained", initial_std=0.3),
    lambda k: MeanField(prior="scale-mixture"),
    lambda k: VariationalDropout(p=0.4),
    lambda k: VariationalDropout(noise="weight", alpha_per="weight"),
    lambda k: VariationalDropout(learn=False),
    lambda k: VSD(transforms=2, rank=3),
    lambda k: VSD(transforms=1, hierarchical=True),
    lambda k: VSD(transforms=0, hierarchical=True, hyperprior="half-cauchy"),
    lambda k: VariationalDropout(noise="weight", prior="ard"),
    lambda k: EMP(component_std=0.1),
    lambda k: ConcreteDropout(noise="weight"),
    lambda k: WHVI(),
    lambda k: WHVI(covariance="full", flows=1, noise="shared"),
    lambda k: TensorFactorized(),
    lambda k: SWA(start=0.3, snapshots=5),
    lambda k: SWAG(start=0.3, snapshots=9, rank=3, prior_std=0.5),
    lambda k: SNGP(features=8, max_norm=0.3 + 0.1 * k),
    lambda k: SpectralNorm(max_norm=0.3 + 0.1 * k),
    lambda k: SGLD(prior_std=0.5, step_size=1e-6, draws=4, burn_in=3, thinning=1),
    lambda k: ELRG(),
    lambda k: VMG(),
    lambda k: MNF(),
    lambda k: Radial(),
    lambda k: Rank1(spread=0.0),
    lambda k: BatchEnsemble(),
    lambda k: ConcreteDropout(),
    lambda k: DVI(initial_std=0.3),
    lambda k: DVI(covariance="diagonal", prior="empirical-bayes"),
    lambda k: RepulsiveEnsemble(members=2),
    lambda k: RepulsiveEnsemble(members=2, space="weight", prior_std=0.5),
    lambda k: BLoB(where="*", prior_std=0.5),
    lambda k: ScalaBL(where="*", prior_mean=1.0),
    lambda k: VIFO(regularizer="mean-variance-all", eta_aux=0.3),
    lambda k: VIFO(regularizer="empirical-bayes", separate_std=True, link="exp"),
]


# The others go through the same code, and are slow tests, as are other settings of a method.
QUICK = [MeanField, EMP, SWAG]
EXTENDED = [Deterministic, VariationalDropout, SNGP, SGLD, DVI, RepulsiveEnsemble, WHVI, BLoB]
KINDS = [type(make(0)) for make in METHODS]


def _marks(index: int) -> tuple[pytest.MarkDecorator, ...]:
    kind = KINDS[index]
    if index == KINDS.index(kind) and kind in QUICK:
        return ()
    return (pytest.mark.extended if index == KINDS.index(kind) and kind in EXTENDED else pytest.mark.slow,)


@pytest.mark.parametrize("index", [pytest.param(i, marks=_marks(i)) for i in range(len(METHODS))])
def test_every_method_trains_together_as_alone(index: int) -> None:
    check_equal([training(k, METHODS[index](k)) for k in range(3)])


class _Scaled(nn.Module):
    """A network with a scalar parameter, and one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale, self.unused = mlp(), nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale


def test_parameters_of_all_shapes_are_one_tensor_for_the_optimizer() -> None:
    parameters = {"scalar": torch.randn(3), "matrix": torch.randn(3, 4, 5), "empty": torch.zeros(3, 0), "vector": torch.randn(3, 2)}
    trained, views = _joined(parameters)
    assert [x.shape for x in trained.values()] == [(3, 23)]
    assert all(torch.equal(views[name], x) for name, x in parameters.items())
    trained["all"][1] += 1
    assert all(torch.equal(views[name], x + torch.eye(3)[1].reshape(3, *[1] * (x.dim() - 1))) for name, x in parameters.items())
    trainings = [training(k, net=_Scaled) for k in range(2)]
    check_equal(trainings)
    assert all(bool((one.bnn.net.unused == 1).all()) for one in trainings)


def test_gradients_with_other_strides_than_their_weights() -> None:
    weights, gradient = torch.zeros(2, 3, 4), torch.randn(2, 4, 3).mT
    Optimizers({"weight": weights}, [0.1, 0.1], None, None, None).step({"weight": gradient})
    torch.testing.assert_close(weights, -0.1 * gradient.sign())  # the first step of Adam


def test_every_method_in_the_registry_is_tried() -> None:
    public = {name for name, kind in Method.registry.items() if kind.__module__.startswith("bayesify.methods")}
    many = {"DeepEnsemble"}  # an ensemble is many models itself
    alone = {"IVON", "VOGN", "NoisyAdam", "NoisyKFAC", "SLANG"}  # their optimizers train one model: tests/methods/test_ivon.py
    as_sgld = {"SGHMC", "HMC", "Laplace"}  # also made after training, model by model; two need packages
    assert {kind.__name__ for kind in KINDS} >= public - many - alone - as_sgld


@pytest.mark.default("prior_std", extended=["p", "patches"])
@pytest.mark.parametrize(
    "method",
    [
        lambda k: MeanField(prior_std=0.5 + 0.25 * k),
        lambda k: MCDropout(p=0.1 + 0.1 * k, prior_std=1.0 + k),
        lambda k: EMP(prior_std=1.0 + k, spread=0.1 * k),
        lambda k: VariationalDropout(p=0.1 + 0.1 * k, max_alpha=1.0 + k),
        lambda k: MeanField(prior="scale-mixture", mixture_std=0.01 * (k + 1), mixture_weight=0.2 + 0.1 * k),
        lambda k: WHVI(prior_std=0.03 * (k + 1), bias_prior_std=0.7 + k),
    ],
    ids=["prior_std", "p", "patches", "max_alpha", "mixture", "WHVI"],
)
def test_numbers_of_the_method_may_differ_between_models(method: Callable[[int], Method]) -> None:
    check_equal([training(k, method(k)) for k in range(3)])


@pytest.mark.slow
def test_the_noise_standard_deviation_may_differ() -> None:
    check_equal([training(k, n=30, likelihood=Gaussian(std=0.2 + 0.3 * k).to(F64)) for k in range(3)])


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.default("3", extended=[])
def test_several_draws_and_validation(samples: int) -> None:
    trainings = [training(k, n=30 if samples == 1 else 24) for k in range(3)]
    x, y = torch.randn(11, 3, dtype=F64), torch.randn(11, dtype=F64)
    check_equal([Training(**{**vars(t), "validation": (x, y)}) for t in trainings], samples=samples, validation_samples=5)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 1))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 2)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.convolution(x.unsqueeze(1))).flatten(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.out = nn.Linear(3, 1)
        self.out.weight.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Constants(nn.Module):
    """Tensors that are neither parameters nor buffers; those of one model differ from those of the next."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Constants.made += 1
        self.out, self.scale = nn.Linear(3, 1), torch.tensor([1.0, 2.0, 0.5 + Constants.made % 3], dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * self.scale + torch.tensor([0.5, 1.0, 0.0], dtype=F64))


class Masked(nn.Module):
    """Values that depend on values without a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(3, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        h = torch.where(h > 0, h, torch.zeros_like(h)) + h.sort(-1).values.cumsum(-1) + torch.nn.functional.softmax(h, -1)
        return self.out(h.masked_fill(h > 5.0, 5.0))


@pytest.mark.default("constants", extended=["norms and dropout"])
@pytest.mark.parametrize(
    "net",
    [normed, Convolutional, Tied, Constants, Masked],
    ids=["norms and dropout", "convolution", "reuse and frozen weights", "constants", "masks"],
)
def test_other_nets(net: Callable[[], nn.Module]) -> None:
    check_equal([training(k, net=net) for k in range(3)])


def test_classification() -> None:
    trainings = []
    for k in range(3):
        one = training(k, net=lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)))
        x, y = one.data
        trainings.append(
            Training(bnn=one.bnn, data=(x, (y > 0).long() + 2 * (x[:, 1] > 0).long()), likelihood=Categorical(), seed=k)
        )
    check_equal(trainings, batch_size=7)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(a) + self.b(b)))


@pytest.mark.default("tuple")
@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_nets_with_several_inputs(kind: str) -> None:
    trainings = []
    for k in range(2):
        one = training(k, net=TwoInputs)
        x, y = one.data
        inputs = (x, x.cos()) if kind == "tuple" else {"a": x, "b": x.cos()}
        trainings.append(Training(bnn=one.bnn, data=(inputs, y), likelihood=one.likelihood, seed=k))
    check_equal(trainings)


def test_data_that_all_models_share_is_kept_once() -> None:
    x, y = torch.randn(24, 3, dtype=F64), torch.randn(24, dtype=F64)
    check_equal([training(k, data=(x, y)) for k in range(3)])


class Halved(torch.optim.SGD):
    """Not one of PyTorch's own: halves the gradient by the norm of all parameters, which mixes them."""

    def step(self, closure: Any = None) -> None:
        parameters = self.param_groups[0]["params"]
        norm = torch.stack([p.detach().square().sum().double() for p in parameters]).sum()
        for p in parameters:
            p.grad.div_(1 + norm.to(p.dtype))
        super().step(closure)


@pytest.mark.default("SGD", "an optimizer that mixes weights", extended=["clipping"])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": partial(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=0.01)},
        {"optimizer": partial(torch.optim.AdamW, lr=0.02), "scheduler": partial(CosineAnnealingLR, T_max=3)},
        {"optimizer": partial(Halved, lr=0.05)},
        {"scheduler": partial(ReduceLROnPlateau, patience=0, factor=0.3, threshold=0.05), "batch_size": 7},
        {"clip_norm": 0.3},
    ],
    ids=["SGD", "AdamW with cosine", "an optimizer that mixes weights", "plateau", "clipping"],
)
def test_optimizers(settings: dict[str, Any]) -> None:
    check_equal([training(k) for k in range(3)], epochs=4, **settings)


def test_early_stopping_of_one_does_not_disturb_the_others() -> None:
    x, y = torch.randn(9, 3, dtype=F64), torch.randn(9, dtype=F64)
    trainings = [training(k, validation=(x, y), learning_rate=0.2 if k == 1 else 0.002) for k in range(3)]
    histories = check_equal(trainings, epochs=12, patience=2)
    assert len({len(history) for history in histories}) > 1


def test_failure_of_one_does_not_disturb_the_others() -> None:
    trainings = [training(k) for k in range(3)]
    broken = Training(**{**vars(trainings[1]), "learning_rate": 1e200})
    copies = copy.deepcopy(trainings)
    with pytest.warns(RuntimeWarning, match=r"training 1 failed: .* of epoch 1"):
        histories = fit_many(
            [trainings[0], broken, trainings[2]], epochs=3, batch_size=8, together=True, accelerator="cpu", progress=False
        )
    assert [history.failure is None for history in histories] == [True, False, True]
    assert len(histories[1]) == 0
    for k in (0, 2):
        alone(copies[k], epochs=3, batch_size=8)
        for x, y in zip(state(trainings[k]), state(copies[k]), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_one_after_another_a_failure_is_noted_too() -> None:
    trainings = [training(0), training(1, learning_rate=1e200)]
    with pytest.warns(RuntimeWarning, match="training 1 failed"):
        histories = fit_many(trainings, epochs=2, batch_size=8, together=False, accelerator="cpu", progress=False)
    assert histories[0].failure is None
    assert len(histories[0]) == 2
    assert histories[1].failure is not None


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) if bool((x.sum() > 0).item()) else self.out(-x)


class Counting(nn.Module):
    """Remembers in Python, which a trace cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.calls = nn.Linear(3, 1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.out(x) * self.calls


class Picky(Posterior):
    """Random numbers whose distribution depends on a tensor."""

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        keep = torch.bernoulli(torch.sigmoid(layer.weight.detach()).expand(samples, *layer.weight.shape))
        return layer.weight * keep, None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return layer.weight.new_zeros(())


class PickyMethod(Method):
    def build(self, layer: BayesianLayer) -> Posterior:
        return Picky()


Method.registry.pop("PickyMethod")  # naming it made it known; other tests in this process must not meet it


@pytest.mark.parametrize(
    ("net", "method"),
    [(Branching, MeanField()), (mlp, PickyMethod())],
    ids=["branches", "value-dependent noise"],
)
def test_what_cannot_be_traced_is_trained_one_after_another(net: Callable[[], nn.Module], method: Method) -> None:
    check_equal([training(k, method, net) for k in range(2)], together=None)
    with pytest.raises(ValueError, match="cannot be trained together"):
        fit_many([training(k, method, net) for k in range(2)], epochs=1, together=True, accelerator="cpu", progress=False)


def test_a_trace_that_computes_something_else_is_not_believed() -> None:
    with pytest.raises(ValueError, match="differ from those of a single model"):
        fit_many([training(k, net=Counting) for k in range(2)], epochs=1, together=True, accelerator="cpu", progress=False)


def test_models_that_differ_are_sorted_into_groups() -> None:
    x, y = torch.randn(24, 3, dtype=F64), torch.randn(24, dtype=F64)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    others = [training(4, Deterministic()), training(5, n=25), training(6, data=loader), training(7, net=lambda: nn.Linear(3, 1))]
    slow = [training(8, net=partial(activated, nn.Tanh())), training(9, net=partial(activated, nn.Tanh()))]
    fast = [training(10, net=partial(activated, nn.Hardtanh(-0.1, 0.1))), training(11, net=partial(activated, nn.Tanh()))]
    check_equal([training(0), *others, training(1), *slow, *fast], together=None)


def activated(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), activation, nn.Linear(8, 1))


@pytest.mark.slow
def test_graphs_that_differ_in_more_than_numbers_are_traced_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same classes, but an activation with a setting that is no number: two stacks instead of one."""
    stacked: list[int] = []
    original = dispatch.train_together

    def count(trainings: list[Training], *rest: Any) -> list[History]:
        result = original(trainings, *rest)
        stacked.append(len(trainings))
        return result

    monkeypatch.setattr(dispatch, "train_together", count)
    gelus = [partial(activated, nn.GELU(approximate=how)) for how in ("none", "tanh", "none", "tanh", "tanh")]
    check_equal([training(k, net=net) for k, net in enumerate(gelus)], together=None)
    assert sorted(stacked) == [2, 3]


def test_large_models_are_trained_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "train_together", lambda *_: pytest.fail("trained together"))
    fit_many([training(k, net=Convolutional) for k in range(2)], epochs=1, accelerator="cpu", progress=False)
    monkeypatch.setattr(dispatch, "_SMALL", 10.0)
    fit_many([training(k) for k in range(2)], epochs=1, accelerator="cpu", progress=False)


def test_everything_is_given_back_as_it_was() -> None:
    trainings = [training(k, net=normed) for k in range(2)]
    trainings[0].bnn.eval()
    before, shares = torch.get_rng_state(), []
    fit_many(trainings, epochs=3, batch_size=8, together=True, accelerator="cpu", progress=shares.append)
    assert torch.equal(torch.get_rng_state(), before)
    assert not trainings[0].bnn.training
    assert trainings[1].bnn.training
    assert all(p.grad is None for t in trainings for p in t.bnn.parameters())
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_draws_are_those_of_the_model_alone() -> None:
    """Every random operator that may be lifted, with two streams, against PyTorch's generator seeded by hand."""
    aten, shape = torch.ops.aten, torch.empty(3, 2)
    draws = [
        Draw(aten.randn.default, ([3, 2],), {"dtype": torch.float64}), Draw(aten.rand.default, ([40],), {}),
        Draw(aten.randint.low, (2, 9, [5]), {}), Draw(aten.randperm.default, (6,), {}), Draw(aten.bernoulli.p, (shape, 0.3), {}),
        Draw(aten.randn_like.default, (shape,), {}), Draw(aten.exponential.default, (shape,), {}),
    ]  # fmt: skip
    streams = Streams(2, torch.device("cpu"))
    torch.manual_seed(5)
    streams.save(1)
    torch.manual_seed(4)
    streams.save(0)
    noise = Noise([draws, draws])
    rounds = [[x.clone() for x in noise(streams)] for _ in range(2)]
    for model, seed in ((0, 4), (1, 5)):
        torch.manual_seed(seed)
        for drawn in rounds:
            expected = [
                torch.randn(3, 2, dtype=torch.float64), torch.rand(40), torch.randint(2, 9, (5,)), torch.randperm(6),
                torch.empty(3, 2).bernoulli_(0.3), torch.randn(3, 2), torch.empty(3, 2).exponential_(),
            ]  # fmt: skip
            for x, y in zip(drawn, expected, strict=True):
                assert torch.equal(x[model], y)


@pytest.mark.parametrize("method", [MeanField(noise="shared"), MeanField(), MCDropout(p=0.2), ConcreteDropout()], ids=repr)
@pytest.mark.default("*shared*", extended=["MeanField*"])
def test_native_draws_are_those_of_the_model_alone(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="the native operators need bayesify[fast]")
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    monkeypatch.setattr(draws, "_LEAST", 1)

    def single(k: int) -> Training:
        one = training(k, method, n=30)
        x, y = one.data
        return dataclasses.replace(one, bnn=one.bnn.float(), likelihood=one.likelihood.float(), data=(x.float(), y.float()))

    calls, fill = [], draws._fill
    monkeypatch.setattr(draws, "_fill", lambda *arguments: calls.append(arguments) or fill(*arguments))
    check_equal([single(k) for k in range(2)], tolerance=1e-3)
    assert len(calls) > 30


@pytest.mark.slow
def test_machine_code_computes_the_same() -> None:
    trainings = [training(k) for k in range(3)]
    copies = copy.deepcopy(trainings)
    fit_many(trainings, epochs=3, batch_size=8, together=True, compile=True, accelerator="cpu", progress=False)
    fit_many(copies, epochs=3, batch_size=8, together=True, accelerator="cpu", progress=False)
    for one, twin in zip(trainings, copies, strict=True):
        for x, y in zip(state(one), state(twin), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_bad_arguments() -> None:
    one = training(0)
    go = partial(fit_many, epochs=1, accelerator="cpu", progress=False)
    with pytest.raises(ValueError, match="trainings is empty"):
        go([])
    with pytest.raises(TypeError, match="got tuple"):
        go([("bnn", "data")])
    with pytest.raises(ValueError, match=r"trainings 0 and 1 share a .*deepcopy"):
        go([one, Training(**{**vars(one), "seed": 1})])
    with pytest.raises(ValueError, match="share a Gaussian"):
        go([one, training(1, likelihood=one.likelihood)])
    with pytest.raises(ValueError, match="patience needs validation data"):
        go([one], patience=1)
    with pytest.raises(ValueError, match="epochs"):
        fit_many([one], epochs=0)
    with pytest.raises(TypeError, match="bnn must be a Bayesian network"):
        go([training(1, bnn=nn.Linear(3, 1))])
    x, y = one.data
    before = state(copy.deepcopy(one))
    with pytest.raises(ValueError, match="NaN or infinity"):
        go([one, training(1, data=(x, y * float("nan")))])
    assert all(torch.equal(a, b) for a, b in zip(state(one), before, strict=True))


def test_weights_of_the_best_epoch_are_kept() -> None:
    x, y = torch.randn(9, 3, dtype=F64), torch.randn(9, dtype=F64)
    trainings = [training(k, validation=(x, y), learning_rate=0.3) for k in range(2)]
    histories = check_equal(trainings, epochs=6)
    assert any(history.best_epoch != 6 for history in histories)


def test_networks_that_vmap_cannot_vectorize_train_one_by_one(capfd):
    """PyTorch's fallback for its LSTM kernel gives a graph that fails in its first call, and a warning on the standard error."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    bnn = bayesify([Recurrent() for _ in range(2)], DeepEnsemble(members=2))
    fit(bnn, (torch.randn(16, 5, 3), torch.randn(16, 1)), likelihood=Gaussian(learn=True), epochs=2, progress=False)
    assert bnn(torch.randn(4, 5, 3), samples=2).outputs.shape == (2, 4, 1)
    assert "batching rule" not in capfd.readouterr().err

"""The root: inputs and outputs of every shape, folding against looping, modules used twice, the KL."""

import copy
import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    ECMP,
    ELRG,
    EMP,
    IVON,
    MNF,
    SGHMC,
    SLANG,
    SNGP,
    SWAG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    Bayesian,
    BayesifyWarning,
    Categorical,
    ConcreteDropout,
    DeepEnsemble,
    Deterministic,
    Laplace,
    MCDropout,
    MeanField,
    Method,
    NoisyAdam,
    NoisyKFAC,
    PassError,
    Radial,
    Rank1,
    RepulsiveEnsemble,
    SpectralNorm,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    predict,
)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Residual(nn.Module):
    """Skip connection, two inputs, one of them by keyword, options that are no tensors, and a mask without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, *, context: dict[str, Tensor], scale: float = 1.0, flag: str = "", mask: Tensor | None = None):
        h = x + torch.tanh(self.inner(x)) * scale + context["bias"][0]
        h = h if mask is None else h @ mask
        return self.out(h) if flag == "" else {"y": self.out(h), "pair": (h, None), "flag": flag}


class Shared(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.layer(x)


class Function(nn.Module):
    """A linear layer whose output goes through any function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 3), function

    def forward(self, x: Tensor, *rest: Tensor):
        return self.function(self.layer(x), *rest)


@pytest.mark.parametrize("fold", [True, False])
def test_nested_keyword_and_constant_inputs(fold):
    net = Residual()
    plain = copy.deepcopy(net)
    bnn = bayesify(net, Deterministic(), fold=fold, unbatched=["mask"])
    x, context, mask = torch.randn(4, 4), {"bias": (torch.randn(4, 4),)}, torch.randn(4, 4)
    # the mask has as many rows as the batch, so only its name tells it from a batched input
    options = {"context": context, "scale": 0.5, "mask": mask}
    torch.testing.assert_close(bnn(x, samples=3, **options).outputs, plain(x, **options).expand(3, 4, 2))
    found, expected = bnn(x, samples=3, flag="dict", **options).outputs, plain(x, flag="dict", **options)
    torch.testing.assert_close(found["y"], expected["y"].expand(3, 4, 2))
    torch.testing.assert_close(found["pair"][0], expected["pair"][0].expand(3, 4, 4))
    assert found["pair"][1] is None
    assert found["flag"] == "dict"
    by_keyword = bnn(x=x, samples=2, **options)
    assert by_keyword.outputs.shape == (2, 4, 2)
    assert by_keyword.local_kl.shape == (4,)


def test_a_shared_input_is_not_folded():
    bnn = bayesify(Function(lambda y, mask: y @ mask), Deterministic(), unbatched=["1"])
    mask = torch.randn(3, 3)
    y = bnn(torch.randn(3, 4), mask, samples=2).outputs
    assert y.shape == (2, 3, 3)


def test_an_input_whose_size_is_the_batch_size_by_chance_is_not_folded():
    net, x, mask = Function(lambda y, mask: y @ mask), torch.randn(3, 4), torch.randn(3, 3)
    bnn = bayesify(net, MeanField(initial_std=1.0))
    outputs = bnn(x, mask, samples=4, coherent=True).outputs
    assert [verdict.without_rows for verdict in bnn._verdicts.values()] == [(1,)]
    assert outputs.shape == (4, 3, 3)
    alone = bnn.function(seed=0)
    torch.testing.assert_close(alone(x, mask), torch.stack([alone(row[None], mask)[0] for row in x]))


def test_containers_of_outputs_are_kept():
    pair = namedtuple("pair", ["first", "second"])
    bnn = bayesify(Function(lambda y: pair(y, [y, {"deep": y}])), Deterministic())
    outputs = bnn(torch.randn(5, 4), samples=2).outputs
    assert type(outputs) is pair
    assert outputs.second[1]["deep"].shape == (2, 5, 3)


@dataclass
class _Record:
    y: Tensor


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("fold", [True, False])
def test_outputs_that_cannot_be_split_into_draws_are_refused(fold, samples):
    x = torch.randn(5, 4)
    for function, kind, message in (
        (Tensor.sum, ValueError, r"the network returned a tensor of shape \(\) for 5 examples"),
        (lambda y: y.flatten(), ValueError, "must be the batch"),
        (lambda y: y.T, ValueError, "bayesify.net, method, batch_dim=1."),
        (_Record, TypeError, "the network returned a _Record, whose tensors cannot be separated by draw"),
    ):
        with pytest.raises(kind, match=message):
            bayesify(Function(function), MeanField(), fold=fold)(x, samples=samples)


@pytest.mark.parametrize("method", [MeanField(), DeepEnsemble(members=2)])
def test_copies_of_data_parallel_are_refused(method):
    bnn = bayesify([_mlp(), _mlp()] if method.is_whole else _mlp(), method)
    with pytest.raises(PassError, match=r"DataParallel copies the network .* use DistributedDataParallel"):
        bnn._replicate_for_data_parallel()(torch.zeros(3, 4))


@pytest.mark.parametrize("samples", [0, -1, 1.5, True, "2", None])
def test_samples_is_checked(samples):
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1"):
        bayesify(_mlp(), MeanField())(torch.zeros(3, 4), samples=samples)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("method", [MeanField(), MeanField(noise="shared"), MCDropout(prior_std=1.0), VariationalDropout()])
def test_shapes(method, coherent, samples, batch):
    for fold in (True, False):
        draws = bayesify(_mlp(), method, fold=fold)(torch.randn(batch, 4), samples=samples, coherent=coherent)
        assert draws.outputs.shape == (samples, batch, 2)
        assert draws.kl.shape == ()
        assert draws.kl > 0
        assert draws.local_kl.shape == (batch,)


def test_an_input_without_a_batch_is_refused():
    bnn = bayesify(Function(lambda y: y), MeanField())
    for args in ((), (torch.tensor(1.0),), ([1.0, 2.0],)):
        with pytest.raises(ValueError, match="needs an input with a batch dimension 0"):
            bnn(*args)


def _moments(bnn: Bayesian, x: Tensor, draws: int, coherent: bool) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = bnn(x, samples=draws, coherent=coherent).outputs
    return y.mean(0), (y - y.mean(0)).square()


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("method", [MeanField(initial_std=0.5), MCDropout(p=0.3), VariationalDropout(p=0.4)])
def test_folding_equals_looping_in_distribution(method, coherent):
    """Means and variances within 6 standard errors, estimated from 1,500 draws; a factor of two in a variance is about 14."""
    n, x = 1500, torch.randn(3, 4, dtype=torch.float64)
    folded = bayesify(_mlp().double(), method)
    looped = copy.deepcopy(folded)
    looped.fold = False
    (m1, v1), (m2, v2) = (_moments(bnn, x, n, coherent) for bnn in (folded, looped))
    error = torch.sqrt((v1.mean(0) + v2.mean(0)) / n)
    assert ((m1 - m2).abs() < 6 * error).all()
    assert ((v1.mean(0) - v2.mean(0)).abs() < 6 * torch.sqrt((v1.var(0) + v2.var(0)) / n)).all()


def test_a_module_used_twice_is_one_function_and_pays_once():
    bnn = bayesify(Shared(), MeanField(noise="local", initial_std=1.0))
    x = torch.randn(3, 4)
    for coherent in (False, True):
        first, second = bnn(x, samples=2, coherent=coherent).outputs
        assert torch.equal(first, second)
    alone = bayesify(nn.Linear(4, 4), MeanField(initial_std=1.0))
    alone.load_state_dict({k.replace("net.layer.", "net."): v for k, v in bnn.state_dict().items()})
    assert torch.equal(bnn.kl(), alone.kl())


def test_the_batch_in_the_second_dimension():
    class SeqFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h, (last, _) = self.rnn(x)
            return {"steps": self.head(h), "last": last}

    net = SeqFirst()
    plain = copy.deepcopy(net)
    bnn = bayesify(net, Deterministic(), batch_dim=1)
    assert not bnn.fold
    assert {r.name: bool(r.reason) for r in bnn.report} == {"rnn.ih_l0": False, "rnn.hh_l0": False, "head": False}
    x = torch.randn(7, 3, 4)
    draws, expected = bnn(x, samples=2), plain(x)
    torch.testing.assert_close(draws.outputs["steps"], expected["steps"].transpose(0, 1).expand(2, 3, 7, 2))
    torch.testing.assert_close(draws.outputs["last"], expected["last"].transpose(0, 1).expand(2, 3, 1, 6))
    assert draws.local_kl.shape == (3,)


class _Last(nn.Module):
    """Time steps come in dimension 0, and rows go out there."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][-1])


@pytest.mark.parametrize(
    ("batch_dim", "message"),
    [(0, "if only the inputs have it there .*, transpose them"), (1, "same dimension in inputs and outputs: transpose")],
)
def test_a_batch_in_one_dimension_of_the_inputs_and_another_of_the_outputs_is_refused(batch_dim, message):
    bnn = bayesify(_Last(), MeanField(), batch_dim=batch_dim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)  # of separate passes
        with pytest.raises(ValueError, match=message):
            bnn(torch.randn(7, 3, 4))


@pytest.mark.parametrize(("net", "name"), [(_Last(), "'rnn'"), (nn.TransformerEncoderLayer(4, 2), "'self_attn'")])
def test_modules_to_which_rows_are_time_steps_are_named(net, name):
    bnn = bayesify(net, MeanField())
    with pytest.warns(BayesifyWarning, match=rf"rows are time steps to {name}, without batch_first=True: .*batch_dim=1"):
        bnn(torch.randn(3, 3, 4), samples=2)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_nets_with_batch_first_fold(kind):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    net = Recurrent()
    plain, bnn, x = copy.deepcopy(net), bayesify(net, Deterministic()), torch.randn(3, 5, 4)
    torch.testing.assert_close(bnn(x, samples=2).outputs, plain(x).expand(2, 3, 2))
    assert [verdict.independent_rows for verdict in bnn._verdicts.values()] == [True]


def test_kl_is_the_sum_over_layers_in_single_precision_at_least():
    bnn = bayesify(_mlp().bfloat16(), {"0": MeanField(prior_std=0.5, initial_std=1.0), "2": Deterministic(prior_std=2.0)})
    weights = [p.float() for p in (bnn.net[2].weight, bnn.net[2].bias)]
    point = sum(w.square().sum() for w in weights) / 8
    site = bnn.net[0]
    normals = [
        (site.weight, site.posterior.weight_log_std),
        (site.bias, site.posterior.bias_log_std),
    ]
    normal = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mean.float(), log_std.float().exp()), torch.distributions.Normal(0.0, 0.5)
        ).sum()
        for mean, log_std in normals
    )
    torch.testing.assert_close(bnn.kl(), point + normal)
    assert bnn.kl().dtype == torch.float32


SPREADS = ("log_std", "log_alpha", "logits", "tril", "flow_u", "flow_w", "flow_b")
GROUPS: dict[str, tuple[Method, set[str]]] = {
    "MeanField": (MeanField(), set()),
    "VariationalDropout": (VariationalDropout(), set()),
    "VSD": (VSD(hierarchical=True), {"first_vector", "connections", "log_scale_mean", "log_scale_log_std"}),
    "MCDropout": (MCDropout(), set()),
    "SWAG": (SWAG(), set()),
    "Laplace": (Laplace(), set()),
    "SNGP": (SNGP(), set()),
    "SpectralNorm": (SpectralNorm(), set()),
    "SGHMC": (SGHMC(), set()),
    "EMP": (EMP(where="*", learn_probabilities=True), set()),
    "ECMP": (ECMP(where="*", components=3), set()),
    "WHVI": (WHVI(scales="variational"), set()),
    "WHVI, full": (WHVI(covariance="full", flows=1), set()),
    "TensorFactorized": (TensorFactorized(), set()),
    "ConcreteDropout": (ConcreteDropout(), {"posterior.logit"}),
    "BatchEnsemble": (BatchEnsemble(), {"input_mean", "output_mean"}),
    "Rank1": (Rank1(spread=0.0), {"input_mean", "output_mean"}),
    "Radial": (Radial(), set()),
    "MNF": (MNF(), {"z_mean", "flows.", "direction", "auxiliary_"}),
    "VMG": (VMG(), set()),
    "ELRG": (ELRG(), {"weight_factor", "bias_factor"}),
    "IVON": (IVON(), set()),
    "VOGN": (VOGN(), set()),
    "NoisyAdam": (NoisyAdam(), set()),
    "NoisyKFAC": (NoisyKFAC(), set()),
    "SLANG": (SLANG(), {"log_diagonal", "posterior.factor"}),
    "VIFO": (VIFO(), {"posterior.bias"}),
    "VIFO, two networks": (VIFO(separate_std=True), set()),
    "repulsive ensemble": (RepulsiveEnsemble(members=2), set()),
    "ensemble": (DeepEnsemble(members=2, base=MeanField()), set()),
}


@pytest.mark.parametrize("name", GROUPS)
def test_weight_decay_is_for_weights_and_their_means(name):
    method, spreads = GROUPS[name]
    bnn = bayesify(_mlp().double(), method)
    for frozen in list(bnn.parameters())[:1]:
        frozen.requires_grad_(False)
    names = {id(p): name for name, p in bnn.named_parameters()}
    groups = bnn.parameter_groups(weight_decay=0.5, lr=0.1)
    assert [(group["weight_decay"], group["lr"]) for group in groups] == [(0.5, 0.1), (0.0, 0.1)][: len(groups)]
    decayed, others = ([names[id(p)] for p in group["params"]] for group in (*groups, {"params": []})[:2])
    assert sorted(decayed + others) == sorted(name for name, p in bnn.named_parameters() if p.requires_grad)
    assert set(others) == {n for n in decayed + others if n.endswith(SPREADS) or any(part in n for part in spreads)}
    # What the optimizer makes of them, where nothing has a gradient but the decay
    before = {name: p.detach().clone() for name, p in bnn.named_parameters()}
    for parameter in bnn.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    torch.optim.AdamW(groups).step()
    for name, parameter in bnn.named_parameters():
        shrunk = 1 - 0.1 * 0.5 if name in decayed else 1.0
        torch.testing.assert_close(parameter.detach(), shrunk * before[name], rtol=1e-12, atol=0)


def test_decay_of_components_of_scales_and_of_cores():
    """Means of weights wherever a method keeps them."""
    for method, means in (
        (EMP(where="*", components=2), {"posterior.weight", "posterior.bias"}),
        (WHVI(), {"posterior.s1", "posterior.s2", "posterior.g.mean", "bias"}),
        (TensorFactorized(), {"posterior.first", "posterior.core_mean", "posterior.last", "bias"}),
    ):
        bnn = bayesify(nn.Linear(4, 4), method)
        names = {id(p): name.removeprefix("net.") for name, p in bnn.named_parameters()}
        assert {names[id(p)] for p in bnn.parameter_groups(weight_decay=0.1)[0]["params"]} == means


@pytest.mark.parametrize("method", [MeanField(), VIFO(), DeepEnsemble(members=2)])
def test_losses_are_not_summed_over_accumulated_batches(method):
    """transformers.Trainer would multiply them by the number of batches it accumulates."""
    assert bayesify(_mlp(), method).accepts_loss_kwargs is False


@pytest.mark.parametrize("decide", [bool, float, torch.Tensor.item, lambda y: y.nonzero().shape[0], lambda y: y[y > 0].shape[0]])
def test_a_net_that_decides_by_random_values_has_a_pass_per_draw(decide):
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y if decide((y.sum() > 0) if decide in (bool, float, torch.Tensor.item) else y) else -y

    bnn = bayesify(Deciding(), MeanField())
    with pytest.warns(BayesifyWarning, match="depend on random values"):
        bnn(torch.randn(5, 4), samples=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bayesify(_mlp(), MeanField())(torch.randn(5, 4), samples=3)


def test_a_weight_of_another_shape_than_its_posterior_is_refused():
    """As `resize_token_embeddings` of transformers leaves it; kernels would read other memory."""
    bnn = bayesify(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), MeanField())
    bnn.net[0].weight.data = torch.randn(7, 4)
    message = r"'0' \(7, 4\) instead of \(5, 4\); change sizes, as by resize_token_embeddings, before bayesify"
    x = torch.tensor([1, 6])
    for compute in (bnn.kl, lambda: bnn(x), lambda: predict(bnn, x, Categorical(), samples=3)):
        with pytest.raises(PassError, match=message):
            compute()

"""Deep ensembles: members of their own initial values, order and noise; predictions that mix them; saved, set and refused."""

import copy
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bayesify import EMP, VIFO, DeepEnsemble, MeanField, Method, bayesify, elbo, fit, predict, summary, unbayesify
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.methods._ensemble_root import reset_parameters
from bayesify.train import Training, fit_many
from bayesify.train.process_state import seed_for

SETTINGS = {"epochs": 3, "batch_size": 8, "accelerator": "cpu", "progress": False}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def identify(value: object) -> str:
    return type(value).__name__


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 2)
    return x, x[:, 0].sin()


def test_members_begin_apart_and_the_first_keeps_the_weights() -> None:
    net, x = mlp(), torch.randn(4, 2)
    expected = net(x).detach()
    bnn = bayesify(net, DeepEnsemble(members=4))
    outputs = bnn(x, samples=4).outputs.detach()
    torch.testing.assert_close(outputs[0], expected)
    assert len({round(float(v), 5) for v in outputs[:, 0, 0]}) == 4


def test_draws_are_shared_out_equally() -> None:
    bnn, x = bayesify(mlp(), DeepEnsemble(members=3)).eval(), torch.randn(4, 2)
    outputs = bnn(x, samples=7).outputs
    alone = [member(x).outputs[0] for member in bnn.members]
    torch.testing.assert_close(outputs, torch.stack([alone[k] for k in (0, 0, 0, 1, 1, 2, 2)]))


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_prediction_mixes_the_members(chunk: int | None) -> None:
    bnn, x = bayesify(nn.Linear(2, 3), DeepEnsemble(members=3)), torch.randn(5, 2)
    probs = torch.stack([member.net(x).softmax(-1) for member in bnn.members]).mean(0)
    predictive = predict(bnn, x, Categorical(), samples=7, chunk=chunk)
    assert predictive.samples == 9
    torch.testing.assert_close(predictive.probs, probs)


def test_kl_terms_are_means_over_the_members() -> None:
    bnn, x = bayesify(mlp(), DeepEnsemble(members=3, base=MeanField())), torch.randn(5, 2)
    torch.testing.assert_close(bnn(x, samples=3).kl, sum(member.kl() for member in bnn.members) / 3)
    torch.testing.assert_close(bnn.kl(), bnn(x, samples=3).kl)
    vifo = bayesify(mlp(), DeepEnsemble(members=2, base=VIFO(eta=0.3)))
    torch.testing.assert_close(vifo(x, samples=2).local_kl, sum(member(x).local_kl for member in vifo.members) / 2)
    assert vifo.local_beta == 0.3


@pytest.mark.default("plain", extended=[])
@pytest.mark.parametrize("method", [None, VIFO(eta_aux=0.2, regularizer="mean-all")], ids=["plain", "VIFO"])
def test_every_member_is_trained_as_if_alone(method: Method | None) -> None:
    bnn, (x, y) = bayesify(mlp(), DeepEnsemble(members=3, base=method)).double(), data()
    x, y, likelihood = x.double(), y.double(), Gaussian(std=0.3, learn=True).double()
    twins = [copy.deepcopy((member, likelihood)) for member in bnn.members]
    history = fit(bnn, (x, y), likelihood, seed=5, learning_rate=0.02, **SETTINGS)
    histories = [
        fit(m, (x, y), own, seed=seed_for(5, "member", k), learning_rate=0.02, **SETTINGS) for k, (m, own) in enumerate(twins)
    ]
    for member, (twin, _) in zip(bnn.members, twins, strict=True):
        for p, q in zip(member.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)
    assert history.loss == pytest.approx([sum(h.loss[e] for h in histories) / 3 for e in range(3)])
    torch.testing.assert_close(likelihood.log_std, torch.stack([own.log_std for _, own in twins]).mean())


@pytest.mark.extended
def test_ensembles_beside_other_models() -> None:
    trainings = [
        Training(bnn=bayesify(mlp(), method), data=data(), likelihood=Gaussian(std=0.3))
        for method in (DeepEnsemble(members=2), MeanField(), DeepEnsemble(members=3, base=MeanField()))
    ]
    assert [len(history) for history in fit_many(trainings, **SETTINGS)] == [3, 3, 3]


def test_it_survives_json_and_knows_its_members() -> None:
    for method in (DeepEnsemble(members=2), DeepEnsemble(members=3, base=VIFO(eta=0.3, head="2"))):
        assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
    text = str(summary(bayesify(mlp(), DeepEnsemble(members=2, base=VIFO()))))
    assert "1.net.2" in text
    assert "2 of 4 layers are random" in text


def test_what_it_refuses() -> None:
    bnn = bayesify(mlp(), DeepEnsemble(members=2))
    with pytest.raises(ValueError, match=r"consists of 2 networks; restore one of them: unbayesify\(bnn.members\[0\]\)"):
        unbayesify(bnn)
    assert type(unbayesify(bnn.members[1])) is nn.Sequential
    with pytest.raises(ValueError, match="trained by fit_many, which has no accumulate; leave it out"):
        fit(bnn, data(), Gaussian(), accumulate=2)
    with pytest.raises(ValueError, match="base must not be a DeepEnsemble"):
        DeepEnsemble(base=DeepEnsemble())
    with pytest.raises(TypeError, match="base must be a Method such as VIFO"):
        DeepEnsemble(base="VIFO")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="without name patterns"):
        bayesify(mlp(), {"0": DeepEnsemble(base=MeanField()), "*": MeanField()})


def trained(net: nn.Module) -> nn.Module:
    """After a few steps of gradient descent."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (net(torch.ones(1, 2)) - 30).square().sum().backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("method", [None, MeanField()], ids=["plain", "MeanField"])
def test_members_that_are_given_are_kept(method: Method | None) -> None:
    nets = [trained(mlp()) for _ in range(3)]
    plain, x = copy.deepcopy(nets), torch.randn(4, 2)
    bnn = bayesify(nets, DeepEnsemble(members=3, base=method)).eval()
    assert [member.net for member in bnn.members] == nets
    for member, net in zip(bnn.members, plain, strict=True):
        for name, expected in net.named_parameters():
            assert torch.equal(member.net.get_parameter(name), expected), name
    if method is None:
        torch.testing.assert_close(bnn(x, samples=3).outputs, torch.stack([net(x) for net in plain]))
    assert bnn(x, samples=6).outputs.shape == (6, 4, 1)


class Functional(nn.Module):
    """Parameters of its own, and no reset_parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_members_whose_layers_cannot_be_reset_are_given_as_a_list() -> None:
    with pytest.raises(ValueError, match=r"has parameters but no method reset_parameters\(\)"):
        bayesify(Functional(), DeepEnsemble(members=2))
    nets, x = [Functional() for _ in range(2)], torch.randn(4, 2)
    torch.testing.assert_close(bayesify(nets, DeepEnsemble(members=2))(x, samples=2).outputs, torch.stack([n(x) for n in nets]))


def test_lists_that_are_no_members() -> None:
    with pytest.raises(ValueError, match=r"DeepEnsemble\(members=5\) needs 5 networks, got 3"):
        bayesify([mlp() for _ in range(3)], DeepEnsemble())
    with pytest.raises(ValueError, match="must not share parameters"):
        bayesify([mlp()] * 3, DeepEnsemble(members=3))
    first, second = mlp(), mlp()
    second[2] = first[2]
    with pytest.raises(ValueError, match="must not share parameters"):
        bayesify([first, second], DeepEnsemble(members=2))
    with pytest.raises(TypeError, match=r"several networks make an ensemble: use DeepEnsemble"):
        bayesify([mlp(), mlp()], MeanField())
    with pytest.raises(TypeError, match="or a list of them for an ensemble, got an empty list"):
        bayesify([], DeepEnsemble())


def initialized(init: str) -> nn.Module:
    net = mlp()
    for layer in (net[0], net[2]):
        if init == "normal":
            nn.init.normal_(layer.weight, std=1.0)
        elif init == "orthogonal":
            nn.init.orthogonal_(layer.weight, gain=3.0)
    return net


@pytest.mark.parametrize("make", [lambda: trained(mlp()), lambda: initialized("normal"), lambda: initialized("orthogonal")])
def test_one_net_whose_weights_are_not_fresh_is_no_member_among_fresh_ones(make: Callable[[], nn.Module]) -> None:
    net = make()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=r"has weights that its reset_parameters\(\) would not draw.*bayesify\(\[make\(\) for"):
        bayesify(net, DeepEnsemble(members=2))
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert len(bayesify(mlp(), DeepEnsemble(members=2)).members) == 2


@pytest.mark.parametrize("samples", [1, 2, 6])
def test_an_ensemble_passes_the_score_on(samples: int) -> None:
    """The gradient of the choices' probabilities is that of the single networks, at equal draws, shared out."""
    method = EMP(where="*", components=3, spread=1.0, learn_probabilities=True)
    bnn = bayesify(mlp().double(), DeepEnsemble(members=2, base=method)).train()
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    alone = copy.deepcopy(bnn.members)
    torch.manual_seed(3)
    draws = bnn(x, samples=samples)
    assert draws.score is not None
    assert draws.score.shape == draws.outputs.shape[:1]
    reward = torch.linspace(-1, 2, len(draws.score), dtype=torch.float64)
    (draws.score * reward).mean().backward()
    torch.manual_seed(3)
    for member, mine in zip(alone, reward.chunk(2), strict=True):
        (member(x, samples=len(mine)).score * mine).mean().backward()
    named = {name: p for name, p in bnn.named_parameters() if name.endswith("logits")}
    assert len(named) == 4
    singles = [p for member in alone for name, p in member.named_parameters() if name.endswith("logits")]
    for (name, p), single in zip(named.items(), singles, strict=True):
        torch.testing.assert_close(p.grad, single.grad / 2, rtol=1e-12, atol=0, msg=lambda text, name=name: f"{name}: {text}")
        assert p.grad.abs().max() > 1e-3
    (-elbo(bnn(x, samples=samples), -(bnn(x, samples=samples).outputs - y).square().sum(-1), n=5)).backward()


@pytest.mark.parametrize("method", [None, MeanField(), VIFO(), EMP(where="*", learn_probabilities=True)], ids=identify)
def test_the_readmes_loop_trains_every_member(method: Method | None) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 2), torch.randint(0, 3, (60,))
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    bnn = bayesify(net, DeepEnsemble(members=3, base=method))
    before = copy.deepcopy(bnn.state_dict())
    likelihood = Categorical()
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        draws = bnn(x)
        loss = -elbo(draws, likelihood.log_prob(draws.outputs, y), n=len(x))
        loss.backward()
        optimizer.step()
    for name, parameter in bnn.named_parameters():
        moved = (parameter - before[name]).abs().max()
        assert 1e-3 < moved <= 0.011, f"{name} has moved by {moved}"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


def test_new_initial_values() -> None:
    before = Scaled()
    net = copy.deepcopy(before)
    with pytest.raises(ValueError, match=r"the network \(Scaled\) has parameters but no method reset_parameters\(\)"):
        bayesify(net, DeepEnsemble(members=2))
    for p, q in zip(net.parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q)
    encoder = nn.TransformerEncoderLayer(4, 2, 8)
    encoder.linear1.requires_grad_(False)
    fresh = copy.deepcopy(encoder)
    reset_parameters(fresh)
    assert torch.equal(fresh.linear1.weight, encoder.linear1.weight)  # frozen
    assert not torch.equal(fresh.linear2.weight, encoder.linear2.weight)
    assert not torch.equal(fresh.self_attn.in_proj_weight, encoder.self_attn.in_proj_weight)
    assert (fresh.self_attn.out_proj.bias == 0).all()

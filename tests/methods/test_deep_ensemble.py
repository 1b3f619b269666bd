"""Deep ensembles: members of their own initial values, order and noise; predictions that mix them; saved, set and refused."""

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from bayesify import VIFO, DeepEnsemble, MeanField, Method, bayesify, fit, predict, summary, unbayesify
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.methods.deep_ensemble import reset_parameters
from bayesify.train import Training, fit_many
from bayesify.train.batches import seed_for

SETTINGS = {"epochs": 3, "batch_size": 8, "accelerator": "cpu", "progress": False}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


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
    bnn, x = bayesify(mlp(), DeepEnsemble(members=3, method=MeanField())), torch.randn(5, 2)
    torch.testing.assert_close(bnn(x, samples=3).kl, sum(member.kl() for member in bnn.members) / 3)
    torch.testing.assert_close(bnn.kl(), bnn(x, samples=3).kl)
    vifo = bayesify(mlp(), DeepEnsemble(members=2, method=VIFO(eta=0.3)))
    torch.testing.assert_close(vifo(x, samples=2).local_kl, sum(member(x).local_kl for member in vifo.members) / 2)
    assert vifo.local_beta == 0.3


@pytest.mark.parametrize("method", [None, VIFO(eta_aux=0.2, regularizer="mean-all")], ids=["plain", "VIFO"])
def test_every_member_is_trained_as_if_alone(method: Method | None) -> None:
    bnn, (x, y) = bayesify(mlp(), DeepEnsemble(members=3, method=method)).double(), data()
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


def test_ensembles_beside_other_models() -> None:
    trainings = [
        Training(bnn=bayesify(mlp(), method), data=data(), likelihood=Gaussian(std=0.3))
        for method in (DeepEnsemble(members=2), MeanField(), DeepEnsemble(members=3, method=MeanField()))
    ]
    assert [len(history) for history in fit_many(trainings, **SETTINGS)] == [3, 3, 3]


def test_it_survives_json_and_knows_its_members() -> None:
    for method in (DeepEnsemble(members=2), DeepEnsemble(members=3, method=VIFO(eta=0.3, head="2"))):
        assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
    text = str(summary(bayesify(mlp(), DeepEnsemble(members=2, method=VIFO()))))
    assert "1.net.2" in text
    assert "2 of 4 layers are random" in text


def test_what_it_refuses() -> None:
    bnn = bayesify(mlp(), DeepEnsemble(members=2))
    with pytest.raises(ValueError, match=r"consists of 2 networks; give back one of them: unbayesify\(bnn.members\[0\]\)"):
        unbayesify(bnn)
    assert type(unbayesify(bnn.members[1])) is nn.Sequential
    with pytest.raises(ValueError, match="trained by fit_many, which has no checkpoint, accumulate; leave it out"):
        fit(bnn, data(), Gaussian(), checkpoint="somewhere", accumulate=2)
    with pytest.raises(ValueError, match="cannot consist of ensembles"):
        DeepEnsemble(method=DeepEnsemble())
    with pytest.raises(TypeError, match="method must be a Method such as VIFO"):
        DeepEnsemble(method="VIFO")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="without name patterns"):
        bayesify(mlp(), {"0": DeepEnsemble(method=MeanField()), "*": MeanField()})


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
    with pytest.raises(ValueError, match=r"the net \(Scaled\) has parameters but no method reset_parameters\(\)"):
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

"""Transformers: the fused kernels of eval mode must not bypass random layers, with masks, folded or looped."""

import copy

import pytest
import torch
from torch import Tensor, nn

from bayesify import Deterministic, MeanField, bayesify, unbayesify

_METHOD = MeanField(initial_std=0.5)


def _layer(batch_first: bool = True, dropout: float = 0.0) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)


def _encoder(batch_first: bool = True) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(_layer(batch_first), 2, enable_nested_tensor=batch_first)


@pytest.mark.parametrize("make", [_layer, _encoder])
@pytest.mark.parametrize("batch_first", [True, False])
def test_random_layers_are_used_in_eval_mode(make, batch_first):
    bnn = bayesify(make(batch_first).eval(), _METHOD, batch_dim=0 if batch_first else 1)
    with torch.no_grad():
        draws = bnn(torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8), samples=2)
    assert draws.outputs.shape == (2, 3, 5, 8)
    assert not torch.isclose(draws.outputs[0], draws.outputs[1]).all(-1).any()
    assert all(report.method is _METHOD for report in bnn.report)
    projections = [report for report in bnn.report if report.name.endswith("_proj")]
    assert len(projections) == 4 * len([m for m in bnn.modules() if isinstance(m, nn.TransformerEncoderLayer)])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("make", [_layer, _encoder])
def test_draws_share_a_pass(make, gradients, training):
    """The kernels' conditions look at packed weights, which are then no weights that the network reads; no warning."""
    bnn = bayesify(make().eval(), _METHOD).train(training)
    calls: list[int] = []
    bnn.net.register_forward_hook(lambda module, inputs, y: calls.append(len(y)))
    with torch.set_grad_enabled(gradients):
        bnn(torch.randn(3, 5, 8), samples=2)
        calls.clear()
        bnn(torch.randn(3, 5, 8), samples=2)
    assert calls == [6]


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("make", [_layer, _encoder])
def test_masks_act_as_in_the_plain_net(make, fold):
    plain = make().eval()
    name = "mask" if make is _encoder else "src_mask"
    bnn = bayesify(copy.deepcopy(plain), Deterministic(), fold=fold, unbatched=[name])
    x, causal = torch.randn(4, 4, 8), torch.triu(torch.full((4, 4), -torch.inf), 1)  # as many positions as examples
    padding = torch.zeros(4, 4)
    padding[1, 3:] = padding[2, 1:] = -torch.inf
    for masks in ({name: causal}, {"src_key_padding_mask": padding}, {name: causal, "src_key_padding_mask": padding}):
        expected = plain(x, **masks)  # with gradients, hence not on the fused path
        for context in (torch.enable_grad(), torch.no_grad()):
            with context:
                torch.testing.assert_close(bnn(x, samples=3, **masks).outputs, expected.expand(3, 4, 4, 8))


def test_folding_equals_looping_in_distribution():
    """Means within 6 standard errors, variances too, estimated from 600 draws (a factor of two in a variance is about 9)."""
    n, x = 600, torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    folded = bayesify(_layer().eval(), _METHOD)
    looped = copy.deepcopy(folded)
    looped.fold = False
    moments = []
    for bnn in (folded, looped):
        with torch.no_grad():
            y = bnn(x, src_key_padding_mask=padding, samples=n).outputs
        moments.append((y, (y - y.mean(0)).square()))
    for a, b in zip(*moments, strict=True):
        assert ((a.mean(0) - b.mean(0)).abs() < 6 * torch.sqrt((a.var(0) + b.var(0)) / n)).all()


@pytest.mark.parametrize("nested", [True, False])
def test_unbayesify_gives_the_fast_path_back(nested):
    net = nn.Sequential(nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=nested), nn.Linear(8, 1)).eval()
    fired = []
    net[0].register_forward_pre_hook(lambda module, args: fired.append(module))
    x = torch.randn(3, 5, 8)
    before = net(x)
    bnn = bayesify(net, _METHOD)
    assert not net[0].use_nested_tensor
    copied = copy.deepcopy(bnn)
    for root in (bnn, copied):
        plain = unbayesify(root)
        assert plain[0].use_nested_tensor is nested
        assert [len(m._forward_pre_hooks) for m in plain[0].layers] == [0, 0]
        assert len(plain[0]._forward_pre_hooks) == 1, "the user's own hook stays"
        torch.testing.assert_close(plain(x), before)
    assert fired


def test_an_encoder_that_stays_as_it_is_keeps_its_fast_path():
    net = nn.ModuleDict({"body": _encoder(), "head": nn.Linear(8, 1)})
    bayesify(net, {"head": _METHOD})
    assert net["body"].use_nested_tensor
    assert not any(module._forward_pre_hooks for module in net["body"].modules())


def test_encoder_and_decoder_with_attention_over_two_inputs():
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 8, padding_idx=0)
            self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
            self.head = nn.Linear(8, 10)

        def forward(self, source: Tensor, target: Tensor, causal: Tensor) -> Tensor:
            padding = source == 0
            h = self.net(self.embed(source), self.embed(target), tgt_mask=causal, src_key_padding_mask=padding)
            return self.head(h)

    plain = Translator().eval()
    source, target = torch.tensor([[1, 2, 0], [3, 4, 5]]), torch.tensor([[1, 2], [3, 0]])
    causal = torch.tensor([[False, True], [False, False]])
    expected = plain(source, target, causal)
    for fold in (True, False):
        bnn = bayesify(copy.deepcopy(plain), Deterministic(), fold=fold, unbatched=["causal"])
        for context in (torch.enable_grad(), torch.no_grad()):
            with context:
                torch.testing.assert_close(bnn(source, target, causal, samples=2).outputs, expected.expand(2, 2, 2, 10))

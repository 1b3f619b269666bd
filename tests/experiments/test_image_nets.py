"""Networks for images: shapes, numbers of parameters counted by hand, residual blocks against their formula."""

import re

import pytest
import torch
from experiments.protocols.images.networks import check_net, make_net

import bayesify


@pytest.mark.parametrize(
    ("fields", "shape", "parameters"),
    [
        ({"kind": "mlp", "hidden": [400, 400]}, (1, 28, 28), (784 + 1) * 400 + (400 + 1) * 400 + (400 + 1) * 10),
        ({"kind": "mlp", "hidden": []}, (3, 4, 5), (60 + 1) * 10),
        ({"kind": "lenet"}, (1, 28, 28), 61_706),  # as in the literature
        ({"kind": "lenet"}, (3, 32, 32), 61_706 + 2 * 6 * 25),
        (
            {"kind": "preresnet", "depth": 8, "width": 4},
            (3, 32, 32),
            # stem; stage 1; stages 2 and 3: norms, convolutions, shortcut; final norm; classifier
            27 * 4 + (8 + 144 + 8 + 144) + (8 + 288 + 16 + 576 + 32) + (16 + 1152 + 32 + 2304 + 128) + 32 + 17 * 10,
        ),
        # one more block per stage: twice the norm and the convolution of equal channels
        ({"kind": "preresnet", "depth": 14, "width": 4}, (3, 32, 32), 5166 + 2 * (8 + 144) + 2 * (16 + 576) + 2 * (32 + 2304)),
        # 32 k and 64 k maps of 16 x 16 and 8 x 8, 128 k units
        (
            {"kind": "strided", "size": 2},
            (3, 32, 32),
            64 * (3 * 25 + 1) + 128 * (64 * 25 + 1) + 256 * (128 * 64 + 1) + 256 * 257 + 10 * 257,
        ),
    ],
    ids=["mlp-400x2", "linear", "lenet-gray", "lenet-color", "preresnet-8", "preresnet-14", "strided"],
)
def test_shapes_and_parameters(fields, shape, parameters):
    net = make_net(fields, shape, classes=10)
    assert net(torch.zeros(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in net.parameters()) == parameters


def test_a_stage_halves_the_image_and_starts_with_the_shortcut():
    net = make_net({"kind": "preresnet", "depth": 14, "width": 4}, (3, 16, 16), classes=5).double().eval()
    x = torch.randn(2, 4, 16, 16, dtype=torch.float64)
    same, halving = net.stage1_block1, net.stage2_block1
    for block in (same, halving):
        torch.nn.init.zeros_(block.conv2.weight)
    torch.testing.assert_close(same(x), x)
    scale = 1 / (1 + halving.norm1.eps) ** 0.5  # of a normalization that has seen nothing
    expected = torch.einsum("oi,nihw->nohw", halving.shortcut.weight[:, :, 0, 0], (scale * x).clamp_min(0)[:, :, ::2, ::2])
    torch.testing.assert_close(halving(x), expected)
    assert net.stage3_block2(halving(x).repeat(1, 2, 1, 1)).shape == (2, 16, 8, 8)


def test_a_block_is_its_formula():
    block = make_net({"kind": "preresnet", "depth": 8, "width": 2}, (1, 8, 8), classes=2).double().stage1_block1
    x = torch.randn(3, 2, 8, 8, dtype=torch.float64)

    def layer(x, weight):  # normalize by the batch, rectify, convolve
        x = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True, correction=0) + 1e-5).sqrt()
        patches = torch.nn.functional.unfold(x.clamp_min(0), 3, padding=1)
        return (weight.flatten(1) @ patches).view(3, 2, 8, 8)

    torch.testing.assert_close(block(x), x + layer(layer(x, block.conv1.weight), block.conv2.weight))


@pytest.mark.parametrize(("width", "channels_last"), [(4, False), (8, True)])
def test_residual_nets_whose_gradients_crash_in_channels_last_are_contiguous(width, channels_last):
    net = make_net({"kind": "preresnet", "depth": 8, "width": width}, (3, 32, 32), classes=10)
    assert net.conv.weight.is_contiguous() is not channels_last


@pytest.mark.parametrize("fields", [{"kind": "lenet"}, {"kind": "preresnet", "depth": 8, "width": 2}], ids=["lenet", "preresnet"])
def test_every_net_can_be_made_random_by_layer_names(fields):
    last = "fc3" if fields["kind"] == "lenet" else "fc"
    bnn = bayesify.bayesify(make_net(fields, (1, 28, 28), 10), {last: bayesify.MeanField()})
    assert [name for name, _ in bnn.random_layers()] == [last]
    assert bnn(torch.zeros(2, 1, 28, 28), samples=3).outputs.shape == (3, 2, 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "vgg"}, "kind of a net must be one of mlp, lenet, preresnet, strided, got 'vgg'"),
        ({"kind": "mlp"}, "a net of kind mlp has the settings kind, hidden, got kind"),
        ({"kind": "lenet", "width": 3}, "a net of kind lenet has the settings kind, got kind, width"),
        ({"kind": "mlp", "hidden": [0]}, "hidden must be a whole number"),
        ({"kind": "mlp", "hidden": 400}, "hidden must be a list of widths such as [400, 400], got 400"),
        ({"kind": "preresnet", "depth": 18, "width": 4}, "depth of a preresnet must be 6 n + 2, such as 8 or 20, got 18"),
    ],
)
def test_wrong_nets_are_named(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_net(fields)


def test_lenet_says_which_images_it_takes():
    with pytest.raises(ValueError, match="square images of an even size from 22 to 32, got 40 x 40"):
        make_net({"kind": "lenet"}, (1, 40, 40), 10)

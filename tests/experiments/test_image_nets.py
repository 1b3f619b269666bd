"""Networks for images: shapes, numbers of parameters counted by hand, residual blocks against their formula."""

import re

import pytest
import torch
from experiments.protocols.images.networks import check_net, make_net

import bayesify
from bayesify.errors import ConfigurationError


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
        # 64 maps of 8 x 8
        (
            {"kind": "convolutions", "channels": [32, "pool", 64, "pool"], "hidden": [128]},
            (3, 32, 32),
            32 * (3 * 9 + 1) + 64 * (32 * 9 + 1) + 128 * (64 * 64 + 1) + 10 * 129,
        ),
        ({"kind": "convolutions", "channels": [4, "pool", "pool"], "hidden": []}, (1, 28, 28), 4 * (9 + 1) + 10 * (4 * 49 + 1)),
        # pooled to 4 x 2, the odd row and column left out
        (
            {"kind": "convolutions", "channels": [2, 3, "pool"], "hidden": [6, 5]},
            (3, 9, 5),
            2 * (27 + 1) + 3 * (18 + 1) + 6 * (24 + 1) + 5 * 7 + 10 * 6,
        ),
        # five poolings leave a pixel; convolutions without biases, norms, classifier
        (
            {"kind": "vgg16", "width": 4},
            (3, 32, 32),
            9 * (3 * 4 + 4 * 4 + 4 * 8 + 8 * 8 + 8 * 16 + 2 * 16 * 16 + 16 * 32 + 5 * 32 * 32)
            + 2 * (2 * 4 + 2 * 8 + 3 * 16 + 6 * 32) + 10 * 33,
        ),
        (
            {"kind": "alexnet"},
            (3, 32, 32),
            64 * (3 * 121 + 1) + 192 * (64 * 25 + 1) + 384 * (192 * 9 + 1) + 256 * (384 * 9 + 1) + 256 * (256 * 9 + 1) + 10 * 257,
        ),
        ({"kind": "resnet18", "width": 64}, (3, 32, 32), 11_173_962),  # as in the literature
        # stem; four convolutions in stage 1; in the others, four convolutions and a shortcut; norms; classifier
        (
            {"kind": "resnet18", "width": 2},
            (3, 32, 32),
            27 * 2 + 9 * 4 * 4 + (9 * (8 + 16 * 3) + 8) * (1 + 4 + 16) + 2 * (5 * 2 + 5 * (4 + 8 + 16)) + 10 * 17,
        ),
    ],
    ids=[
        "mlp-400x2", "linear", "lenet-gray", "lenet-color", "preresnet-8", "preresnet-14", "strided", "convolutions",
        "convolutions-linear", "convolutions-odd", "vgg16", "alexnet", "resnet18-64", "resnet18-2",
    ],
)  # fmt: skip
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


def test_convolutions_are_their_formula():
    net = make_net({"kind": "convolutions", "channels": [2, 3, "pool", 2], "hidden": [4]}, (1, 6, 4), classes=5).double()
    assert [name for name, module in net.named_children() if list(module.parameters())] == ["conv1", "conv2", "conv3", "fc1", "fc2"]
    x = torch.randn(3, 1, 6, 4, dtype=torch.float64)

    def layer(x, conv):
        patches = torch.nn.functional.unfold(x, 3, padding=1)
        return (conv.weight.flatten(1) @ patches + conv.bias[:, None]).clamp_min(0).unflatten(-1, x.shape[2:])

    y = layer(layer(x, net.conv1), net.conv2).unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))
    y = (layer(y, net.conv3).flatten(1) @ net.fc1.weight.mT + net.fc1.bias).clamp_min(0)
    torch.testing.assert_close(net(x), y @ net.fc2.weight.mT + net.fc2.bias)


def test_vgg16_pools_after_two_two_three_three_and_three_convolutions():
    net = make_net({"kind": "vgg16", "width": 1}, (3, 64, 32), classes=5)
    kinds = "".join({"Conv2d": "c", "MaxPool2d": "p"}.get(type(module).__name__, "") for module in net.children())
    assert kinds == "ccpccpcccpcccpcccp"
    assert net.fc.weight.shape == (5, 8 * 2 * 1)
    with pytest.raises(ConfigurationError, match="vgg16 takes images of at least 32 x 32, got 28 x 28"):
        make_net({"kind": "vgg16", "width": 1}, (1, 28, 28), classes=10)


def test_convolutions_are_in_channels_last():
    net = make_net({"kind": "convolutions", "channels": [4, "pool", 6], "hidden": []}, (3, 8, 8), classes=2)
    for weight in (net.conv1.weight, net.conv2.weight):
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert not weight.is_contiguous()


@pytest.mark.parametrize(("width", "channels_last"), [(4, False), (8, True)])
def test_resnet18_is_in_channels_last_where_its_gradients_do_not_crash(width, channels_last):
    net = make_net({"kind": "resnet18", "width": width}, (3, 32, 32), classes=10)
    assert net.get_submodule("0").weight.is_contiguous() is not channels_last
    assert net.get_submodule("5.conv1").weight.is_contiguous() is not channels_last


def test_the_linear_layer_of_resnet18_is_fc():
    net = make_net({"kind": "resnet18", "width": 2}, (3, 32, 32), classes=10)
    bnn = bayesify.bayesify(net, {"fc": bayesify.MeanField()})
    assert [name for name, _ in bnn.random_layers()] == ["fc"]


@pytest.mark.parametrize("fields", [{"kind": "alexnet"}, {"kind": "resnet18", "width": 2}], ids=["alexnet", "resnet18"])
@pytest.mark.parametrize(
    ("shape", "classes", "found"),
    [
        ((1, 28, 28), 10, "got 1 x 28 x 28 and 10 classes"),
        ((3, 32, 32), 100, "got 3 x 32 x 32 and 100 classes"),
    ],
    ids=["shape", "classes"],
)
def test_nets_of_the_benchmarks_say_which_images_they_take(fields, shape, classes, found):
    message = f"{fields['kind']} takes images of 3 x 32 x 32 and 10 classes, {found}"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make_net(fields, shape, classes)


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 7)], ids=["both", "width"])
def test_images_that_are_pooled_to_nothing_are_named(shape):
    message = f"channels pools images of {shape[1]} x {shape[2]} pixels 3 times, which leaves none"
    with pytest.raises(ConfigurationError, match=message):
        make_net({"kind": "convolutions", "channels": [2, "pool", 2, "pool", "pool"], "hidden": []}, shape, classes=2)


@pytest.mark.parametrize("fields", [{"kind": "lenet"}, {"kind": "preresnet", "depth": 8, "width": 2}], ids=["lenet", "preresnet"])
def test_every_net_can_be_made_random_by_layer_names(fields):
    last = "fc3" if fields["kind"] == "lenet" else "fc"
    bnn = bayesify.bayesify(make_net(fields, (1, 28, 28), 10), {last: bayesify.MeanField()})
    assert [name for name, _ in bnn.random_layers()] == [last]
    assert bnn(torch.zeros(2, 1, 28, 28), samples=3).outputs.shape == (3, 2, 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"kind": "vgg"},
            "kind of a net must be one of mlp, lenet, preresnet, strided, convolutions, vgg16, alexnet, resnet18, got 'vgg'",
        ),
        ({"kind": "mlp"}, "a net of kind mlp has the settings kind, hidden, got kind"),
        ({"kind": "lenet", "width": 3}, "a net of kind lenet has the settings kind, got kind, width"),
        ({"kind": "mlp", "hidden": [0]}, "hidden must be a whole number"),
        ({"kind": "mlp", "hidden": 400}, "hidden must be a list of widths such as [400, 400], got 400"),
        (
            {"kind": "convolutions", "channels": [3]},
            "a net of kind convolutions has the settings kind, channels, hidden, got kind, channels",
        ),
        (
            {"kind": "convolutions", "channels": "pool", "hidden": []},
            'channels must be a list of channels such as [32, "pool", 64, "pool"], got \'pool\'',
        ),
        ({"kind": "convolutions", "channels": 32, "hidden": []}, "channels must be a list of channels"),
        (
            {"kind": "convolutions", "channels": [32, "pol"], "hidden": []},
            "channels must be a list of whole numbers and \"pool\", got 'pol' in it",
        ),
        ({"kind": "convolutions", "channels": [32, 0], "hidden": []}, "channels must be a whole number of at least 1, got 0"),
        ({"kind": "convolutions", "channels": [True], "hidden": []}, "channels must be a whole number of at least 1, got True"),
        ({"kind": "convolutions", "channels": [3], "hidden": ["pool"]}, "hidden must be a whole number of at least 1, got 'pool'"),
        ({"kind": "alexnet", "width": 3}, "a net of kind alexnet has the settings kind, got kind, width"),
        ({"kind": "resnet18", "width": 0.5}, "width must be a whole number of at least 1, got 0.5"),
        ({"kind": "preresnet", "depth": 18, "width": 4}, "depth of a preresnet must be 6 n + 2, such as 8 or 20, got 18"),
    ],
)
def test_wrong_nets_are_named(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_net(fields)


def test_lenet_says_which_images_it_takes():
    with pytest.raises(ValueError, match="square images of an even size from 22 to 32, got 40 x 40"):
        make_net({"kind": "lenet"}, (1, 40, 40), 10)

"""Corruptions against independently computed properties."""

import colorsys

import numpy as np
import pytest
import torch
from experiments.protocols.images.corruption import CORRUPTIONS, corrupt
from torch import Tensor
from torch.nn import functional as F


def _images(channels: int = 3, n: int = 4) -> Tensor:
    """Smooth colored patterns with structure of several sizes."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(n, channels, 6, 6, generator=generator)
    fine = torch.rand(n, channels, 32, 32, generator=generator)
    return (255 * (0.8 * F.interpolate(coarse, 32, mode="bilinear") + 0.2 * fine)).byte()


def _gray(level: int, channels: int = 1, n: int = 20) -> Tensor:
    return torch.full((n, channels, 32, 32), level, dtype=torch.uint8)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).square().mean())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seeding_severity_and_unchanged_inputs(name: str, channels: int) -> None:
    images = _images(channels)
    before = images.clone()
    weak, strong = corrupt(images, name, 1, seed=3), corrupt(images, name, 5, seed=3)
    assert torch.equal(images, before)
    assert weak.shape == images.shape
    assert weak.dtype == torch.uint8
    assert torch.equal(strong, corrupt(images, name, 5, seed=3))
    random = name.endswith(("noise", "glass_blur", "motion_blur", "elastic_transform"))
    assert torch.equal(strong, corrupt(images, name, 5, seed=4)) != random
    assert _distance(strong, images) > 4
    if name not in ("elastic_transform", "glass_blur"):  # their settings trade one effect for another
        assert _distance(strong, images) > 1.2 * _distance(weak, images)
    assert corrupt(images[:0], name, 2).shape == (0, channels, 32, 32)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name.endswith(("blur", "transform", "pixelate", "contrast"))])
def test_constant_images_are_unchanged(name: str) -> None:
    for severity in range(1, 6):
        assert torch.equal(corrupt(_gray(77, 3, 2), name, severity), _gray(77, 3, 2))


@pytest.mark.parametrize(
    ("name", "severity", "variance"),
    [
        ("gaussian_noise", 2, (255 * 0.06) ** 2),
        ("shot_noise", 3, 255 * 128 / 100),  # Poisson: the variance is the mean, here in units of 255 / 100
        ("impulse_noise", 5, 0.07 * (0.5 * 128**2 + 0.5 * 127**2)),
    ],
)
def test_noise_has_its_mean_and_variance(name: str, severity: int, variance: float) -> None:
    noise = corrupt(_gray(128), name, severity).double() - 128
    n = noise.numel()
    assert abs(noise.mean()) < 5 * (variance / n) ** 0.5 + 0.02
    assert float(noise.square().mean()) == pytest.approx(variance + 1 / 12, rel=0.08)


def test_defocus_is_a_cross_of_five_at_severity_four() -> None:
    """A disk of radius 1 has five pixels; smoothing it by 0.2 pixels has nearly no effect."""
    point = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    point[0, 0, 16, 16] = 250
    blurred = corrupt(point, "defocus_blur", 4)[0, 0]
    cross = torch.zeros(33, 33)
    cross[16, 15:18] = cross[15:18, 16] = 50
    torch.testing.assert_close(blurred.float(), cross, atol=1, rtol=0)


def test_glass_permutes_pixels() -> None:
    images = _images()
    moved = corrupt(images, "glass_blur", 1)  # a blur of 0.05 pixels has no effect
    assert torch.equal(moved.flatten(2).sort(-1).values, images.flatten(2).sort(-1).values)
    assert (moved != images).float().mean() > 0.5


def test_motion_leaves_a_fading_trail_on_one_side() -> None:
    point = torch.zeros(30, 1, 33, 33, dtype=torch.uint8)
    point[:, 0, 16, 16] = 255
    trail = corrupt(point, "motion_blur", 3).double()[:, 0]
    torch.testing.assert_close(trail.sum((1, 2)), torch.full((30,), 255.0).double(), rtol=0, atol=5)  # rounding
    weights = np.exp(-0.125 * np.arange(13) ** 2)
    assert torch.allclose(trail[:, 16, 16], torch.tensor(255 * weights[0] / weights.sum()), atol=1)
    assert (trail[:, :, 17:] == 0).all(), "on one side"
    assert (trail[:, 16, 15] + trail[:, 15, 15] + trail[:, 17, 15] > 0).all(), "within 45 degrees"


def test_zoom_is_the_mean_of_enlargements() -> None:
    images = _images(n=1).double()
    total, count = images.clone(), 1
    for percent in range(6):
        theta = torch.tensor([[[1, 0, 0], [0, 1, 0]]]).double() / (1 + percent / 100)
        total += F.grid_sample(images, F.affine_grid(theta, list(images.shape), align_corners=True), align_corners=True)
        count += 1
    torch.testing.assert_close(corrupt(images.byte(), "zoom_blur", 1).double(), total / count, atol=0.51, rtol=0)


def test_brightness_is_the_value_of_hsv() -> None:
    images = _images(n=1)
    images[0, :, 0, 0] = 0
    corrupted = corrupt(images, "brightness", 3)
    for row, column in ((0, 0), (5, 9), (31, 31), (16, 2)):
        hue, saturation, value = colorsys.rgb_to_hsv(*(images[0, :, row, column] / 255).tolist())
        expected = 255 * torch.tensor(colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.15)))
        torch.testing.assert_close(corrupted[0, :, row, column].float(), expected, atol=0.51, rtol=0)


def test_contrast_shrinks_deviations_and_keeps_the_mean() -> None:
    images = _images()
    corrupted = corrupt(images, "contrast", 2).double()
    torch.testing.assert_close(corrupted.mean((2, 3)), images.double().mean((2, 3)), atol=0.5, rtol=0)  # rounding
    torch.testing.assert_close(corrupted.std((2, 3)), images.double().std((2, 3)) / 2, atol=0.1, rtol=0)


def test_elastic_displacement() -> None:
    """Severity 1 is only an affine map; pixels with their own coordinates as values reveal it."""
    ramp = (4 * torch.arange(32)).byte().expand(40, 1, 32, 32)
    origin = corrupt(ramp, "elastic_transform", 1).double()[:, 0] / 4
    middle = origin[:, 8:24, 8:24]
    steps = middle.diff(dim=2)
    assert (steps - steps.mean((1, 2), keepdim=True)).abs().max() < 0.3, "affine: equal steps, but for rounding to a quarter"
    # at a corner that defines the map, the shift is uniform on +- 0.08 * 32
    shift = origin[:, 26, 26] - 26
    assert shift.abs().max() <= 0.08 * 32 + 0.15
    assert float(shift.square().mean().sqrt()) == pytest.approx(0.08 * 32 / 3**0.5, rel=0.4)


def test_pixelate_is_the_average_of_boxes() -> None:
    """At 0.65, 80 columns become 52 boxes of 80 / 52 pixels."""
    ramp = torch.arange(80).mul(3).byte().expand(1, 3, 80, 80)
    corrupted = corrupt(ramp, "pixelate", 5)
    boxes = 3 * ((torch.arange(52) + 0.5) * 80 / 52 - 0.5)  # the mean of a ramp over a box is its midpoint
    torch.testing.assert_close(corrupted[0, 0, 0].unique().double(), boxes.double(), atol=1.6, rtol=0)


def test_jpeg_error_increases_with_severity() -> None:
    losses = [_distance(corrupt(_images(), "jpeg_compression", severity), _images()) for severity in range(1, 6)]
    assert losses == sorted(losses)


def test_rejects_bad_arguments() -> None:
    images = _images()
    with pytest.raises(TypeError, match=r"uint8, got torch.float32.*byte\(\)"):
        corrupt(images.float(), "contrast", 1)
    with pytest.raises(ValueError, match=r"got \(4, 32, 32\)"):
        corrupt(images[:, 0], "contrast", 1)
    with pytest.raises(ValueError, match=r"corruption must be one of 'gaussian_noise', .* got 'frost'"):
        corrupt(images, "frost", 1)
    for severity in (0, 6):
        with pytest.raises(ValueError, match="severity"):
            corrupt(images, "contrast", severity)

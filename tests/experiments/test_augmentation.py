"""Augmentation against enumerated crops and flips."""

import itertools

import numpy as np
import pytest
import torch
from experiments.protocols.images.augmentation import random_crop, random_flip
from scipy import stats


def _windows(image, padding):
    """All crops of the padded image by (top, left), as NumPy slices."""
    _, height, width = image.shape
    padded = np.pad(image.numpy(), ((0, 0), (padding, padding), (padding, padding)))
    steps = range(2 * padding + 1)
    return {(top, left): padded[:, top : top + height, left : left + width] for top in steps for left in steps}


def _which(image, choices):
    (key,) = [key for key, choice in choices.items() if np.array_equal(image.numpy(), choice)]
    return key


def _distinct(batch, channels, height, width, dtype=torch.float32):
    """Images with distinct nonzero pixels."""
    return torch.arange(1, 1 + batch * channels * height * width).reshape(batch, channels, height, width).to(dtype)


class TestCrop:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.int64], ids=str)
    def test_every_image_is_a_window_of_its_own_padded_one(self, dtype):
        images = _distinct(3, 2, 5, 4, dtype)
        copy = images.clone()
        cropped = random_crop(images, padding=2)
        assert cropped.dtype == dtype
        assert cropped.shape == images.shape
        assert torch.equal(images, copy)
        for image, result in zip(images, cropped, strict=True):
            _which(result, _windows(image, 2))

    def test_all_windows_are_equally_likely_and_images_independent(self):
        one = _distinct(1, 1, 3, 3)
        windows = _windows(one[0], 1)
        cropped = random_crop(one.expand(9000, -1, -1, -1), padding=1)
        keys = [_which(image, windows) for image in cropped]
        counts = [keys.count(key) for key in windows]
        assert len(counts) == 9
        assert stats.chisquare(counts).pvalue > 1e-3
        pairs = [keys[i] + keys[i + 1] for i in range(0, len(keys), 2)]
        table = [[sum(pair[:2] == a and pair[2:] == b for pair in pairs) for b in windows] for a in windows]
        assert stats.chi2_contingency(table).pvalue > 1e-3

    def test_more_padding_than_image(self):
        image = _distinct(1, 3, 2, 2)
        cropped = random_crop(image.expand(200, -1, -1, -1), padding=4).numpy()
        possible = [window.tobytes() for window in _windows(image[0], 4).values()]
        assert {row.tobytes() for row in cropped} <= set(possible)
        assert (cropped == 0).all(axis=(1, 2, 3)).any()

    def test_no_padding(self):
        images = _distinct(2, 3, 4, 5)
        assert torch.equal(random_crop(images, padding=0), images)

    def test_no_images(self):
        assert random_crop(torch.empty(0, 3, 8, 8)).shape == (0, 3, 8, 8)

    @pytest.mark.parametrize("padding", [-1, 1.5, True, None])
    def test_rejects_bad_padding(self, padding):
        with pytest.raises(ValueError, match=f"padding must be a whole number of at least 0, got {padding}"):
            random_crop(torch.zeros(1, 1, 2, 2), padding)


class TestFlip:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bool], ids=str)
    def test_flips_half_of_the_images(self, dtype):
        images = (torch.rand(4000, 2, 3, 4) * 255).to(torch.uint8).to(dtype)
        images[:, :, 0, 0], images[:, :, 0, -1] = 0, 1  # no image equals its mirror image
        copy = images.clone()
        result = random_flip(images)
        assert result.dtype == dtype
        assert torch.equal(images, copy)
        mirror = np.ascontiguousarray(images.numpy()[..., ::-1])
        unchanged = [np.array_equal(a, b) for a, b in zip(result.numpy(), images.numpy(), strict=True)]
        mirrored = [np.array_equal(a, b) for a, b in zip(result.numpy(), mirror, strict=True)]
        assert all(a != b for a, b in zip(unchanged, mirrored, strict=True))
        assert stats.binomtest(sum(mirrored), 4000, 0.5).pvalue > 1e-3
        assert stats.binomtest(sum(a == b for a, b in itertools.pairwise(unchanged)), 3999, 0.5).pvalue > 1e-3

    def test_probability(self):
        images = _distinct(4000, 1, 1, 2)
        assert torch.equal(random_flip(images, 0), images)
        assert torch.equal(random_flip(images, 1.0), images.flip(-1))
        flipped = int((random_flip(images, 0.1) != images).any(dim=(1, 2, 3)).sum())
        assert stats.binomtest(flipped, 4000, 0.1).pvalue > 1e-3

    @pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), True, "0.5", None])
    def test_rejects_bad_probability(self, p):
        with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\], got "):
            random_flip(torch.zeros(1, 1, 2, 2), p)


@pytest.mark.parametrize("augment", [random_crop, random_flip])
class TestBoth:
    def test_seeds(self, augment):
        images = torch.rand(64, 3, 8, 8)
        first = augment(images, generator=torch.Generator().manual_seed(1))
        state = torch.get_rng_state()
        assert torch.equal(first, augment(images, generator=torch.Generator().manual_seed(1)))
        assert torch.equal(state, torch.get_rng_state())
        assert not torch.equal(first, augment(images, generator=torch.Generator().manual_seed(2)))
        torch.manual_seed(3)
        global_first = augment(images)
        torch.manual_seed(3)
        assert torch.equal(global_first, augment(images))

    @pytest.mark.parametrize("shape", [(), (3, 8, 8), (1, 2, 3, 8, 8)], ids=str)
    def test_rejects_bad_shape(self, augment, shape):
        with pytest.raises(ValueError, match=r"images must have the shape \(B, C, H, W\), got ") as error:
            augment(torch.zeros(shape))
        assert str(shape) in str(error.value)

    def test_rejects_arrays(self, augment):
        with pytest.raises(TypeError, match="images must be a tensor, got ndarray"):
            augment(np.zeros((1, 1, 2, 2)))


def test_composition():
    image = _distinct(1, 3, 4, 4)
    results = random_flip(random_crop(image.expand(500, -1, -1, -1), padding=1))
    windows = _windows(image[0], 1)
    possible = {(key, mirror): window[..., ::-1] if mirror else window for key, window in windows.items() for mirror in (0, 1)}
    assert {_which(result, possible) for result in results} == set(possible)

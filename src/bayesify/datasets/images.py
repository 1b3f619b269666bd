"""Image data sets: the MNIST family (LeCun et al., 1998) and CIFAR-10.

Source of CIFAR-10: Krizhevsky, *Learning multiple layers of features from tiny images* (2009).
"""

from __future__ import annotations

import dataclasses
import io
import os
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bayesify.core.checks import check_choice
from bayesify.datasets.data_files import File, data_dirs, find_file, read_file
from bayesify.errors import ConfigurationError

__all__ = ["IMAGE_SETS", "Images", "image_files", "load_images"]

Part = Literal["train", "test"]


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """Images with labels, in the published order.

    Attributes:
        name: of the data set.
        part: "train" or "test".
        X: pixels (N, C, H, W), uint8.
        y: labels 0 ... K-1 (N,), int64.
        classes: the names of the K labels.
        note: how the images differ from the published data set, to be reported with results; empty if they do not.

    Example:
        >>> pixels, labels = torch.full((2, 1, 28, 28), 255, dtype=torch.uint8), torch.tensor([7, 2])
        >>> data = Images("my digits", "test", pixels, labels, classes=tuple("0123456789"))
        >>> data.scaled().max(), data.classes[data.y[0]]
        (tensor(1.), '7')
    """

    name: str
    part: Part
    X: Tensor
    y: Tensor
    classes: tuple[str, ...]
    note: str = ""

    def scaled(self) -> Tensor:
        """Pixels (N, C, H, W) as float32 in [0, 1].

        Example:
            >>> Images("toy", "test", torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8), torch.tensor([0]), ("a",)).scaled()
            tensor([[[[0.0000, 0.2000, 1.0000]]]])
        """
        return self.X.float() / 255


def load_images(name: str, part: Part, data_dir: str | os.PathLike[str] | None = None) -> Images:
    """Load one part of an image data set. Files are verified, and downloaded if no data folder has them.

    `cifar10` has the first 20,000 of the 50,000 training images and all 10,000 test images. It is read from npz files if a data
    folder has them; 17 of their training images and 25 of their test images (24 of them ships) are JPEG copies. Otherwise it is
    read from the published archive. `note` says which, and `checksum` differs. `cifar10-full` is the archive with all training
    images. `kmnist` has only the test part, for out-of-distribution evaluation.

    Args:
        name: mnist, fashion-mnist, kmnist, cifar10 or cifar10-full.
        part: "train" or "test".
        data_dir: the data folder; by default `$BAYESIFY_DATA`, then `../shared/data`. The user's cache is searched last.

    Raises:
        ConfigurationError: an unknown name, or a part that the data set does not have.
        DataError: a damaged file.
        FileNotFoundError: a file is missing and cannot be downloaded; the message says how to get it.
        NotADirectoryError: `data_dir` or `$BAYESIFY_DATA` is not a folder.

    Example, if the data are available:
        data = load_images("mnist", "train")
        X, y = data.scaled(), data.y
    """
    check_choice("name", name, IMAGE_SETS)
    check_choice("part", part, ("train", "test"))
    dirs = data_dirs(data_dir)
    if name in _IDX:
        if part not in _IDX[name].files:
            raise ConfigurationError(f"{name} has no part {part!r}; use part='test'")
        images, labels = (read_file(file, dirs) for file in _IDX[name].files[part])
        X, y, note, classes = _idx(images)[:, None], _idx(labels), "", _IDX[name].classes
    else:
        X, y, note = _cifar10(name, part, dirs)
        classes = _CIFAR10_CLASSES
    return Images(name, part, torch.from_numpy(X), torch.from_numpy(y.astype(np.int64)), classes, note)


def image_files(name: str, dirs: tuple[Path, ...]) -> tuple[File, ...]:
    """The files that `load_images` reads for all parts of a data set."""
    if name in _IDX:
        return tuple(file for files in _IDX[name].files.values() for file in files)
    arrays = tuple(file for files in _CIFAR10_NPZ.values() for file in files)
    if name == "cifar10" and all(find_file(file.path, dirs) for file in arrays):
        return arrays
    return (_CIFAR10_ARCHIVE,)


def _idx(content: bytes) -> np.ndarray:
    """An idx file of unsigned bytes: two zeros, type 8, the number of dimensions, the big-endian dimensions, the values."""
    shape = np.frombuffer(content, dtype=">u4", count=content[3], offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * content[3]).reshape(shape).copy()


def _cifar10(name: str, part: Part, dirs: tuple[Path, ...]) -> tuple[np.ndarray, np.ndarray, str]:
    """Images (N, 3, 32, 32), labels (N,) and the note."""
    if image_files(name, dirs) == (_CIFAR10_ARCHIVE,):
        batches = {"train": [f"data_batch_{i}" for i in range(1, 6)][: 2 if name == "cifar10" else 5], "test": ["test_batch"]}
        records = _records(read_file(_CIFAR10_ARCHIVE, dirs), batches[part])
        note = _SUBSET if (name, part) == ("cifar10", "train") else ""
        return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0], note
    loaded = [np.load(io.BytesIO(read_file(file, dirs))) for file in _CIFAR10_NPZ[part]]
    X, y = (np.concatenate([arrays[key] for arrays in loaded]) for key in ("X", "y"))
    note = f"{_SUBSET}; 17 of them are JPEG copies" if part == "train" else "25 of the 10,000 test images are JPEG copies"
    return X, y, note


def _records(archive: bytes, batches: list[str]) -> np.ndarray:
    """Records (N, 3073) of batches of the binary version: the label, then the red, green and blue planes of 1024 bytes."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = [files.extractfile(f"cifar-10-batches-bin/{batch}.bin") for batch in batches]
        content = b"".join(member.read() for member in members if member)
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)


@dataclasses.dataclass(frozen=True)
class _Idx:
    files: dict[str, tuple[File, File]]  # by part: images, labels
    classes: tuple[str, ...]


def _family(name: str, sha256: dict[str, tuple[str, str]], classes: tuple[str, ...], mirrors: tuple[str, ...]) -> _Idx:
    """A data set of the MNIST family; `sha256` has, by part, the checksums of the decompressed images and labels."""

    def file(part: str, kind: str, sha256: str) -> File:
        base = f"{'train' if part == 'train' else 't10k'}-{kind}-ubyte.gz"
        return File(f"images/{name}/{base}", sha256, tuple(mirror + base for mirror in mirrors))

    parts = sha256.items()
    return _Idx(
        {part: (file(part, "images-idx3", first), file(part, "labels-idx1", last)) for part, (first, last) in parts}, classes
    )


_IDX = {
    "mnist": _family(
        "mnist",
        {
            "train": (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            "test": (
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        },
        tuple("0123456789"),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    "fashion-mnist": _family(
        "fashion-mnist",
        {
            "train": (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "test": (
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
        ),
    ),
    "kmnist": _family(
        "kmnist",
        {
            "test": (
                "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
                "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
            )
        },
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    ),
}

_CIFAR10_NPZ = {
    "train": (
        File("images/cifar10/train_00000_10000.npz", "2c22eeaab6ad350b00a4cbaa7ff17bd023acc32be7a2e79e30a7969673345331"),
        File("images/cifar10/train_10000_20000.npz", "d91775344209c8c2d8887e8f301acba35f8b296d0dc8b2c0c7c3ea0aa0e187f6"),
    ),
    "test": (File("images/cifar10/test.npz", "004a6f9330d58856732399de7d889ec9e8e9b0a130625ce7e427aae27ef50a4b"),),
}
_CIFAR10_ARCHIVE = File(
    "images/cifar10/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SUBSET = "20k-image training subset: the first 20,000 of the 50,000 training images"

IMAGE_SETS = (*_IDX, "cifar10", "cifar10-full")

"""Image data sets: published facts about the real files, and formats written byte by byte."""

import gzip
import hashlib
import io
import re
import struct
import tarfile
from typing import Any

import numpy as np
import pytest
import torch

from bayesify.datasets import Images, checksum, dataset_names, images, load_images
from bayesify.datasets.data_files import File
from bayesify.errors import DataError

# Digits in the 60,000 training and 10,000 test images of MNIST; the other sets are balanced.
MNIST = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


def _sha256(content):
    return hashlib.sha256(content).hexdigest()


def _put(folder, path, content):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)


class TestRealData:
    @pytest.mark.parametrize("part", ["train", "test"])
    def test_mnist(self, part, real_data):
        real_data("images/mnist/train-images-idx3-ubyte.gz")
        data = load_images("mnist", part)
        assert data.y.bincount().tolist() == MNIST[part]
        assert data.X.shape == (sum(MNIST[part]), 1, 28, 28)
        assert (data.X.dtype, data.y.dtype, data.note) == (torch.uint8, torch.int64, "")
        if part == "train":
            assert data.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
            scaled = data.X[:, 0].to(torch.float64) / 255
            assert (scaled.mean().item(), scaled.std().item()) == pytest.approx((0.1307, 0.3081), abs=1e-4)

    @pytest.mark.parametrize("part", ["train", "test"])
    def test_fashion_mnist(self, part, real_data):
        real_data("images/fashion-mnist/train-images-idx3-ubyte.gz")
        data = load_images("fashion-mnist", part)
        assert data.y.bincount().tolist() == [len(data.y) // 10] * 10
        assert len(data.X) == {"train": 60000, "test": 10000}[part]
        if part == "train":
            assert [data.classes[label] for label in data.y[:3]] == ["Ankle boot", "T-shirt/top", "T-shirt/top"]
            assert data.X.double().mean().item() / 255 == pytest.approx(0.2860, abs=1e-4)

    def test_kmnist(self, real_data):
        real_data("images/kmnist/t10k-images-idx3-ubyte.gz")
        data = load_images("kmnist", "test")
        assert data.X.shape == (10000, 1, 28, 28)
        assert data.y.bincount().tolist() == [1000] * 10

    @pytest.mark.parametrize("part", ["train", "test"])
    def test_cifar10(self, part, real_data):
        path = real_data("images/cifar10/test.npz")
        data = load_images("cifar10", part)
        assert data.X.shape == ({"train": 20000, "test": 10000}[part], 3, 32, 32)
        assert (data.X.dtype, data.y.dtype) == (torch.uint8, torch.int64)
        if part == "test":
            assert data.y.bincount().tolist() == [1000] * 10
            assert [data.classes[label] for label in data.y[:4]] == ["cat", "ship", "ship", "airplane"]
            with np.load(path) as stored:
                assert data.classes == tuple(stored["classes"])
                assert str(stored["jpeg_fill"].sum()) in data.note
        else:
            assert "20k-image training subset" in data.note
            assert "17 of them are JPEG copies" in data.note
            # the published means over all 50,000
            means = data.X.double().mean(dim=(0, 2, 3)) / 255
            assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=2e-3)
            with np.load(path.with_name("train_10000_20000.npz")) as stored:
                assert torch.equal(data.X[10000:], torch.from_numpy(stored["X"]))
                assert stored["index"].tolist() == list(range(10000, 20000))


@pytest.fixture
def toy(monkeypatch):
    """Fashion-MNIST with two images of 3x2 pixels for training and one for testing: the .gz content by path, and the pixels."""
    pixels = {"train": np.arange(12, dtype=np.uint8).reshape(2, 3, 2) * 20, "test": np.full((1, 3, 2), 7, dtype=np.uint8)}
    labels = {"train": bytes([9, 0]), "test": bytes([3])}
    contents, files = {}, {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        raw = {
            f"images/fashion-mnist/{stem}-images-idx3-ubyte.gz": struct.pack(">4BIII", 0, 0, 8, 3, *pixels[part].shape)
            + pixels[part].tobytes(),
            f"images/fashion-mnist/{stem}-labels-idx1-ubyte.gz": struct.pack(">4BI", 0, 0, 8, 1, len(labels[part])) + labels[part],
        }
        assert list(raw) == [file.path for file in images._IDX["fashion-mnist"].files[part]]
        files[part] = tuple(File(path, _sha256(content)) for path, content in raw.items())
        contents |= {path: gzip.compress(content) for path, content in raw.items()}
    monkeypatch.setitem(images._IDX, "fashion-mnist", images._Idx(files, images._IDX["fashion-mnist"].classes))
    return contents, pixels


class TestIdx:
    def test_loading(self, folders, toy):
        contents, pixels = toy
        for path, content in contents.items():
            _put(folders[0], path, content)
        train = load_images("fashion-mnist", "train", folders[0])
        assert (train.X.shape, train.X.dtype) == ((2, 1, 3, 2), torch.uint8)
        np.testing.assert_array_equal(train.X[:, 0], pixels["train"])
        assert train.y.tolist() == [9, 0]
        assert (train.name, train.part, train.note) == ("fashion-mnist", "train", "")
        test = load_images("fashion-mnist", "test", folders[0])
        np.testing.assert_array_equal(test.X[:, 0], pixels["test"])
        assert test.classes[int(test.y[0])] == "Dress"
        train.X[0] = 0  # the tensor owns its memory

    def test_scaled(self):
        X = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
        scaled = Images("toy", "test", X, torch.zeros(1, dtype=torch.int64), ("a",)).scaled()
        assert (scaled.dtype, scaled.shape) == (torch.float32, X.shape)
        np.testing.assert_allclose(scaled.flatten().numpy(), np.linspace(0, 1, 256), atol=1e-7)

    def test_rejects_damaged_files(self, folders, toy):
        for path, content in toy[0].items():
            _put(folders[0], path, content)
        path = "images/fashion-mnist/train-labels-idx1-ubyte.gz"
        _put(folders[0], path, gzip.compress(b"other labels"))
        with pytest.raises(DataError, match=f"{path} is damaged"):
            load_images("fashion-mnist", "train", folders[0])
        load_images("fashion-mnist", "test", folders[0])

    def test_mirrors(self):
        for name, mirrors in (("mnist", 2), ("fashion-mnist", 2), ("kmnist", 1)):
            for file in images.image_files(name, ()):
                assert len(file.urls) == mirrors
                assert all(url.endswith("/" + file.path.rsplit("/")[-1]) for url in file.urls)


class TestNames:
    def test_kmnist_has_no_training_images(self, folders):
        with pytest.raises(ValueError, match=r"kmnist has no part 'train'.*use part='test'"):
            load_images("kmnist", "train")

    def test_rejects_unknown_names(self, folders):
        part: Any = "validation"
        with pytest.raises(ValueError, match=r"name must be one of 'mnist', .*'cifar10-full', got 'yacht'"):
            load_images("yacht", "train")
        with pytest.raises(ValueError, match="part must be one of 'train', 'test', got 'validation'"):
            load_images("mnist", part)
        with pytest.raises(ValueError, match=r"name must be one of 'boston', .*'cifar10-full', got 'svhn'"):
            checksum("svhn")

    def test_missing_folder(self, folders):
        for call in (lambda: load_images("mnist", "test", "nowhere"), lambda: checksum("mnist", "nowhere")):
            with pytest.raises(NotADirectoryError, match="got 'nowhere'"):
                call()

    def test_checksums_distinguish_all_data_sets(self, folders):
        sums = [checksum(name) for name in dataset_names()]
        assert len(set(sums)) == len(sums)
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in sums)
        assert sums == [checksum(name, folders[0]) for name in dataset_names()]


@pytest.fixture
def cifar(monkeypatch):
    """CIFAR-10 with two images in every batch: the content of the files by path, and labels and pixels by batch."""
    random = np.random.default_rng(0)
    members = {
        name: (random.integers(10, size=2, dtype=np.uint8), random.integers(256, size=(2, 3, 32, 32), dtype=np.uint8))
        for name in ("data_batch_3", "data_batch_1", "test_batch", "data_batch_2", "data_batch_5", "data_batch_4")
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, (labels, pixels) in members.items():
            # each record: the label, the red plane by rows, the green one, the blue one
            content = b"".join(
                bytes([label]) + b"".join(image[c].tobytes() for c in range(3)) for label, image in zip(labels, pixels, strict=True)
            )
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    contents = {"images/cifar10/cifar-10-binary.tar.gz": stream.getvalue()}
    batches = {"train_00000_10000": "data_batch_1", "train_10000_20000": "data_batch_2", "test": "test_batch"}
    for path, batch in batches.items():
        stream = io.BytesIO()
        labels, pixels = members[batch]
        np.savez(stream, X=pixels ^ 1, y=labels)  # other pixels than the archive
        contents[f"images/cifar10/{path}.npz"] = stream.getvalue()

    def file(old):
        return File(old.path, _sha256(contents[old.path]))

    for part, old in images._CIFAR10_NPZ.items():
        monkeypatch.setitem(images._CIFAR10_NPZ, part, tuple(map(file, old)))
    monkeypatch.setattr(images, "_CIFAR10_ARCHIVE", file(images._CIFAR10_ARCHIVE))
    return contents, members


def _equal(data, batches, mask=0):
    np.testing.assert_array_equal(data.X, np.concatenate([pixels for _, pixels in batches]) ^ mask)
    assert data.y.tolist() == np.concatenate([labels for labels, _ in batches]).tolist()


class TestCifar10:
    def test_npz(self, folders, cifar):
        contents, members = cifar
        for path, content in contents.items():
            _put(folders[0], path, content)
        train = load_images("cifar10", "train", folders[0])
        _equal(train, [members["data_batch_1"], members["data_batch_2"]], mask=1)
        assert "JPEG" in train.note
        assert "20k-image training subset" in train.note
        test = load_images("cifar10", "test", folders[0])
        _equal(test, [members["test_batch"]], mask=1)
        assert "25 of the 10,000" in test.note

    def test_archive(self, folders, cifar):
        contents, members = cifar
        _put(folders[0], "images/cifar10/cifar-10-binary.tar.gz", contents["images/cifar10/cifar-10-binary.tar.gz"])
        train = load_images("cifar10", "train", folders[0])
        _equal(train, [members["data_batch_1"], members["data_batch_2"]])
        assert train.note == "20k-image training subset: the first 20,000 of the 50,000 training images"
        test = load_images("cifar10", "test", folders[0])
        _equal(test, [members["test_batch"]])
        assert test.note == ""

    def test_full(self, folders, cifar):
        contents, members = cifar
        for path, content in contents.items():  # the npz files exist too, but are not used
            _put(folders[0], path, content)
        train = load_images("cifar10-full", "train", folders[0])
        _equal(train, [members[f"data_batch_{i}"] for i in range(1, 6)])
        _equal(load_images("cifar10-full", "test", folders[0]), [members["test_batch"]])
        assert (train.name, train.note) == ("cifar10-full", "")

    def test_checksum_depends_on_the_source(self, folders, cifar):
        contents, _ = cifar
        archive = checksum("cifar10", folders[0])
        assert archive != checksum("cifar10-full", folders[0])
        for path, content in contents.items():
            assert checksum("cifar10", folders[0]) == archive  # incomplete npz files are not used
            _put(folders[0], path, content)
        assert checksum("cifar10", folders[0]) != archive

    def test_download(self, folders, cifar, server, monkeypatch):
        contents, members = cifar
        content = contents["images/cifar10/cifar-10-binary.tar.gz"]
        archive = images._CIFAR10_ARCHIVE
        url = server.offer("cifar-10-binary.tar.gz", content[:-1])
        monkeypatch.setattr(images, "_CIFAR10_ARCHIVE", File(archive.path, archive.sha256, (url,)))
        with pytest.raises(FileNotFoundError, match=f"{url}: DataError: its content has the SHA-256"):
            load_images("cifar10", "test")
        assert not list(folders[1].iterdir())
        server.offer("cifar-10-binary.tar.gz", content)
        _equal(load_images("cifar10", "test"), [members["test_batch"]])
        _equal(load_images("cifar10-full", "test"), [members["test_batch"]])
        assert server.requests == ["cifar-10-binary.tar.gz"] * 2

    def test_rejects_damaged_files(self, folders, cifar):
        for path, content in cifar[0].items():
            _put(folders[0], path, content)
        _put(folders[0], "images/cifar10/train_10000_20000.npz", b"PK")
        with pytest.raises(DataError, match=r"train_10000_20000.npz is damaged"):
            load_images("cifar10", "train", folders[0])

"""All benchmark sets: their names, and checksums that stand for their contents."""

from __future__ import annotations

import hashlib
import os

from bayesify.core.checks import check_choice
from bayesify.data.benchmarks.images import NAMES, image_files
from bayesify.data.benchmarks.store import data_dirs
from bayesify.data.benchmarks.uci_sources import SETS

__all__ = ["checksum", "dataset_names"]


def dataset_names() -> tuple[str, ...]:
    """The names that `load_uci` and `load_images` know: UCI regression, UCI classification, images.

    Example:
        >>> dataset_names()
        ('boston', 'concrete', 'kin8nm', 'naval', 'power-plant', 'protein', 'yacht', 'letter', 'eeg',
         'mnist', 'fashion-mnist', 'kmnist', 'cifar10', 'cifar10-full')
    """
    return (*SETS, *NAMES)


def checksum(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """A digest of what loading the set gives: equal digests, equal data, wherever they come from.

    Nothing is read: loading refuses everything whose contents have other sums than those known, which are what is digested.
    The folders matter only for `cifar10`, which has other pixels where its npz files are found (see `load_images`).

    Args:
        name: one of `dataset_names()`.
        data_dir: as for loading.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: an unknown name.
        NotADirectoryError: the folder that was named does not exist.

    Example:
        >>> checksum("mnist") == checksum("kmnist")
        False
    """
    check_choice("name", name, dataset_names())
    dirs = data_dirs(data_dir)
    known = (SETS[name],) if name in SETS else image_files(name, dirs)
    sums = [part.sha256 for part in known]
    return hashlib.sha256(" ".join((name, *sums)).encode()).hexdigest()

"""Names and checksums of all benchmark data sets."""

from __future__ import annotations

import hashlib
import os

from bayesify.core.checks import check_choice
from bayesify.datasets.data_files import data_dirs
from bayesify.datasets.images import IMAGE_SETS, image_files
from bayesify.datasets.uci_sources import SOURCES

__all__ = ["checksum", "dataset_names"]


def dataset_names() -> tuple[str, ...]:
    """Names of the data sets of `load_uci` (regression, then classification) and `load_images`.

    Example:
        >>> dataset_names()
        ('boston', 'concrete', 'kin8nm', 'naval', 'power-plant', 'protein', 'yacht', 'letter', 'eeg',
         'mnist', 'fashion-mnist', 'kmnist', 'cifar10', 'cifar10-full')
    """
    return (*SOURCES, *IMAGE_SETS)


def checksum(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Checksum of a data set; equal checksums mean equal data.

    It is computed from the known checksums of the files, against which loading verifies them; no file is read. It depends on the
    folders only for `cifar10`, whose npz files differ from the published archive (see `load_images`).

    Args:
        name: one of `dataset_names()`.
        data_dir: as in `load_uci` and `load_images`.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigurationError: an unknown name.
        NotADirectoryError: `data_dir` or `$BAYESIFY_DATA` is not a folder.

    Example:
        >>> checksum("mnist") == checksum("kmnist")
        False
    """
    check_choice("name", name, dataset_names())
    dirs = data_dirs(data_dir)
    files = (SOURCES[name],) if name in SOURCES else image_files(name, dirs)
    sums = [file.sha256 for file in files]
    return hashlib.sha256(" ".join((name, *sums)).encode()).hexdigest()

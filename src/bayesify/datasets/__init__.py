"""Benchmark data sets, verified and downloaded on demand."""

from bayesify.errors import MissingDependencyError

try:
    import numpy  # noqa: F401
except ImportError as error:
    raise MissingDependencyError("data sets", "numpy", extra="data") from error

from bayesify.datasets.catalog import checksum, dataset_names
from bayesify.datasets.images import Images, load_images
from bayesify.datasets.uci import UCI, load_uci

__all__ = [
    "UCI",
    "Images",
    "checksum",
    "dataset_names",
    "load_images",
    "load_uci",
]

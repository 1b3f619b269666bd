"""Benchmark data sets: found in a data folder or downloaded, and verified; augmentation and corruption of images."""

from bayesify.data.benchmarks.augment import random_crop, random_flip
from bayesify.data.benchmarks.catalogue import checksum, dataset_names
from bayesify.data.benchmarks.corrupt import CORRUPTIONS, SEVERITIES, corrupt
from bayesify.data.benchmarks.images import Images, load_images
from bayesify.data.benchmarks.uci import UCI, load_uci

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "UCI",
    "Images",
    "checksum",
    "corrupt",
    "dataset_names",
    "load_images",
    "load_uci",
    "random_crop",
    "random_flip",
]

"""Data: tables read, checked and turned into numbers a network can take; benchmark sets with their standard splits."""

from bayesify.data.benchmarks import (
    CORRUPTIONS,
    SEVERITIES,
    UCI,
    Images,
    checksum,
    corrupt,
    dataset_names,
    load_images,
    load_uci,
    random_crop,
    random_flip,
)
from bayesify.data.columns import Column, conform, describe_columns
from bayesify.data.preprocessing import SoftClip, preprocessing
from bayesify.data.tables import check_target, infer_task, read_table, split_target

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "UCI",
    "Column",
    "Images",
    "SoftClip",
    "check_target",
    "checksum",
    "conform",
    "corrupt",
    "dataset_names",
    "describe_columns",
    "infer_task",
    "load_images",
    "load_uci",
    "preprocessing",
    "random_crop",
    "random_flip",
    "read_table",
    "split_target",
]

"""Tables: reading, checks, and encoding as network inputs."""

from bayesify.data.columns import Column, conform, describe_columns
from bayesify.data.encoding import SoftClip, preprocessing
from bayesify.data.reading import read_table
from bayesify.data.target import check_target, infer_task, split_target

__all__ = [
    "Column",
    "SoftClip",
    "check_target",
    "conform",
    "describe_columns",
    "infer_task",
    "preprocessing",
    "read_table",
    "split_target",
]

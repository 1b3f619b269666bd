"""Tables: reading, checking and turning them into numbers a network can take."""

from bayesify.data.columns import Column, conform, describe_columns
from bayesify.data.preprocessing import SoftClip, preprocessing
from bayesify.data.tables import check_target, infer_task, read_table, split_target

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

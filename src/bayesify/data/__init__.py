"""Tables: reading, checks, and encoding as network inputs."""

from bayesify.data.column import Column
from bayesify.data.columns import conform, describe_columns
from bayesify.data.encoding import SoftClip, preprocessing
from bayesify.data.imputation import imputations, unknown_values
from bayesify.data.interchange import as_table
from bayesify.data.parquet import parquet_files
from bayesify.data.parquet_table import ParquetTable
from bayesify.data.reading import read_table
from bayesify.data.summary import TableSummary
from bayesify.data.target import (
    check_target,
    drop_missing_target,
    infer_task,
    read_target,
    split_target,
    target_format,
    task_reason,
    tell_format,
)
from bayesify.data.unusual import drift, unusual_values

__all__ = [
    "Column",
    "ParquetTable",
    "SoftClip",
    "TableSummary",
    "as_table",
    "check_target",
    "conform",
    "describe_columns",
    "drift",
    "drop_missing_target",
    "imputations",
    "infer_task",
    "parquet_files",
    "preprocessing",
    "read_table",
    "read_target",
    "split_target",
    "target_format",
    "task_reason",
    "tell_format",
    "unknown_values",
    "unusual_values",
]

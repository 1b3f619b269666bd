"""The fitted preprocessing of a model directory: a skops file whose bytes, types and columns are checked."""

from __future__ import annotations

import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

from bayesify.data import Column, preprocessing
from bayesify.errors import MissingDependencyError, ModelFileError

try:
    import numpy as np
    import skops  # noqa: F401 # skops.io imports all of scikit-learn, which takes seconds: where a file is read or written
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
except ImportError as error:
    raise MissingDependencyError("saving and loading models", "skops and scikit-learn", extra="tables") from error

__all__ = ["dump_preprocessing", "load_preprocessing"]

_OLDEST = (0, 13)  # of skops: 0.11 and earlier run code of crafted files (CVE-2025-54412, CVE-2025-54413), 0.12 in model cards
_LOADERS = {
    "CachedNode",
    "DTypeNode",
    "DictNode",
    "JsonNode",
    "ListNode",
    "NdArrayNode",
    "ObjectNode",
    "SliceNode",
    "TupleNode",
    "TypeNode",
}
_TRUSTED = ["bayesify.data.encoding.SoftClip", "numpy.dtype"]  # in addition to the types that skops trusts


def dump_preprocessing(transformer: ColumnTransformer) -> bytes:
    """The skops file of a fitted transformer."""
    import skops.io

    return skops.io.dumps(transformer)


def load_preprocessing(content: bytes, columns: Sequence[Column], outputs: int) -> ColumnTransformer:
    """Load the transformer of some columns, whose only types are those of `bayesify.data.preprocessing`.

    Args:
        content: a skops file.
        columns: the columns of the model.
        outputs: the number of inputs of the network.

    Raises:
        MissingDependencyError: a version of skops that runs code of crafted files.
        ModelFileError: compressed or oversized contents, another type, or other columns.
        Exception: of skops, for other damaged or untrusted bytes.
    """
    import skops.io

    _check_skops()
    _check_archive(content)
    transformer = skops.io.loads(content, trusted=_TRUSTED)  # rejects all types but its own and these
    if type(transformer) is not ColumnTransformer:
        raise ModelFileError(f"it must contain a ColumnTransformer, got {type(transformer).__name__}")
    expected, actual = preprocessing(columns).transformers, transformer.transformers
    fitted = [part for part in transformer.transformers_ if part[0] != "remainder"]
    if not _outline(expected) == _outline(actual) == _outline(fitted):
        raise ModelFileError("its transformers are not those of the columns in the configuration")
    for name, part, _ in fitted:
        for step in _steps(part):
            for field, value in vars(step).items():
                if isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not np.isfinite(value).all():
                    raise ModelFileError(f"{field} of {name} has NaN or infinite values")
    if (found := len(transformer.get_feature_names_out())) != outputs:
        raise ModelFileError(f"it has {found} outputs, and the network {outputs} inputs")
    return transformer


def _check_skops() -> None:
    version = importlib.metadata.version("skops")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
        raise MissingDependencyError(
            f"loading a model safely (skops {version} runs code of crafted files)", "skops>=0.13", extra="tables"
        )


def _check_archive(content: bytes) -> None:
    """Check its size, and that it has values and objects, but neither functions nor calls, which skops can store as well.

    Its members are not compressed, so that they cannot be larger than the file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ModelFileError("it is compressed, which the files of bayesify are not")
        if sum(member.file_size for member in members) > len(content):
            raise ModelFileError(f"its contents claim to be larger than the file, {len(content):,} bytes")
        schema = json.loads(archive.read("schema.json"))
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if (loader := part.get("__loader__", "JsonNode")) not in _LOADERS:
                raise ModelFileError(f"it contains a {loader!s:.40}, which the preprocessing of a table does not need")
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


def _outline(transformers: Sequence[tuple[str, Any, Any]]) -> list[tuple[str, list[type], list[str]]]:
    """Names, types and columns of transformers."""
    return [(name, [type(part) for part in _steps(transformer)], list(columns)) for name, transformer, columns in transformers]


def _steps(transformer: Any) -> Iterator[Any]:
    yield transformer
    if isinstance(transformer, Pipeline):
        for _, step in transformer.steps:
            yield from _steps(step)

"""What a `config.json` must look like: types, ranges, and parts that belong together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bayesify.data.column import KINDS
from bayesify.schema import (
    Check,
    anything,
    check_json,
    choice,
    listing_of,
    mapping_of,
    number,
    optional,
    record,
    require,
    text,
    truth,
    whole,
)

__all__ = ["check_schema"]

_LARGEST = 2**63 - 1
_MOST_DRAWS = 1_000_000
_MOST_CHARACTERS = 2**26
_DTYPE = re.compile(r"object|[<>|=](?:U(\d{1,9})|b1|[iu][1248]|f[248])")

_numbers, _texts = listing_of(number()), listing_of(text)
_share = number(0, 1)


def _either(first: Check, kind: type, second: Check) -> Check:
    """Values of a type fit the second schema, and others the first."""

    def check(place: str, value: Any) -> None:
        (second if isinstance(value, kind) else first)(place, value)

    return check


_LABELS = listing_of(_either(number(), str, text), 2)
_PARAMS = record(
    {
        "method": _either(text, dict, mapping_of(anything)),
        "hidden": optional(listing_of(whole(1, 2**24))),
        "beta": optional(_either(number(0), dict, record({"schedule": text}, {"beta": number(0)}))),
    },
    {
        "activation": optional(text),
        "encoding": optional(text),
        "likelihood": optional(text),
        "epochs": optional(whole(1, _LARGEST)),
        "batch_size": optional(whole(1, _LARGEST)),
        "patience": optional(whole(1, _LARGEST)),
        "learning_rate": optional(number(0)),
        "train_samples": whole(1, _MOST_DRAWS),
        "samples": optional(whole(1, _MOST_DRAWS)),
        "validation_fraction": optional(_share),
        "time_limit": optional(number(0)),
        "conformal": _either(truth, str, choice("cross")),
        "calibrate": optional(text),
        "ordered": _either(truth, list, _LABELS),
        "class_weight": _either(optional(text), list, listing_of(anything)),
        "random_state": optional(whole(0, 2**32 - 1)),
        "accelerator": text,
        "progress": optional(truth),
    },
)
_COLUMN = record(
    {"name": text, "kind": choice(*KINDS, "dropped")},
    {
        "minimum": optional(number()),
        "maximum": optional(number()),
        "categories": _texts,
        "missing": _share,
        "reason": text,
        "format": text,
        "rows": whole(0, _LARGEST),
        "quantiles": _numbers,
        "shares": listing_of(_share),
    },
)
_loss = listing_of(optional(number()))  # null: it was NaN or infinite
_HISTORY = record(
    {},
    {
        **dict.fromkeys(("loss", "nll", "kl", "beta", "learning_rate", "seconds", "validation_nll"), _loss),
        "kept_epochs": listing_of(whole(1, _LARGEST)),
        "stopped_early": truth,
        "failure": optional(text),
        "n": optional(whole(1, _LARGEST)),
    },
)
_REGRESSION = record(
    {"dimensions": choice(1, 2), "mean": listing_of(number(), 1), "std": listing_of(number(5e-324), 1)}, {"name": optional(text)}
)
_counts = optional(listing_of(whole(0, _LARGEST), 2))
_CLASSIFICATION = record(
    {"classes": _LABELS, "dtype": text},
    {"name": optional(text), "counts": _counts, "probability_map": optional(mapping_of(anything))},
)
_CLASSIFICATION_OF_BOOLEANS = record({"classes": listing_of(truth, 2), "dtype": text}, {"counts": _counts})
_FOLDS_OF_ROWS = listing_of(listing_of(_either(number(), list, _numbers), 1), 1)
_PART = record(
    {
        "task": choice("regression", "classification"),
        "params": _PARAMS,
        "network": record(
            {"in_features": whole(1, _LARGEST), "out_features": whole(1, _LARGEST)}, {"encoded": listing_of(whole(0, _LARGEST))}
        ),
        "likelihood": record({"likelihood": text}),
        "seed": whole(0, _LARGEST),
        "columns": listing_of(_COLUMN, 1),
        "named_columns": truth,
        "feature_names": truth,
        "target": mapping_of(anything),
        "history": _HISTORY,
    },
    {
        "conformal": optional(record({"scores": _FOLDS_OF_ROWS}, {"weights": optional(_FOLDS_OF_ROWS)})),
        "metrics": mapping_of(optional(number())),
        "reading": mapping_of(text),
        "updates": whole(0, _LARGEST),
        "companions": _texts,
        "leaderboard": mapping_of(listing_of(_either(optional(number()), str, text))),
        "stack_weights": listing_of(_share),
    },
)


def check_schema(path: Path, config: dict[str, Any]) -> None:
    """Check a configuration, and those of its folds and of its stack.

    Raises:
        ModelFileError: a missing or invalid value; names the file, the value and what was expected.
    """
    check_json(path, config, _part)


def _part(place: str, config: Any) -> None:
    _PART(place, config)
    prefix = f"{place}." if place else ""
    _check_columns(prefix, config)
    _check_target(prefix, config)
    for name in ("folds", "stack"):
        listing_of(_part)(prefix + name, config.get(name, []))
    models, weights = config.get("stack", []), config.get("stack_weights", [])
    require(
        len(models) == len(weights), f"{prefix}stack_weights must be one per model of the stack, {len(models)}, got {len(weights)}"
    )
    require(not weights or abs(sum(weights) - 1) < 1e-6, f"{prefix}stack_weights must sum to 1, got {sum(weights):g}")


def _check_columns(prefix: str, config: dict[str, Any]) -> None:
    names = [column["name"] for column in config["columns"]]
    require(len(set(names)) == len(names), f"{prefix}columns must have different names")
    for index, column in enumerate(config["columns"]):
        place = f"{prefix}columns[{index}]"
        low, high = column.get("minimum"), column.get("maximum")
        require(low is None or high is None or low <= high, f"{place}.minimum must not be above its maximum, got {low} and {high}")
        described = len(column.get("quantiles", [])) + len(column.get("categories", []))
        require(len(column.get("shares", [])) in (0, described), f"{place}.shares must be one per quantile or category")
    encoded, inputs = config["network"].get("encoded", []), config["network"]["in_features"]
    require(len(set(encoded)) == len(encoded), f"{prefix}network.encoded must be different numbers")
    require(all(i < inputs for i in encoded), f"{prefix}network.encoded must be below in_features={inputs}")


def _check_target(prefix: str, config: dict[str, Any]) -> None:
    target = config["target"]
    if config["task"] == "regression":
        _REGRESSION(f"{prefix}target", target)
        sizes = {len(target["mean"]), len(target["std"])}
        require(len(sizes) == 1, f"{prefix}target.mean and target.std must have the same length")
        require(target["dimensions"] == 2 or sizes == {1}, f"{prefix}target.mean must be one number for a target of 1 dimension")
        return
    booleans = isinstance(target.get("classes"), list) and all(isinstance(label, bool) for label in target["classes"])
    (_CLASSIFICATION_OF_BOOLEANS if booleans else _CLASSIFICATION)(f"{prefix}target", target)
    classes = target["classes"]
    require(len({type(label) is str for label in classes}) == 1, f"{prefix}target.classes must be all text, or all numbers")
    require(len(set(classes)) == len(classes), f"{prefix}target.classes must be different")
    counts = target.get("counts")
    require(counts is None or len(counts) == len(classes), f"{prefix}target.counts must be one per class, {len(classes)}")
    require(counts is None or sum(counts) > 0, f"{prefix}target.counts must not all be 0")
    if config["params"].get("ordered", False) is False:
        require(classes == sorted(classes), f"{prefix}target.classes must be sorted")
    dtype = _DTYPE.fullmatch(target["dtype"])
    require(dtype is not None, f"{prefix}target.dtype must be a NumPy type of labels, got {target['dtype']!r:.40}")
    width = int(dtype[1] or 0) if dtype else 0  # NumPy pads every label to it
    require(width * len(classes) <= _MOST_CHARACTERS, f"{prefix}target.dtype must have the length of the labels, got {width}")

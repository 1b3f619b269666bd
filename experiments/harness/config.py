"""Tables as files: `PAPER/TABLE/config.toml` below a root, selected by name, read and checked."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bayesify.errors import ConfigurationError
from bayesify.formatting import listing
from experiments.harness.protocol import Job, Protocol, Table

__all__ = ["QUICK", "ROOT", "UsageError", "find_tables", "jobs_of", "overlay", "read_table", "table_names"]

ROOT = Path(__file__).parents[1]
QUICK = ".quick"
_CONFIG = "config.toml"
_MOST = 6  # tables that a message names
_TEXTS = ("title", "source", "protocol")


class UsageError(ConfigurationError):
    """A mistake in a configuration, a results file or a command."""


def table_names(root: Path = ROOT) -> list[str]:
    """All tables below the root, as "PAPER/TABLE"."""
    folders = (path.parent.relative_to(root) for path in root.glob(f"*/*/{_CONFIG}"))
    return sorted(folder.as_posix() for folder in folders if not folder.parts[0].startswith("."))


def find_tables(patterns: Sequence[str], root: Path = ROOT, quick: bool = False) -> list[Table]:
    """The tables whose names match any of the patterns ("uci/standard", "uci/*", "*"), read and checked.

    Raises:
        UsageError: a pattern that matches no table, or an invalid configuration.
    """
    known = table_names(root)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            near = difflib.get_close_matches(pattern, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            tables = f"{listing(known, most=_MOST)}; see `list`" if known else f"none in {root}"
            raise UsageError(f"no table is called {pattern!r}{meant}; the tables are {tables}")
    return [read_table(name, root, quick) for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]


def read_table(name: str, root: Path = ROOT, quick: bool = False) -> Table:
    """Read one table. Title, source, protocol and remarks are text, `[published]` has the paper's numbers, the rest are settings.

    With `extends = "PAPER/TABLE"` it has the settings of another table where it has none of its own.

    Args:
        name: "PAPER/TABLE".
        root: folder of all tables.
        quick: apply the `[quick]` section to the settings, whose `methods` may be names of the table's methods, and use a separate
            results folder.

    Raises:
        UsageError: invalid toml, missing keys or keys of the wrong type, an unknown protocol; the message names file and key.
    """
    path = root / name / _CONFIG
    content = _read(path)
    if (base := content.pop("extends", None)) is not None:
        if base not in table_names(root) or "extends" in (other := _read(root / base / _CONFIG)):
            raise UsageError(f"{path}: extends must name a table that extends none, such as 'uci/standard', got {base!r}")
        content = {key: value for key, value in other.items() if key not in ("remarks", "published")} | content
    for key in _TEXTS:
        if not isinstance(content.get(key), str) or not content[key].strip():
            raise UsageError(f"{path}: {key} must be text, got {content.get(key)!r}")
    if not isinstance(content.get("remarks", ""), str):
        raise UsageError(f"{path}: remarks must be text, got {content['remarks']!r}")
    for key in ("published", "quick"):
        if not isinstance(content.get(key, {}), dict):
            raise UsageError(f"{path}: {key} must be a table, [{key}], got {content[key]!r}")
    if content["protocol"] not in Protocol.registry:
        known = ", ".join(sorted(Protocol.registry))
        raise UsageError(f"{path}: protocol {content['protocol']!r} is unknown; the protocols are {known}")
    if quick and "quick" not in content:
        raise UsageError(f"{path}: a quick run needs a section [quick], which may be empty, with settings for a run of seconds")
    settings = {key: value for key, value in content.items() if key not in (*_TEXTS, "remarks", "published", "quick")}
    return Table(
        name=name,
        title=content["title"],
        source=content["source"],
        protocol=content["protocol"],
        settings=_quick_settings(settings, content["quick"], path) if quick else settings,
        published=content.get("published", {}),
        folder=root / QUICK / name if quick else root / name,
        quick=quick,
        remarks="" if quick else content.get("remarks", "").strip(),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as toml: {error}") from None


def _quick_settings(settings: Mapping[str, Any], changes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The settings of a smoke run, in which `methods` may name some of the table's own, where these have settings."""
    changed = overlay(settings, changes)
    own = {each["name"]: each for each in settings.get("methods", []) if isinstance(each, Mapping)}
    if "methods" in changes and own:
        changed["methods"] = [own.get(each, each) if isinstance(each, str) else each for each in changes["methods"]]
        if unknown := [each for each in changed["methods"] if isinstance(each, str)]:
            raise UsageError(f"{path}: methods of [quick] name {unknown[0]!r}; the table has {', '.join(map(repr, own))}")
    return changed


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the changes: tables are merged key by key, anything else is replaced.

    Example:
        >>> overlay({"net": {"hidden": [50], "bias": True}, "epochs": 9}, {"net": {"hidden": [5]}, "epochs": 1})
        {'net': {'hidden': [5], 'bias': True}, 'epochs': 1}
    """
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def jobs_of(table: Table, protocol: Protocol) -> list[Job]:
    """The table's jobs.

    Raises:
        UsageError: settings that the protocol rejects; keys of jobs that are no file names or occur twice.
    """
    try:
        jobs = protocol.jobs(table)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{table.name}/{_CONFIG}: {error}") from error
    counts = Counter(job.key for job in jobs)
    if invalid := [key for key, count in counts.items() if count > 1 or not re.fullmatch(r"[\w+=.,-]+", key)]:
        raise UsageError(f"{table.name}/{_CONFIG}: keys of jobs must be unique file names, got {', '.join(map(repr, invalid))}")
    return jobs

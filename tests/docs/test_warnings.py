"""The page of warnings quotes messages that the library has, and all that concern networks, training and predictions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "warnings.md").read_text()
SOURCES = ("core/**/*.py", "likelihoods/*.py", "prediction/*.py", "methods/*.py", "train/**/*.py", "objectives.py")
# of data sets, files and clusters, whose messages say all there is to say
ELSEWHERE = (
    "is below the",
    "visits",
    "processes that torchrun",
    "is no folder on this machine",
    "cannot start from given",
    "failed",
)


def _words(text: str) -> str:
    """Letters alone, with one space for anything else."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def _text(node: ast.AST) -> str:
    """A string, values in it left out; empty for anything else."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return _words(" ".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)))


def _nodes() -> Iterator[ast.AST]:
    for pattern in SOURCES:
        for file in sorted((ROOT / "src" / "bayesify").glob(pattern)):
            yield from ast.walk(ast.parse(file.read_text()))


def _quotes() -> list[list[str]]:
    """The parts of every quoted message, between values."""
    rows = [line.split(" | ")[0].lstrip("| ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [[_words(part) for part in re.split(r"\*[^*]*\*", row)] for row in rows if row not in {"message", "---"}]


def test_quotes_are_of_messages() -> None:
    texts = [_text(node) for node in _nodes()]
    for quote in _quotes():
        assert any(all(part in text for part in quote) for text in texts), quote


def test_messages_are_on_the_page() -> None:
    calls = [node for node in _nodes() if isinstance(node, ast.Call) and node.args]
    warned = [_text(call.args[0]) for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) in {"warn", "tell"}]
    assert len(warned) > 15
    quotes = _quotes()
    for text in filter(None, warned):
        assert any(part in text for part in ELSEWHERE) or any(all(part in text for part in quote) for quote in quotes), text

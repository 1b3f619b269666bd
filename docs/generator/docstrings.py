"""Docstrings as the API reference reads them."""

import re
from typing import Any

import griffe

__all__ = ["Docstrings"]


class Docstrings(griffe.Extension):
    """Reads `Example:` as a section of examples, whose code is highlighted."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)

"""Figures as inline SVG in the font and colors of the page, light or dark."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesify.plots.style import BLUE, GRID, INK, MUTED, ORANGE, THEME

__all__ = ["Picture", "picture"]

_SIZE = 4.6, 3.1  # inches
_VARIABLES = {BLUE: "--blue", ORANGE: "--orange", INK: "--ink", MUTED: "--muted", GRID: "--line"}


class Picture(NamedTuple):
    """One figure of the page; `svg` is markup, `title` and `caption` are plain text."""

    title: str
    caption: str
    svg: str


def picture(title: str, alt: str, caption: str, draw: Callable[[Axes], object], key: str) -> Picture:
    """Draw a figure as SVG markup.

    Args:
        title: of the figure.
        alt: alternative text.
        caption: how to read it.
        draw: a function that draws on an Axes.
        key: letters and digits, unique on the page: the prefix of all ids.
    """
    file = io.StringIO()
    settings: dict[Any, Any] = {**THEME, "svg.hashsalt": key, "savefig.dpi": 160}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=_SIZE, layout="constrained")
        figure.patch.set_alpha(0)
        draw(figure.subplots())
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    return Picture(title, caption, _inline(file.getvalue(), alt, key))


def _inline(svg: str, alt: str, key: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, body = svg.split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*pt"', "", head)
    head = head.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)
    # Text comes from data and must not change; ids and colors are inside tags.
    return head + ">" + re.sub(r"<[^>]*>", lambda tag: _retouch(tag.group(), key), body)


def _retouch(tag: str, key: str) -> str:
    tag = re.sub(r'\bid="', f'id="{key}-', tag)
    tag = tag.replace("url(#", f"url(#{key}-").replace('href="#', f'href="#{key}-')
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 var(--font)", tag)
    for color, variable in _VARIABLES.items():
        tag = tag.replace(color, f"var({variable})")
    return tag

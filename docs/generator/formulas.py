"""Formulas of pages as MathML, which browsers show without scripts or fonts from elsewhere."""

import html
import re

__all__ = ["as_mathml"]

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)


def as_mathml(page: str) -> str:
    r"""Replace the formulas that `pymdownx.arithmatex` marked, `\(...\)` and `\[...\]`, in the HTML of a page."""
    from latex2mathml.converter import convert

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        formula = convert(html.unescape(found[2]).strip(), display=display)
        return f'<div class="formula">{formula}</div>' if display == "block" else formula

    return _FORMULA.sub(mathml, page)

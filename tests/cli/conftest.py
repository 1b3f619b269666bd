"""Reports without drawn figures, which take most of the time of `bayesify fit`; tests/report draws them."""

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _undrawn_figures() -> Iterator[None]:
    if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "jinja2")):
        yield
        return
    from bayesify.report import reasons, sections
    from bayesify.report.figures import Picture

    def undrawn(title: str, alt: str, caption: str, *_: object, **__: object) -> Picture:
        return Picture(title, caption, "<svg></svg>")

    with pytest.MonkeyPatch.context() as patch:
        for module in (reasons, sections):
            patch.setattr(module, "picture", undrawn)
        yield

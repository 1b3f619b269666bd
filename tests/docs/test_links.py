"""Links between the Markdown files of the repository: their files and headings exist."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "generator"))

from reference_pages import reference_pages
from repository_files import address_of, known_pages, markdown_pages, relative_links, repository_pages

METHODS = re.findall(r'"(\w+)"', (ROOT / "src/bayesify/methods/__init__.py").read_text().partition("__all__")[2])
GENERATED = [*reference_pages(), "methods/index.md", *(f"methods/{name}.md" for name in METHODS)]
KNOWN = known_pages(GENERATED)


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as the site and code hosts make them."""
    titles = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower() for title in titles]
    return {re.sub(r"\s", "-", title) for title in plain}


@pytest.mark.parametrize("path", [*markdown_pages(), "README.md"])
def test_links_lead_to_files_and_headings(path: str) -> None:
    text = (ROOT / path).read_text()
    for target in relative_links(text):
        address_of(path, target, KNOWN)
        name, _, anchor = target.partition("#")
        file = ((ROOT / path).parent / name).resolve()
        assert not anchor or file.suffix != ".md" or not file.exists() or anchor in anchors(file.read_text()), target
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert anchor in anchors(text), anchor


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"docs/results\.md links to \.\./nowhere\.md, which is no file"):
        address_of("docs/results.md", "../nowhere.md", KNOWN)


def test_links_of_pages_are_relative_to_the_page() -> None:
    report = str(repository_pages(GENERATED)["experiments/uci/standard.md"])
    assert "](../vsd/uci.md)" in report
    assert "](../../files/experiments/uci/standard/figure.png)" in report


def test_code_has_no_links() -> None:
    assert relative_links("[a](b.md#c)\n```python\nx[0](y)\n```\n![d](e.png) [f](https://g) [h](#i)") == ["b.md#c", "e.png"]

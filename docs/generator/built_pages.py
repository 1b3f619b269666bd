"""The last steps on the built HTML: formulas as MathML, links from names to the reference, and checks of links and images."""

import posixpath
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

from formulas import as_mathml

__all__ = ["finish", "link_names", "problems_of"]

_SKIPPED = r"<pre\b.*?</pre>|<a\b.*?</a>|<h[1-6]\b.*?</h[1-6]>|<nav\b.*?</nav>|<title>.*?</title>"
_NAME = r"<code>(?P<name>[A-Za-z_][\w.]*)(?P<call>\([^<]*)?</code>"
_CODE = re.compile(f"{_SKIPPED}|{_NAME}", re.DOTALL)
_UNAMBIGUOUS = re.compile(r"[A-Z]|\w+_\w+|elbo$|unbayesify$")  # `fit` and `predict` may be methods of something else


def finish(site: Path, paths: Mapping[str, str]) -> list[str]:
    """Finish all pages of the site in place.

    Args:
        site: folder of the built site.
        paths: import path of every public name.

    Returns:
        What is wrong with them, one line each.
    """
    (site / "404.html").unlink(missing_ok=True)  # its absolute addresses need a server, and the site is opened from disk
    files = {file.relative_to(site).as_posix(): file for file in sorted(site.rglob("*.html"))}
    texts = {page: as_mathml(file.read_text("utf-8")) for page, file in files.items()}
    places = {name: page for page, text in texts.items() for name in re.findall(r' id="(bayesify\.[\w.]+)"', text)}
    for page, text in texts.items():
        texts[page] = link_names(text, page, paths, places)
        files[page].write_text(texts[page], "utf-8")
    for file in (site / "search.js", site / "search.json"):  # formulas are shown as they were written, without their marks
        file.write_text(re.sub(r"\\\\[()[\]]", "", file.read_text("utf-8")), "utf-8")
    missing = [f"no page has an entry for {path}: it needs a docstring" for path in paths.values() if path not in places]
    return missing + problems_of(site, texts)


def link_names(text: str, page: str, paths: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Link the names of the library in the HTML of a page, as far as the reference has them.

    Args:
        text: HTML.
        page: address of the page.
        paths: import path of every public name.
        places: address of the page that has the entry of an import path.
    """

    def link(found: re.Match[str]) -> str:
        if found["name"] is None:
            return found[0]
        first, _, rest = found["name"].removeprefix("bayesify.").partition(".")
        path = f"{paths.get(first, first)}.{rest}" if rest else paths.get(first, first)
        if path not in places or not (rest or _UNAMBIGUOUS.match(first)):
            return found[0]
        return f'<a href="{posixpath.relpath(places[path], posixpath.dirname(page) or ".")}#{path}">{found[0]}</a>'

    return _CODE.sub(link, text)


class _Page(HTMLParser):
    """Links, ids and resources of a page, and images without a description."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.resources: list[str] = []
        self.undescribed: list[str] = []
        self.headings = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.headings += tag == "h1"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("img", "script", "source") and "src" in values:
            self.resources.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.resources.append(values["href"])
        if tag == "img" and not values.get("alt"):
            self.undescribed.append(values.get("src", ""))


def problems_of(site: Path, texts: Mapping[str, str]) -> list[str]:
    """Broken links and anchors, resources from other hosts, images without a description, pages without one heading of level 1."""
    pages = {page: _Page(text) for page, text in texts.items()}
    problems = []
    for page, parsed in pages.items():
        problems += [f"{page}: {source} is loaded from another host" for source in parsed.resources if "//" in source]
        problems += [f"{page}: the image {source} has no description" for source in parsed.undescribed]
        problems += [f"{page}: {parsed.headings} headings of level 1"] if parsed.headings != 1 else []
        for link in sorted({*parsed.links, *parsed.resources}):
            if not re.match(r"[a-z]+:|//|\.?$", link) and _is_broken(site, page, link, pages):
                problems.append(f"{page}: broken link {link}")
    return problems


def _is_broken(site: Path, page: str, link: str, pages: Mapping[str, _Page]) -> bool:
    target, _, anchor = link.partition("#")
    found = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
    if not (site / found).is_file():
        return True
    return bool(anchor) and found in pages and anchor not in pages[found].ids

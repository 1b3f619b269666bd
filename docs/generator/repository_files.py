"""Pages that exist in the repository: those of `docs/`, reports, examples, and the files that they link to."""

import ast
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["ROOT", "address_of", "known_pages", "markdown_pages", "relative_links", "repository_pages", "scripts"]

ROOT = Path(__file__).parents[2]

_FENCED = re.compile(r"(^```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")


def repository_pages(generated: Iterable[str]) -> dict[str, str | bytes]:
    """All of them with their links led to their places in the site, by address.

    Args:
        generated: addresses of further pages, which `docs/` does not have as files.
    """
    pages: dict[str, str | bytes] = {page: _example(path) for path, page in scripts().items()}
    sources = {page: path for path, page in scripts().items()}
    for path, page in markdown_pages().items():
        pages[page] = (ROOT / path).read_text("utf-8")
        sources[page] = path
    known = known_pages(generated)
    for page, path in sources.items():
        text = str(pages[page])
        found = {target: address_of(path, target, known) for target in relative_links(text)}
        for address in found.values():
            if address.startswith("files/"):
                pages[address] = (ROOT / address.removeprefix("files/")).read_bytes()
        pages[page] = _rewritten(text, page, found)
    return pages


def known_pages(generated: Iterable[str]) -> dict[str, str]:
    """Address of every page by its path in the repository; generated ones count as files of `docs/`."""
    return markdown_pages() | scripts() | {f"docs/{address}": address for address in (*generated, *scripts().values())}


def address_of(path: str, target: str, known: Mapping[str, str]) -> str:
    """Address in the site of what a link of a file leads to, without the anchor.

    Args:
        path: the file in the repository.
        target: of the link, relative to the file.
        known: address of every page, by its path in the repository.

    Raises:
        LookupError: no file or page.
    """
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target.partition("#")[0]))
    if found in known:
        return known[found]
    if (ROOT / found).is_file():
        return found.removeprefix("docs/") if found.startswith("docs/") else f"files/{found}"
    raise LookupError(f"{path} links to {target}, which is no file")


def relative_links(text: str) -> list[str]:
    """Targets of all links and images that lead to files, with their anchors."""
    return [target for part in _FENCED.split(text) if not part.startswith("```") for target in _TARGET.findall(part)]


def markdown_pages() -> dict[str, str]:
    """Address in the site of every Markdown file, by its path in the repository."""
    pages = {
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
        "experiments/README.md": "experiments/index.md",
        "experiments/tables/README.md": "experiments/tables.md",
        "src/bayesify/core/replay/README.md": "replay.md",
    }
    reports = sorted(ROOT.glob("experiments/*/*/report.md"))
    pages |= {f"docs/{file.name}": file.name for file in sorted(ROOT.glob("docs/*.md"))}
    return pages | {(path := report.relative_to(ROOT).as_posix()): path.replace("/report.md", ".md") for report in reports}


def scripts() -> dict[str, str]:
    """Address in the site of every example that can be run, by its path in the repository."""
    found = sorted(ROOT.glob("examples/*.py"))
    runnable = [file for file in found if re.search(r"__main__|^app = ", file.read_text("utf-8"), re.MULTILINE)]
    return {file.relative_to(ROOT).as_posix(): f"examples/{file.stem}.md" for file in runnable}


def _example(path: str) -> str:
    """The page of an example: its docstring, its figure and its code."""
    code = (ROOT / path).read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(code)) or ""
    title, _, text = docstring.partition("\n")
    figure = Path(path).with_suffix(".png").name
    image = f"![The figure that the script writes]({figure})\n\n" if (ROOT / path).with_name(figure).exists() else ""
    return f"# {title.rstrip('.')}\n\n{text}\n\n{image}## Code\n\n`{path}`\n\n````python\n{code}````\n"


def _rewritten(text: str, page: str, addresses: Mapping[str, str]) -> str:
    """A text whose links are relative to its page instead of its file."""

    def rewrite(found: re.Match[str]) -> str:
        _, mark, anchor = found[1].partition("#")
        return posixpath.relpath(addresses[found[1]], posixpath.dirname(page) or ".") + mark + anchor

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _TARGET.sub(rewrite, part) for part in parts)

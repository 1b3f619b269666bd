"""Build the documentation: `python docs/generator [FOLDER]`; FOLDER is site/ by default, and FOLDER/index.html opens from disk."""

import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from built_pages import finish
from method_pages import method_pages
from reference_pages import entries, reference_pages
from repository_files import ROOT, repository_pages
from zensical import build


def main(site: Path) -> int:
    """Write all pages and the settings to a temporary folder, build the site strictly, and finish its pages."""
    generated = method_pages() | reference_pages()
    pages = generated | repository_pages(generated)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        shutil.copytree(ROOT / "docs", work / "docs", ignore=shutil.ignore_patterns("generator", "*.py", "*.md", "__pycache__"))
        for address, content in pages.items():
            file = work / "docs" / address
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        settings = work / "mkdocs.yml"
        settings.write_text(_settings(list(pages)), "utf-8")
        build(str(settings), {"strict": True, "clean": True})
        shutil.rmtree(site, ignore_errors=True)
        shutil.move(work / "site", site)
    problems = finish(site, {entry.path.rpartition(".")[2]: entry.path for names in entries().values() for entry in names})
    for problem in problems:
        print(problem, file=sys.stderr)
    print(site / "index.html")
    return 1 if problems else 0


def _settings(pages: list[str]) -> str:
    """`mkdocs.yml` with full paths, and the pages of the folders that its navigation names."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    settings |= {"docs_dir": "docs", "site_dir": "site", "nav": _expanded(settings["nav"], pages)}
    python = settings["plugins"][-1]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / path) for path in python["paths"]]
    python["options"]["extensions"] = [str(ROOT / path) for path in python["options"]["extensions"]]
    return yaml.safe_dump(settings, sort_keys=False)


def _expanded(items: object, pages: list[str]) -> object:
    if isinstance(items, list):
        return [_expanded(item, pages) for item in items]
    if isinstance(items, dict):
        return {title: _expanded(value, pages) for title, value in items.items()}
    found = [page for page in pages if page.startswith(str(items)) and page.endswith(".md")]
    return sorted(found, key=lambda page: not page.endswith("index.md")) if str(items).endswith("/") else items


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()))

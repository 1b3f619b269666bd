"""The generated pages of the documentation: every public name and every method has its place; the site builds without warnings."""

import importlib
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "generator"))

import bayesify
from bayesify import Method

method_pages = pytest.importorskip("method_pages", reason="needs bayesify[cli]", exc_type=ImportError)
import built_pages
from reference_pages import PAGES, entries, public_names, reference_pages

INTERNAL = {
    "checksums",
    "cli",
    "core",
    "environment",
    "files",
    "formatting",
    "methods",
    "plain_numbers",
    "progress",
    "schema",
    "stacking",
}
"""Modules that the reference leaves out: not for users, or with pages of their own."""
ENTRIES = [entry for names in entries().values() for entry in names]


def test_every_public_name_has_one_place_in_the_reference() -> None:
    counts = Counter(entry.path for entry in ENTRIES)
    assert {f"bayesify.{name}" for name in bayesify.__all__ if name != "functional"} <= set(counts)
    for page in PAGES.values():
        for module in page.modules:
            if module not in ("core", "errors"):
                names = public_names(module)
                assert all(counts[f"bayesify.{name}"] + counts[f"bayesify.{module}.{name}"] == 1 for name in names), module
    assert set(counts.values()) == {1}


def test_every_module_is_in_the_reference_or_internal() -> None:
    modules = {module.name for module in pkgutil.iter_modules(bayesify.__path__) if not module.name.startswith("_")}
    documented = {module.partition(".")[0] for page in PAGES.values() for module in page.modules}
    assert modules - INTERNAL == documented - INTERNAL


def test_entries_can_be_imported() -> None:
    for entry in ENTRIES:
        module, _, name = entry.path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), entry.path


def test_pages_ask_for_every_entry() -> None:
    pages = reference_pages() | method_pages.method_pages()
    for entry in ENTRIES:
        assert f"\n::: {entry.path}\n" in f"{pages[entry.page]}\n", entry.path
        assert f"[{entry.path}]" in pages["api/index.md"]


def test_every_method_has_a_page() -> None:
    pages = method_pages.method_pages()
    library = {name for name, kind in Method.registry.items() if kind.__module__.startswith("bayesify.methods")}
    assert set(method_pages.methods()) == library
    for name in library:
        assert f"[{name}]({name}.md)" in pages["methods/index.md"]


def test_every_paper_has_a_link() -> None:
    pages = method_pages.method_pages()
    for name, kind in method_pages.methods().items():
        assert not kind.paper or "](https://" in pages[f"methods/{name}.md"].partition("**Paper:**")[2].partition("\n")[0], name


def test_a_page_quotes_the_committed_results() -> None:
    page = method_pages.method_pages()["methods/MCDropout.md"]
    report = (ROOT / "experiments/uci/standard/report.md").read_text()
    rows = [line for line in report.splitlines() if line.startswith("| MCDropout |")]
    assert rows[0].replace("MCDropout", "RMSE") in page
    assert "[arXiv 1506.02142](https://arxiv.org/abs/1506.02142)" in page


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml")
    marked = r'<p>a <span class="arithmatex">\(x &lt; \sigma^2\)</span></p><div class="arithmatex">\[y\]</div>'
    html = built_pages.as_mathml(marked)
    assert "arithmatex" not in html
    assert html.count("<math") == 2
    assert '<div class="formula"><math' in html
    assert "&#x0003C;" in html


def test_names_are_linked_but_not_in_code_links_and_headings() -> None:
    places = {"bayesify.elbo": "api/objectives.html", "bayesify.Bayesian.kl": "api/networks.html"}
    paths = {"elbo": "bayesify.elbo", "Bayesian": "bayesify.Bayesian"}
    skipped = "<h2><code>elbo</code></h2><pre><code>elbo</code></pre><code>fit</code>"
    html = built_pages.link_names(
        f"{skipped}<code>elbo(beta=)</code> <code>Bayesian.kl()</code>", "methods/VSD.html", paths, places
    )
    assert html.count("<a ") == 2
    assert '<a href="../api/objectives.html#bayesify.elbo"><code>elbo(beta=)</code></a>' in html
    assert '<a href="../api/networks.html#bayesify.Bayesian.kl"><code>Bayesian.kl()</code></a>' in html


def test_entries_without_a_place_are_found(tmp_path: Path) -> None:
    pytest.importorskip("latex2mathml")
    for name in ("404.html", "search.js", "search.json"):
        (tmp_path / name).touch()
    (tmp_path / "a.html").write_text('<h1 id="bayesify.elbo">A</h1>')
    problems = built_pages.finish(tmp_path, {"elbo": "bayesify.elbo", "warn": "bayesify.errors.warn"})
    assert problems == ["no page has an entry for bayesify.errors.warn: it needs a docstring"]
    assert not (tmp_path / "404.html").exists()


def test_problems_of_pages_are_found(tmp_path: Path) -> None:
    links = "".join(f'<a href="{target}"></a>' for target in ("#x", "b.html#y", "b.html#z", "c.html"))
    pages = {
        "a.html": f'<h1 id="x">A</h1>{links}<img src="b.html">',
        "b.html": '<p id="y"></p><script src="https://elsewhere.org/x.js"></script><img src="b.html" alt="B">',
    }
    for page in pages:
        (tmp_path / page).touch()
    assert built_pages.problems_of(tmp_path, pages) == [
        "a.html: the image b.html has no description",
        "a.html: broken link b.html#z",
        "a.html: broken link c.html",
        "b.html: https://elsewhere.org/x.js is loaded from another host",
        "b.html: 0 headings of level 1",
    ]


@pytest.mark.slow  # .ci/run builds it as well
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    command = [sys.executable, str(ROOT / "docs" / "generator"), str(tmp_path / "site")]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "site" / "search.js").stat().st_size > 100_000  # the index for search without a server
    html = (tmp_path / "site" / "methods" / "VSD.html").read_text()
    assert 'id="bayesify.VSD"' in html
    assert "<math" in html

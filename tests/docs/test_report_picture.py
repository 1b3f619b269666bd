"""The picture of a report is generated, by whatever browser is installed."""

import stat
import sys

import pytest
from docs import report_picture

BROWSER = """#!{python}
import pathlib, sys
options = dict(each.removeprefix("--").partition("=")[::2] for each in sys.argv[1:] if each.startswith("--"))
assert "headless" in options and options["window-size"] == "1040,1480", options
page = sys.argv[-1]
if page.endswith("page.html"):
    pathlib.Path(options["screenshot"]).write_text(page)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the browser of this test is a script")
def test_a_headless_browser_writes_the_picture(tmp_path, monkeypatch):
    browser = tmp_path / "chromium"
    browser.write_text(BROWSER.format(python=sys.executable))
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report_picture.find_browser(None) == str(browser)
    report_picture.take_picture(str(browser), tmp_path / "page.html", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_text() == (tmp_path / "page.html").as_uri()
    with pytest.raises(SystemExit, match="has written no picture"):
        report_picture.take_picture(str(browser), tmp_path / "other.html", tmp_path / "other.png")


def test_without_a_browser_the_command_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no browser: chromium, .* is not installed; install Chromium"):
        report_picture.find_browser(None)
    with pytest.raises(SystemExit, match="no browser: firefox is not installed"):
        report_picture.find_browser("firefox")

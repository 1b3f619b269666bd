"""The progress bar: shown only on a terminal, for long work."""

import pytest

from bayesify import progress
from bayesify.progress import ProgressBar


def work(show: bool | None) -> None:
    with ProgressBar("working", show, total=2) as bar:
        bar.advance()
        bar.text = "nearly there"
        bar.advance()


def test_silent_without_a_terminal(capsys):
    work(None)
    work(False)
    assert capsys.readouterr() == ("", "")


def test_shown_on_request_with_the_latest_text(capsys):
    work(True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "nearly there" in err
    assert "100%" in err


def test_on_a_terminal_only_long_work_is_shown(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    work(None)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(ProgressBar, "patience", 0.0)
    work(None)
    assert "nearly there" in capsys.readouterr().err


def test_without_rich(capsys, monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    work(None)
    with pytest.raises(ImportError, match=r"bayesify\[cli\]"):
        work(True)


def test_lines_in_a_log(capsys, monkeypatch):
    monkeypatch.setattr(ProgressBar, "line_seconds", 0.0)
    work(None)
    assert capsys.readouterr().err == "working: 50%\nnearly there: 100%\n"
    monkeypatch.setattr(ProgressBar, "line_seconds", 30.0)
    work(None)
    work(False)
    assert capsys.readouterr().err == ""

"""Commands that run in the process of the tests."""

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")

from typer.testing import CliRunner

from bayesify.cli.app import app

_NOTES = ("note:", "regression of", "classification of", "resuming")


def run(*arguments, code=0, input=None):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def refuse(*arguments, match, files):
    """The command fails with one line, exit code 2, and changes no file."""
    before = sorted(files.rglob("*"))
    result = run(*arguments, code=2)
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith(_NOTES)]
    assert line.startswith("bayesify: ")
    assert match in line
    assert sorted(files.rglob("*")) == before

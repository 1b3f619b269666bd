"""Ctrl-C in the first seconds of a command: at most one line, exit code 130, and nothing half written."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("skops")
from saved_models import X, y

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals")]
ROOT = Path(__file__).parents[2]
STEP = 0.05  # seconds
# "started" is printed where `main` is called; what comes before, Python's start and the import of `main`, is not ours to handle
BAYESIFY = "{heed}; from bayesify.cli import main; print('started', flush=True); main()"
EXPERIMENTS = "{heed}; from experiments.__main__ import main; print('started', flush=True); main()"
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs of a shell ignore interrupts
COMMANDS = {
    "help": (BAYESIFY, ["--help"]),
    "fit": (BAYESIFY, ["fit", "table.csv", "--target", "price", "--out", "m", "--method", "MCDropout", "--quiet"]),
    "experiments": (EXPERIMENTS, ["run", "uci/standard", "--dataset", "yacht", "--root", "tables", "--quick"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_start(name, tmp_path):
    X.assign(price=y).to_csv(tmp_path / "table.csv", index=False)
    shutil.copytree(ROOT / "experiments" / "uci", tmp_path / "tables" / "uci", ignore=shutil.ignore_patterns("results", ".quick"))
    program, arguments = COMMANDS[name]
    command = [sys.executable, "-c", program.format(heed=HEED), *arguments]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    codes = []
    for number in range(1, 50):
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout.readline() == "started\n"
            time.sleep(number * STEP)
            run.send_signal(signal.SIGINT)
            errors = run.communicate()[1]
        codes.append(run.returncode)
        if run.returncode == 0:
            break
        assert run.returncode in (130, -signal.SIGINT), errors  # the latter in the last moments of Python, silently
        assert "Traceback" not in errors
        assert errors in ("", "bayesify: interrupted\n") or name == "experiments"
        assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "tables"}
    assert 130 in codes

"""Check what would be released: build sdist and wheel, look into them, and run the demo from the wheel in a fresh environment.

    python tools/check_release.py                       # with the pinned versions (constraints.txt)
    python tools/check_release.py --lowest [EXTRA ...]  # with the lowest versions that pyproject.toml declares, extra by extra
    python tools/check_release.py --bounds              # print those versions, as constraints for pip

Needs `pip install -c constraints.txt -e ".[dev]"`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = (
    "train",
    "metrics",
    "tables",
    "data",
    "plots",
    "excel",
    "report",
    "transformers",
    "laplace",
    "mcmc",
    "fast",
    "ray",
    "tracking",
    "cli",
)
"""Extras of users."""

TWO_LINES = """
import torch
from bayesify import Categorical, MeanField, bayesify, elbo, predict
bnn = bayesify(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), MeanField())
x, y, likelihood = torch.randn(16, 4), torch.randint(0, 3, (16,)), Categorical()
draws = bnn(x, samples=2)
(-elbo(draws, likelihood.log_prob(draws.outputs, y), n=16)).backward()
assert predict(bnn, x, likelihood, samples=10, seed=0).probs.shape == (16, 3)
print("torch", torch.__version__)
"""
IMPORTS = {
    "train": "from bayesify.train import fit_many",
    "metrics": "from bayesify.metrics import expected_calibration_error",
    "tables": "from bayesify.estimators import BayesianRegressor\n"
    "BayesianRegressor(epochs=2, random_state=0).fit([[float(i)] for i in range(40)], list(range(40))).predict([[1.0]])",
    "data": "import bayesify.datasets",
    "plots": "import bayesify.plots; bayesify.plots.plot_bands",
    "excel": "from bayesify.data import read_table",
    "report": "from bayesify.report import render",
    "transformers": "from bayesify.integrations.transformers import BayesianTrainer\nimport bayesify.integrations.pretrained",
    "laplace": "import laplace, bayesify; bayesify.Laplace()",
    "mcmc": "import pyro, bayesify; bayesify.HMC()",
    "fast": "import torch, bayesify.native\nassert bayesify.native.native_fwht(torch.ones(512))[0] == 512",
    "ray": "import ray; from bayesify.jobs import RayCluster",
    "tracking": "import mlflow, tensorboard; from bayesify.tracking import open_run",
    "cli": "from bayesify.cli.app import app",
}
"""What each extra is for, as a program that must run."""


def lower_bounds(extras: Sequence[str]) -> dict[str, str]:
    """The lowest versions of all packages that the library and some extras declare, nested extras included."""
    bounds: dict[str, str] = {}
    pending = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name == PROJECT["name"]:
            pending += [text for extra in requirement.extras for text in PROJECT["optional-dependencies"][extra]]
            continue
        found = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        if not found:
            raise SystemExit(f"{requirement} declares no lowest version")
        bounds[requirement.name] = str(max(map(Version, [*found, bounds.get(requirement.name, "0")])))
    return dict(sorted(bounds.items()))


def check_contents(sdist: Path, wheel: Path) -> None:
    """Raise an error unless the archives hold what users and packagers need, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    foreign = [name for name in names if not name.startswith(("bayesify/", "bayesify-"))]
    if foreign or "bayesify/py.typed" not in names or not any(name.endswith("licenses/LICENSE") for name in names):
        raise SystemExit(f"{wheel.name}: needs bayesify/py.typed and LICENSE, and nothing outside of bayesify/; found {foreign}")
    with tarfile.open(sdist) as archive:
        parts = {name.partition("/")[2] for name in archive.getnames()}
    missing = {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "mkdocs.yml",
        "constraints.txt",
        "tests/test_readme.py",
    } - parts
    if missing:
        raise SystemExit(f"{sdist.name} lacks {', '.join(sorted(missing))}")


def check_texts() -> None:
    """Print what readers of the package index miss: images and links of the README that have no full address."""
    relative = re.findall(r"\]\((?!https?:|#)([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    if relative and "urls" not in PROJECT:
        print(f"note: the package index shows README.md without {len(relative)} links and images: [project.urls] is empty")


def environment(folder: Path, requirements: Sequence[str]) -> Path:
    """A new virtual environment with some requirements; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


def run(*command: object, cwd: Path = ROOT) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowest", nargs="*", metavar="EXTRA", help="try the lowest declared versions; by default of every extra")
    parser.add_argument("--torch", metavar="VERSION", help="this version of torch with the lowest versions of the others")
    parser.add_argument("--bounds", action="store_true", help="print the lowest declared versions")
    arguments = parser.parse_args()
    if arguments.bounds:
        print("\n".join(f"{name}=={version}" for name, version in lower_bounds(["all", "test"]).items()))
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--outdir", work)
        (sdist,), (wheel,) = work.glob("*.tar.gz"), work.glob("*.whl")
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        check_contents(sdist, wheel)
        check_texts()
        if arguments.lowest is None:
            _check_pinned(work, sdist, wheel)
        else:
            _check_lowest(work, wheel, arguments.lowest or EXTRAS, arguments.torch)


def _check_pinned(work: Path, sdist: Path, wheel: Path) -> None:
    constraints = ["-c", str(ROOT / "constraints.txt")]
    python = environment(work / "of-sdist", [*constraints, str(sdist)])
    run(python, "-c", TWO_LINES, cwd=work)
    python = environment(work / "of-wheel", [*constraints, f"{wheel}[all]"])
    run(python, "-m", "pip", "check")
    run(python.with_name("bayesify"), "demo", cwd=work)
    if not (work / "bayesify-demo" / "report.html").stat().st_size:
        raise SystemExit("the demo has written no report")


def _check_lowest(work: Path, wheel: Path, extras: Sequence[str], torch: str | None) -> None:
    """The lowest versions of each extra in an environment of its own, so that one extra's bounds do not hide another's."""
    failed = []
    for extra in extras:
        versions = lower_bounds([extra]) | ({"torch": torch} if torch else {})
        bounds = work / f"{extra}.txt"
        bounds.write_text("\n".join(f"{name}=={version}" for name, version in versions.items()), "utf-8")
        try:
            python = environment(work / extra, ["-c", str(bounds), f"{wheel}[{extra}]"])
            run(python, "-c", f"{TWO_LINES}{IMPORTS[extra]}", cwd=work)
        except subprocess.CalledProcessError as error:
            failed.append(f"{extra}: {error.cmd[-1]} exited with {error.returncode}")
        finally:
            shutil.rmtree(work / extra, ignore_errors=True)  # some gigabytes each
    if failed:
        raise SystemExit("\n".join(["the lowest declared versions do not work:", *failed]))


if __name__ == "__main__":
    main()

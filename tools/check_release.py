"""Check what would be released: build sdist and wheel, look into them, and run them in fresh environments.

    python tools/check_release.py [--tag vX.Y.Z] [--out dist]  # both with the pinned versions (constraints.txt), and the demo
    python tools/check_release.py --lowest [EXTRA ...]         # the lowest versions that pyproject.toml declares, extra by extra
    python tools/check_release.py --bounds                     # print those versions, as constraints for pip

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
PROGRAMS = ROOT / "tools" / "extra_programs.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OF_DEVELOPERS = {"all", "experiments", "benchmarks-tables", "test", "docs", "dev"}
EXTRAS = [extra for extra in PROJECT["optional-dependencies"] if extra not in OF_DEVELOPERS]
"""Extras of users. `extra_programs.py` has a program for each."""


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
        "src/bayesify/_version.py",
    } - parts
    if missing:
        raise SystemExit(f"{sdist.name} lacks {', '.join(sorted(missing))}")


def check_version(wheel: Path, tag: str | None) -> None:
    """Raise an error unless the version of a tag is what was built, and what the files name that readers cite."""
    version = wheel.name.split("-")[1]
    if tag is None:
        return
    texts = {"CITATION.cff": f"version: {version}\n", "docs/citing.md": f"{{{version}}}", "CHANGELOG.md": f"## {version}\n"}
    texts |= {"pyproject.toml": f'fallback-version = "{version}+source"', "src/bayesify/__init__.py": f'"{version}+source"'}
    others = [file for file, text in texts.items() if text not in (ROOT / file).read_text("utf-8")]
    if tag != f"v{version}" or others:
        raise SystemExit(f"the tag is {tag}, the built version {version}, and another one in {', '.join(others) or 'no file'}")


def check_texts() -> None:
    """Print what readers of the package index miss: images and links of the README that have no full address."""
    relative = re.findall(r"\]\((?!https?:|#)([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    if relative and "urls" not in PROJECT:
        print(f"note: the package index shows README.md without {len(relative)} links and images: [project.urls] is empty")


def environment(folder: Path, requirements: Sequence[str]) -> Path:
    """A new virtual environment with some requirements, made by pip; returns its Python."""
    venv.create(folder, with_pip=True)
    python = _python(folder)
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


def _python(folder: Path) -> Path:
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def run(*command: object, cwd: Path = ROOT) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowest", nargs="*", metavar="EXTRA", help="try the lowest declared versions; by default of every extra")
    parser.add_argument("--torch", metavar="VERSION", help="this version of torch with the lowest versions of the others")
    parser.add_argument("--bounds", action="store_true", help="print the lowest declared versions")
    parser.add_argument("--tag", help="of the release: the built version, and that of all files that name one")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the checked archives")
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
        check_version(wheel, arguments.tag)
        check_texts()
        if arguments.lowest is None:
            _check_pinned(work, sdist, wheel)
        else:
            _check_lowest(work, wheel, arguments.lowest or EXTRAS, arguments.torch)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for archive in (sdist, wheel):
                shutil.copy(archive, arguments.out)


def _check_pinned(work: Path, sdist: Path, wheel: Path) -> None:
    constraints = ["-c", str(ROOT / "constraints.txt")]
    of_itself = f"import bayesify; assert bayesify.__version__ == {wheel.name.split('-')[1]!r}, bayesify.__version__"
    python = environment(work / "of-sdist", [*constraints, f"{sdist}[train]"])
    run(python, "-c", of_itself, cwd=work)
    run(python, PROGRAMS, "train", cwd=work)
    python = environment(work / "of-wheel", [*constraints, f"{wheel}[all]"])
    run(python, "-c", of_itself, cwd=work)
    run(python, "-m", "pip", "check")
    run(python.with_name("bayesify"), "demo", cwd=work)
    if not (work / "bayesify-demo" / "report.html").stat().st_size:
        raise SystemExit("the demo has written no report")


def _check_lowest(work: Path, wheel: Path, extras: Sequence[str], torch: str | None) -> None:
    """The lowest versions of each extra in an environment of its own, so that one extra's bounds do not hide another's."""
    failed, uv = [], (sys.executable, "-m", "uv")
    for extra in extras:
        folder = work / extra
        folder.mkdir()
        versions = lower_bounds([extra]) | ({"torch": torch} if torch else {})
        (folder / "bounds.txt").write_text("\n".join(f"{name}=={version}" for name, version in versions.items()), "utf-8")
        try:
            run(*uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
            python = _python(folder / "venv")
            run(*uv, "pip", "install", "--quiet", "--python", python, "-c", folder / "bounds.txt", f"{wheel}[{extra}]")
            run(*uv, "pip", "check", "--quiet", "--python", python)
            run(python, PROGRAMS, extra, cwd=folder)
        except subprocess.CalledProcessError as error:
            failed.append(f"{extra}: {error.cmd[-1]} exited with {error.returncode}")
        finally:
            shutil.rmtree(folder)  # some gigabytes each
    if failed:
        raise SystemExit("\n".join(["the lowest declared versions do not work:", *failed]))


if __name__ == "__main__":
    main()

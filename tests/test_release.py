"""What a release consists of: versions agree, every dependency has a lowest version, workflows name files that exist."""

import importlib.util
import re
from pathlib import Path

import pytest

import bayesify

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("check_release", ROOT / "tools" / "check_release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == bayesify.__version__
    assert citation["license"] == "Apache-2.0"
    assert f"version = {{{bayesify.__version__}}}" in (ROOT / "docs" / "citing.md").read_text()


def test_no_address_is_declared_before_the_project_has_one(release):
    """Links of the metadata lead to the project; see the end of CONTRIBUTING.md."""
    assert "urls" not in release.PROJECT
    assert "repository-code" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_every_extra_has_lowest_versions_and_a_check(release):
    optional = release.PROJECT["optional-dependencies"]
    assert (
        set(release.EXTRAS)
        == set(release.IMPORTS)
        == set(optional) - {"all", "experiments", "benchmarks-tables", "test", "docs", "dev"}
    )
    for extra in optional:
        assert release.lower_bounds([extra])["torch"] == "2.8"


def test_lowest_versions_are_the_highest_of_nested_extras(release, monkeypatch):
    project = {
        "name": "x",
        "dependencies": ["torch>=2.6"],
        "optional-dependencies": {"a": ["one>=1.9,<3", "x[b]"], "b": ["one>=1.10", "two==4.0"]},
    }
    monkeypatch.setattr(release, "PROJECT", project)
    assert release.lower_bounds(["a"]) == {"one": "1.10", "torch": "2.6", "two": "4.0"}
    project["optional-dependencies"]["b"] = ["three"]
    with pytest.raises(SystemExit, match="three declares no lowest version"):
        release.lower_bounds(["a"])


def test_pinned_versions_satisfy_what_is_declared(release):
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    extras = release.PROJECT["optional-dependencies"].values()
    for text in [*release.PROJECT["dependencies"], *(text for extra in extras for text in extra)]:
        requirement = Requirement(text)
        if requirement.name != "bayesify":
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda file: file.name)
def test_workflows_and_templates_are_yaml_and_run_what_exists(file):
    assert yaml.safe_load(file.read_text())
    for path in re.findall(r"(?<![\w/])(tools/\w+\.py|\.ci/\w+)", file.read_text()):
        assert (ROOT / path).exists()

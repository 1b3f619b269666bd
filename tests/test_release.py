"""What a release consists of: versions agree, every dependency has a lowest version, workflows name files that exist."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

import bayesify

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("check_release", ROOT / "tools" / "check_release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _git(folder, *arguments):
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_files_that_name_the_last_release_agree():
    versions = re.findall(r"^## (\d+\.\d+\.\d+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions == sorted(versions, key=Version, reverse=True)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (versions[0], "Apache-2.0")
    assert f"version = {{{versions[0]}}}" in (ROOT / "docs" / "citing.md").read_text()
    assert HATCH["version"]["fallback-version"] == f"{versions[0]}+source"


@pytest.fixture
def sources(tmp_path):
    """What the version depends on, outside of any repository."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/bayesify/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _built_version(folder):
    pytest.importorskip("hatch_vcs")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager()
    return pytest.importorskip("hatchling.metadata.core").ProjectMetadata(str(folder), manager).version


def test_version_follows_from_git(sources):
    assert _built_version(sources) == HATCH["version"]["fallback-version"]  # a download, or a copy of the files
    _git(sources, "init", "-q")
    _git(sources, "add", ".")
    _git(sources, "commit", "-qm", "first")
    _git(sources, "tag", "data-7")  # not a release
    assert re.fullmatch(r"\d+\.\d+\.\d+\.post1\.dev1\+source\.g[0-9a-f]+", _built_version(sources))
    _git(sources, "tag", "v7.1.0")
    assert _built_version(sources) == "7.1.0"
    (sources / "LICENSE").write_text("edited")
    assert re.fullmatch(r"7\.1\.0\.post1\.dev0\+g[0-9a-f]+\.d\d+", _built_version(sources))
    _git(sources, "commit", "-qam", "second")
    assert re.fullmatch(r"7\.1\.0\.post1\.dev1\+g[0-9a-f]+", _built_version(sources))
    _git(sources, "tag", "v7.2.0rc1")
    assert _built_version(sources) == "7.2.0rc1"


def test_the_package_has_the_version_of_its_build(sources):
    """Not that of another installation of bayesify; without a build, the one that a build without git has."""

    def imported():
        code = "import bayesify; print(bayesify.__version__)"
        return subprocess.check_output([sys.executable, "-c", code], cwd=sources / "src", text=True).strip()

    assert imported() == HATCH["version"]["fallback-version"]
    hook = HATCH["build"]["hooks"]["vcs"]
    (sources / hook["version-file"]).write_text(hook["template"].format(version="7.1.0"))
    assert imported() == "7.1.0"


def test_version_of_this_package():
    Version(bayesify.__version__)


@pytest.mark.parametrize("tag", ["v7.1.0", "7.0.0", "v7.0.0.post1"])
def test_a_tag_other_than_the_version_is_refused(release, sources, monkeypatch, tag):
    monkeypatch.setattr(release, "ROOT", sources)
    for file, text in (
        ("CITATION.cff", "version: 7.0.0\n"),
        ("docs/citing.md", "version = {7.0.0}"),
        ("CHANGELOG.md", "## 7.0.0\n"),
        ("pyproject.toml", 'fallback-version = "7.0.0+source"'),
        ("src/bayesify/__init__.py", '"7.0.0+source"'),
    ):
        (sources / file).parent.mkdir(exist_ok=True)
        (sources / file).write_text(text)
    wheel = Path("bayesify-7.0.0-py3-none-any.whl")
    release.check_version(wheel, "v7.0.0")
    release.check_version(wheel, None)
    with pytest.raises(SystemExit, match=rf"the tag is {re.escape(tag)}, the built version 7\.0\.0, and another one in no file"):
        release.check_version(wheel, tag)
    (sources / "CITATION.cff").write_text("version: 6.0.0\n")
    with pytest.raises(SystemExit, match=r"another one in CITATION\.cff"):
        release.check_version(wheel, "v7.0.0")


def test_classifiers_declare_the_pythons_that_ci_requires(release):
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    required = [entry["python"] for entry in matrix["include"] if not entry.get("untried")]
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(release.PROJECT["classifiers"]))
    assert declared == matrix["python"]
    assert set(required) <= set(declared)
    tested = re.findall(r"^\| (3\.\d+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert tested == declared


def test_no_address_is_declared_before_the_project_has_one(release):
    """Links of the metadata lead to the project; see the end of CONTRIBUTING.md."""
    assert "urls" not in release.PROJECT
    assert "repository-code" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_every_extra_has_lowest_versions_and_a_check(release):
    programs = ast.parse((ROOT / "tools" / "extra_programs.py").read_text())
    names = {each.name for each in programs.body if isinstance(each, ast.FunctionDef) and each.decorator_list}
    assert names == set(release.EXTRAS)
    assert set(release.PROJECT["optional-dependencies"]) > release.OF_DEVELOPERS
    for extra in release.PROJECT["optional-dependencies"]:
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

"""What a release promises: torch stays as it is, packages have hashes, workflows can run."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gradwire

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(ROOT / "release"))
wanted_by = import_module("lock").wanted_by
complaints = import_module("tag").complaints
missing = import_module("try_wheel").missing

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def pinned(name: str) -> dict[str, str]:
    """The versions that a file of packages fixes."""
    found = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


# -- torch ------------------------------------------------------------------------------------


def test_installing_leaves_a_supported_torch_alone() -> None:
    """pip replaces a package only if a requirement excludes its version."""
    (torch,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "torch")
    assert {bound.operator for bound in torch.specifier} == {">="}
    assert torch.marker is None
    for version in ("2.12.0", "2.12.1", "2.13.0", "2.13.0+cpu", "2.14.1+cu130", "2.15.0", "3.0"):
        assert torch.specifier.contains(version), version


def test_the_build_needs_no_torch() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {Requirement(r).name for r in build} == {"scikit-build-core", "nanobind"}


# -- hashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["requirements.txt", "release/tools.txt"])
def test_every_package_has_hashes(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=\S)", "\n".join(lines))
    assert len(entries) > 5
    for entry in entries:
        first, *hashes = entry.split(" \\\n    ")
        assert re.fullmatch(r"[\w.-]+==[^\s;]+( ; .+)?", first), entry
        assert hashes, entry
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), entry


def test_what_is_installed_with_hashes_is_what_is_wanted() -> None:
    """Versions are those of constraints.txt; torch and its libraries have their own place."""
    locked, fixed = pinned("requirements.txt"), pinned("constraints.txt")
    wanted = {canonicalize_name(r.name): r for r in map(Requirement, wanted_by("dev"))}
    assert set(wanted) - {"torch"} <= set(locked)
    for name, requirement in wanted.items():
        assert name == "torch" or requirement.specifier.contains(locked[name]), name
    for name in fixed.keys() & locked.keys():
        assert locked[name] == fixed[name], name
    assert not [name for name in locked if re.match(r"torch$|nvidia|cuda", name)]


def test_tools_are_those_of_the_build() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    tools = pinned("release/tools.txt")
    for requirement in map(Requirement, build):
        assert requirement.specifier.contains(tools[requirement.name]), requirement.name


# -- workflows --------------------------------------------------------------------------------


def steps(workflow: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every step, with the name of its job."""
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [(name, step) for name, job in jobs.items() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_workflows_run_exists(workflow: Path) -> None:
    runs = [step["run"] for _, step in steps(workflow) if "run" in step]
    assert runs
    for run in runs:
        for target in re.findall(r"\bmake ([a-z][\w-]*)", run):
            assert target in TARGETS, target
        for script in re.findall(r"\S*(?:release|\.ci)/[\w.]+", run):
            assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_actions_by_commit_and_may_only_read(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert read["permissions"] == {"contents": "read"}
    for _, step in steps(workflow):
        assert "uses" not in step or re.search(r"@[0-9a-f]{40}$", step["uses"]), step


def test_only_what_was_tried_is_published_and_without_a_token() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "refs/tags/v" in jobs["publish"]["if"]
    assert "secrets." not in (ROOT / ".github/workflows/wheels.yml").read_text()


def test_every_supported_torch_is_tried() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]["try"][
        "strategy"
    ]["matrix"]
    tried = {*matrix["torch"], *(more["torch"] for more in matrix["include"])}
    assert tried == {f"torch==2.{minor}.*" for minor in (12, 13, 14, 15)}


# -- versions ---------------------------------------------------------------------------------


def test_a_tag_that_is_not_the_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src/gradwire").mkdir(parents=True)
    (tmp_path / "src/gradwire/__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] – today\n"
    )
    assert complaints("v0.2.0", tmp_path) == []
    assert "v0.2.0, not v0.3.0" in complaints("v0.3.0", tmp_path)[0]
    assert "not 0.2.0" in complaints("0.2.0", tmp_path)[0]
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    assert "no section [0.2.0]" in complaints("v0.2.0", tmp_path)[0]


def test_the_version_is_said_once() -> None:
    assert "version" in PROJECT["dynamic"]
    assert not any("not v" in why for why in complaints(f"v{gradwire.__version__}"))


# -- instruction sets -------------------------------------------------------------------------


def test_a_wheel_that_leaves_the_processor_unused_is_seen() -> None:
    """A toolchain's runtime library can deny what the processor has."""
    intel = "flags\t\t: fpu f16c avx avx2 avx512f avx512bw avx512dq avx512vl"
    assert missing(["plain", "avx2", "avx512"], "x86_64", intel) == set()
    assert missing(["plain"], "x86_64", intel) == {"avx2", "avx512"}
    assert missing(["plain"], "x86_64", intel.replace(" avx2", "")) == {"avx512"}
    assert missing(["plain"], "x86_64", "flags\t\t: fpu avx") == set()
    assert missing(["plain"], "aarch64", "Features\t: fp asimd") == {"neon"}
    assert missing(["plain", "neon"], "aarch64", "Features\t: fp asimd") == set()

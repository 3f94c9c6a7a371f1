"""The layout's import rules (docs: the design, section 3), read from the source.

vocabulary ← kernels ← families;  runtime ← training;  nobody looks upwards.
"""

from __future__ import annotations

import pytest
from source import FILES, ROOT, imports

FAMILIES = ("compressors", "feedback", "collectives")
VOCABULARY = (
    "strategy",
    "member",
    "families",
    "registry",
    "notation",
    "beside",
    "agreement",
    "pairs",
    "local",
    "tasks",
    "moves",
    "plan",
    "warmup",
    "pins",
    "buckets",
    "topology",
    "trace",
    "run_folder",
    "metrics",
    "errors",
    "extension",
    "document",
    "schema",
    "progress",
)

# Which parts a part may import, anywhere in a file; "." stands for the package itself.
ALLOWED = {
    "kernels": ("errors", "extension", "kernels"),
    "streams": (*VOCABULARY, "kernels"),
    "layout": (*VOCABULARY, "groups", "kernels", "layout"),
    "compressors": (*VOCABULARY, "kernels"),
    "feedback": (*VOCABULARY, "kernels"),
    "collectives": (*VOCABULARY, "kernels", "streams"),
    "report": (*VOCABULARY, "report"),
}
FORBIDDEN = {
    "runtime": (
        "training",
        "tuning",
        "planner",
        "network",
        "cli",
        "lab",
        "bench",
        "report",
        "demo",
    ),
    "training": ("tuning", "planner", "network", "cli", "lab", "bench", "report", "demo"),
    "planner": ("runtime", "training", "tuning", "cli", "lab", "demo"),
    "tuning": ("network", "cli", "lab", "bench", "report", "demo"),
    "network": ("runtime", "training", "cli", "lab", "demo"),
    "lab": ("training", "planner", "cli", "report", "demo"),
    "bench": ("training", "planner", "network", "cli", "lab", "report", "demo"),
    "demo": ("cli",),
    "testing": ("tuning", "planner", "network", "cli", "lab", "bench", "report", "demo"),
}


def part(module: str) -> str:
    """The part of a module: gradwire.kernels.casts is of kernels; gradwire itself is of none."""
    return module.partition(".")[2].partition(".")[0]


def imported(module: str, *, top_level: bool = False) -> set[str]:
    return set(imports(module, FILES[module], top_level=top_level)) - {module}


def of(name: str) -> list[str]:
    return [module for module in FILES if part(module) == name]


def test_the_source_is_found() -> None:
    assert {"gradwire", "gradwire.strategy", "gradwire.compressors.topk"} <= set(FILES)
    assert "gradwire.member" in imported("gradwire.strategy")
    assert "gradwire.moves" in imported("gradwire.local")
    assert "gradwire.moves" not in imported("gradwire.local", top_level=True), "types only"


@pytest.mark.parametrize("name", [v for v in VOCABULARY if f"gradwire.{v}" in FILES])
def test_vocabulary_imports_only_vocabulary(name: str) -> None:
    parts = {part(m) for m in imported(f"gradwire.{name}", top_level=True)}
    assert parts <= set(VOCABULARY)


def test_the_package_itself_imports_nothing_of_ours_when_imported() -> None:
    assert imported("gradwire", top_level=True) == set()


@pytest.mark.parametrize("name", [n for n in ALLOWED if of(n)])
def test_a_part_imports_only_what_it_may(name: str) -> None:
    for module in of(name):
        own = {f"gradwire.{name}"} if module == f"gradwire.{name}" else set()
        wrong = {m for m in imported(module) - own if part(m) not in (*ALLOWED[name], name)}
        assert not wrong, f"{module} imports {wrong}"


@pytest.mark.parametrize("name", [n for n in FORBIDDEN if of(n)])
def test_a_part_does_not_look_upwards(name: str) -> None:
    for module in of(name):
        wrong = {m for m in imported(module) if part(m) in FORBIDDEN[name]}
        assert not wrong, f"{module} imports {wrong}"


def test_nobody_imports_what_is_for_tests() -> None:
    users = {m for m in FILES if "testing" in {part(x) for x in imported(m)}}
    assert {part(m) for m in users} == {"testing"}


@pytest.mark.parametrize("family", FAMILIES)
def test_members_of_a_family_never_import_each_other(family: str) -> None:
    """They share only helpers, whose names begin with _, and the vocabulary."""
    for module in of(family):
        if module == f"gradwire.{family}":
            continue
        siblings = {m for m in imported(module) if part(m) == family}
        shared = {m for m in siblings if m.rpartition(".")[2].startswith("_")}
        assert siblings == shared, f"{module} imports {siblings - shared}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_does_not_import_another(family: str) -> None:
    others = set(FAMILIES) - {family}
    for module in of(family):
        assert not {part(m) for m in imported(module)} & others, module


def test_nobody_imports_every_family() -> None:
    """`families` finds families by name, as it finds those of other packages."""
    knows_all = {
        module for module in FILES if set(FAMILIES) <= {part(m) for m in imported(module)}
    }
    assert not knows_all


def test_members_are_one_file_each_and_beside_their_family() -> None:
    for family in FAMILIES:
        files = {p.stem for p in (ROOT / family).glob("*.py") if not p.stem.startswith("_")}
        modules = {m for m in imported(f"gradwire.{family}") if part(m) == family}
        exported = {m.rpartition(".")[2] for m in modules} - {"_trial"}
        assert files == exported, "a file that exports no member"


def test_one_file_imports_the_native_extension() -> None:
    named = [m for m, path in FILES.items() if '"gradwire._native"' in path.read_text("utf-8")]
    assert named == ["gradwire.extension"]
    users = {m for m in FILES if "gradwire.extension" in imported(m)}
    beside = {"gradwire.network.native", "gradwire.lab.forwarding"}  # they do not load torch
    assert {part(m) for m in users - beside} <= {"kernels"}


def test_the_network_does_not_load_torch() -> None:
    for module in of("network"):
        lines = FILES[module].read_text(encoding="utf-8").splitlines()
        assert not [x for x in lines if x.split()[:2] in (["import", "torch"], ["from", "torch"])]
        assert not {part(m) for m in imported(module)} & {"kernels", *FAMILIES}, module


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions count, and so do imports for types alone."""
    graph = {module: imported(module) & set(FILES) for module in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            raise AssertionError("cycle: " + " → ".join((*path[path.index(module) :], module)))
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())

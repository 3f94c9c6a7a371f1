"""The house numbers: short files, short functions, and a short core file."""

from __future__ import annotations

import ast
from pathlib import Path

from source import FILES, ROOT, tree_of

from gradwire.local import Context, Streams

FILE_LINES = 500
FUNCTION_LINES = 60
HEART_LINES = 200


def functions() -> list[tuple[str, int]]:
    """Every function of the package, with the number of its lines without the docstring."""
    return [
        (f"{module}:{node.lineno} {node.name}", length(node))
        for module, path in FILES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    total = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is None:
        return total
    return total - ((first.end_lineno or 0) - first.lineno + 1)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_heart_is_short_enough_to_read_first() -> None:
    assert len(lines(ROOT / "strategy.py")) < HEART_LINES


def test_a_collective_meets_few_methods() -> None:
    """These are the methods of local work that the author of a collective has to know."""
    methods = {name for kind in (Context, Streams) for name in kind.__abstractmethods__}
    assert len(methods) <= 14, sorted(methods)


def test_no_file_is_long() -> None:
    long = {m: n for m, path in FILES.items() if (n := len(lines(path))) > FILE_LINES}
    assert not long


def test_no_function_is_long() -> None:
    assert not [f for f in functions() if f[1] > FUNCTION_LINES]


def test_most_functions_are_short() -> None:
    counts = sorted(n for _, n in functions())
    assert counts[len(counts) // 2] <= 8, "the median"
    assert counts[len(counts) * 9 // 10] <= 30, "nine of ten"


def test_every_file_says_what_it_is() -> None:
    assert not [m for m, path in FILES.items() if not ast.get_docstring(tree_of(path))]


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest takes two such files for one module, and collects neither in a run of all tests."""
    names = [path.name for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert len(names) > 300
    assert not {name for name in names if names.count(name) > 1}

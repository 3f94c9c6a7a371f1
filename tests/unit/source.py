"""The package's own source, as text and as syntax trees, for tests of its structure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import gradwire

ROOT = Path(gradwire.__file__).parent
FILES = {
    ".".join(("gradwire", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}
"""Maps a module's name to its file."""


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the syntax tree, which is cached: callers must not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(module: str, path: Path, *, top_level: bool) -> Iterator[str]:
    """Yields gradwire's modules that a file imports; top_level: only those imported with it."""
    tree = tree_of(path)
    for node in _running(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "gradwire")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; ours are absolute"
            if (node.module or "").split(".")[0] == "gradwire":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in FILES else str(node.module)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all that runs at import: no bodies of functions, and nothing for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _running(child)

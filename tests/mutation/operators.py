"""Defines mutants: one small change of one function, such as a slip of the pen makes.

`sites(source)` lists every place where one can be made, in a fixed order; `mutated(source, n)` is
the code of the n-th. Only functions are changed: all else has run when tests are collected.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}


@dataclass(frozen=True)
class Site:
    """A place to change: its function's qualified name, its line, and what is changed."""

    function: str
    line: int
    change: str
    apply: Callable[[], None]


def mutated(source: str, path: str, index: int) -> tuple[CodeType, Site]:
    """Returns the code of the whole module with the change at that site, and the site."""
    tree = ast.parse(source)
    site = list(_sites(tree))[index]
    site.apply()
    return compile(ast.fix_missing_locations(tree), path, "exec"), site


def sites(source: str) -> list[Site]:
    """Every place of a module where a mutant can be made."""
    return list(_sites(ast.parse(source)))


def _sites(tree: ast.Module) -> Iterator[Site]:
    for name, function in _functions(tree, ""):
        for statement in function.body:
            for node in ast.walk(statement):
                for line, change, apply in _changes(node):
                    yield Site(name, line, change, apply)
        yield from (Site(name, *found) for found in _deletions(function))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the outermost functions, of classes too; those defined in them are a part of them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


Change = tuple[int, str, Callable[[], None]]


def _changes(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = _COMPARISONS[type(node.ops[0])]()
        yield _change(node, lambda: setattr(node, "ops", [swapped]))
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        other = _ARITHMETIC[type(node.op)]()
        yield _change(node, lambda: setattr(node, "op", other))
    elif isinstance(node, ast.BoolOp):
        joined = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _change(node, lambda: setattr(node, "op", joined))
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        turned = ast.UnaryOp(ast.Not(), node.test)
        yield _change(node, lambda: setattr(node, "test", turned), ast.unparse(node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield _change(node, lambda: setattr(node, "value", value))
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        yield _change(node, lambda: setattr(node, "id", _NAMES[node.id]))
    elif isinstance(node, ast.Return) and node.value is not None:
        nothing = ast.Constant(None)
        yield _change(node, lambda: setattr(node, "value", nothing))


def _change(node: ast.AST, apply: Callable[[], None], shown: str = "") -> Change:
    what = shown or ast.unparse(node)
    kind = type(node).__name__
    return node.lineno, f"{kind}: {what}"[:120], apply  # type: ignore[attr-defined]


def _deletions(function: ast.FunctionDef) -> Iterator[Change]:
    """Yields the deletions of statements that have an effect and no value."""
    for node in ast.walk(function):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            for i, statement in enumerate(statements if isinstance(statements, list) else ()):
                calls = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                if calls or isinstance(statement, ast.Raise | ast.AugAssign):
                    yield _change(
                        statement, _deletion(statements, i), f"no {ast.unparse(statement)}"
                    )


def _deletion(statements: list[ast.stmt], i: int) -> Callable[[], None]:
    def apply() -> None:
        statements[i] = ast.copy_location(ast.Pass(), statements[i])

    return apply

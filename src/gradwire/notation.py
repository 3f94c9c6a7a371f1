"""The notation of members: `topk(0.01)`, `ecmp_k(8)`, a small part of Python's expression
grammar, so Python's parser reads it."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gradwire.errors import GradwireError

_MAY_WARN = re.compile(r"[\d.][A-Za-z]|\\")
"""What Python's parser may print a warning of, as of `1if` and of a backslash in quotes."""

_OTHER_NUMBER = re.compile(r"[\d.]+ ?%|\b0,\d+")
"""A fraction that Python's parser cannot read: 1% or 0,01."""


@dataclass(frozen=True)
class Notation:
    """One kind of text, and what its errors say: its name (what), its pattern (reads), an example,
    and the exception (error). others: what members are called elsewhere. elsewhere: members of
    other packages, by package."""

    what: str
    reads: str
    example: str
    error: type[GradwireError]
    others: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def read(self, text: object) -> ast.expr:
        """Parse a text; raises the error if it is no expression."""
        if not isinstance(text, str) or not text.strip():
            self.fail(text, "it must be a non-empty string", f"'{self.example}'")
        try:
            return _parsed(text.strip()).body
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: too deep
            rule = f"it must have the form '{self.reads}'"
            if number := _OTHER_NUMBER.search(text):
                rule = f"a fraction must be written as a number such as 0.01; got '{number[0]}'"
            self.fail(text, rule, self._or_installed(f"'{self.example}'"))

    def member(
        self, text: str, node: ast.expr, family: Mapping[str, Callable[..., Any]], kind: str,
        *given: Any,
    ) -> Any:  # fmt: skip
        """Make the member that a name with parameters describes. given: arguments that precede
        them. Raises the error if the family cannot make it."""
        name = name_of(node)
        if name is None:
            rule = f"'{ast.unparse(node)}' is not a {kind}; the form is '{self.reads}'"
            self.fail(text, rule, self._or_installed(f"'{self.example}'", family))
        if name not in family:
            near = nearest(self.others.get(name.lower(), name), family)
            known = ", ".join(family)
            hint = self._or_installed(f"'{near}'" if near else "one of these", family)
            self.fail(text, f"'{name}' is not a {kind} (known: {known})", hint)
        positional, named = self._arguments(text, node)
        try:
            return family[name](*given, *positional, **named)
        except TypeError as error:
            reason = str(error).partition(") ")[2] or str(error)
            instead = f"'{signature(family[name], len(given))}'"
            self.fail(text, f"the parameters of '{name}' do not fit: {reason}", instead)

    def fail(self, text: object, rule: str, instead: str) -> NoReturn:
        """Raise the error of this kind of text: the rule that it breaks, and what to write."""
        raise self.error(f"cannot read the {self.what} {text!r}: {rule}. Use {instead}.")

    def _or_installed(self, instead: str, known: Container[str] = ()) -> str:
        """Returns the advice, and which packages to install for further members."""
        for package, names in self.elsewhere.items():
            if missing := ", ".join(name for name in names if name not in known):
                instead += f"; {missing}: pip install {package}"
        return instead

    def _arguments(self, text: str, node: ast.expr) -> tuple[list[Any], dict[str, Any]]:
        if not isinstance(node, ast.Call):
            return [], {}
        try:
            if any(k.arg is None for k in node.keywords):
                raise ValueError("** hides the names")
            named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            return [ast.literal_eval(a) for a in node.args], named
        except (ValueError, TypeError, MemoryError, RecursionError):
            rule = f"the parameters in '{ast.unparse(node)}' must be plain values"
            self.fail(text, rule, "numbers such as 0.01, or text in quotes such as 'auto'")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like this one, if any is."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return near[0] if near else None


def _parsed(text: str) -> ast.Expression:
    """Parse an expression without a warning. The filters of warnings are the whole process's, so
    that they are left alone where none may come."""
    if _MAY_WARN.search(text) is None:
        return ast.parse(text, mode="eval")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval")


def name_of(node: ast.expr) -> str | None:
    """Returns the name of a member that is written alone or with parameters."""
    target = node.func if isinstance(node, ast.Call) else node
    return target.id if isinstance(target, ast.Name) else None


def signature(member: Any, given: int = 0) -> str:
    """Returns a member with its parameters as text, without the first `given` ones."""
    named = list(inspect.signature(member).parameters.values())[given:]
    inside = ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named
    )
    name = getattr(member, "name", None) or member.__name__.strip("_")
    return f"{name}({inside})"


def first_line(member: Any) -> str:
    """Returns the first line of a member's docstring."""
    return (member.__doc__ or "").strip().splitlines()[0]

"""How members of the families are written: `topk(0.01)`, `ecmp_k(8)`, a small part of Python's
own expression grammar, so Python's parser reads it."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gradwire.errors import GradwireError


@dataclass(frozen=True)
class Notation:
    """One kind of text, and what errors say of it: what it is called, how it reads, an example,
    and the error that is raised. others: what members are called elsewhere. elsewhere: names of
    members by the package that has them."""

    what: str
    reads: str
    example: str
    error: type[GradwireError]
    others: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def read(self, text: object) -> ast.expr:
        """The expression; the error if it is none."""
        if not isinstance(text, str) or not text.strip():
            self.fail(text, "it is a text", f"'{self.example}'")
        try:
            return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: too deep
            self.fail(text, f"it reads '{self.reads}'", self._or_installed(f"'{self.example}'"))

    def member(
        self, text: str, node: ast.expr, family: Mapping[str, Callable[..., Any]], kind: str,
        *given: Any,
    ) -> Any:  # fmt: skip
        """What a name with its parameters makes, after what it is given; the error if the family
        cannot."""
        name = name_of(node)
        if name is None:
            rule = f"'{ast.unparse(node)}' is no {kind}; it reads '{self.reads}'"
            self.fail(text, rule, self._or_installed(f"'{self.example}'", family))
        if name not in family:
            near = nearest(self.others.get(name.lower(), name), family)
            known = ", ".join(family)
            hint = self._or_installed(f"'{near}'" if near else "one of these", family)
            self.fail(text, f"'{name}' is no {kind} (there are {known})", hint)
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
        """And which package has others."""
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
            rule = f"parameters are plain values, in '{ast.unparse(node)}'"
            self.fail(text, rule, "numbers, as 0.01, or text in quotes, as 'auto'")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that was meant, if any is like it."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return near[0] if near else None


def name_of(node: ast.expr) -> str | None:
    """The name of a member that is written alone or with parameters."""
    target = node.func if isinstance(node, ast.Call) else node
    return target.id if isinstance(target, ast.Name) else None


def signature(member: Any, given: int = 0) -> str:
    """A member with its parameters, as it is written: without the first, which it is given."""
    named = list(inspect.signature(member).parameters.values())[given:]
    inside = ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named
    )
    name = getattr(member, "name", None) or member.__name__.strip("_")
    return f"{name}({inside})"


def first_line(member: Any) -> str:
    """The first line of what a member says of itself."""
    return (member.__doc__ or "").strip().splitlines()[0]

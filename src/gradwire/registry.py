"""Text to member: the only file that knows every family. It stays a list.

A strategy's text is a small part of Python's own expression grammar, so Python's parser reads it:
``topk(0.001)+ef | allgather`` is (topk(0.001) + ef) | allgather.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from gradwire import collectives, compressors, feedback
from gradwire.errors import StrategyError
from gradwire.strategy import Collective, Compressor, Feedback, Member, Strategy

COMPRESSORS: dict[str, type[Compressor]] = {m.name: m for m in compressors.MEMBERS}
FEEDBACK: dict[str, type[Feedback]] = {m.name: m for m in feedback.MEMBERS}
COLLECTIVES: dict[str, type[Collective]] = {m.name: m for m in collectives.MEMBERS}


Pair: TypeAlias = "tuple[Compressor, Feedback | None]"


def _dgc(
    density: float, momentum: float = 0.9, nesterov: bool = False, mask: bool = True,
    values: str = "fp32", index: str = "auto",
) -> Pair:  # fmt: skip
    """Deep Gradient Compression: topk(density, values, index)+dgc(momentum, nesterov, mask)."""
    selection = compressors.TopK(density, values, index)
    return selection, feedback.MomentumCorrection(momentum, nesterov, mask)


def _efsignsgd() -> Pair:
    """signSGD with error feedback: sign(scaled=True)+ef."""
    return compressors.Sign(scaled=True), feedback.ErrorFeedback()


def _signsgd() -> Pair:
    """The sign of the gradient: sign. With the collective vote, a majority vote."""
    return compressors.Sign(), None


def _signum(momentum: float = 0.9) -> Pair:
    """The sign of the momentum: sign+momentum(momentum)."""
    return compressors.Sign(), feedback.Momentum(momentum)


ALIASES: dict[str, Callable[..., Pair]] = {
    "dgc": _dgc,
    "efsignsgd": _efsignsgd,
    "signsgd": _signsgd,
    "signum": _signum,
}

WHOLE: dict[str, type[Collective]] = {"powersgd": collectives.PowerSGD}
"""Strategies by the name of their collective alone: `powersgd(4)` is `none | powersgd(4)`."""


def available() -> dict[str, dict[str, str]]:
    """Names and one-line descriptions of every member, by family."""
    families: dict[str, dict[str, Any]] = {
        "compressors": COMPRESSORS,
        "feedback": FEEDBACK,
        "collectives": COLLECTIVES,
        "aliases": ALIASES,
    }
    lines = {
        family: {name: _first_line(member) + _wish(member) for name, member in members.items()}
        for family, members in families.items()
    }
    for name, member in WHOLE.items():
        lines["aliases"][name] = f"A whole strategy, without '|': none | {_signature(member)}."
    return lines


def parse_strategy(text: str) -> Strategy:
    """See `Strategy.parse`."""
    tree = _read(text)
    if _name_or_none(tree) in WHOLE:
        collective = _member(text, tree, WHOLE, "strategy")
        return Strategy(compressors.Identity(), collective, None, str(collective))
    if not (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr)):
        _refuse_whole(text, tree)
        _fail(text, "it needs a collective after '|'", f"'{text.strip()} | allgather'")
    _refuse_whole(text, tree.left)
    left, collective = tree.left, _member(text, tree.right, COLLECTIVES, "collective")
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
        compressor = _member(text, left.left, COMPRESSORS, "compressor")
        return Strategy(compressor, collective, _member(text, left.right, FEEDBACK, "feedback"))
    if _name(text, left) in ALIASES:
        alias = ast.unparse(left).replace("'", '"')
        short, memory = _member(text, left, ALIASES, "alias")
        return Strategy(short, collective, memory, alias)
    return Strategy(_member(text, left, {**COMPRESSORS, **ALIASES}, "compressor"), collective)


def parse_collective(text: str) -> Collective:
    """See `Collective.parse`."""
    made: Collective = _member(text, _read(text), COLLECTIVES, "collective")
    return made


def _read(text: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        _fail(text, "it is a text", "'topk(0.01)+ef | allgather'")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: nested too deep
        _fail(text, "it reads 'compressor[+feedback] | collective'", "'topk(0.01)+ef | allgather'")


def _refuse_whole(text: str, left: ast.expr) -> None:
    """StrategyError if a strategy that stands alone is used as a compressor or a feedback."""
    parts = (left.left, left.right) if isinstance(left, ast.BinOp) else (left,)
    for part in parts:
        name = _name_or_none(part)
        if name in WHOLE:
            rule = f"'{name}' is a whole strategy, with its own feedback and collective"
            given = isinstance(part, ast.Call)
            instead = ast.unparse(part) if given else _signature(WHOLE[name])
            _fail(text, f"{rule}; nothing stands beside it", f"'{instead}' alone")


def _member(text: str, node: ast.expr, family: dict[str, Any], kind: str) -> Any:
    name = _name(text, node)
    if name not in family:
        near = difflib.get_close_matches(name, family, n=1)
        hint = f"'{near[0]}'" if near else "one of these"
        known = ", ".join(family)
        _fail(text, f"'{name}' is no {kind} (there are {known})", hint)
    positional, named = _arguments(text, node)
    try:
        return family[name](*positional, **named)
    except TypeError as error:
        reason = str(error).partition(") ")[2] or str(error)
        instead = f"'{_signature(family[name])}'"
        _fail(text, f"the parameters of '{name}' do not fit: {reason}", instead)


def _name_or_none(node: ast.expr) -> str | None:
    target = node.func if isinstance(node, ast.Call) else node
    return target.id if isinstance(target, ast.Name) else None


def _name(text: str, node: ast.expr) -> str:
    name = _name_or_none(node)
    if name is not None:
        return name
    return _fail(text, f"'{ast.unparse(node)}' is no member", "'topk(0.01)+ef | allgather'")


def _arguments(text: str, node: ast.expr) -> tuple[list[Any], dict[str, Any]]:
    if not isinstance(node, ast.Call):
        return [], {}
    try:
        if any(k.arg is None for k in node.keywords):
            raise ValueError("** hides the names")
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return [ast.literal_eval(a) for a in node.args], named
    except (ValueError, TypeError, MemoryError, RecursionError):
        instead = "for example 0.01"
        return _fail(text, f"parameters are plain values, in '{ast.unparse(node)}'", instead)


def _signature(member: Any) -> str:
    import inspect

    named = inspect.signature(member).parameters.values()
    inside = ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named
    )
    name = getattr(member, "name", None) or member.__name__.strip("_")
    return f"{name}({inside})"


def _first_line(member: type[Member] | Callable[..., Any]) -> str:
    return (member.__doc__ or "").strip().splitlines()[0]


def _wish(member: Any) -> str:
    """What a compressor loses without feedback, from its claims."""
    if not (isinstance(member, type) and issubclass(member, Compressor)):
        return ""
    try:
        claims = member().claims(1 << 20)
    except TypeError:  # a density or a threshold is required
        claims = member(0.01).claims(1 << 20)  # type: ignore[call-arg]
    return " Wants ef, dgc or ef21." if claims.wants_feedback else ""


def _fail(text: object, rule: str, instead: str) -> NoReturn:
    raise StrategyError(f"cannot read the strategy {text!r}: {rule}. Use {instead}.")

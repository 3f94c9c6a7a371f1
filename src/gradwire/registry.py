"""Text to member: the only file that knows every family. It stays a list.

A strategy's text is Python's grammar (`notation`): ``topk(0.001)+ef | allgather`` is
(topk(0.001) + ef) | allgather.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias, TypeGuard, TypeVar

from gradwire import collectives, compressors, feedback
from gradwire.errors import StrategyError
from gradwire.member import Member
from gradwire.notation import Notation, first_line, name_of, signature
from gradwire.strategy import Collective, Compressor, Feedback, Strategy

COMPRESSORS: dict[str, type[Compressor]] = {m.name: m for m in compressors.MEMBERS}
FEEDBACK: dict[str, type[Feedback]] = {m.name: m for m in feedback.MEMBERS}
COLLECTIVES: dict[str, type[Collective]] = {m.name: m for m in collectives.MEMBERS}


NOTATION = Notation(
    "strategy", "compressor[+feedback] | collective", "topk(0.01)+ef | allgather", StrategyError,
    {
        "fp32": "none", "float32": "none", "dense": "none", "float16": "fp16", "half": "fp16",
        "bfloat16": "bf16", "ring": "allreduce",
    },
)  # fmt: skip

Pair: TypeAlias = "tuple[Compressor, Feedback | None]"
M = TypeVar("M", bound=Member)


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
        family: {name: first_line(member) + _wish(member) for name, member in members.items()}
        for family, members in families.items()
    }
    for name, member in WHOLE.items():
        lines["aliases"][name] = f"A whole strategy, without '|': none | {signature(member)}."
    return lines


def parse_strategy(text: str) -> Strategy:
    """See `Strategy.parse`."""
    tree = NOTATION.read(text)
    if name_of(tree) in WHOLE:
        collective = NOTATION.member(text, tree, WHOLE, "strategy")
        return Strategy(compressors.Identity(), collective, None, str(collective))
    if not (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr)):
        _refuse_whole(text, tree)
        _refuse_without_collective(text, tree)
    _refuse_whole(text, tree.left)
    _refuse_disorder(text, tree)
    collective = NOTATION.member(text, tree.right, COLLECTIVES, "collective")
    (compressor, memory), alias = _before(text, tree.left, str(collective))
    return Strategy(compressor, collective, memory, alias)


def _before(text: str, left: ast.expr, collective: str) -> tuple[Pair, str | None]:
    """What stands before the '|', and how it was typed, if that is an alias."""
    if _is_sum(left):
        _refuse_beside_alias(text, left, collective)
        compressor = NOTATION.member(text, left.left, COMPRESSORS, "compressor")
        return (compressor, NOTATION.member(text, left.right, FEEDBACK, "feedback")), None
    if name_of(left) in ALIASES:
        return NOTATION.member(text, left, ALIASES, "alias"), _typed(left)
    known: dict[str, Callable[..., Any]] = {**COMPRESSORS, **ALIASES}
    return (NOTATION.member(text, left, known, "compressor"), None), None


def _is_sum(node: ast.expr) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _typed(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def parse_member(family: type[M], text: str) -> M:
    """See `Member.parse`."""
    families: dict[type[Member], tuple[Mapping[str, Any], str]] = {
        Compressor: (COMPRESSORS, "compressor"), Feedback: (FEEDBACK, "feedback"),
        Collective: (COLLECTIVES, "collective"),
        Member: ({**COMPRESSORS, **FEEDBACK, **COLLECTIVES}, "member"),
    }  # fmt: skip
    own = next(known for base, known in families.items() if issubclass(family, base))
    made: M = NOTATION.member(text, NOTATION.read(text), *own)
    return made


def _refuse_whole(text: str, left: ast.expr) -> None:
    """StrategyError if a strategy that stands alone is used as a compressor or a feedback."""
    parts = (left.left, left.right) if isinstance(left, ast.BinOp) else (left,)
    for part in parts:
        name = name_of(part)
        if name in WHOLE:
            rule = f"'{name}' is a whole strategy, with its own feedback and collective"
            given = isinstance(part, ast.Call)
            instead = ast.unparse(part) if given else signature(WHOLE[name])
            NOTATION.fail(text, f"{rule}; nothing stands beside it", f"'{instead}' alone")


def _refuse_disorder(text: str, tree: ast.expr) -> None:
    """StrategyError if it has one of a family each, but not each in its place."""
    families: dict[str, Mapping[str, Any]] = {
        "compressor": {**COMPRESSORS, **ALIASES}, "feedback": FEEDBACK, "collective": COLLECTIVES,
    }  # fmt: skip
    parts = list(_parts(tree))
    kinds = [next((k for k in families if name_of(part) in families[k]), "") for part in parts]
    said = dict(zip(kinds, map(_typed, parts)))
    in_order = [kind for kind in families if kind in (*kinds, "compressor", "collective")]
    if "" in kinds or len(said) < len(parts) or kinds == in_order:
        return
    left = "+".join(said.get(k, "topk(0.01)") for k in in_order if k != "collective")
    instead = f"{left} | {said.get('collective', 'allgather')}"
    try:
        parse_strategy(instead)
    except StrategyError:
        instead = NOTATION.example
    wrong = next((i for i, kind in enumerate(kinds) if kind != in_order[i]), -1)
    rule = "a compressor stands first, its feedback after '+', a collective after '|'"
    NOTATION.fail(text, f"{rule}; '{_typed(parts[wrong])}' is a {kinds[wrong]}", f"'{instead}'")


def _parts(tree: ast.expr) -> Iterator[ast.expr]:
    """What stands between the signs, however many there are."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.BinOp):
            left += [node.right, node.left]
        else:
            yield node


def _refuse_beside_alias(text: str, left: ast.BinOp, collective: str) -> None:
    """StrategyError if a feedback stands beside an alias, which has its own, or is short for one
    member alone."""
    if name_of(left.left) not in ALIASES:
        return
    short, memory = NOTATION.member(text, left.left, ALIASES, "alias")
    alias, other = _typed(left.left), _typed(left.right)
    instead = f"'{short}+{other} | {collective}'"
    if memory is None:
        NOTATION.fail(text, f"'{alias}' is an alias, of '{short}'", instead)
    rule = f"'{alias}' is an alias that brings its own memory: '{short}+{memory}'"
    NOTATION.fail(text, rule, f"'{alias} | {collective}', or {instead}")


def _refuse_without_collective(text: str, tree: ast.expr) -> NoReturn:
    """StrategyError, of a text without '|'."""
    rule, name = "it needs a collective after '|'", name_of(tree)
    if name in COLLECTIVES:
        alone: Collective = NOTATION.member(text, tree, COLLECTIVES, "collective")
        rule = f"'{name}' is a collective, and a compressor stands before it"
        NOTATION.fail(text, rule, f"'{_fitting(alone)}'")
    if _is_sum(tree) and name_of(tree.right) in COLLECTIVES:
        NOTATION.fail(text, rule, f"'{_typed(tree.left)} | {_typed(tree.right)}'")
    if not (name or _is_sum(tree)):
        NOTATION.fail(text, rule, f"'{NOTATION.example}'")
    _before(text, tree, "allgather")  # what else is wrong comes first
    NOTATION.fail(text, rule, f"'{text.strip()} | allgather'")


def _fitting(collective: Collective) -> str:
    """A strategy with this collective."""
    for left in (collective.partner, "topk(0.01)+ef", "sign"):
        try:
            return str(parse_strategy(f"{left} | {collective}"))
        except StrategyError:
            continue
    return f"compressor | {collective}"


def _wish(member: Any) -> str:
    """What a compressor loses without feedback, from its claims."""
    if not (isinstance(member, type) and issubclass(member, Compressor)):
        return ""
    for parameters in ((), (0.01,)):  # a density or a threshold may be required
        try:
            claims = member(*parameters).claims(1 << 20)
            break
        except (TypeError, StrategyError):
            continue
    else:
        return ""
    return " Wants ef, dgc or ef21." if claims.wants_feedback else ""

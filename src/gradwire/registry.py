"""Text to member: the only file that knows every family. It stays a list.

A strategy's text is Python's grammar (`notation`): ``topk(0.001)+ef | allgather`` is
(topk(0.001) + ef) | allgather.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeAlias

from gradwire import collectives, compressors, feedback
from gradwire.errors import StrategyError
from gradwire.notation import Notation, first_line, name_of, signature
from gradwire.strategy import Collective, Compressor, Feedback, Strategy

COMPRESSORS: dict[str, type[Compressor]] = {m.name: m for m in compressors.MEMBERS}
FEEDBACK: dict[str, type[Feedback]] = {m.name: m for m in feedback.MEMBERS}
COLLECTIVES: dict[str, type[Collective]] = {m.name: m for m in collectives.MEMBERS}


NOTATION = Notation(
    "strategy", "compressor[+feedback] | collective", "topk(0.01)+ef | allgather", StrategyError
)

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
        NOTATION.fail(text, "it needs a collective after '|'", f"'{text.strip()} | allgather'")
    _refuse_whole(text, tree.left)
    left, collective = tree.left, NOTATION.member(text, tree.right, COLLECTIVES, "collective")
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
        compressor = NOTATION.member(text, left.left, COMPRESSORS, "compressor")
        return Strategy(
            compressor, collective, NOTATION.member(text, left.right, FEEDBACK, "feedback")
        )
    if name_of(left) in ALIASES:
        alias = ast.unparse(left).replace("'", '"')
        short, memory = NOTATION.member(text, left, ALIASES, "alias")
        return Strategy(short, collective, memory, alias)
    return Strategy(
        NOTATION.member(text, left, {**COMPRESSORS, **ALIASES}, "compressor"), collective
    )


def parse_collective(text: str) -> Collective:
    """See `Collective.parse`."""
    made: Collective = NOTATION.member(text, NOTATION.read(text), COLLECTIVES, "collective")
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


def _wish(member: Any) -> str:
    """What a compressor loses without feedback, from its claims."""
    if not (isinstance(member, type) and issubclass(member, Compressor)):
        return ""
    try:
        claims = member().claims(1 << 20)
    except TypeError:  # a density or a threshold is required
        claims = member(0.01).claims(1 << 20)  # type: ignore[call-arg]
    return " Wants ef, dgc or ef21." if claims.wants_feedback else ""

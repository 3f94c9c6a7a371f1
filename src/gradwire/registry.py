"""Reads members and strategies from text.

A strategy's text is Python's grammar (`notation`): ``topk(0.001)+ef | allgather`` is
(topk(0.001) + ef) | allgather.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias, TypeGuard

from gradwire.errors import StrategyError
from gradwire.families import COLLECTIVES, COMPRESSORS, FEEDBACK, Family
from gradwire.notation import Notation, first_line, name_of, signature
from gradwire.pairs import Parts, check_promises

NOTATION = Notation(
    "strategy", "compressor[+feedback] | collective", "topk(0.01)+ef | allgather", StrategyError,
    {
        "fp32": "none", "float32": "none", "dense": "none", "float16": "fp16", "half": "fp16",
        "bfloat16": "bf16", "ring": "allreduce",
    },
)  # fmt: skip

Pair: TypeAlias = "tuple[Any, Any | None]"
"""A compressor and its feedback."""


def _dgc(
    density: float, momentum: float = 0.9, nesterov: bool = False, mask: bool = True,
    values: str = "fp32", index: str = "auto",
) -> Pair:  # fmt: skip
    """Deep Gradient Compression: topk(density, values, index)+dgc(momentum, nesterov, mask)."""
    return COMPRESSORS["topk"](density, values, index), FEEDBACK["dgc"](momentum, nesterov, mask)


def _efsignsgd() -> Pair:
    """signSGD with error feedback: sign(scaled=True)+ef."""
    return COMPRESSORS["sign"](scaled=True), FEEDBACK["ef"]()


def _signsgd() -> Pair:
    """The sign of the gradient: sign. With the collective vote, a majority vote."""
    return COMPRESSORS["sign"](), None


def _signum(momentum: float = 0.9) -> Pair:
    """The sign of the momentum: sign+momentum(momentum)."""
    return COMPRESSORS["sign"](), FEEDBACK["momentum"](momentum)


ALIASES: dict[str, Callable[..., Pair]] = {
    "dgc": _dgc,
    "efsignsgd": _efsignsgd,
    "signsgd": _signsgd,
    "signum": _signum,
}


def families() -> dict[str, Mapping[str, Any]]:
    """Returns the members that strategies are made of, and the aliases, by family."""
    own = {family.name: family for family in (COMPRESSORS, FEEDBACK, COLLECTIVES)}
    return {**own, "aliases": ALIASES}


def available() -> dict[str, dict[str, str]]:
    """Returns the name and a one-line description of every member, by family.

    Example:
        >>> gradwire.available()["feedback"]["ef"]
        'v = decay·v + g; send C(v); keep v - C(v). One fp32 buffer.'
    """
    lines = {
        family: {name: first_line(member) + _wish(member) for name, member in members.items()}
        for family, members in families().items()
    }
    for name in filter(_is_whole, COLLECTIVES):
        text = signature(COLLECTIVES[name])
        lines["aliases"][name] = f"A whole strategy, without '|': none | {text}."
    return lines


def parse_strategy(text: str) -> Parts:
    """Read a strategy. The StrategyError of a wrong text says what is wrong, and where."""
    tree = NOTATION.read(text)
    if not (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr)):
        name = name_of(tree)
        if name is not None and _is_whole(name):
            whole = _member(text, tree, COLLECTIVES)
            return Parts(COMPRESSORS[whole.partner](), whole, None, str(whole))
        _refuse_whole(text, tree)
        _refuse_without_collective(text, tree)
    if not _is_in_order(tree):
        _refuse_whole(text, tree.left)
        _refuse_disorder(text, tree)
    collective = _member(text, tree.right, COLLECTIVES)
    (compressor, memory), alias = _before(text, tree.left, str(collective))
    parts = Parts(compressor, collective, memory, alias)
    check_promises(parts)  # here, so that a message has the alias; a strategy's does not
    return parts


def _member(text: str, node: ast.expr, family: Family) -> Any:
    return family.made(NOTATION.member(text, node, family, family.kind))


def _is_whole(name: str) -> bool:
    """Whether this collective is a strategy by itself: `powersgd(4)` is `none | powersgd(4)`."""
    return name in COLLECTIVES and COLLECTIVES[name].compresses


def _is_in_order(tree: ast.BinOp) -> bool:
    """Whether all names are where they belong, as is usual; otherwise the mistake is searched."""
    left = tree.left
    if _is_sum(left):
        firsts = name_of(left.left) in COMPRESSORS and name_of(left.right) in FEEDBACK
    else:
        firsts = name_of(left) in ALIASES or name_of(left) in COMPRESSORS
    return firsts and name_of(tree.right) in COLLECTIVES


def _before(text: str, left: ast.expr, collective: str) -> tuple[Pair, str | None]:
    """Returns what stands before the '|', and its text, if that is an alias."""
    if _is_sum(left):
        _refuse_beside_alias(text, left, collective)
        compressor = _member(text, left.left, COMPRESSORS)
        return (compressor, _member(text, left.right, FEEDBACK)), None
    if name_of(left) in ALIASES:
        return NOTATION.member(text, left, ALIASES, "alias"), _typed(left)
    known = ChainMap[str, Any](ALIASES, COMPRESSORS)  # type: ignore[arg-type] # only read
    return (COMPRESSORS.made(NOTATION.member(text, left, known, "compressor")), None), None


def _is_sum(node: ast.expr) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _typed(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def parse_member(cls: type, text: str) -> Any:
    """Read a member of the family to which a class belongs; of any family, for `Member`."""
    own = [f for f in (COMPRESSORS, FEEDBACK, COLLECTIVES) if f.takes(cls)]
    tree = NOTATION.read(text)
    for family in own or (COMPRESSORS, FEEDBACK):
        if own or name_of(tree) in family:
            return _member(text, tree, family)
    return _member(text, tree, COLLECTIVES)


def _refuse_whole(text: str, left: ast.expr) -> None:
    """Raise StrategyError if a whole strategy is used as a compressor or a feedback."""
    parts = (left.left, left.right) if isinstance(left, ast.BinOp) else (left,)
    for part in parts:
        name = name_of(part)
        if name is not None and _is_whole(name):
            rule = f"'{name}' is a whole strategy, with its own feedback and collective"
            given = isinstance(part, ast.Call)
            instead = ast.unparse(part) if given else signature(COLLECTIVES[name])
            NOTATION.fail(text, f"{rule}; nothing can be added to it", f"'{instead}' alone")


def _refuse_disorder(text: str, tree: ast.expr) -> None:
    """Raise StrategyError if it has one member of each family, but not in the right order."""
    families: dict[str, Mapping[str, Any]] = {
        "compressor": ChainMap[str, Any](ALIASES, COMPRESSORS), "feedback": FEEDBACK,  # type: ignore
        "collective": COLLECTIVES,
    }  # fmt: skip
    parts = list(_parts(tree))
    kinds = [next((k for k in families if name_of(part) in families[k]), "") for part in parts]
    said = dict(zip(kinds, map(_typed, parts)))
    in_order = [kind for kind in families if kind in (*kinds, "compressor", "collective")]
    if "" in kinds or len(said) < len(parts) or kinds == in_order:
        return
    left = "+".join(said.get(k, "topk(0.01)") for k in in_order if k != "collective")
    instead = f"{left} | {said.get('collective', 'allgather')}"
    if not _works(instead):
        instead = NOTATION.example
    wrong = next((i for i, kind in enumerate(kinds) if kind != in_order[i]), -1)
    rule = "the compressor must be first, its feedback after '+', the collective after '|'"
    NOTATION.fail(text, f"{rule}; '{_typed(parts[wrong])}' is a {kinds[wrong]}", f"'{instead}'")


def _parts(tree: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands, left to right, however many there are."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.BinOp):
            left += [node.right, node.left]
        else:
            yield node


def _refuse_beside_alias(text: str, left: ast.BinOp, collective: str) -> None:
    """Raise StrategyError if a feedback stands beside an alias, which has its own, or is short
    for one member alone."""
    if name_of(left.left) not in ALIASES:
        return
    short, memory = NOTATION.member(text, left.left, ALIASES, "alias")
    alias, other = _typed(left.left), _typed(left.right)
    instead = f"'{short}+{other} | {collective}'"
    if memory is None:
        rule = f"'{alias}' is an alias of '{short}', which must be written out before '+'"
        NOTATION.fail(text, rule, instead)
    rule = f"'{alias}' is an alias that has its own feedback: '{short}+{memory}'"
    NOTATION.fail(text, rule, f"'{alias} | {collective}', or {instead}")


def _refuse_without_collective(text: str, tree: ast.expr) -> NoReturn:
    """Raise the StrategyError of a text without '|'."""
    rule, name = "it needs a collective after '|'", name_of(tree)
    if name in COLLECTIVES:
        alone = _member(text, tree, COLLECTIVES)
        rule = f"'{name}' is a collective, and needs a compressor before it"
        NOTATION.fail(text, rule, f"'{_fitting(alone)}'")
    if _is_sum(tree) and name_of(tree.right) in COLLECTIVES:
        NOTATION.fail(text, rule, f"'{_typed(tree.left)} | {_typed(tree.right)}'")
    if not (name or _is_sum(tree)):
        NOTATION.fail(text, rule, f"'{NOTATION.example}'")
    _before(text, tree, "allgather")  # raises first if something else is wrong
    summed = f"{text.strip()} | allreduce"  # with many ranks it sends the fewest bytes
    NOTATION.fail(text, rule, f"'{summed if _works(summed) else f'{text.strip()} | allgather'}'")


def _fitting(collective: Any) -> str:
    """Returns the text of a strategy with this collective."""
    lefts = (collective.partner, "topk(0.01)+ef", "sign")
    texts = [f"{left} | {collective}" for left in lefts]
    return next(filter(_works, texts), f"compressor | {collective}")


def _works(text: str) -> bool:
    """Whether it is a strategy whose members can work together."""
    try:
        parse_strategy(text)
    except StrategyError:
        return False
    return True


def _wish(member: Any) -> str:
    """Returns a note if a compressor's claims say that it wants a feedback; else ""."""
    if not COMPRESSORS.takes(member):
        return ""
    for parameters in ((), (0.01,), (1,)):  # a density, a threshold or bits may be required
        try:
            claims = member(*parameters).claims(1 << 20)
            break
        except (TypeError, StrategyError):
            continue
    else:
        return ""
    return " Wants ef, dgc or ef21." if claims.wants_feedback else ""

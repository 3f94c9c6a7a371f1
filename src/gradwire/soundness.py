"""Whether a model learns as much with a strategy as with dense training, for its optimizer.

    optimizer ──► its update rule ──┐
    strategy  ──► its members ──────┴──► their evidence ──► Verdict
                  (what changes the average: a lossy compressor, its feedback, a collective
                   that selects once more)

An optimizer may state its rule in an attribute `update_rule`; for those of torch and other
packages, the rule is looked up by the name of their class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from gradwire import beside
from gradwire.errors import StrategyError, UsageError
from gradwire.member import Evidence, Member, UpdateRule
from gradwire.notation import nearest
from gradwire.strategy import Collective, Compressor, Feedback, Strategy

__all__ = ["SoundnessWarning", "Verdict", "is_exact_enough", "name_of", "sound", "update_rule"]

EXACT_ENOUGH = 0.99
"""A format that always keeps this fraction of the squared norm is sound with every optimizer. int8
and fp8 do; of typical gradients they lose a ten-thousandth."""

_RULES: dict[UpdateRule, tuple[str, ...]] = {
    "linear": ("SGD", "SGDM", "ASGD"),  # SGDM: SGD with momentum
    "adaptive": (
        "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Adafactor", "RMSprop",
        "SparseAdam", "Rprop", "LAMB", "Lion", "Adam8bit", "AdamW8bit", "AdaBelief",
    ),
    "orthogonal": ("Muon", "Shampoo", "SOAP", "Dion"),
}  # fmt: skip
_RULE_OF: dict[str, UpdateRule] = {
    name.lower(): rule for rule, names in _RULES.items() for name in names
}


_OF_ADAM = frozenset({"adam", "adamw", "adam8bit", "adamw8bit", "onebitadam"})
"""The optimizers whose moments are AdamW's, in lower case."""


class SoundnessWarning(UserWarning):
    """A strategy is not known to be sound with the optimizer that uses its averages."""


ONE_OF_EACH_RULE = ("sgd", "sgdm", "adamw", "muon")
"""The name of one optimizer of each rule, and of SGD with momentum."""


@dataclass(frozen=True)
class Verdict:
    """What `gradwire.sound` knows of a strategy with an optimizer.

    kind: "unknown" if it was not measured. why: a sentence. evidence: the run that shows it, if
    there is one.
    """

    kind: Literal["sound", "unsound", "unknown"]
    why: str
    evidence: Evidence | None = None

    def __str__(self) -> str:
        shown = f" ({self.evidence.row})" if self.evidence else ""
        return f"{self.kind}: {self.why}{shown}"


def sound(strategy: Strategy | str, optimizer: object) -> Verdict:
    """Returns whether training with this strategy and optimizer learns as much as dense training.

    optimizer: a torch optimizer, or the name of one, as "adamw", "muon", "sgd", or "sgdm" for SGD
    with momentum; None: not known, so that only what is as good as exact is sound.

    Example:
        >>> gradwire.sound("topk(0.01)+ef | allgather", "adamw").kind
        'unsound'
        >>> gradwire.sound("qsgd(4) | alltoall", "adamw").kind
        'sound'

    Raises:
        StrategyError: the strategy cannot be read.
        UsageError: no optimizer has that name.
    """
    made = strategy if isinstance(strategy, Strategy) else Strategy.parse(strategy)
    rule, deciding = update_rule(optimizer), list(_deciding(made))
    if not deciding:
        return Verdict("sound", "averages arrive exact, or as good as exact")
    if rule is None:
        if optimizer is None:
            return Verdict("unknown", "it has not stepped yet; pass for example optimizer='adamw'")
        return Verdict(
            "unknown",
            f"the update rule of {name_of(optimizer)} is not known; give its class an "
            f"attribute update_rule, one of {', '.join(map(repr, _RULES))}",
        )
    if (kept := made.feedback) is not None and not _may_keep_moments(kept, optimizer):
        return Verdict("unsound", f"'{kept}' keeps the momentum of another optimizer")
    momentum = has_momentum(optimizer) or (rule == "linear" and _keeps_moments(made))
    verdicts = [_verdict(member, made, rule, momentum) for member in deciding]
    worst = ("unsound", "unknown", "sound")
    found = min(verdicts, key=lambda verdict: worst.index(verdict.kind))
    if made.collective.selects and verdicts[0].kind == "sound":
        found = verdicts[0]  # its run had this feedback, too
    if found.kind == "sound" and found.evidence is not None and _never_forgets(optimizer):
        why = "and Adagrad's sum of squares never forgets what compression adds to it"
        return Verdict("unknown", f"{found.why}, {why}", found.evidence)
    return found


def answering(strategies: Iterable[Strategy]) -> list[Strategy]:
    """Returns the strategies by which a plan is judged: all but those that another one implies,
    for dense parameters or for the optimizer's second rule. A further format of the second rule,
    which no bucket of the first one has, is judged as of the first."""
    found = list(dict.fromkeys(strategies))
    brought = {other for s in found for other in (beside.dense(s), beside.second(s)) if other != s}
    firsts = [s for s in found if beside.second(s) is not None]
    own = (s if s in firsts else _by_first_rule(s, firsts) for s in found if s not in brought)
    return list(dict.fromkeys(own))


def _by_first_rule(strategy: Strategy, firsts: Iterable[Strategy]) -> Strategy:
    """Returns the strategy that implies this one for the second rule of an optimizer and has the
    feedback of one of `firsts`; itself if there is none."""
    for first in firsts if strategy.feedback else ():
        with suppress(StrategyError):
            own = replace(strategy, feedback=first.feedback)
            if beside.second(own) == strategy:
                return own
    return strategy


def update_rule(optimizer: object) -> UpdateRule | None:
    """Returns the rule of an optimizer, or of its name; None if the object's is not known.

    Raises:
        UsageError: no optimizer has that name, or it is a module.
    """
    if isinstance(optimizer, str):
        if optimizer.lower() not in _RULE_OF:
            names = ", ".join(name.lower() for names in _RULES.values() for name in names)
            near = nearest(optimizer, _RULE_OF)
            use = f"'{near}'" if near else "for example 'adamw'"
            raise UsageError(
                f"an optimizer's name must be one of {names}; got '{optimizer}'. Use {use}, or in "
                "Python pass the optimizer itself."
            )
        return _RULE_OF[optimizer.lower()]
    if hasattr(optimizer, "named_parameters"):
        raise UsageError(
            "soundness depends on the optimizer, which must be one, or the name of one; got the "
            f"module {type(optimizer).__name__}. Pass the optimizer that steps it, or for example "
            "'adamw'."
        )
    for wrapped in _wrapped(optimizer):
        said: UpdateRule | None = getattr(wrapped, "update_rule", None)
        if said in _RULES:
            return said
        for kind in type(wrapped).__mro__:
            if rule := _RULE_OF.get(kind.__name__.lower()):
                return rule
    return None


def has_momentum(optimizer: object) -> bool:
    """Whether it is SGD with momentum, which may also be left to the plan. bitsandbytes writes it
    as the first of `betas`."""
    if isinstance(optimizer, str):
        return optimizer.lower() == "sgdm"
    groups = (group for own in _wrapped(optimizer) for group in getattr(own, "param_groups", ()))
    return update_rule(optimizer) == "linear" and any(
        group.get("momentum") or (group.get("betas") or (0.0,))[0] for group in groups
    )


def adds_momentum(strategy: Strategy, optimizer: object) -> bool:
    """Whether training would have momentum that plain SGD does not have, as by `dgc`. It may be
    sound, and is what `dgc` beside SGD without momentum means; but nobody asked for it."""
    is_plain = update_rule(optimizer) == "linear" and not has_momentum(optimizer)
    return is_plain and _keeps_moments(strategy)


def _keeps_moments(strategy: Strategy) -> bool:
    return strategy.feedback is not None and bool(strategy.feedback.moments())


def _may_keep_moments(feedback: Feedback, optimizer: object) -> bool:
    """Whether moments that a feedback keeps are those of this optimizer: others of its rule, as
    RMSprop beside AdamW, would divide steps once more. One that leaves moments to the plan checks
    them itself."""
    own = feedback.optimizer.lower()
    is_linear = "linear" in (_RULE_OF.get(own), update_rule(optimizer))
    if is_linear or not feedback.moments() or leaves_moments(optimizer):
        return True
    alike = _OF_ADAM if own in _OF_ADAM else {own}
    if isinstance(optimizer, str):
        return optimizer.lower() in alike
    names = (kind.__name__.lower() for own in _wrapped(optimizer) for kind in type(own).__mro__)
    return not alike.isdisjoint(names)


def _never_forgets(optimizer: object) -> bool:
    """Whether the runs of its rule, which are AdamW's, do not speak for it."""
    if isinstance(optimizer, str):
        return optimizer.lower() == "adagrad"
    return is_of(optimizer, "Adagrad")


def is_of(optimizer: object, name: str) -> bool:
    """Whether an optimizer, or one that it wraps, is of a class of this name or a subclass."""
    kinds = (kind for wrapped in _wrapped(optimizer) for kind in type(wrapped).__mro__)
    return any(kind.__name__ == name for kind in kinds)


def is_part_of(optimizer: object, whole: object) -> bool:
    """Whether an optimizer is the other one, or one that it wraps."""
    return any(own is optimizer for own in _wrapped(whole))


def name_of(optimizer: object) -> str:
    """Returns the optimizer's name, for messages; the innermost one's if it wraps others."""
    if optimizer is None:
        return "the optimizer"
    *_, inner = _wrapped(optimizer)
    name = inner if isinstance(inner, str) else type(inner).__name__
    if name.lower() in ("sgd", "sgdm") and has_momentum(optimizer):
        return "SGD with momentum"
    return name


def leaves_moments(optimizer: object) -> bool:
    """Whether the optimizer, or one that it wraps, leaves moments to a plan that keeps them."""
    return any(getattr(own, "asks_the_plan", False) for own in _wrapped(optimizer))


def _wrapped(optimizer: object) -> Iterator[object]:
    """Yield the optimizer, and those that it wraps (accelerate, ZeRO)."""
    seen, inner = list[Any](), optimizer
    while inner is not None and not any(inner is one for one in seen):
        yield inner
        seen.append(inner)
        inner = getattr(inner, "optimizer", None) or getattr(inner, "optim", None)


def _deciding(strategy: Strategy) -> Iterator[Member]:
    """Yield the members that make the average differ from that of dense training."""
    if strategy.collective.selects:
        yield strategy.collective
    feedback = strategy.feedback
    if feedback is not None and feedback.moments():
        yield feedback
    elif not is_exact_enough(strategy.compressor):
        yield feedback or strategy.compressor


def is_exact_enough(compressor: Compressor) -> bool:
    """Whether it loses so little that training learns as much with every optimizer."""
    claims = compressor.claims(1 << 20)
    return claims.exact or (claims.contraction or 0.0) >= EXACT_ENOUGH


def _verdict(member: Member, strategy: Strategy, rule: UpdateRule, momentum: bool) -> Verdict:
    runs = [
        evidence
        for evidence in _told(member, strategy)
        if _applies(evidence, member, strategy, rule, momentum)
    ]
    if not runs:
        return _without_evidence(member, strategy, rule)
    runs.sort(key=lambda run: has_momentum(run.optimizer) != momentum)
    if all(run.sound for run in runs):
        against = {run: _failed(run, member, strategy, rule, momentum) for run in runs}
        runs = [run for run, other in against.items() if other is None]
        if not runs:
            run, other = next((run, other) for run, other in against.items() if other is not None)
            more = f"; on another task less ({other.task}, {other.method}), so of finer ones"
            return Verdict("unknown", f"{_sentence(run)}{more} nothing is known", run)
    first = runs[0]
    for other in runs[1:]:
        if first.sound and not other.sound and other.began_as(first):
            more = f"; on another task as much as dense ({first.task}, {first.method})"
            return Verdict("unsound", _sentence(other) + more, other)
    return Verdict("sound" if first.sound else "unsound", _sentence(first), first)


def _failed(
    run: Evidence, member: Member, strategy: Strategy, rule: UpdateRule, momentum: bool
) -> Evidence | None:
    """Returns a run that began alike, but shows that a sound run's own strategy learns less on
    another task; so it does not speak for finer ones. Returns None if there is none."""
    own, told = Strategy.parse(run.strategy), _told(member, strategy)
    alike = (other for other in told if not other.sound and other.began_as(run))
    return next((o for o in alike if _applies(o, member, own, rule, momentum)), None)


def _sentence(run: Evidence) -> str:
    learns = "as much as" if run.sound else "less than"
    why = f"{name_of(run.optimizer)} by '{run.strategy}' learns {learns} dense"
    if run.warmup:
        why += f", in a run that began by {run.first}"
    if run.turns:
        why += f", in a run of {run.turns:g}/density steps; in shorter ones it may not"
    return why


def _applies(
    evidence: Evidence, member: Member, strategy: Strategy, rule: UpdateRule, momentum: bool
) -> bool:
    """Whether a run is of this rule, and applies to a strategy. Momentum makes what is late worse:
    a run with it speaks for SGD without it if it is sound, and one without for SGD with it if it
    is unsound. Raises UsageError if the evidence itself, which may be another package's, cannot be
    read."""
    try:
        if update_rule(evidence.optimizer) != rule or not _holds(evidence, member, strategy):
            return False
    except (StrategyError, UsageError) as error:
        raise UsageError(
            f"the evidence of a member of '{strategy}' ({evidence.row}) must name a strategy and "
            f"an optimizer; {error}"
        ) from error
    had_momentum = has_momentum(evidence.optimizer)
    return had_momentum == momentum or had_momentum == evidence.sound


def _told(member: Member, strategy: Strategy) -> Iterator[Evidence]:
    """Yield the evidence of the deciding member, then of the others: a compressor of another
    package may bring its own runs with `ef`."""
    yield from member.evidence
    for other in (strategy.compressor, strategy.feedback, strategy.collective):
        if other is not None and other is not member:
            yield from other.evidence


def _holds(evidence: Evidence, member: Member, strategy: Strategy) -> bool:
    """Whether a run applies to a strategy: a sound run, if the strategy loses no more than the
    run's; an unsound one, if it loses no less."""
    shown = Strategy.parse(evidence.strategy)
    own_way, way = strategy.collective, shown.collective
    times, shown_times = _compressions(own_way), _compressions(way)
    if times > shown_times if evidence.sound else times < shown_times:
        return False  # only runs that compress again include the loss at owners
    pairs: list[tuple[Member | None, Member | None]]
    pairs = [(strategy.compressor, shown.compressor), (strategy.feedback, shown.feedback)]
    if member is own_way or way.selects or (times > 1 and type(own_way) is type(way)):
        pairs.append((own_way, way))
    for own, other in pairs:
        if type(own) is not type(other):
            return False
        fine, coarse = (own, other) if evidence.sound else (other, own)
        if fine is not None and coarse is not None and not fine.is_as_fine_as(coarse):
            return False
    return True


def _compressions(way: Collective) -> int:
    """Returns how many times a gradient is compressed on its way; a path does so up to 4 times."""
    own = way.tasks.compressions if way.tasks is not None else 0
    return max(own, 1 + way.compresses_again)


def _without_evidence(member: Member, strategy: Strategy, rule: UpdateRule) -> Verdict:
    feedback = strategy.feedback
    if feedback is not None and feedback.moments():
        shown = {update_rule(evidence.optimizer) for evidence in feedback.evidence}
        if rule not in {feedback.rule, *shown}:
            return Verdict("unsound", f"'{feedback}' keeps the momentum of another optimizer")
        if member is feedback and is_exact_enough(strategy.compressor):
            as_data = feedback.recurrence()
            if as_data is not None and as_data.mask:
                why = f"the mask of '{feedback}' takes the momentum from whatever is sent, and"
                return Verdict("unsound", f"{why} '{strategy.compressor}' sends all of it")
            if feedback.turns == 1:
                return Verdict("sound", "what is sent is as good as exact, and so is its momentum")
    if member is strategy.compressor and strategy.compressor.claims(1 << 20).wants_feedback:
        return Verdict("unsound", f"without a feedback, what '{member}' does not send is lost")
    return Verdict("unknown", f"no run has tested '{strategy}' with an optimizer that is {rule}")

"""Plan: a strategy for each bucket, and the fixed order in which buckets are exchanged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from numbers import Real
from pathlib import Path
from typing import Any

from gradwire import beside
from gradwire.buckets import (
    NEEDED,
    OPTIONAL,
    Bucket,
    Parameter,
    by_name,
    digest,
    group,
    parameter_of,
)
from gradwire.document import Document, save_file
from gradwire.errors import PlanError
from gradwire.schema import List, Made, Map, Maybe, Plain, Schema, Table, Text, Whole
from gradwire.strategy import Strategy

FORMAT = 1
BUCKET_BYTES = 25 * 2**20
"""Default size limit of a bucket, in bytes of gradient: the same as DDP's."""


@dataclass(frozen=True)
class Plan:
    """Which parameters travel together, how, and in which order. All ranks hold the same plan.

    Buckets are launched in the order of `buckets`; lane i takes buckets i, i + lanes, …
    strategies: one for each bucket. prediction: what the planner predicts for it, plain JSON
    values, for `gradwire explain`. It is ignored when plans are compared, and ranks need not agree
    on it.

    Example:
        >>> handle.plan.save("plan.json")
        >>> gradwire.Plan.load("plan.json") == handle.plan
        True

    Raises:
        PlanError: a parameter is in two buckets, strategies or lanes are too few, or a strategy
            does not take a bucket's gradients, as float64 or sparse ones.
    """

    buckets: tuple[Bucket, ...]
    strategies: tuple[Strategy, ...]
    lanes: int = 1
    prediction: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [name for bucket in self.buckets for name in bucket.names]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise PlanError(
                f"a parameter must be in one bucket only; {', '.join(twice[:5])} is in several. "
                "Remove it from all but one."
            )
        is_whole = isinstance(self.lanes, int) and self.lanes >= 1
        if len(self.strategies) != len(self.buckets) or not is_whole:
            raise PlanError(
                "a plan needs one strategy per bucket and a whole number of lanes, at least one; "
                f"got {len(self.strategies)} strategies for {len(self.buckets)} buckets, and "
                f"{self.lanes!r} lanes. Pass one strategy for each bucket, and lanes=1 or more."
            )
        for bucket, strategy in zip(self.buckets, self.strategies):
            if bucket.has_rows and bucket.dtype == "float64":
                raise PlanError(
                    "sparse gradients must be float32, bfloat16 or float16, as rows are summed in "
                    f"float32; {', '.join(bucket.names[:5])} are float64. Convert to float32, or "
                    "make these gradients dense (sparse=False)."
                )
            if bucket.has_rows and not beside.takes_rows(strategy):
                raise PlanError(
                    "sparse gradients must be sent uncompressed, by a collective that takes rows; "
                    f"{', '.join(bucket.names[:5])} would be sent by '{strategy}'. Use "
                    f"'{beside.rows(strategy)}' for this bucket."
                )
            if not takes(strategy, bucket.dtype):
                raise PlanError(
                    "float64 must be sent uncompressed, by 'none | allreduce' or 'none | "
                    f"allgather'; {', '.join(bucket.names[:5])} would be sent by '{strategy}'. "
                    "Use one of these, list the parameters in exclude=, or convert to float32."
                )

    @staticmethod
    def make(
        parameters: Sequence[Parameter], strategy: Strategy | str, *,
        bucket_bytes: int = BUCKET_BYTES, buckets: Iterable[Sequence[str]] | None = None,
        lanes: int = 1, dense: Iterable[str] = (), others: Iterable[str] = (),
    ) -> Plan:  # fmt: skip
        """Make a plan with one strategy for a whole model.

        Args:
            parameters: the `gradwire.buckets.Parameter` of each, in the order of registration;
                gradients become ready in reverse.
            strategy: the strategy for matrices, or its text. Parameters of at most one dimension
                travel dense, in one bucket, unless payloads simply add up on the wire, or are
                directions, or the collective handles vectors itself. Sparse gradients travel as
                rows, those of neighbours together.
            bucket_bytes: the size limit of a bucket, in bytes of gradient. A larger parameter has
                its own bucket.
            buckets: explicit lists of names; all other parameters are grouped by size.
            lanes: how many buckets may be exchanged at the same time.
            dense: names of parameters that are not compressed, whatever their shape. The
                strategy still keeps their momentum.
            others: names of parameters to which the optimizer applies its second rule, if it has
                one, as Muon does to embeddings: they use that rule's strategy. So do vectors,
                where that strategy sends gradients.

        Raises:
            StrategyError: the strategy cannot be read.
            PlanError: `buckets` or `dense` name unknown parameters, a number is out of range, or
                as for the class.
        """
        strategy = strategy if isinstance(strategy, Strategy) else Strategy.parse(strategy)
        kept = set(dense)
        _check_made(parameters, bucket_bytes, kept)
        chosen = _explicit(parameters, buckets or (), kept)
        taken = {name for bucket in chosen for name in bucket.names}
        chosen += _tables(parameters, taken)
        taken.update(p.name for p in parameters if p.sparse)
        rest = [p for p in reversed(parameters) if p.name not in taken]
        second, apart = beside.second(strategy), set(others)
        apart.update(p.name for p in rest if len(p.shape) <= 1)
        gradients = (
            second is not None and second.feedback is not None and second.feedback.sends_all
        )
        vectors_too = takes_vectors(strategy) or gradients
        small = [p for p in rest if p.name in kept or (len(p.shape) <= 1 and not vectors_too)]
        aside = {p.name for p in small}
        large = [p for p in rest if p.name not in aside]
        others_own = [p for p in large if p.name in apart] if second else []
        if second:
            large = [p for p in large if p.name not in apart]
        ways = beside.turns(strategy)
        compressed = [
            (b, beside.rows(strategy) if b.parameters[0].sparse else ways[i % len(ways)])
            for i, b in enumerate(chosen)
        ]
        for way, part in zip(ways, _evenly(large, len(ways))):
            compressed += [(b, way) for b in group(part, bucket_bytes)]
        compressed += [(b, second) for b in group(others_own, bucket_bytes) if second]
        fused = group(sorted(small, key=lambda p: p.dtype), 1 << 62)
        pairs = [*compressed, *((bucket, beside.dense(strategy)) for bucket in fused)]
        place = {p.name: i for i, p in enumerate(parameters)}
        # Gradients of the first parameters are ready last; a bucket waits for its last one.
        pairs.sort(key=lambda pair: -min(place[name] for name in pair[0].names))
        return Plan(tuple(b for b, _ in pairs), tuple(s for _, s in pairs), lanes)

    def check(self, parameters: Sequence[Parameter]) -> None:
        """Raise PlanError, naming the parameters that differ, unless the plan fits exactly."""
        planned = by_name([p for bucket in self.buckets for p in bucket.parameters])
        present = by_name(parameters)
        missing = [name for name in planned if name not in present]
        unplanned = [name for name in present if name not in planned]
        changed = [
            f"{p} (the model has {str(q).removeprefix(f'{name} ')})"
            for name, p in planned.items()
            if (q := present.get(name)) and q != p
        ]
        facts = [
            f"{what}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            for what, names in (
                ("only in the plan", missing),
                ("only in the model", unplanned),
                ("different", changed),
            )
            if names
        ]
        if facts:
            raise PlanError(
                "a plan must name exactly the model's trainable parameters; "
                f"{'; '.join(facts)}. Make a new plan for this model."
            )

    def of_parts(self, parameters: Sequence[Parameter], everywhere: Collection[str]) -> Plan:
        """Returns the same plan for the parts that one rank keeps of a sharded model.

        parameters: the rank's parts. everywhere: names of all parameters that any rank has a part
        of; those of which this rank has none are left out. A part differs from the planned
        parameter in one dimension at most; anything else stays as planned, and `check` names it.
        """
        own = by_name(parameters)
        elsewhere = set(everywhere).difference(own)
        pairs = [
            (Bucket(found), strategy)
            for bucket, strategy in zip(self.buckets, self.strategies)
            if (found := tuple(
                _part(p, own.get(p.name)) for p in bucket.parameters if p.name not in elsewhere
            ))
        ]  # fmt: skip
        buckets, strategies = zip(*pairs) if pairs else ((), ())
        return Plan(tuple(buckets), tuple(strategies), self.lanes, self.prediction)

    def digest(self) -> int:
        """Returns a hash of 63 bits that differs between different plans."""
        return digest(FORMAT, self.buckets, [str(s.expand()) for s in self.strategies], self.lanes)

    @property
    def main_strategy(self) -> Strategy:
        """The strategy of the largest bucket of dense gradients, or of sparse ones if there are
        no dense ones. A strategy whose optimizer has a second rule comes first, whatever its
        size."""
        pairs = zip(self.buckets, self.strategies)

        def rank(pair: tuple[Bucket, Strategy]) -> tuple[bool, bool, int]:
            bucket, strategy = pair
            return not bucket.has_rows, beside.second(strategy) is not None, bucket.elements

        return max(pairs, key=rank)[1]

    def strategy_of(self, name: str) -> Strategy:
        """Returns the strategy of a parameter; KeyError if it is not in the plan."""
        for bucket, strategy in zip(self.buckets, self.strategies):
            if name in bucket.names:
                return strategy
        raise KeyError(name)

    # -- files -----------------------------------------------------------------------------

    def to_json(self) -> str:
        """Returns indented, versioned JSON; reading it back gives an equal plan."""
        rows = [
            {"strategy": str(strategy), "parameters": [p.to_json() for p in bucket.parameters]}
            for bucket, strategy in zip(self.buckets, self.strategies)
        ]
        document: dict[str, Any] = {"format": FORMAT, "lanes": self.lanes, "buckets": rows}
        if self.prediction is not None:
            document["prediction"] = dict(self.prediction)
        return json.dumps(document, indent=2)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan. PlanError if the text is no plan of a format this version reads."""
        plan: Plan = _DOCUMENT.read(text)
        return plan

    def save(self, path: str | Path) -> None:
        """Write it to a file, as JSON. A crash leaves a former file as it was. Raises OSError."""
        save_file(path, self.to_json() + "\n")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a file. PlanError if there is no such file or it holds no plan."""
        plan: Plan = _DOCUMENT.load(path)
        return plan


def in_turns(pairs: Iterable[tuple[Bucket, Strategy]]) -> list[tuple[Bucket, Strategy]]:
    """Assign turns to whole buckets, if parameters take turns: each has about as many elements."""
    found, elements = list[tuple[Bucket, Strategy]](), dict[str, list[int]]()
    for bucket, strategy in pairs:
        ways = beside.turns(strategy)
        taken = elements.setdefault(str(ways[0].feedback), [0] * len(ways))
        turn = taken.index(min(taken))
        taken[turn] += bucket.elements
        found.append((bucket, ways[turn]))
    return found


def _evenly(parameters: Sequence[Parameter], parts: int) -> list[list[Parameter]]:
    """Split parameters, in order, into parts of about as many elements: next to the smallest."""
    found, elements = [list[Parameter]() for _ in range(parts)], [0] * parts
    for p in parameters:
        least = elements.index(min(elements))
        found[least].append(p)
        elements[least] += p.elements
    return found


def takes_vectors(strategy: Strategy) -> bool:
    """Whether parameters of at most one dimension travel as matrices do, not dense.

    They do if payloads add up on the wire or are directions, or the collective handles vectors.
    """
    claims = strategy.compressor.claims(1 << 20)
    adds_up = claims.sums and claims.elements is None
    return adds_up or claims.direction or strategy.collective.own_feedback


def takes(strategy: Strategy, dtype: str) -> bool:
    """Whether a strategy takes gradients of that dtype. float64 must travel unchanged, because
    selection, residuals and codes are in fp32."""
    whole = strategy.feedback is None and strategy.compressor.claims(1, dtype).lossless
    return dtype != "float64" or (whole and strategy.collective.takes_float64)


def _part(planned: Parameter, own: Parameter | None) -> Parameter:
    """Returns the rank's own part, if it can be one of the planned parameter; else the latter."""
    if own is None or len(own.shape) != len(planned.shape):
        return planned
    same_kind = (own.dtype, own.sparse) == (planned.dtype, planned.sparse)
    differing = sum(a != b for a, b in zip(own.shape, planned.shape))
    return own if same_kind and differing <= 1 else planned


def _bucket(strategy: Strategy, parameters: list[Parameter]) -> tuple[Bucket, Strategy]:
    return Bucket(tuple(parameters)), strategy


def _plan(
    lanes: int, buckets: list[tuple[Bucket, Strategy]], prediction: dict[str, Any] | None = None
) -> Plan:
    return Plan(tuple(b for b, _ in buckets), tuple(s for _, s in buckets), lanes, prediction)


_PARAMETERS = List(Table(NEEDED, OPTIONAL, make=parameter_of), least=1)
_BUCKET: Mapping[str, Schema] = {
    "strategy": Made(Text(), Strategy.parse),
    "parameters": _PARAMETERS,
}
_DOCUMENT = Document(
    "a plan",
    Table(
        {"lanes": Whole(1), "buckets": List(Table(_BUCKET, make=_bucket))},
        {"prediction": Maybe(Map(Plain()))},  # older files have none
        make=_plan,
    ),
    PlanError, "Write the plan again with Plan.save(), or `gradwire plan -o FILE`", FORMAT,
)  # fmt: skip


def _check_made(parameters: Sequence[Parameter], bucket_bytes: Any, dense: set[str]) -> None:
    """Raises PlanError for a size that is no limit, and for names that are no parameters': what
    they should keep dense would be compressed."""
    if not isinstance(bucket_bytes, Real) or not float(bucket_bytes) > 0:
        raise PlanError(
            f"bucket_bytes must be a number of bytes above 0; got {bucket_bytes!r}. Leave it out "
            f"for {BUCKET_BYTES}."
        )
    unknown = sorted(dense.difference(by_name(parameters)))
    if unknown:
        raise PlanError(
            "dense= must list names of the model's parameters; got "
            f"{', '.join(unknown[:5])}. Correct the names."
        )


def _explicit(
    parameters: Sequence[Parameter], lists: Iterable[Sequence[str]], kept: set[str]
) -> list[Bucket]:
    known, buckets = by_name(parameters), []
    if isinstance(lists, str) or not isinstance(lists, Iterable):
        raise PlanError(
            f"buckets must be a list of lists of names; got {lists!r}. Pass buckets=[[…], […]], "
            "or leave it out."
        )
    for names in lists:
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise PlanError(
                f"each of buckets= must be a list of names; got {names!r} alone. Put it in "
                "brackets: buckets=[[…]]."
            )
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise PlanError(
                "each of buckets= must list names of trainable parameters of the model; got "
                f"{', '.join(unknown) or 'an empty list'}. See module.named_parameters()."
            )
        both = sorted(kept.intersection(names))
        if both:
            raise PlanError(
                "all parameters in buckets= are compressed, those in exclude= are not; "
                f"{', '.join(both[:5])} is in both. Remove it from buckets, or from exclude."
            )
        members = tuple(known[name] for name in names)
        kinds = sorted({f"{'sparse ' if p.sparse else ''}{p.dtype}" for p in members})
        if len(kinds) > 1:
            raise PlanError(
                "a bucket's gradients must be of one dtype, and all sparse or all dense; "
                f"{list(names)[:5]} have {', '.join(kinds)}. Split it."
            )
        buckets.append(Bucket(members))
    return buckets


def _tables(parameters: Sequence[Parameter], taken: set[str]) -> list[Bucket]:
    """Returns buckets of parameters with sparse gradients, each a run of registered neighbours.

    They are ready at about the same time, and one message costs more than the bytes of most.
    """

    def kind(p: Parameter) -> str | None:
        return p.dtype if p.sparse and p.name not in taken else None

    return [Bucket(tuple(run)) for own, run in groupby(parameters, kind) if own is not None]

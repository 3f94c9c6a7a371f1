"""The tree's paths for a job: which of them fit its machines, their costs, the promising ones.

    "topk(0.01)+ef | paths"    stands for all paths of `gradwire.tasks` that fit
       │  the moves and the local work of each                                 (pricing.py)
       │  their seconds, one by one, as the profile measured moves and compressors
       ▼
    a cost of each ──► a path that needs no less of processors and links than another is dropped
                   ──► of the rest, those near the cheapest in large buckets, for some price of
                       processors, are kept: MOST at most

Paths that compress use the named compressor and feedback, other paths use `none`. A path that
moves the same as a measured whole strategy is left out. If gradients are on a device, paths do not
work in the host's memory: no profile has the cost of copies.
Source: Wang et al. 2023, "Hi-Speed DNN Training with Espresso", section 4.2, has the tree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import NamedTuple

from gradwire import tasks
from gradwire.errors import PlanError, StrategyError
from gradwire.planner.curves import rising
from gradwire.planner.fit import Fit
from gradwire.planner.links import per_host, priced, sizes_of
from gradwire.planner.priced import Priced, PricedMove, Work
from gradwire.planner.pricing import can_price
from gradwire.planner.profile import LocalCost, Profile, StrategyCost
from gradwire.strategy import Strategy

WORD = "paths"
MOST = 8
"""The most paths of one compressor that are offered."""
NEAR = 1.25
"""Paths up to so many times the cheapest are kept: the sum of parts is no more accurate."""
_LARGE = 4
"""The number of the largest sizes that are compared: buckets of a 64th of the model, or more."""
_PRICES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Prices of a second of local work in seconds of moves: processors may be shared, moves hidden."""


def is_pattern(text: str) -> bool:
    """Whether a text stands for all paths of its compressor."""
    return text.rpartition("|")[2].strip() == WORD


def example(text: str) -> str:
    """Returns a pattern's path that compresses only once; any other text as it is."""
    if not is_pattern(text):
        return text
    return f'{_left(text)} | steps("compress@gpu, all_gather, decompress@gpu")'


def compressed_by(text: str) -> str:
    """Returns the compressor and feedback, as strategies print them."""
    return _printed(example(text))


def whole(text: str) -> str:
    """Returns the strategy with a collective of its own that does as a pattern's example does;
    any other text as it is."""
    return f"{compressed_by(text)} | allgather" if is_pattern(text) else text


def in_pieces(left: str) -> str:
    """Returns the name in a profile of a compressor that encodes every rank's piece separately."""
    return f"{left} in pieces"


def fitting(profile: Profile) -> list[tasks.Path]:
    """Returns the paths for the profile's machines: all, if there are several machines with
    equally many ranks, and more than one; else those that move among all ranks only."""
    has_levels = 1 < _ranks_per_host(profile) < profile.world
    return [path for path in tasks.paths(("gpu",)) if has_levels or not path.knows_machines]


def _ranks_per_host(profile: Profile) -> int:
    """Returns the ranks per host; 1 if hosts differ in it, which paths do not support."""
    return per_host(profile) if len(set(Counter(profile.hosts).values())) == 1 else 1


@dataclass(frozen=True)
class Offer:
    """What a pattern stands for. strategies: with their costs, the most useful first.

    fitting: the number of paths that fit and may be used; undominated: the number of these for
    which no other needs as little or less of everything.
    """

    pattern: str
    strategies: Mapping[str, StrategyCost]
    fitting: int
    undominated: int

    def to_json(self) -> dict[str, object]:
        """Returns plain values."""
        return {**vars(self), "strategies": list(self.strategies)}

    def __str__(self) -> str:
        return (
            f"'{self.pattern}': {self.fitting} of {len(tasks.paths(('gpu',)))} paths fit, "
            f"{self.undominated} are not dominated, offered: {len(self.strategies)}"
        )


def with_paths(
    profile: Profile, texts: Sequence[str], usable: Callable[[str], bool] = lambda text: True,
    most: int = MOST,
) -> tuple[Profile, list[str], list[Offer]]:  # fmt: skip
    """Returns the profile with the strategies offered for each pattern, and the texts with these
    in place of patterns; and the offers.

    Measured costs stay as they are. Raises StrategyError for a compressor or a feedback that
    paths do not support, and PlanError for a profile without single moves and compressors.
    """
    offers = [offer(profile, text, usable, most) for text in texts if is_pattern(text)]
    made = {text: cost for own in offers for text, cost in own.strategies.items()}
    plain = [text for text in texts if not is_pattern(text)]
    found = replace(profile, strategies={**made, **profile.strategies})
    return found, list(dict.fromkeys((*plain, *made))), offers


def offer(
    profile: Profile, pattern: str, usable: Callable[[str], bool] = lambda text: True,
    most: int = MOST,
) -> Offer:  # fmt: skip
    """Returns what a pattern stands for. usable: whether a strategy may be planned with."""
    left, texts = compressed_by(pattern), _texts(profile, pattern)
    every = _priced(profile, [text for text in texts if usable(text)])
    known, parts = _moves_of_measured(profile, left), Parts(profile, left)
    own = {text: _with_errors(profile, text, parts.cost(prices)) for text, prices in every.items()}
    kept = undominated(own, sizes_of(profile))
    best = [
        text for text in _worth_a_look(own, kept, sizes_of(profile)[-_LARGE:])
        if every[text][-1].moves not in known
    ]  # fmt: skip
    return Offer(pattern, {text: own[text] for text in best[:most]}, len(every), len(kept))


def with_named(profile: Profile, texts: Iterable[str]) -> Profile:
    """Returns the profile with the named paths, priced as those of a pattern are, if they were
    not measured but their parts were."""
    made = dict[str, StrategyCost]()
    for text in dict.fromkeys(texts):
        if Strategy.parse(text).collective.tasks is None or profile.measured(text) is not None:
            continue
        try:
            parts = Parts(profile, _left(text))
            own = parts.cost(_priced(profile, [text])[text])
        except PlanError:  # planning with it raises that it was not measured
            continue
        made[text] = _with_errors(profile, text, own)
    return replace(profile, strategies={**profile.strategies, **made})


def _with_errors(profile: Profile, text: str, cost: StrategyCost) -> StrategyCost:
    """Returns the cost with errors. A path that compresses once, each rank's own gradient, has
    the errors of a measured strategy that sends the compressor's output unchanged."""
    path = Strategy.parse(text).collective.tasks
    if path is None or path.compressions != 1 or path.tasks[0].name != "compress":
        return cost
    for known, own in profile.strategies.items():
        way = Strategy.parse(known).collective
        changes = (
            way.compresses_again or way.selects or way.own_feedback or way.per_node is not None
        )
        if _printed(known) == _left(text) and way.tasks is None and not changes:
            return replace(cost, error=own.error, errors=own.errors)
    return cost


def _left(text: str) -> str:
    return text.rpartition("|")[0].strip()


def _printed(text: str) -> str:
    """Returns a strategy's compressor and feedback as strategies print them: "qsgd", if it was
    typed as "qsgd(4)"."""
    return _left(str(Strategy.parse(text)))


def _texts(profile: Profile, pattern: str) -> list[str]:
    """Returns every path that fits, as a strategy, unless its feedback cannot take this path."""
    left, texts = compressed_by(pattern), list[str]()
    for path in fitting(profile):
        with suppress(StrategyError):
            text = f'{left if path.compressions else "none"} | steps("{path}")'
            texts.append(str(Strategy.parse(text)))
    return texts


def _priced(profile: Profile, texts: Iterable[str]) -> dict[str, list[Priced]]:
    """Returns prices at all sizes of the profile."""
    sizes, local = sizes_of(profile), _ranks_per_host(profile)
    return {text: priced(profile, text, sizes, profile.world, local) for text in texts}


def _moves_of_measured(profile: Profile, left: str) -> set[tuple[PricedMove, ...]]:
    """Returns the moves of the model in one bucket by measured strategies that are no paths, and
    have this compressor or `none`."""
    own = [text for text in profile.strategies if _printed(text) in (left, "none")]
    whole = [text for text in own if Strategy.parse(text).collective.tasks is None]
    last, local = sizes_of(profile)[-1:], _ranks_per_host(profile)
    return {
        priced(profile, text, last, profile.world, local)[0].moves
        for text in whole if can_price(text)
    }  # fmt: skip


# -- seconds -----------------------------------------------------------------------------------


class Parts:
    """Seconds of moves and of a compressor's work, as a profile measured them one by one."""

    def __init__(self, profile: Profile, left: str) -> None:
        self._profile, self._left = profile, left
        self._compressors = {_as_printed(own): cost for own, cost in profile.compressors.items()}
        self._own, self._plain = self._local(left), self._local("none")
        pieces = f"{in_pieces(left)} @ {profile.device}"
        self._in_pieces = self._compressors.get(pieces, self._own)

    def _local(self, left: str) -> LocalCost:
        name = f"{left} @ {self._profile.device}"
        if name not in self._compressors:
            known = ", ".join(map(repr, self._profile.compressors)) or "none"
            raise PlanError(
                f"a path is priced by its compressor's measured times; the profile has {known}, "
                f"but not '{name}'. Profile again with --strategies '{left} | {WORD}'."
            )
        return self._compressors[name]

    def move(self, move: PricedMove) -> Fit:
        """Returns seconds of such a move, against the bytes of one rank's data. Moves that only
        copy take the same for every dtype; sums in a dtype that was not measured count as fp32."""
        for dtype in (move.dtype, "float32", "uint8"):
            found = self._profile.moves.get(f"{move.name} {dtype} {move.group}")
            if found is not None:
                return found
        raise PlanError(
            "a path is priced by the measured times of its moves; the profile has "
            f"{len(self._profile.moves)} moves, but not {move.name} of {move.dtype} among "
            f"'{move.group}'. Profile again with --strategies '{self._left} | {WORD}'."
        )

    def work(self, work: Work) -> float:
        """Returns seconds of local work."""
        if work.kind == "encode":
            own = self._own if work.pieces == 1 else self._in_pieces
            return own.encode(work.elements)
        more = (work.contributions - 1) * self._own.add(work.elements)
        return self._own.decode(work.elements) + more

    def around(self, move: PricedMove) -> tuple[float, float]:
        """Returns seconds of packing numbers before a move, and of unpacking them after it; 0 for
        messages, which are packed."""
        if move.dtype == "uint8":
            return 0.0, 0.0
        brought = move.bytes / _ITEM_BYTES[move.dtype]
        arriving = {"all_gather": move.ranks, "reduce_scatter": 1 / move.ranks}
        numbers = brought * arriving.get(move.name, 1)
        return self._plain.encode(brought), self._plain.decode(numbers)

    def cost(self, prices: Sequence[Priced]) -> StrategyCost:
        """Returns the cost of a path, by its prices at all sizes of the profile."""
        rows = [self._row(own) for own in prices]
        sizes = sizes_of(self._profile)
        encode, wire, decode = (
            Fit(rising(sizes, [getattr(row, part) for row in rows]))
            for part in ("encode", "wire", "decode")
        )
        waits = sum(self.move(move).curve(0.0) for move in prices[0].moves)
        return StrategyCost(
            encode, wire, decode, Fit(rising(sizes, [own.bytes_sent for own in prices])),
            latency_seconds=min(waits, rows[0].wire),
            per_parameter_seconds=self._per_call * prices[-1].calls,
        )  # fmt: skip

    def _row(self, own: Priced) -> _Row:
        """Returns the seconds at one size. Local work before the first move is encode, as in
        measured strategies."""
        encode = wire = decode = 0.0
        for step in own.steps:
            if not isinstance(step, PricedMove):
                encode, decode = _put(self.work(step), encode, decode, is_first=wire == 0.0)
                continue
            before, after = self.around(step)
            encode, decode = _put(before, encode, decode, is_first=wire == 0.0)
            wire += self.move(step)(step.bytes)
            decode += after
        return _Row(encode, wire, decode)

    @cached_property
    def _per_call(self) -> float:
        """The seconds that a further parameter adds for each payload written or read: as measured
        strategies of the compressor took, or else what encoding takes at size 0."""
        profile, local = self._profile, _ranks_per_host(self._profile)
        known = list[float]()
        for text, cost in profile.strategies.items():
            if _printed(text) == self._left and can_price(text):
                (own,) = priced(profile, text, sizes_of(profile)[:1], profile.world, local)
                known.append(cost.per_parameter_seconds / max(1, own.calls))
        return median(known) if known else self._own.encode.curve(0.0)


def _as_printed(name: str) -> str:
    """Returns the name of a compressor's cost with the compressor as strategies print it. One that
    no path takes keeps its name."""
    left, at, device = name.rpartition(" @ ")
    with suppress(StrategyError):
        left = compressed_by(f"{left} | {WORD}")
    return f"{left}{at}{device}"


_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


class _Row(NamedTuple):
    """Seconds at one size."""

    encode: float
    wire: float
    decode: float


def _put(seconds: float, encode: float, decode: float, *, is_first: bool) -> tuple[float, float]:
    return (encode + seconds, decode) if is_first else (encode, decode + seconds)


# -- which are worth a look --------------------------------------------------------------------


def undominated(costs: Mapping[str, StrategyCost], sizes: Iterable[int]) -> list[str]:
    """Returns the texts for which no other needs as little or less at every size: of processors,
    of start-ups, of the link. Keeps one of equals, the first."""
    at = list(sizes)
    rows = {
        text: [x for n in at for x in (_local(cost, n), _starts(cost, n), cost.link_seconds(n))]
        for text, cost in costs.items()
    }
    kept = list[str]()
    for text, row in sorted(rows.items(), key=lambda own: sum(own[1])):
        if not any(_is_no_more(rows[other], row) for other in kept):
            kept.append(text)
    return kept


def _is_no_more(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other))


def _local(cost: StrategyCost, n: int) -> float:
    return cost.encode(n) + cost.decode(n)


def _starts(cost: StrategyCost, n: int) -> float:
    return cost.wire(n) - cost.link_seconds(n)


def _worth_a_look(
    costs: Mapping[str, StrategyCost], texts: Sequence[str], sizes: Sequence[int]
) -> list[str]:
    """Returns the texts that are near the cheapest at some size and price of local work, the
    nearest first."""
    near = dict.fromkeys(texts, math.inf)
    for n in sizes:
        for price in _PRICES:
            bill = {text: price * _local(costs[text], n) + costs[text].wire(n) for text in texts}
            least = min(bill.values(), default=0.0)
            for text, own in bill.items() if least else ():
                near[text] = min(near[text], own / least)
    return sorted((text for text in near if near[text] <= NEAR), key=near.__getitem__)

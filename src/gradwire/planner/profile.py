"""What was measured on a running job: a JSON file, and all that planning looks at."""

from __future__ import annotations

import json
import math
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from gradwire import beside
from gradwire.buckets import NEEDED, OPTIONAL, Parameter, parameter_of
from gradwire.document import Document
from gradwire.errors import PlanError, StrategyError
from gradwire.planner.fit import FIT, Fit
from gradwire.schema import Flag, List, Map, Maybe, Number, Table, Text, Whole, broken
from gradwire.strategy import Strategy

FORMAT = 1
WIDTH = 256
"""Columns of a matrix of which nothing is known."""


class Ready(NamedTuple):
    """A parameter, and when its gradient is there: seconds from the start of backward.

    density: the fraction of its gradient that is not zero; 1.0 if nobody looked. is_other: the
    optimizer treats it by its other rule, as Muon does embeddings and vectors, if it has one.
    """

    parameter: Parameter
    seconds: float
    density: float = 1.0
    is_other: bool = False


def main_dtype(ready: Iterable[Ready]) -> str:
    """The dtype of most dense elements; "float32" where there are none."""
    elements = {"float32": 0}
    for parameter, *_ in ready:
        own = 0 if parameter.sparse else parameter.elements
        elements[parameter.dtype] = elements.get(parameter.dtype, 0) + own
    return max(elements, key=lambda dtype: elements[dtype])


def main_width(ready: Iterable[Ready]) -> int:
    """The smaller side of the matrix in which half of all elements of dense matrices are reached,
    from the narrowest on, as a power of two: by it the work goes that looks at whole matrices.
    `WIDTH` where there are no matrices."""
    dense = [r.parameter for r in ready if len(r.parameter.shape) == 2 and not r.parameter.sparse]
    sides = sorted((min(p.shape), p.elements) for p in dense if p.elements)
    upto = list(accumulate(elements for _, elements in sides))
    half = next((side for (side, _), n in zip(sides, upto) if 2 * n >= upto[-1]), WIDTH)
    return 1 << (half.bit_length() - 1)


def shape_of(elements: int, width: int) -> tuple[int, int]:
    """The shape of a parameter that stands for a bucket: a matrix, if it fills rows."""
    filled = elements >= width and elements % width == 0
    return (elements // width, width) if filled else (elements, 1)


def whole_rows(elements: int, width: int) -> int:
    """The most elements, of so many, that fill rows: the largest parameter that may stand for a
    bucket is a matrix, as most of a model is."""
    return max(1, elements - elements % width if elements >= width else elements)


@dataclass(frozen=True)
class StrategyCost:
    """What one bucket takes by a strategy, as a conductor's lane runs it, with nothing beside it.

    encode: all local work before the first move; wire: all moves; decode: the local work between
    and after. Seconds against elements, of one parameter. latency_seconds: the part of `wire` that
    is waiting, which lanes do not share; per_parameter_seconds: local work that each further
    parameter of the bucket adds. bytes: that a rank sends, against elements. error: of one step's
    average, with feedback, its distance from the exact one over the exact one's norm; None: nobody
    measured it. errors: the same of parameters alone, by name. like: the strategy that was
    measured in its stead, of which what it costs was worked out; None: it was measured itself.
    """

    encode: Fit
    wire: Fit
    decode: Fit
    bytes: Fit
    latency_seconds: float = 0.0
    per_parameter_seconds: float = 0.0
    error: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    like: str | None = None

    def link_seconds(self, elements: float) -> float:
        """The part of `wire` that moves have the link for: all but the waiting, and no less than
        the rate of the largest messages makes it; small ones cost their start-up, however
        small."""
        whole = self.wire(elements)
        rate = self.wire.curve.rows[-1][2]
        return min(whole, max(whole - self.latency_seconds, rate * elements))


class TableCost(NamedTuple):
    """What tables of rows take by a strategy, all in one bucket: seconds, with the rows that they
    had in a step of the job. parameters: their names."""

    parameters: tuple[str, ...]
    strategy: str
    encode: float
    wire: float
    decode: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.encode + self.wire + self.decode


@dataclass(frozen=True)
class LocalCost:
    """What a compressor takes on one device: seconds against elements of one parameter.

    encode, with feedback if the name has one; decode: one payload into memory; add: each further.
    """

    encode: Fit
    decode: Fit
    add: Fit


@dataclass(frozen=True)
class Contention:
    """What is shared when a lane works beside backward.

    cores: processors that a rank has, in units of what backward has alone; infinite where nothing
    was slowed. wire_demand: processors that moving at full speed takes. Of start-ups of moves:
    start_slowdown: times as long that one takes while backward runs, as the threads that it wakes
    find processors busy; start_sharing: of two lanes at once each takes 1 + start_sharing times as
    long, 1 if they pass at once, 2 if one after the other; start_demand: processors that they take
    from backward. wake_seconds: how long after its bucket is ready a lane that sleeps begins with
    it while backward runs: until a busy processor, and the interpreter, let it.
    """

    cores: float = math.inf
    wire_demand: float = 0.0
    start_slowdown: float = 1.0
    start_sharing: float = 0.0
    start_demand: float = 0.0
    wake_seconds: float = 0.0

    def to_json(self) -> dict[str, float | None]:
        """Infinity, which JSON has not, is null."""
        return {**vars(self), "cores": self.cores if math.isfinite(self.cores) else None}


@dataclass(frozen=True)
class Profile:
    """A job on its machines.

    ready: in the order in which gradients come. around_seconds: of a step, all but backward and
    what communication adds: forward, optimizer, data. hosts: of each rank, its machine's name.
    strategies: by their text, as measured. compressors: by "text @ device". moves: by
    "all_reduce float32 world", seconds against bytes of one rank's data. tables: of several
    strategies, bucket by bucket. width: columns of the matrices that strategies were measured on.
    """

    ready: tuple[Ready, ...]
    backward_seconds: float
    around_seconds: float
    hosts: tuple[str, ...]
    device: str = "cpu"
    backend: str = "gloo"
    contention: Contention = Contention()
    strategies: Mapping[str, StrategyCost] = field(default_factory=dict)
    compressors: Mapping[str, LocalCost] = field(default_factory=dict)
    moves: Mapping[str, Fit] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[TableCost, ...] = ()
    width: int = WIDTH

    @property
    def world(self) -> int:
        """Ranks."""
        return len(self.hosts)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in the order in which their gradients are ready."""
        return tuple(ready.parameter for ready in self.ready)

    @property
    def dtype(self) -> str:
        """The dtype of most gradients, by elements: that of the buckets that were measured."""
        return main_dtype(self.ready)

    def check(self, parameters: Sequence[Parameter]) -> None:
        """PlanError, naming parameters, unless it is a profile of a model with these."""
        own, given = set(self.parameters), set(parameters)
        if own == given:
            return
        only_here = sorted(p.name for p in own - given)
        only_there = sorted(p.name for p in given - own)
        raise PlanError(
            "a profile is of the model that is planned for; only in the profile: "
            f"{', '.join(only_here[:5]) or 'nothing'}, only in the model: "
            f"{', '.join(only_there[:5]) or 'nothing'}. Profile this model."
        )

    def slowed(self, factor: float) -> Profile:
        """As if every move took so many times as long."""
        costs = {
            text: replace(
                cost, wire=replace(cost.wire, curve=cost.wire.curve.scaled(factor)),
                latency_seconds=cost.latency_seconds * factor,
            )
            for text, cost in self.strategies.items()
        }  # fmt: skip
        moves = {
            text: replace(fit, curve=fit.curve.scaled(factor)) for text, fit in self.moves.items()
        }
        tables = tuple(cost._replace(wire=cost.wire * factor) for cost in self.tables)
        return replace(self, strategies=costs, moves=moves, tables=tables)

    def cost(self, strategy: str) -> StrategyCost:
        """The cost of a strategy by its text; PlanError, naming what there is, if it was not
        measured."""
        known = self.measured(strategy)
        if known is None:
            raise PlanError(
                f"a plan is made of strategies that were measured; '{strategy}' was not. There "
                f"are {', '.join(map(repr, self.strategies)) or 'none'}. Profile again with it."
            )
        return self.strategies[known]

    def measured(self, text: str) -> str | None:
        """The text by which a strategy was measured, however it was typed; None: it was not.

        What only acts on averages, when the step is over, is exchanged as without it; all turns
        take what one does.
        """
        if text in self.strategies:
            return text
        if text not in self._measured:
            self._measured[text] = self._found(text)
        return self._measured[text]

    @cached_property
    def _measured(self) -> dict[str, str | None]:
        return {}

    def _found(self, text: str) -> str | None:
        try:
            asked = beside.turns(Strategy.parse(text))[0]
        except StrategyError:
            return None
        found = next((own for own in self.strategies if Strategy.parse(own) == asked), None)
        if found is None and asked.feedback is not None and asked.feedback.sends_all:
            return self.measured(str(Strategy(asked.compressor, asked.collective)))
        return found

    # -- files -----------------------------------------------------------------------------

    def to_json(self) -> str:
        """Readable, versioned, and equal when read back."""
        document = {
            "format": FORMAT,
            "versions": dict(self.versions),
            "hosts": list(self.hosts),
            "device": self.device,
            "backend": self.backend,
            "backward_seconds": self.backward_seconds,
            "around_seconds": self.around_seconds,
            "contention": self.contention.to_json(),
            "parameters": [
                {
                    **r.parameter.to_json(),
                    "ready_seconds": r.seconds,
                    "density": r.density,
                    **({"is_other": True} if r.is_other else {}),
                }
                for r in self.ready
            ],
            "strategies": {name: _values(cost) for name, cost in self.strategies.items()},
            "compressors": {name: _values(cost) for name, cost in self.compressors.items()},
            "moves": {name: fit.to_json() for name, fit in self.moves.items()},
            "tables": [cost._asdict() for cost in self.tables],
            "width": self.width,
        }
        return json.dumps(document, indent=1)

    @staticmethod
    def from_json(text: str) -> Profile:
        """PlanError if the text is no profile of a format this version reads."""
        profile: Profile = _DOCUMENT.read(text)
        return profile

    def save(self, path: str | Path) -> None:
        """All of it or nothing: ranks on several machines may write to one shared folder."""
        end = Path(path)
        draft = end.with_name(f".{end.name}.{socket.gethostname()}.{os.getpid()}")
        draft.write_text(self.to_json() + "\n", encoding="utf-8")
        draft.replace(end)

    @staticmethod
    def load(path: str | Path) -> Profile:
        """PlanError if there is no such file or it holds no profile."""
        profile: Profile = _DOCUMENT.load(path)
        return profile


def _values(cost: StrategyCost | LocalCost) -> dict[str, Any]:
    return {
        name: value.to_json() if isinstance(value, Fit) else value
        for name, value in vars(cost).items()
        if value is not None and value != {}
    }


# -- reading -----------------------------------------------------------------------------------


def _ready(
    ready_seconds: float, density: float, is_other: bool = False, **parameter: Any
) -> Ready:
    return Ready(parameter_of(**parameter), ready_seconds, density, is_other)


def _contention(cores: float | None, **others: float) -> Contention:
    return Contention(math.inf if cores is None else cores, **others)


def _table_cost(parameters: list[str], **others: Any) -> TableCost:
    return TableCost(tuple(parameters), **others)


def _profile(
    parameters: list[Ready], hosts: list[str], tables: Sequence[TableCost] = (), **others: Any
) -> Profile:  # fmt: skip
    names = Counter(ready.parameter.name for ready in parameters)
    for i, ready in enumerate(parameters):
        if names[ready.parameter.name] > 1:
            rule = "is there once, as every parameter is"
            raise broken(rule, ready.parameter.name, f".parameters[{i}].name")
    return Profile(tuple(parameters), hosts=tuple(hosts), tables=tuple(tables), **others)


_NUMBER = Number(least=0)
_READY = Table(
    {**NEEDED, "ready_seconds": _NUMBER, "density": Number(0, 1)},
    {**OPTIONAL, "is_other": Flag()},
    make=_ready,
)
_COST = Table(
    dict.fromkeys(("encode", "wire", "decode", "bytes"), FIT),
    {
        **dict.fromkeys(("latency_seconds", "per_parameter_seconds", "error"), _NUMBER),
        "errors": Map(_NUMBER),
        "like": Text(),
    },
    make=StrategyCost,
)
_TABLE = Table(
    {"parameters": List(Text(), least=1), "strategy": Text(),
     **dict.fromkeys(("encode", "wire", "decode"), _NUMBER)}, make=_table_cost,
)  # fmt: skip
_LOCAL = Table(dict.fromkeys(("encode", "decode", "add"), FIT), make=LocalCost)
CONTENTION = Table(
    {"cores": Maybe(_NUMBER), "wire_demand": _NUMBER},
    # What is not there, as in an older version's, has its default.
    dict.fromkeys(("start_slowdown", "start_sharing", "start_demand", "wake_seconds"), _NUMBER),
    make=_contention,
)
_DOCUMENT = Document(
    "a profile",
    Table(
        {
            "parameters": List(_READY), "hosts": List(Text(), least=1), "device": Text(),
            "backend": Text(), "backward_seconds": _NUMBER, "around_seconds": _NUMBER,
            "contention": CONTENTION, "strategies": Map(_COST), "compressors": Map(_LOCAL),
            "moves": Map(FIT), "versions": Map(Text()),
        },
        {"tables": List(_TABLE), "width": Whole(1)},  # which older versions do not have
        make=_profile,
    ),
    PlanError, "Make one with `gradwire profile`", FORMAT,
)  # fmt: skip

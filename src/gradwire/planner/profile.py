"""The measurements of a running job: a JSON file, and the planner's only input."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from gradwire import beside
from gradwire.buckets import NEEDED, OPTIONAL, Parameter, parameter_of
from gradwire.document import Document, save_file
from gradwire.errors import PlanError, StrategyError
from gradwire.planner.fit import FIT, Fit
from gradwire.schema import Flag, List, Map, Maybe, Number, Table, Text, Whole, broken
from gradwire.strategy import Strategy

FORMAT = 1
MOST_ERROR = 1e100
"""The limit of relative errors, whose squares are finite."""
WIDTH = 256
"""The columns of a matrix of unknown shape."""


class Ready(NamedTuple):
    """A parameter, and when its gradient is ready, in seconds from the start of backward.

    density: the fraction of its gradient that is not zero; 1.0 if it was not measured. is_other:
    the optimizer treats it by its other rule, if it has one, as Muon does embeddings and vectors.
    """

    parameter: Parameter
    seconds: float
    density: float = 1.0
    is_other: bool = False


def main_dtype(ready: Iterable[Ready]) -> str:
    """Returns the dtype of most dense elements; "float32" if there are none."""
    elements = {"float32": 0}
    for parameter, *_ in ready:
        own = 0 if parameter.sparse else parameter.elements
        elements[parameter.dtype] = elements.get(parameter.dtype, 0) + own
    return max(elements, key=lambda dtype: elements[dtype])


def main_width(ready: Iterable[Ready]) -> int:
    """Returns the median smaller side of dense matrices, weighted by elements and rounded down to
    a power of two: the work of strategies that look at whole matrices depends on it. Returns
    `WIDTH` if there are no matrices."""
    dense = [r.parameter for r in ready if len(r.parameter.shape) == 2 and not r.parameter.sparse]
    sides = sorted((min(p.shape), p.elements) for p in dense if p.elements)
    upto = list(accumulate(elements for _, elements in sides))
    half = next((side for (side, _), n in zip(sides, upto) if 2 * n >= upto[-1]), WIDTH)
    return 1 << (half.bit_length() - 1)


def shape_of(elements: int, width: int) -> tuple[int, int]:
    """Returns the shape of a parameter that stands for a bucket: a matrix, if it fills rows."""
    filled = elements >= width and elements % width == 0
    return (elements // width, width) if filled else (elements, 1)


def whole_rows(elements: int, width: int) -> int:
    """Returns the most elements up to this number that fill rows: the largest parameter that
    stands for a bucket should be a matrix, as most of a model is."""
    return max(1, elements - elements % width if elements >= width else elements)


@dataclass(frozen=True)
class StrategyCost:
    """The cost of one bucket by a strategy, as a conductor's lane runs it, with nothing beside it.

    encode: all local work before the first move; wire: all moves; decode: the local work between
    and after. Seconds against the elements of one parameter. latency_seconds: the part of `wire`
    that is waiting, which lanes do not share; per_parameter_seconds: local work that each further
    parameter of the bucket adds. bytes: those that a rank sends, against elements. error: the
    distance of one step's average, with feedback, from the exact one, over the exact one's norm;
    None: not measured. errors: the same for single parameters, by name. like: the strategy that
    was measured, from which this cost was derived; None: this one itself was measured.
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
        """Returns the part of `wire` in which moves occupy the link: all but the waiting, and no
        less than at the rate of the largest messages, since small messages cost their start-up,
        however small they are."""
        whole = self.wire(elements)
        rate = self.wire.curve.rows[-1][2]
        return min(whole, max(whole - self.latency_seconds, rate * elements))


class TableCost(NamedTuple):
    """The cost in seconds of tables of rows by a strategy, all in one bucket, with the rows that
    they had in a step of the job. parameters: their names."""

    parameters: tuple[str, ...]
    strategy: str
    encode: float
    wire: float
    decode: float

    @property
    def seconds(self) -> float:
        """The sum of the three."""
        return self.encode + self.wire + self.decode


@dataclass(frozen=True)
class LocalCost:
    """A compressor's cost on one device: seconds against elements of one parameter.

    encode: with feedback if the name has one; decode: one payload into memory; add: each further
    payload.
    """

    encode: Fit
    decode: Fit
    add: Fit


@dataclass(frozen=True)
class Contention:
    """How a lane and backward slow each other when both work.

    cores: processors of a rank, in units of what backward alone uses; infinite if nothing was
    slowed. wire_demand: processors that moving at full speed takes. start_slowdown: how many times
    as long a move's start-up takes while backward runs, as the threads that it wakes find
    processors busy. start_sharing: with two lanes at once each start-up takes 1 + start_sharing
    times as long: 1 if they run at once, 2 if one after the other. start_demand: processors that
    start-ups take from backward. wake_seconds: how long after its bucket is ready a sleeping lane
    begins with it while backward runs: it waits for a processor, and for the interpreter.
    """

    cores: float = math.inf
    wire_demand: float = 0.0
    start_slowdown: float = 1.0
    start_sharing: float = 0.0
    start_demand: float = 0.0
    wake_seconds: float = 0.0

    def to_json(self) -> dict[str, float | None]:
        """Returns plain values; infinity, which JSON lacks, becomes null."""
        return {**vars(self), "cores": self.cores if math.isfinite(self.cores) else None}


@dataclass(frozen=True)
class Profile:
    """A job on its machines, as it was measured.

    ready: in the order in which gradients come. around_seconds: a step's time but for backward and
    what communication adds: forward, optimizer, data. moments_seconds: the part of it that the
    optimizer takes for moments of its own. hosts: the machine's name for each rank.
    strategies: by their text, as measured. compressors: by "text @ device". moves: by
    "all_reduce float32 world", seconds against bytes of one rank's data. tables: costs by several
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
    moments_seconds: float = 0.0

    @property
    def world(self) -> int:
        """The number of ranks."""
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
        """Raises PlanError, naming parameters, unless the profiled model has exactly these."""
        own, given = set(self.parameters), set(parameters)
        if own == given:
            return
        only_here = sorted(p.name for p in own - given)
        only_there = sorted(p.name for p in given - own)
        raise PlanError(
            "the profile must be of the model that is planned for; only in the profile: "
            f"{', '.join(only_here[:5]) or 'nothing'}, only in the model: "
            f"{', '.join(only_there[:5]) or 'nothing'}. Profile this model."
        )

    def slowed(self, factor: float) -> Profile:
        """Returns the profile as if every move took so many times as long."""
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
        """Returns the cost of a strategy by its text. Raises PlanError, naming the measured ones,
        if it was not measured."""
        known = self.measured(strategy)
        if known is None:
            raise PlanError(
                f"a plan can use only strategies that were measured; '{strategy}' was not. The "
                f"profile has {', '.join(map(repr, self.strategies)) or 'none'}. Profile again "
                "with it."
            )
        return self.strategies[known]

    def measured(self, text: str) -> str | None:
        """Returns the text by which a strategy was measured, however it was typed; None if it was
        not.

        A feedback that only acts on averages, when the step is over, is exchanged as without it;
        all turns cost the same as one.
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
        """Returns JSON: readable, versioned, and equal when read back."""
        document = {
            "format": FORMAT,
            "versions": dict(self.versions),
            "hosts": list(self.hosts),
            "device": self.device,
            "backend": self.backend,
            "backward_seconds": self.backward_seconds,
            "around_seconds": self.around_seconds,
            "moments_seconds": self.moments_seconds,
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
        """Reads a profile. Raises PlanError unless the text is one, in a format that this version
        reads."""
        profile: Profile = _DOCUMENT.read(text)
        return profile

    def save(self, path: str | Path) -> None:
        """Writes the file atomically: ranks on several machines may write to one shared folder."""
        save_file(path, self.to_json() + "\n")

    @staticmethod
    def load(path: str | Path) -> Profile:
        """Reads the file. Raises PlanError if there is no such file or it holds no profile."""
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
            rule = "must differ from the names of all other parameters"
            raise broken(rule, ready.parameter.name, f".parameters[{i}].name")
    return Profile(tuple(parameters), hosts=tuple(hosts), tables=tuple(tables), **others)


_NUMBER, _ERROR = Number(least=0), Number(0, MOST_ERROR)
_READY = Table(
    {**NEEDED, "ready_seconds": _NUMBER, "density": Number(0, 1)},
    {**OPTIONAL, "is_other": Flag()},
    make=_ready,
)
_COST = Table(
    dict.fromkeys(("encode", "wire", "decode", "bytes"), FIT),
    {
        **dict.fromkeys(("latency_seconds", "per_parameter_seconds"), _NUMBER),
        "error": _ERROR,
        "errors": Map(_ERROR),
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
    # An older version's file lacks these, which then have their defaults.
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
        # Older versions lack these.
        {"tables": List(_TABLE), "width": Whole(1), "moments_seconds": _NUMBER},
        make=_profile,
    ),
    PlanError, "Make one with `gradwire profile`", FORMAT,
)  # fmt: skip

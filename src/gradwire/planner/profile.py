"""What was measured on a running job: a JSON file, and all that planning looks at."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.buckets import Parameter
from gradwire.errors import PlanError
from gradwire.planner.fit import Fit, number

FORMAT = 1


class Ready(NamedTuple):
    """A parameter, and when its gradient is there: seconds from the start of backward.

    density: the fraction of its gradient that is not zero; 1.0 if nobody looked.
    """

    parameter: Parameter
    seconds: float
    density: float = 1.0


def main_dtype(ready: Iterable[Ready]) -> str:
    """Of most dense elements; "float32" where there are none."""
    elements = {"float32": 0}
    for parameter, *_ in ready:
        own = 0 if parameter.sparse else parameter.elements
        elements[parameter.dtype] = elements.get(parameter.dtype, 0) + own
    return max(elements, key=lambda dtype: elements[dtype])


@dataclass(frozen=True)
class StrategyCost:
    """What one bucket takes by a strategy, as a conductor's lane runs it, with nothing beside it.

    encode: all local work before the first move; wire: all moves; decode: the local work between
    and after. Seconds against elements, of one parameter. latency_seconds: the part of `wire` that
    is waiting, which lanes do not share; per_parameter_seconds: local work that each further
    parameter of the bucket adds. bytes: that a rank sends, against elements. error: of one step's
    average, with feedback, its distance from the exact one over the exact one's norm; None: nobody
    measured it.
    """

    encode: Fit
    wire: Fit
    decode: Fit
    bytes: Fit
    latency_seconds: float = 0.0
    per_parameter_seconds: float = 0.0
    error: float | None = None

    def link_seconds(self, elements: float) -> float:
        """Of `wire`, what moves have the link for: all but the waiting, and no less than the rate
        of the largest messages makes it; small ones cost their start-up, however small."""
        whole = self.wire(elements)
        rate = self.wire.curve.rows[-1][2]
        return min(whole, max(whole - self.latency_seconds, rate * elements))


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

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Contention:
        """What `to_json` wrote, or an older version; what is not there has its default."""
        cores = math.inf if value["cores"] is None else number(value["cores"], "cores")
        names = ("start_slowdown", "start_sharing", "start_demand", "wake_seconds")
        more = {n: number(value[n], n) for n in names if n in value}
        return Contention(cores, number(value["wire_demand"], "wire_demand"), **more)


@dataclass(frozen=True)
class Profile:
    """A job on its machines.

    ready: in the order in which gradients come. around_seconds: of a step, all but backward and
    what communication adds: forward, optimizer, data. hosts: of each rank, its machine's name.
    strategies: by their text, as measured. compressors: by "text @ device". moves: by
    "all_reduce float32 world", seconds against bytes of one rank's data.
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

    @property
    def world(self) -> int:
        """Ranks."""
        return len(self.hosts)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(ready.parameter for ready in self.ready)

    @property
    def dtype(self) -> str:
        """Of most gradients, by elements: that of the buckets that were measured."""
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

    def cost(self, strategy: str) -> StrategyCost:
        """Of a strategy by its text; PlanError, naming what there is, if it was not measured."""
        if strategy not in self.strategies:
            raise PlanError(
                f"a plan is made of strategies that were measured; '{strategy}' was not. There "
                f"are {', '.join(map(repr, self.strategies)) or 'none'}. Profile again with it."
            )
        return self.strategies[strategy]

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
            "parameters": [_row(ready) for ready in self.ready],
            "strategies": {name: _values(cost) for name, cost in self.strategies.items()},
            "compressors": {name: _values(cost) for name, cost in self.compressors.items()},
            "moves": {name: fit.to_json() for name, fit in self.moves.items()},
        }
        return json.dumps(document, indent=1)

    @staticmethod
    def from_json(text: str) -> Profile:
        """PlanError if the text is no profile of a format this version reads."""
        try:
            data = json.loads(text)
            if data.get("format") != FORMAT:
                raise PlanError(
                    f"this version reads profiles of format {FORMAT}; got "
                    f"{data.get('format')!r}. Profile again with this version of gradwire."
                )
            return _profile(data)
        except PlanError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError,
                RecursionError) as error:  # fmt: skip
            raise PlanError(
                "a profile is a JSON object with parameters, hosts, strategies and moves; "
                f"{error!r}. Make one with `gradwire profile`."
            ) from error

    def save(self, path: str | Path) -> None:
        """All of it or nothing: ranks on several machines may write to one shared folder."""
        end = Path(path)
        draft = end.with_name(f".{end.name}.{socket.gethostname()}.{os.getpid()}")
        draft.write_text(self.to_json() + "\n", encoding="utf-8")
        draft.replace(end)

    @staticmethod
    def load(path: str | Path) -> Profile:
        """PlanError if there is no such file or it holds no profile."""
        try:
            return Profile.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(
                f"a profile's path names a readable file; {error}. Make one with "
                "`gradwire profile`."
            ) from error


def _row(ready: Ready) -> dict[str, Any]:
    p = ready.parameter
    sparse = {"sparse": True} if p.sparse else {}
    return {
        "name": p.name, "shape": list(p.shape), "dtype": p.dtype, **sparse,
        "ready_seconds": ready.seconds, "density": ready.density,
    }  # fmt: skip


def _values(cost: StrategyCost | LocalCost) -> dict[str, Any]:
    return {
        name: value.to_json() if isinstance(value, Fit) else value
        for name, value in vars(cost).items()
        if value is not None
    }


# -- reading -----------------------------------------------------------------------------------


def _profile(data: Mapping[str, Any]) -> Profile:
    ready, hosts = tuple(_ready(row) for row in data["parameters"]), data["hosts"]
    names = [r.parameter.name for r in ready]
    if len(set(names)) < len(names):
        raise PlanError("a profile has every parameter once; some are there twice. Profile again.")
    if not isinstance(hosts, list) or not hosts or not all(isinstance(h, str) for h in hosts):
        raise PlanError(
            f"a profile's hosts are a list of names, one of each rank; got {hosts!r}. "
            "Profile again."
        )
    return Profile(
        ready=ready,
        backward_seconds=number(data["backward_seconds"], "backward_seconds"),
        around_seconds=number(data["around_seconds"], "around_seconds"),
        hosts=tuple(hosts),
        device=str(data["device"]),
        backend=str(data["backend"]),
        contention=Contention.from_json(data["contention"]),
        strategies={n: _strategy_cost(cost) for n, cost in data["strategies"].items()},
        compressors={
            n: LocalCost(*_fits(cost, "encode", "decode", "add"))
            for n, cost in data["compressors"].items()
        },
        moves={n: Fit.from_json(fit) for n, fit in data["moves"].items()},
        versions=dict(data["versions"]),
    )


def _ready(row: Mapping[str, Any]) -> Ready:
    name, shape = row["name"], tuple(int(number(n, "a shape")) for n in row["shape"])
    if not isinstance(name, str) or not isinstance(row["dtype"], str):
        raise PlanError(f"a parameter has a name and a dtype; got {row!r}. Profile again.")
    parameter = Parameter(name, shape, row["dtype"], bool(row.get("sparse", False)))
    seconds = number(row["ready_seconds"], "ready_seconds")
    return Ready(parameter, seconds, number(row["density"], "density", most=1.0))


def _strategy_cost(data: Mapping[str, Any]) -> StrategyCost:
    names = ("latency_seconds", "per_parameter_seconds", "error")
    more = {name: number(data[name], name) for name in names if name in data}
    encode, wire, decode, sent = _fits(data, "encode", "wire", "decode", "bytes")
    return StrategyCost(encode, wire, decode, sent, **more)


def _fits(data: Mapping[str, Any], *names: str) -> Iterator[Fit]:
    return (Fit.from_json(data[name]) for name in names)

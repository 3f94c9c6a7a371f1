"""Infrastructure as a graph: InfraGraph documents, in JSON or YAML.

Instances of devices, links with bandwidths, and edges between components of instances:

    {"instances": [{"name": "host", "device": "server", "count": 4}, …],
     "links": [{"name": "leaf-link", "physical": {"bandwidth": {"gigabits_per_second": 100}}}, …],
     "edges": [{"ep1": {"instance": "host[0]", "component": "nic"},
                "ep2": {"instance": "leaf[0]", "component": "port"},
                "link": "leaf-link", "scheme": "one2one"}, …], "devices": […]}

Source: Keysight/infragraph, models/ and docs/.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import yaml

from gradwire.document import JSON, Document, Syntax
from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric
from gradwire.network.importers.graph import Cable, fabric_of
from gradwire.schema import Broken, List, Made, Maybe, Number, Schema, Table, Text, Whole

_GBPS = {"gigabits_per_second": 1.0, "gigabytes_per_second": 8.0, "giga_bytes_per_second": 8.0}
_NAME = re.compile(r"([\w.-]{1,99})(?:\[([0-9]{,9})(?:(:)([0-9]{,9}))?\])?")
_NIC = "nic"
_MOST = 1 << 20
"""The most cables, and the most instances or components of one kind."""
Named = Mapping[str, Any]


def infragraph(file: str) -> Fabric:
    """Reads a file. Raises NetworkError if it cannot be read, and as `topology` does."""
    fabric: Fabric = _DOCUMENT.load(file)
    return fabric


def topology(text: str) -> Fabric:
    """Reads a document. Hosts are network cards: components of choice 'nic' that edges join to
    switches, by instance and number. What is inside devices is ignored. Raises NetworkError if the
    document is invalid or uses names that it does not define."""
    fabric: Fabric = _DOCUMENT.read(text)
    return fabric


def _fabric(
    instances: Named | None, edges: Sequence[dict[str, Any]] | None = None,
    links: Named | None = None, devices: Named | None = None,
) -> Fabric:  # fmt: skip
    instances, links, devices = instances or {}, links or {}, devices or {}
    counts = {name: i["count"] for name, i in instances.items()}
    kinds = {name: devices.get(i["device"], {}) for name, i in instances.items()}
    hosts: dict[str, None] = {}
    cables = list[Cable]()
    for edge in edges or ():
        if edge["link"] not in links:
            _fail(f"the edge {edge} names a link that is not there", "Define it under 'links'")
        ends = [_nodes(edge[ep], counts, kinds) for ep in ("ep1", "ep2")]
        for one, other in _pairs(edge, ends[0], ends[1]):
            for name, is_card in (one, other):
                if is_card:
                    hosts[name] = None
            cables.append(Cable(one[0], other[0], links[edge["link"]]))
            if len(cables) > _MOST:
                _fail(f"the edges are more than {_MOST} cables", "Make it smaller")
    return fabric_of(sorted(hosts, key=_in_order), cables)


def _nodes(
    end: Mapping[str, str], counts: Mapping[str, int], kinds: Mapping[str, Named]
) -> list[tuple[str, bool]]:
    """Returns the names of hosts and switches at an end of an edge, and which is a host's card."""
    instance, component = end["instance"], end["component"]
    name = _NAME.fullmatch(instance)
    if name is None or name[1] not in counts:
        _fail(f"no instance is called {instance!r}", "Define it under 'instances'")
    parts = kinds[name[1]]
    part = _NAME.fullmatch(component)
    if part is None or part[1] not in parts:
        _fail(f"{instance} has no component {component!r}", "Define it in its device")
    places = _numbers(name, counts[name[1]]), _numbers(part, parts[part[1]]["count"])
    if len(places[0]) * len(places[1]) > _MOST:
        _fail(f"{instance} and {component} are more than {_MOST} ends", "Make it smaller")
    if parts[part[1]]["choice"] == _NIC:
        return [(f"{name[1]}[{i}].{part[1]}[{j}]", True) for i in places[0] for j in places[1]]
    # The port does not matter: a switch is one node.
    return [(f"{name[1]}[{i}]", False) for i in places[0] for _ in places[1]]


def _numbers(match: re.Match[str], count: int) -> range:
    """Returns the numbers that name, name[3] or name[1:3] selects, out of `count`."""
    if match[2] is None or (match[2] == "" and match[3] is None):
        return range(count)
    first = int(match[2] or 0)
    last = first + 1 if match[3] is None else int(match[4] or count)
    if last > count:
        _fail(f"{match[0]} is beyond the {count} there are", "Correct it, or the count")
    if first >= last:
        _fail(f"{match[0]} selects none", "Write the first number, and the one after the last")
    return range(first, last)


def _pairs(
    edge: Mapping[str, Any], one: Sequence[tuple[str, bool]], other: Sequence[tuple[str, bool]]
) -> Iterator[tuple[tuple[str, bool], tuple[str, bool]]]:
    scheme = edge.get("scheme", "one2one")
    if scheme == "many2many":
        yield from ((a, b) for a in dict.fromkeys(one) for b in dict.fromkeys(other))
    elif scheme == "one2one":
        for more, fewer in ((one, other), (other, one)):
            if any(is_card for _, is_card in more[len(fewer) :]):
                _fail(
                    f"the edge {edge} has {len(more)} cards for {len(fewer)} ports",
                    "Name as many ports",
                )
        yield from zip(one, other)
    else:
        _fail(f"the edge {edge} has the scheme {scheme!r}", "Use one2one or many2many")


def _instance(name: str, device: str, count: int = 1) -> tuple[str, dict[str, Any]]:
    return name, {"device": device, "count": count}


def _device(name: str, components: Named | None = None) -> tuple[str, Named]:
    return name, components or {}


def _component(name: str, count: int = 1, choice: str | None = None) -> tuple[str, dict[str, Any]]:
    return name, {"count": count, "choice": choice}


def _link(
    name: str, physical: Mapping[str, float] | None = None, bandwidth: float = 0.0
) -> tuple[str, float]:
    """Returns a link's name and Gbit/s. Links inside devices often state none, which is 0; an edge
    of the fabric with such a link is refused."""
    return name, (physical or {}).get("bandwidth", bandwidth)


def _gbps(**units: float) -> float:
    return next((value * _GBPS[unit] for unit, value in units.items()), 0.0)


def _parse(text: str) -> Any:
    try:
        return JSON.parse(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _in_order(name: str) -> list[str | int]:
    """The sort key of a name: numbers in it sort by value."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _fail(found: str, instead: str) -> NoReturn:
    raise Broken(f"names what it joins; {found}. {instead}")


def _by_name(of: Schema) -> Maybe:
    return Maybe(Made(List(of), _named))


def _named(items: Sequence[tuple[str, Any]]) -> Named:
    """Returns the items by name; refuses a name that occurs twice."""
    found = dict(items)
    if len(found) < len(items):
        twice = next(name for name, many in Counter(name for name, _ in items).items() if many > 1)
        raise Broken(f"has each name once; {twice!r} occurs twice. Leave one out")
    return found


_COUNT = {"count": Whole(1, _MOST)}
_BANDWIDTH = {
    "bandwidth": Table({}, dict.fromkeys(_GBPS, Number(0, 1e9)), make=_gbps)
}  # fmt: skip
_END = Table({"instance": Text(), "component": Text()})
_EDGE = Table({"ep1": _END, "ep2": _END, "link": Text()}, {"scheme": Text()})
_COMPONENT = Table({"name": Text()}, {**_COUNT, "choice": Maybe(Text())}, make=_component)
_DOCUMENT = Document(
    "an InfraGraph",
    Table(
        {"instances": _by_name(Table({"name": Text(), "device": Text()}, _COUNT, make=_instance))},
        {
            "edges": Maybe(List(_EDGE)),
            "links": _by_name(
                Table(
                    {"name": Text()},
                    {"physical": Maybe(Table({}, _BANDWIDTH)), **_BANDWIDTH},
                    make=_link,
                )
            ),
            "devices": _by_name(
                Table({"name": Text()}, {"components": _by_name(_COMPONENT)}, make=_device)
            ),
        },
        make=_fabric,
    ),
    NetworkError, "Export it by InfraGraph again", syntax=Syntax("JSON or YAML", _parse),
)  # fmt: skip

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

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric
from gradwire.network.importers.graph import Cable, fabric_of

_GBPS = {"gigabits_per_second": 1.0, "gigabytes_per_second": 8.0, "giga_bytes_per_second": 8.0}
_NAME = re.compile(r"([\w.-]+)(?:\[(\d*)(?:(:)(\d*))?\])?")
_NIC = "nic"


def topology(text: str) -> Fabric:
    """Hosts are network cards: components of choice 'nic' that edges join to switches, by
    instance and number. What is inside devices is not a fabric's. NetworkError for a document
    that is none, and names in it that are nowhere."""
    document = _document(text)
    devices = {device["name"]: device for device in _list(document, "devices")}
    counts = {i["name"]: int(i.get("count", 1)) for i in _list(document, "instances")}
    kinds = {i["name"]: devices.get(i["device"]) for i in _list(document, "instances")}
    gbps = {link["name"]: _bandwidth(link) for link in _list(document, "links")}
    hosts: dict[str, None] = {}
    cables = list[Cable]()
    for edge in _list(document, "edges"):
        if edge.get("link") not in gbps:
            _fail(f"the edge {edge} names a link that is not there", "Define it under 'links'")
        ends = [list(_nodes(edge[ep], counts, kinds)) for ep in ("ep1", "ep2")]
        for one, other in _pairs(edge, ends[0], ends[1]):
            for name, is_card in (one, other):
                if is_card:
                    hosts[name] = None
            cables.append(Cable(one[0], other[0], gbps[edge["link"]]))
    return fabric_of(sorted(hosts, key=_in_order), cables)


def _nodes(
    end: Mapping[str, Any], counts: Mapping[str, int], kinds: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Names of hosts and switches at an end of an edge, and which is a host's card."""
    instance, component = str(end.get("instance", "")), str(end.get("component", ""))
    name = _NAME.fullmatch(instance)
    if name is None or name[1] not in counts:
        _fail(f"no instance is called {instance!r}", "Define it under 'instances'")
    device = kinds[name[1]]
    parts = {c["name"]: c for c in _list(device or {}, "components")}
    part = _NAME.fullmatch(component)
    if part is None or part[1] not in parts:
        _fail(f"{instance} has no component {component!r}", "Define it in its device")
    for i in _numbers(name, counts[name[1]]):
        for j in _numbers(part, int(parts[part[1]].get("count", 1))):
            if parts[part[1]].get("choice") == _NIC:
                yield f"{name[1]}[{i}].{part[1]}[{j}]", True
            else:
                yield f"{name[1]}[{i}]", False  # whichever port: a switch is one node


def _numbers(match: re.Match[str], count: int) -> range:
    """Of name, name[3], name[1:3]: those it means, of so many."""
    if match[2] is None or (match[2] == "" and match[3] is None):
        return range(count)
    first = int(match[2] or 0)
    last = first + 1 if match[3] is None else int(match[4] or count)
    if last > count:
        _fail(f"{match[0]} is beyond the {count} there are", "Correct it, or the count")
    return range(first, last)


def _pairs(
    edge: Mapping[str, Any], one: Sequence[tuple[str, bool]], other: Sequence[tuple[str, bool]]
) -> Iterator[tuple[tuple[str, bool], tuple[str, bool]]]:
    scheme = edge.get("scheme", "one2one")
    if scheme == "many2many":
        yield from ((a, b) for a in dict.fromkeys(one) for b in dict.fromkeys(other))
    elif scheme == "one2one":
        yield from zip(one, other)
    else:
        _fail(f"the edge {edge} has the scheme {scheme!r}", "Use one2one or many2many")


def _bandwidth(link: Mapping[str, Any]) -> float:
    bandwidth = (link.get("physical") or link).get("bandwidth", {})
    for unit, factor in _GBPS.items():
        if unit in bandwidth:
            return float(bandwidth[unit]) * factor
    return 0.0  # inside a device, as a rule; an edge of the fabric with it is refused


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = _yaml(text)
    if not isinstance(found, dict) or "instances" not in found:
        _fail("the document has no instances", "Export it by InfraGraph")
    return found


def _yaml(text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        _fail("the document is no JSON, and PyYAML is not installed",
              "Run 'pip install gradwire[network]', or write it as JSON")  # fmt: skip
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        _fail(f"the document is neither JSON nor YAML: {error}", "Correct it")


def _list(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key) or []
    if not isinstance(found, list):
        _fail(f"{key} is no list", "Write one")
    return found


def _in_order(name: str) -> list[str | int]:
    """Numbers in names by their value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _fail(found: str, instead: str) -> NoReturn:
    raise NetworkError(f"an InfraGraph names what it joins; {found}. {instead}.")

"""Paths as others read them, by the text of a format: `pins`, `htsim`, or another package's."""

from __future__ import annotations

from gradwire.errors import NetworkError
from gradwire.families import EXPORTS
from gradwire.network.built import called
from gradwire.network.exports.pins import write
from gradwire.network.importers.htsim import connections
from gradwire.network.routes import Routes
from gradwire.notation import Notation

NOTATION = Notation(
    "format", "a format with its parameters", "pins", NetworkError,
    elsewhere={"./contrib/formats": ("hccl", "nccl", "ports", "srv6")},
)  # fmt: skip


def pins(routes: Routes) -> str:
    """Write rules for gradwire.attach(…, planes=…): a rule for each pair of hosts."""
    return write(routes).to_json()


def htsim(routes: Routes) -> str:
    """A connection matrix, without paths: for other simulators."""
    return connections(routes.flows, routes.fabric.hosts)


BASE, MEMBERS = str, (pins, htsim)


def written(text: str, routes: Routes) -> str:
    """Write routes in a format. NetworkError if it is none, or cannot say these paths."""
    found: str = called(NOTATION, EXPORTS, text, routes)
    return found

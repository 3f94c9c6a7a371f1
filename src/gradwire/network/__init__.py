"""Which path bytes take between hosts: plans for switches, without torch."""

from gradwire.network.bounds import Bounds, bounds
from gradwire.network.builders import dual_plane, fat_tree, leaf_spine, rail_optimized
from gradwire.network.fabric import Fabric, Link
from gradwire.network.flows import Flow, Flows
from gradwire.network.routes import Piece, Routes
from gradwire.network.routing.route import route
from gradwire.network.samples import samples
from gradwire.network.simulate import simulate

__all__ = [
    "Bounds", "Fabric", "Flow", "Flows", "Link", "Piece", "Routes", "bounds", "dual_plane",
    "fat_tree", "leaf_spine", "rail_optimized", "route", "samples",
    "simulate",
]  # fmt: skip

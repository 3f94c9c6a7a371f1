"""The paths that bytes take between hosts: plans for switches, without torch."""

from gradwire.network.bounds import Bounds, bounds
from gradwire.network.builders import dual_plane, fat_tree, leaf_spine, rail_optimized
from gradwire.network.fabric import Fabric, Link
from gradwire.network.flows import Flow, Flows
from gradwire.network.jobs import routed
from gradwire.network.outages import Outages, outages
from gradwire.network.routes import Piece, Routes
from gradwire.network.routing.route import route
from gradwire.network.samples import samples
from gradwire.network.simulate import simulate, simulate_jobs

__all__ = [
    "Bounds", "Fabric", "Flow", "Flows", "Link", "Outages", "Piece", "Routes", "bounds",
    "dual_plane", "fat_tree", "leaf_spine", "outages", "rail_optimized", "route", "routed",
    "samples", "simulate", "simulate_jobs",
]  # fmt: skip

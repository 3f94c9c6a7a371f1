"""Builders of fabrics from a few numbers, one file each."""

from gradwire.network.builders.dual_plane import dual_plane
from gradwire.network.builders.fat_tree import fat_tree
from gradwire.network.builders.leaf_spine import leaf_spine
from gradwire.network.builders.rail_optimized import rail_optimized
from gradwire.network.fabric import Fabric

BASE = Fabric
MEMBERS = (leaf_spine, fat_tree, rail_optimized, dual_plane)

__all__ = ["BASE", "MEMBERS", "dual_plane", "fat_tree", "leaf_spine", "rail_optimized"]

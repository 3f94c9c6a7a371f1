"""Fabrics by a few numbers, one file each."""

from gradwire.network.builders.fat_tree import fat_tree
from gradwire.network.builders.leaf_spine import leaf_spine

__all__ = ["fat_tree", "leaf_spine"]

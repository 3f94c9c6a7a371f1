"""Published methods that compete with ours, each a small program after its paper."""

from rivals.demo import DeMo
from rivals.dion import Dion
from rivals.sparse_loco import SparseLoCo
from rivals.zero_one_adam import ZeroOneAdam

__all__ = ["DeMo", "Dion", "SparseLoCo", "ZeroOneAdam"]

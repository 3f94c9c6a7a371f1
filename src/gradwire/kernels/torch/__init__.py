"""The twins: every operation in torch, slow and obvious. The truth in tests, and what runs where
there is no other room.

Nothing is checked here: the faces have. What the operations are is said in `table.Room`.
"""

from gradwire.kernels.torch.casts import add_cast, cast, is_finite

__all__ = ["add_cast", "cast", "is_finite"]

"""The room of CPU tensors: addresses and sizes for the extension, which `native` has found.

Nothing is checked here: the faces have. What the operations are is said in `table.Room`.
"""

from gradwire.kernels.cpu.casts import add_cast, cast, is_finite

__all__ = ["add_cast", "cast", "is_finite"]

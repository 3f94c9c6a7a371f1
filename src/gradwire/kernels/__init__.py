"""Native kernels and their torch twins: one face for both.

Each function runs C++ on CPU tensors when the extension is there, and its torch twin otherwise;
the results are the same bits. Importing needs neither a compiler nor the extension.
"""

from gradwire.kernels.casts import cast, is_finite
from gradwire.kernels.journal import Journal
from gradwire.kernels.memory import zeros
from gradwire.kernels.native import check_index_range, instruction_set, use
from gradwire.kernels.selection import Selected, fallbacks, topk
from gradwire.kernels.sparse import accumulate, accumulate_dense
from gradwire.kernels.update import restore_topk, undo_topk, update_topk

__all__ = [
    "Journal",
    "Selected",
    "accumulate",
    "accumulate_dense",
    "cast",
    "check_index_range",
    "fallbacks",
    "instruction_set",
    "is_finite",
    "restore_topk",
    "topk",
    "undo_topk",
    "update_topk",
    "use",
    "zeros",
]

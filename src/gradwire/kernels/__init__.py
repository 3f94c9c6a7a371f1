"""Native kernels and their torch twins, behind one set of functions.

Each function checks its arguments, and leaves the work to the room that `rooms.room_of` names:
C++ for CPU tensors when the extension is installed, and its torch twin otherwise; the results are
the same bits. Importing needs neither a compiler nor the extension.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from gradwire.kernels import formats
from gradwire.kernels.casts import add_cast, cast, cast_many, is_finite
from gradwire.kernels.coded import accumulate_coded, add_coded, decoded_places
from gradwire.kernels.codes import (
    accumulate_codes,
    add_codes,
    encode_codes,
    encode_many_codes,
    update_codes,
)
from gradwire.kernels.coo import as_rows, fill_nan, is_rows, no_rows, rows_of, write_rows
from gradwire.kernels.crowds import decode_shaped, encode_shaped, shape_of
from gradwire.kernels.dealing import CHUNK, most_singles, owners_of
from gradwire.kernels.entries import write_entries
from gradwire.kernels.formats import pack_bits, unpack_bits
from gradwire.kernels.hash_memory import hash_partition
from gradwire.kernels.index_codes import INDEX_CODES, code_bytes, smallest
from gradwire.kernels.indices import decode_indices, encode_indices
from gradwire.kernels.journal import FACTOR as JOURNAL_FACTOR
from gradwire.kernels.journal import Journal
from gradwire.kernels.known import Known
from gradwire.kernels.memory import Scratch, scratch, zeros
from gradwire.kernels.native import instruction_set, use
from gradwire.kernels.noise import random_bits, strata
from gradwire.kernels.rows import (
    gather_stripes,
    nonzero_rows,
    scatter_stripes,
    single_ids,
    sum_rows,
)
from gradwire.kernels.segments import (
    AdamCodes,
    CastInto,
    EncodeCodes,
    Reach,
    SumCoded,
    SumCodes,
    SumDense,
    UndoTopk,
    UpdateCodes,
    UpdateTopk,
    WriteEntries,
)
from gradwire.kernels.selection import fallbacks, reach, reaching, topk
from gradwire.kernels.shapes import Shape, shaped_bytes
from gradwire.kernels.signs import largest
from gradwire.kernels.sparse import accumulate, accumulate_dense, add
from gradwire.kernels.status import (
    copy_unless,
    finite_part,
    flag_non_finite,
    goes_on,
    is_raised,
    judge,
    new_status,
    run_unless,
    spoil_if,
    stamp,
    subtract,
)
from gradwire.kernels.streams import (
    contained,
    flat_places,
    merge_streams,
    place_stream,
    split_stream,
    top_of_two,
)
from gradwire.kernels.sums import SumSegment, add_up
from gradwire.kernels.tensors import check_index_range, quotient
from gradwire.kernels.together import Work, beside, together
from gradwire.kernels.undo import restore_topk, undo_many_topk, undo_topk
from gradwire.kernels.update import advance, nothing_taken, update_topk
from gradwire.kernels.values import DAMAGED, NON_FINITE, Noise, Reaching

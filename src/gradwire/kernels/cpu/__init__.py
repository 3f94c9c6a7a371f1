"""The room of CPU tensors: it passes addresses and sizes to the extension, which `native` finds.

Nothing is checked here: the faces do that. The imports are the operations of `table.Room`.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from gradwire.kernels.cpu.adam import adam, adam_codes, undo_adam
from gradwire.kernels.cpu.casts import (
    add_cast,
    cast,
    cast_many,
    finite_part,
    flag_non_finite,
    is_finite,
)
from gradwire.kernels.cpu.choices import exhaust_options, lower_bound, search_options, undominated
from gradwire.kernels.cpu.codes import (
    accumulate_codes,
    add_codes,
    encode_codes,
    encode_many_codes,
    update_codes,
)
from gradwire.kernels.cpu.crowds import count_crowds, decode_shaped, encode_shaped
from gradwire.kernels.cpu.hash_memory import hash_partition
from gradwire.kernels.cpu.indices import (
    add_coded,
    decode_indices,
    encode_indices,
    write_entries,
)
from gradwire.kernels.cpu.noise import dice, strata
from gradwire.kernels.cpu.rows import (
    gather_stripes,
    nonzero_rows,
    scatter_stripes,
    single_ids,
    sum_rows,
)
from gradwire.kernels.cpu.schedule import ordered_step, record_step, simulate_step
from gradwire.kernels.cpu.selection import fallbacks, reach, topk
from gradwire.kernels.cpu.signs import largest
from gradwire.kernels.cpu.sparse import (
    accumulate,
    accumulate_coded,
    accumulate_dense,
    accumulate_many_dense,
    add,
    first_violation,
)
from gradwire.kernels.cpu.status import copy_unless, judge, spoil_if, stamp, subtract
from gradwire.kernels.cpu.streams import (
    contained,
    flat_places,
    merge_streams,
    place_stream,
    split_stream,
    top_of_two,
)
from gradwire.kernels.cpu.undo import undo_topk
from gradwire.kernels.cpu.update import update_topk

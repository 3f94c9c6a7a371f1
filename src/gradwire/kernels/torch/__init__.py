"""The twins: every operation in torch, slow and obvious. They are the truth in tests, and run
where there is no other room.

Nothing is checked here: the faces do that. The imports are the operations of `table.Room`.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from gradwire.kernels.torch.adam import adam, adam_codes, undo_adam
from gradwire.kernels.torch.casts import (
    add_cast,
    cast,
    cast_many,
    finite_part,
    flag_non_finite,
    is_finite,
)
from gradwire.kernels.torch.choices import (
    exhaust_options,
    lower_bound,
    search_options,
    undominated,
)
from gradwire.kernels.torch.codes import (
    accumulate_codes,
    add_codes,
    encode_codes,
    encode_many_codes,
    update_codes,
)
from gradwire.kernels.torch.crowds import count_crowds, decode_shaped, encode_shaped
from gradwire.kernels.torch.hash_memory import hash_partition
from gradwire.kernels.torch.indices import (
    accumulate_coded,
    add_coded,
    decode_indices,
    encode_indices,
    write_entries,
)
from gradwire.kernels.torch.noise import dice, strata
from gradwire.kernels.torch.queues import ordered_step
from gradwire.kernels.torch.rows import (
    gather_stripes,
    nonzero_rows,
    scatter_stripes,
    single_ids,
    sum_rows,
)
from gradwire.kernels.torch.schedule import record_step, simulate_step
from gradwire.kernels.torch.selection import fallbacks, reach, topk
from gradwire.kernels.torch.signs import largest
from gradwire.kernels.torch.sparse import (
    accumulate,
    accumulate_dense,
    accumulate_many_dense,
    add,
    first_violation,
)
from gradwire.kernels.torch.status import copy_unless, judge, spoil_if, stamp, subtract
from gradwire.kernels.torch.streams import (
    contained,
    flat_places,
    merge_streams,
    place_stream,
    split_stream,
    top_of_two,
)
from gradwire.kernels.torch.undo import undo_topk
from gradwire.kernels.torch.update import update_topk

"""The room of CUDA tensors: kernels in Triton, which is imported with it; twins for the rest.

device      bits, recurrences; `noise`       formats     codes of blocks; the formats without a
tables      rows of segments for a launch                scale per block: `signs`, `powers`,
launch      fast repeated launches                       `ternary`; `clips`: scales that are cut
selection   the k largest, and `update`:     codes       recurrences and Adam's step with codes;
            `small`; `candidates`, `radix`               `adam_steps`: the latter without codes
undo        inverts an update; `kept`: old   payloads    their columns; their sums: `sums` (codes),
            blocks for it                                `sparse`, `dense`; `held`: sums stopped
lists       reads codes of places;                       by a status; `trees`: the order of sums
            `entries`: writes them           reached     elements that reach a threshold

In Triton's interpreter (TRITON_INTERPRET=1) the same kernels run on the CPU, for tests only:
GRADWIRE_KERNELS=triton. Nothing is checked here: the faces do that. `table.Room` documents the
operations, docs/design/gpu.md says where the host still waits.
"""

from gradwire.kernels.cuda.adam_steps import adam, undo_adam
from gradwire.kernels.cuda.codes import (
    adam_codes,
    encode_codes,
    encode_many_codes,
    update_codes,
)
from gradwire.kernels.cuda.dense import (
    accumulate_dense,
    accumulate_many_dense,
    add_cast,
    cast,
    cast_many,
    flag_non_finite,
    judge,
    spoil_if,
    stamp,
    subtract,
)
from gradwire.kernels.cuda.entries import encode_indices, write_entries
from gradwire.kernels.cuda.lists import decode_indices
from gradwire.kernels.cuda.noise import dice
from gradwire.kernels.cuda.reached import reach
from gradwire.kernels.cuda.sparse import (
    accumulate,
    accumulate_coded,
    add,
    add_coded,
    first_violation,
)
from gradwire.kernels.cuda.sums import accumulate_codes, add_codes
from gradwire.kernels.cuda.undo import undo_topk
from gradwire.kernels.cuda.update import topk, update_topk
from gradwire.kernels.torch import (
    contained,
    copy_unless,
    count_crowds,
    decode_shaped,
    encode_shaped,
    exhaust_options,
    fallbacks,
    finite_part,
    flat_places,
    gather_stripes,
    hash_partition,
    is_finite,
    largest,
    lower_bound,
    merge_streams,
    nonzero_rows,
    ordered_step,
    place_stream,
    record_step,
    scatter_stripes,
    search_options,
    simulate_step,
    single_ids,
    split_stream,
    strata,
    sum_rows,
    top_of_two,
    undominated,
)

GOES_ON = True
"""Whether sums read a status word on the device, so that the host need not wait for them."""

__all__ = [
    "accumulate",
    "accumulate_coded",
    "accumulate_codes",
    "accumulate_dense",
    "accumulate_many_dense",
    "adam",
    "adam_codes",
    "add",
    "add_cast",
    "add_coded",
    "add_codes",
    "cast",
    "cast_many",
    "contained",
    "copy_unless",
    "count_crowds",
    "decode_indices",
    "decode_shaped",
    "dice",
    "encode_codes",
    "encode_indices",
    "encode_many_codes",
    "encode_shaped",
    "exhaust_options",
    "fallbacks",
    "finite_part",
    "first_violation",
    "flag_non_finite",
    "flat_places",
    "gather_stripes",
    "hash_partition",
    "is_finite",
    "judge",
    "largest",
    "lower_bound",
    "merge_streams",
    "nonzero_rows",
    "ordered_step",
    "place_stream",
    "reach",
    "record_step",
    "scatter_stripes",
    "search_options",
    "simulate_step",
    "single_ids",
    "split_stream",
    "spoil_if",
    "stamp",
    "strata",
    "subtract",
    "sum_rows",
    "top_of_two",
    "topk",
    "undo_adam",
    "undo_topk",
    "undominated",
    "update_codes",
    "update_topk",
    "write_entries",
]  # fmt: skip

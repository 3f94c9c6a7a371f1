"""Checks to remove one by one, which shows that the fuzzer finds what they prevent.

A key is a check, which then does nothing; its value is the targets that must notice.
"""

MUTANTS = {
    "gradwire.kernels.sparse.check_payload": "sparse.accumulate$",
    "gradwire.kernels.tensors.check_buffer": "codes.add_codes",
    "gradwire.kernels.tensors.check_memory": "signs.largest",
    "gradwire.kernels.selection.check_selection": "selection.topk",
    "gradwire.kernels.indices.check_encode": "indices.encode_indices",
    "gradwire.kernels.rows._check_stripes": "rows.scatter_stripes",
    "gradwire.kernels.streams._check_contained": "streams.contained",
    "gradwire.kernels.jobs.check_choice": "schedule.simulate_step",
    "gradwire.kernels.noise.check_noise": "noise.random_bits",
    "gradwire.kernels.streams.check_capacity": "streams.top_of_two",
}

"""What gradwire._native has for streams, rows and hash memory: addresses, nothing checked."""

from typing import Protocol

Given = tuple[int, int, int, int]
"""A stream: the addresses of places and values, how many, and the values' number in CODES."""


class StreamsCore(Protocol):
    """The functions that kernels/streams.py, merges.py, rows.py and hash_memory.py call."""

    def split(
        self, whole: Given, table: int, bits: int, owners: int, places: int, values: int, /
    ) -> list[int]: ...
    def merge(
        self,
        set: int,
        payloads: list[Given],
        n: int,
        divisor: float,
        type: int,
        places: int,
        values: int,
        /,
    ) -> int: ...
    def put_in_place(self, stream: Given, chunks: int, type: int, out: int, /) -> None: ...
    def top_of_two(
        self, set: int, a: Given, b: Given, k: int, places: int, type: int, values: int, /
    ) -> int: ...
    def contained(self, places: int, k: int, among: int, others: int, out: int, /) -> None: ...
    def nonzero_rows(self, x: int, rows: int, row_bytes: int, ids: int, /) -> int: ...
    def gather_stripes(
        self, x: int, ids: int, k: int, row_bytes: int, bounds_bytes: list[int], out: int, /
    ) -> None: ...
    def scatter_stripes(
        self, x: int, ids: int, k: int, row_bytes: int, bounds_bytes: list[int], stripes: int, /
    ) -> None: ...
    def sum_runs(
        self,
        set: int,
        type: int,
        rows: int,
        ends: int,
        runs: int,
        width: int,
        divisor: float,
        out_type: int,
        out: int,
        /,
    ) -> None: ...
    def hash_partition(
        self,
        index: int,
        k: int,
        owners: int,
        seeds: list[int],
        parallel: int,
        serial: int,
        threads: int,
        out: int,
        /,
    ) -> tuple[list[int], int, int]: ...

"""What gradwire._native has for streams, crowds, rows, hash memory: addresses, nothing checked."""

from typing import Protocol

Given = tuple[int, int, int, int]
"""A stream: the addresses of places and values, how many, and the values' number in CODES."""


Part = tuple[int, int, int, int]
"""A coded list: its code's number in INDEX_CODES, n, k, and how many bytes it takes."""


class StreamsCore(Protocol):
    """What streams.py, crowds.py, merges.py, rows.py and hash_memory.py in kernels/cpu call."""

    def split(
        self, set: int, whole: Given, owners: int, seed: int, places: int, values: int, /
    ) -> list[int]: ...
    def flat_places(
        self, set: int, places: int, k: int, owner: int, owners: int, seed: int, out: int, /
    ) -> None: ...
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
    def put_in_place(self, stream: Given, type: int, out: int, /) -> None: ...
    def top_of_two(
        self, set: int, a: Given, b: Given, k: int, places: int, type: int, values: int, /
    ) -> int: ...
    def contained(self, places: int, k: int, among: int, others: int, out: int, /) -> None: ...
    def count_crowds(self, places: int, k: int, /) -> tuple[int, int, int]: ...
    def encode_crowds(
        self, parts: tuple[Part, Part, Part], places: int, k: int, section: int, /
    ) -> bool: ...
    def decode_crowds(
        self, set: int, parts: tuple[Part, Part, Part], section: int, k: int, places: int, /
    ) -> int: ...
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

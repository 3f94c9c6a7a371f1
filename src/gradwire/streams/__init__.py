"""Sparse vectors, for collectives that send places (indices) and values."""

from gradwire.streams.domains import Chunks, HashedElements, Ranges, Rows, chunks_or_ranges
from gradwire.streams.stream import Domains, Form, Stream
from gradwire.streams.told import (
    from_rank,
    longest,
    sealed,
    sealed_bytes,
    told_size,
    unsealed,
    whole,
)

__all__ = [
    "Chunks", "Domains", "Form", "HashedElements", "Ranges", "Rows", "Stream", "chunks_or_ranges",
    "from_rank", "longest", "sealed", "sealed_bytes", "told_size", "unsealed", "whole",
]  # fmt: skip

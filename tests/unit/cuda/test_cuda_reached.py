"""What reaches a threshold on CUDA, in the interpreter: the twins' places and values."""

from __future__ import annotations

import pytest
import torch
from interpreted import FLOATS, every_float
from torch import Tensor

from gradwire.bench.rooms import alike, drawn
from gradwire.kernels import Reach, cuda, new_status
from gradwire.kernels.cuda import reached
from gradwire.kernels.torch.selection import reach as twin

SIZES = (0, 1, 4095, 4096, 4097, 0, 9000, 63)
LEASTS = (2.0**-149, 1e-41, 0.25, 1.0, 3e38)


def same(segments: list[Reach]) -> list[Tensor]:
    """Checks that places, values and status equal the twin's; returns each segment's places."""
    mine, wanted = new_status(), new_status()
    found, expected = cuda.reach(segments, mine), twin(segments, wanted)
    assert len(found) == len(expected) == len(segments)
    for own, theirs in zip(found, expected):
        assert alike(own.places, theirs.places)
        assert alike(own.values, theirs.values)
    assert torch.equal(mine, wanted)
    return [own.places for own in found]


@every_float
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "bad"])
def test_places_and_values_are_the_twins(dtype: torch.dtype, kind: str) -> None:
    """Both find the same, with ties at the threshold, denormals, both zeros, inf and NaN."""
    made = [
        Reach(drawn(n, i, kind, dtype), LEASTS[(i + shift) % len(LEASTS)])
        for shift in range(len(LEASTS))
        for i, n in enumerate(SIZES)
    ]
    assert any(len(places) for places in same(made))


def test_segments_of_several_dtypes_keep_their_order() -> None:
    made = [Reach(drawn(900 + i, i, "ties", FLOATS[i % 3]), 0.5) for i in range(7)]
    assert all(len(places) for places in same(made))


@pytest.mark.parametrize("n", [70_000, 20_000])
def test_counts_of_many_blocks_are_added_up(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are added up over several chunks, both of programs and of segments."""
    monkeypatch.setattr(reached, "CHUNK", 4)
    every = [drawn(n, 1), *(drawn(50, i) for i in range(6)), drawn(n, 2, "ties")]
    same([Reach(x, 0.5) for x in every])


def test_nothing_and_everything() -> None:
    x = torch.full((5000,), -1.0)
    none, every = same([Reach(x, 1.5), Reach(x, 1.0)])
    assert none.numel() == 0
    assert every.numel() == 5000


def test_elements_that_are_no_neighbours_in_memory() -> None:
    same([Reach(drawn(9000, 1)[::2], 0.5)])


def test_no_segment_is_nothing() -> None:
    assert cuda.reach([], new_status()) == []

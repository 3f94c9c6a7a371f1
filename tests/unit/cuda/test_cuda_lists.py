"""Codes of lists on CUDA, in the interpreter: the twins' results, and the same refusals."""

from __future__ import annotations

import random

import pytest
import torch
from interpreted import every_float, same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import drawn, places
from gradwire.kernels import INDEX_CODES, SumCoded, WriteEntries, code_bytes, cuda, encode_indices

SIZES = [(9000, 700), (9000, 1), (9000, 9000), (40, 7), (100_000, 30), (5, 0), (1, 1)]
every_code = pytest.mark.parametrize("code", INDEX_CODES)


def coded(n: int, k: int, code: str, seed: int) -> Tensor:
    """A coded list that begins at a multiple of 16 bytes, as in a message."""
    section = torch.zeros(code_bytes(code, n, k), dtype=torch.uint8)
    encode_indices(places(n, k, seed), n, code, section)
    return section


@every_code
def test_lists_are_read_as_the_twins_do(code: str) -> None:
    for n, k in SIZES:

        def given(status: Tensor, n: int = n, k: int = k) -> tuple[list[object], list[Tensor]]:
            out = torch.full((k,), -7, dtype=torch.int32)
            return [coded(n, k, code, n), n, code, out], [out]

        assert same_by_both([cuda.decode_indices, twins.decode_indices], given) == [k, k]


@every_code
def test_lists_are_written_as_the_twins_do(code: str) -> None:
    for n, k in SIZES:
        for own in (places(n, k, n), torch.arange(n - k, n).int(), torch.arange(k).int()):

            def given(
                status: Tensor, n: int = n, k: int = k, own: Tensor = own
            ) -> tuple[list[object], list[Tensor]]:
                section = torch.full((code_bytes(code, n, k),), 0xAA, dtype=torch.uint8)
                return [own, n, code, section], [section]

            same_by_both([cuda.encode_indices, twins.encode_indices], given)


@every_code
def test_damage_is_found_where_the_twins_find_it(code: str) -> None:
    """Flipped bits and arbitrary bytes are found where the twins find them: the first wrong entry,
    missing entries, and bytes left over."""
    told = set()
    for n, k in ((9000, 700), (40, 7)):
        for seed in range(25):
            luck = random.Random(f"{code} {n} {seed}")
            section = coded(n, k, code, seed)
            for _ in range(luck.choice((1, 1, 3))):
                section[luck.randrange(len(section))] ^= 1 << luck.randrange(8)
            if seed % 8 == 0:
                section.fill_(luck.choice((0, 0xFF, 1)))
            found = [
                room.decode_indices(section.clone(), n, code, torch.zeros(k, dtype=torch.int32))
                for room in (cuda, twins)
            ]
            assert found[0] == found[1], (n, k, seed)
            told.add("well" if found[0] == k else "more" if found[0] > k else "wrong")
    assert "wrong" in told


@pytest.mark.parametrize("n", [1 << 30, (1 << 31) - 1])
def test_places_far_beyond_the_last_one_are_refused(n: int) -> None:
    """Shifted in 32 bits, they would come out as small ones."""
    for bit in range(8):
        section = torch.zeros(code_bytes("elias_fano", n, 1), dtype=torch.uint8)
        section[-1] = 1 << bit
        out = [torch.zeros(1, dtype=torch.int32) for _ in "ab"]
        told = [
            room.decode_indices(section, n, "elias_fano", own)
            for room, own in zip((cuda, twins), out)
        ]
        assert told[0] == told[1], bit
        assert told[0] == 0 or torch.equal(*out)
    assert told[0] == 0


@every_code
@every_float
def test_what_was_written_here_is_added_as_the_twins_do(code: str, dtype: torch.dtype) -> None:
    for n, k in SIZES:

        def given(status: Tensor, n: int = n, k: int = k) -> tuple[list[object], list[Tensor]]:
            v, section = drawn(n, 1), coded(n, k, code, n)
            given = section.view(torch.int32) if code == "int32" and n < 100 else section
            return [v, given, code, drawn(k, 2, "ties", dtype), -1.0], [v]

        assert same_by_both([cuda.add_coded, twins.add_coded], given) == [True, True]


@every_code
def test_places_that_are_none_are_added_nowhere(code: str) -> None:
    """Invalid places are not checked here, but nothing is written outside v."""
    room, k = torch.full((400,), 7.0), 30
    section = coded(9000, k, "int32", 1) if code == "int32" else coded(100, k, code, 1).fill_(0xFF)
    assert cuda.add_coded(room[100:200], section, code, torch.ones(k), 1.0)
    assert bool((room[:100] == 7.0).all())
    assert bool((room[200:] == 7.0).all())
    assert not twins.add_coded(room[100:200], section, code, torch.ones(k), 1.0)


@every_float
def test_sums_of_many_are_the_twins(dtype: torch.dtype) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = []
        for i, (n, k) in enumerate(SIZES):
            codes = [INDEX_CODES[(i + r) % len(INDEX_CODES)] for r in range(3)]
            sections = [coded(n, k, code, r) for r, code in enumerate(codes)]
            if i % 2 and codes[0] == "int32":
                sections[0] = sections[0].view(torch.int32)
            values = [drawn(k, r) * 10.0**r for r in range(3)]
            made.append(SumCoded(torch.full((n,), 7.0).to(dtype), codes, sections, values, 3.0))
        return [made], [one.out for one in made]

    found = same_by_both([cuda.accumulate_coded, twins.accumulate_coded], given)
    assert found == [len(SIZES)] * 2


@every_code
def test_a_bad_list_leaves_its_sum_alone(code: str) -> None:
    n, k = 9000, 700
    good, values = coded(n, k, code, 1), drawn(k, 1)
    bad = torch.full_like(good, 0xFF)
    outs = [torch.full((n,), 7.0) for _ in range(3)]
    lists = [[good, good], [good, bad], [good, good]]
    made = [SumCoded(x, [code] * 2, s, [values] * 2, 2.0) for x, s in zip(outs, lists)]
    assert cuda.accumulate_coded(made) == 1
    assert bool((outs[1] == 7.0).all())
    assert int(outs[0].count_nonzero()) == int(values.count_nonzero())


def test_lists_of_all_codes_are_written_together() -> None:
    """Lists of all codes, at any address and also empty ones, are written in one call."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = []
        for i, (n, k) in enumerate(((3000, 60), (500, 0), (70, 3), (9000, 40), (300, 1)) * 2):
            code = ("gap16", "gap8", "bitmap", "gap8", "gap16", "elias_fano", "gap16")[i % 7]
            size, begin = code_bytes(code, n, k), 2 * (i % 2)
            section = torch.full((size + begin,), 0xAA, dtype=torch.uint8)[begin:]
            out = torch.full((k,), 7.0)
            made.append(WriteEntries(places(n, k, i), drawn(k, i), n, code, section, out))
        return [made], [x for one in made for x in (one.section, one.out)]

    same_by_both([cuda.write_entries, twins.write_entries], given)

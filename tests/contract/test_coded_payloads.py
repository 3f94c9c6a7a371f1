"""Damage to coded places and 16-bit values: an error that names the sender, or another number."""

from __future__ import annotations

from collections.abc import Callable

import laws
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inputs import ranks
from test_payload_checks import BAD, WORLD, Corrupting, N, exchange, refused, take
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.compressors import TopK
from gradwire.errors import PayloadError

CODES = ("gap16", "gap8", "elias_fano", "bitmap")
CODED = tuple(TopK(0.25, index=code) for code in CODES)
SHORT = (TopK(0.25, values="bf16"), TopK(0.25, values="fp16", index="elias_fano"))
every_code = pytest.mark.parametrize("compressor", CODED, ids=str)
every = pytest.mark.parametrize("compressor", [*CODED, *SHORT], ids=str)
NAMED = r"'w' \(payload numbers are ranks\): payload 1: the {code} code must hold 5 indices"


def with_feedback(compressor: TopK) -> Strategy:
    return Strategy.parse(f"{compressor}+ef | allgather")


def places(compressor: TopK) -> slice:
    """The slice of a one-parameter message that holds the places."""
    ((_, size), _) = compressor.claims(N).sections
    return slice(32, 32 + size)


def body_bytes(compressor: TopK) -> int:
    """The number of bytes after the header, with the padding before the values."""
    (_, size), (dtype, k) = compressor.claims(N).sections
    item = getattr(torch, dtype).itemsize
    return size + -size % item + k * item


def filled(value: int) -> Callable[[Tensor], None]:
    def change(section: Tensor) -> None:
        section.fill_(value)

    return change


def bit(place: int) -> Callable[[Tensor], None]:
    """Returns a change that flips a bit, counted from the section's start or, if < 0, its end."""

    def change(section: Tensor) -> None:
        section[place // 8] ^= 1 << place % 8

    return change


def word(place: int, value: int, width: int = 1) -> Callable[[Tensor], None]:
    def change(section: Tensor) -> None:
        section.view(torch.uint8 if width == 1 else torch.int16)[place] = value

    return change


# n = 20, k = 5: two low bits each and 5 + 4 high bits in elias_fano, 20 bits in the bitmap.
DAMAGE: dict[str, tuple[str, Callable[[Tensor], None]]] = {
    "gap16: out of range": ("gap16", word(4, 100, 2)),
    "gap16: a first gap too wide": ("gap16", word(0, 20, 2)),
    "gap16: the widest gaps": ("gap16", filled(0xFE)),
    "gap16: nothing but escapes": ("gap16", filled(0xFF)),
    "gap16: one escape": ("gap16", word(2, -1, 2)),
    "gap8: out of range": ("gap8", word(4, 100)),
    "gap8: a first gap too wide": ("gap8", word(0, 20)),
    "gap8: the widest gaps": ("gap8", filled(0xFE)),
    "gap8: nothing but escapes": ("gap8", filled(0xFF)),
    "gap8: one escape": ("gap8", word(2, 255)),
    "elias_fano: no ones": ("elias_fano", filled(0)),
    "elias_fano: ones only": ("elias_fano", filled(0xFF)),
    "elias_fano: after the low bits": ("elias_fano", bit(8 * 2 - 1)),
    "elias_fano: after the high bits": ("elias_fano", bit(-1)),
    "bitmap: no ones": ("bitmap", filled(0)),
    "bitmap: ones only": ("bitmap", filled(0xFF)),
    "bitmap: beyond the last element": ("bitmap", bit(20)),
    "bitmap: far beyond": ("bitmap", bit(-1)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_an_error_on_every_rank_that_names_the_sender(name: str) -> None:
    code, change = DAMAGE[name]
    compressor = TopK(0.25, index=code)

    def damage(messages: Tensor) -> Tensor:
        change(messages[BAD, places(compressor)])
        return messages

    refused(with_feedback(compressor), damage, NAMED.format(code=code))


@pytest.mark.parametrize("place", range(20))
def test_one_place_more_or_less_in_a_bitmap_is_an_error(place: int) -> None:
    compressor = TopK(0.25, index="bitmap")

    def damage(messages: Tensor) -> Tensor:
        bit(place)(messages[BAD, places(compressor)])
        return messages

    refused(with_feedback(compressor), damage, NAMED.format(code="bitmap"))


@every
@pytest.mark.parametrize("cut", [1, 8, 32])
def test_a_message_cut_short_is_an_error(compressor: TopK, cut: int) -> None:
    def damage(messages: Tensor) -> Tensor:
        return messages[:, :-cut].contiguous()

    refused(with_feedback(compressor), damage, r"each of 3 ranks sends \d+ bytes")


@every
@pytest.mark.parametrize("section", [0, 1])
@pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: s[:0], lambda s: s.repeat(2)])
def test_a_section_of_another_length_names_its_payload(
    compressor: TopK, section: int, change: Callable[[Tensor], Tensor]
) -> None:
    payloads = [laws.encoded(compressor, x) for x in ranks(WORLD, N)]
    payloads[BAD][section] = change(payloads[BAD][section])
    result = torch.full((N,), 7.0)
    with pytest.raises(PayloadError, match="payload 1"):
        compressor.accumulate(payloads, result, WORLD)
    assert bool((result == 7.0).all())


@every_code
def test_lockstep_tells_of_damage_on_the_way(compressor: TopK) -> None:
    strategy = Strategy(compressor, Corrupting(places(compressor).stop - 1, 0xFF))
    with pytest.raises(PayloadError, match="payload 1"):
        lockstep(strategy, ranks(WORLD, N), step=3)


def arrives(compressor: TopK, change: Callable[[Tensor], None]) -> tuple[str, Tensor]:
    """Returns the error, or "", and the result of a message that was changed on its way.

    Nothing is ever written outside the result, which lies between two canaries.
    """
    contexts, _, messages = exchange(with_feedback(compressor))
    change(messages[BAD])
    room, said = torch.full((3 * N,), 7.0), ""
    contexts[0].codec.results = [room[N : 2 * N]]
    try:
        take(contexts[0], messages)
    except PayloadError as error:
        said = str(error)
        assert bool(room[N : 2 * N].isnan().all()), "it could be taken for an average"
    assert bool((room[:N] == 7.0).all())
    assert bool((room[2 * N :] == 7.0).all())
    return said, room[N : 2 * N]


@every
@given(data=st.data())
def test_a_flipped_bit_is_an_error_or_only_another_number(
    compressor: TopK, data: st.DataObject
) -> None:
    size = body_bytes(compressor)
    place, turned = data.draw(st.integers(32, 32 + size - 1)), data.draw(st.integers(0, 7))

    def flip(message: Tensor) -> None:
        message[place] ^= 1 << turned

    said, result = arrives(compressor, flip)
    _, wanted = arrives(compressor, lambda message: None)
    assert "payload 1" in said or not said
    if not said:  # the values of one rank moved to other places, or one of them changed
        k = compressor.k(N)
        assert int((result != wanted).sum()) <= 2 * k
    if place >= places(compressor).stop:
        assert not said, "values are numbers, whatever they say"


@every
@given(data=st.data())
def test_any_bytes_in_a_body_are_an_error_or_a_sum(compressor: TopK, data: st.DataObject) -> None:
    size = body_bytes(compressor)
    body = data.draw(st.binary(min_size=size, max_size=size))

    def garbage(message: Tensor) -> None:
        message[32 : 32 + size] = torch.tensor(list(body), dtype=torch.uint8)

    said, _ = arrives(compressor, garbage)
    assert "payload 1" in said or not said


@every_code
@given(data=st.data())
def test_another_list_s_code_is_only_another_sum(compressor: TopK, data: st.DataObject) -> None:
    """Valid places are summed where they point, even if they are those of another list."""
    other = torch.zeros(N)
    chosen = data.draw(st.sets(st.integers(0, N - 1), min_size=5, max_size=5))
    other[sorted(chosen)] = 1.0
    section = laws.encoded(compressor, other)[0]

    def replace(message: Tensor) -> None:
        message[places(compressor)] = section

    said, result = arrives(compressor, replace)
    assert not said
    listed = laws.entries(compressor, [section, torch.zeros(5)], N)[0]
    assert listed.tolist() == sorted(chosen)
    assert bool(result.isfinite().all())

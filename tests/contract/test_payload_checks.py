"""A received payload is checked before use: bad data is a clear error on every rank."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inputs import normal, ranks
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.compressors import TopK
from gradwire.errors import PayloadError
from gradwire.moves import AllGather, Move
from gradwire.runtime.context import BucketContext
from gradwire.strategy import Collective, Context, StepInfo

N, WORLD, BAD = 20, 3, 1
K = TopK(0.25).k(N)
LISTED = TopK(0.25, index="int32")
EF = Strategy.parse(f"{LISTED}+ef | allgather")
INDICES = slice(32, 32 + 4 * K)
"""The slice of a message that holds the indices; the values come after them."""


def index(message: Tensor, place: int, value: int) -> None:
    message[INDICES].view(torch.int32)[place] = value


def swap(message: Tensor) -> None:
    indices = message[INDICES].view(torch.int32)
    indices[:2] = indices[:2].flip(0).clone()


def repeat(message: Tensor) -> None:
    indices = message[INDICES].view(torch.int32)
    indices[1] = indices[0]


def header(word: int, value: int) -> Callable[[Tensor], None]:
    def change(message: Tensor) -> None:
        message[:32].view(torch.int64)[word] = value

    return change


DAMAGE: dict[str, tuple[Callable[[Tensor], None], str]] = {
    "index too large": (lambda m: index(m, K - 1, N), "payload 1: .* within 0 ... 19"),
    "index far too large": (lambda m: index(m, K - 1, 2**31 - 1), "payload 1: .* 2147483647"),
    "index negative": (lambda m: index(m, 0, -1), "payload 1: .* is -1"),
    "index very negative": (lambda m: index(m, 0, -(2**31)), "payload 1: .* is -2147483648"),
    "indices unsorted": (swap, "payload 1: indices must ascend strictly"),
    "index twice": (repeat, "payload 1: indices must ascend strictly"),
    "magic": (header(0, 0x1234), "rank 1's begins with 0x1234"),
    "flags": (header(1, 4), "rank 1's begins with"),
    "digest": (header(2, 77), r"rank 1 sent a message of another bucket \(digest 0x4d"),
    "step": (header(3, 8), "rank 1 is at step 8, this one at 4"),
}


def local(strategy: Strategy, rank: int, world: int, state: dict[str, Tensor]) -> BucketContext:
    """One rank's context, with one fp32 parameter "w" of N elements."""
    return BucketContext(strategy, Bucket((Parameter("w", (N,)),)), rank, world, {"w": state})


def exchange(
    strategy: Strategy = EF,
) -> tuple[list[BucketContext], list[dict[str, Tensor]], Tensor]:
    """Takes all ranks up to the network. Returns contexts, their state, and what all receive."""
    memories: list[dict[str, Tensor]] = [{} for _ in range(WORLD)]
    contexts = []
    for rank, x in enumerate(ranks(WORLD, N)):
        contexts.append(local(strategy, rank, WORLD, memories[rank]))
        contexts[-1].begin([x], [torch.full((N,), 7.0)], StepInfo(4))
    return contexts, memories, torch.stack([context.message() for context in contexts])


def take(context: BucketContext, messages: Tensor) -> None:
    """Accumulates what arrived, and ends the step, when it is known whether it could be used."""
    context.accumulate(messages)
    context.end(skipped=False)


def refused(strategy: Strategy, damage: Callable[[Tensor], Tensor], match: str) -> None:
    """Checks that every rank reports the damage, and no result can be taken for an average."""
    contexts, _, messages = exchange(strategy)
    damaged = damage(messages)
    for context in contexts:
        (result,) = context.results
        with pytest.raises(PayloadError, match=match):
            take(context, damaged)
        untouched = torch.equal(result, torch.full((N,), 7.0))
        assert untouched or bool(result.isnan().all())


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_an_error_on_every_rank_that_names_the_sender(name: str) -> None:
    change, said = DAMAGE[name]

    def damage(messages: Tensor) -> Tensor:
        change(messages[BAD])
        return messages

    refused(EF, damage, said)


@pytest.mark.parametrize(
    "cut",
    [
        lambda m: m[:, :-8],
        lambda m: m[:, :-1],
        lambda m: m[:, :32],
        lambda m: m[:, :20],
        lambda m: m[:, :0],
        lambda m: m[:2],
        lambda m: torch.cat([m, m]),
        lambda m: torch.cat([m, m], dim=1),
    ],
)
@pytest.mark.parametrize("text", ["topk(0.25)+ef | allgather", "none | allgather"])
def test_too_little_or_too_much_is_an_error(text: str, cut: Callable[[Tensor], Tensor]) -> None:
    refused(
        Strategy.parse(text), lambda m: cut(m).contiguous(), r"each of 3 ranks sends \d+ bytes"
    )


def test_the_parameter_is_named() -> None:
    contexts, _, messages = exchange()
    index(messages[BAD], 0, -5)
    with pytest.raises(PayloadError, match=r"'w' \(payload numbers are ranks\): payload 1"):
        take(contexts[0], messages)


@dataclass(frozen=True)
class Corrupting(Collective):
    """allgather over a network that flips bytes of one rank's message."""

    place: int
    value: int
    name: ClassVar[str] = "corrupting"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        messages = yield AllGather(ctx.message())
        messages[BAD, self.place] = self.value
        ctx.accumulate(messages)


@pytest.mark.parametrize(("place", "value"), [(0, 0), (16, 0), (24, 99), (35, 0x7F), (35, 0xFF)])
def test_lockstep_tells_of_damage_on_the_way(place: int, value: int) -> None:
    with pytest.raises(PayloadError, match=r"rank 1|payload 1"):
        lockstep(Strategy(LISTED, Corrupting(place, value)), ranks(WORLD, N), step=3)


@given(st.integers(0, 32 + 8 * K - 1), st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_only_another_number(place: int, bit: int) -> None:
    """Nothing is ever written outside the result, which lies between two canaries."""
    contexts, _, messages = exchange()
    messages[BAD, place] ^= 1 << bit
    room = torch.full((3 * N,), 7.0)
    contexts[0].codec.results = [room[N : 2 * N]]
    try:
        take(contexts[0], messages)
    except PayloadError:
        assert bool(room[N : 2 * N].isnan().all())
    assert bool((room[:N] == 7.0).all())
    assert bool((room[2 * N :] == 7.0).all())


@given(st.binary(min_size=8 * K, max_size=8 * K))
def test_any_bytes_in_a_body_are_an_error_or_a_sum(body: bytes) -> None:
    contexts, _, messages = exchange()
    messages[BAD, 32 : 32 + 8 * K] = torch.tensor(list(body), dtype=torch.uint8)
    indices = messages[BAD, INDICES].view(torch.int32).tolist()
    valid = indices == sorted(set(indices)) and indices[0] >= 0 and indices[-1] < N
    contexts[0].accumulate(messages)
    try:
        finite = contexts[0].finite
    except PayloadError:
        assert not valid
    else:
        assert valid or not finite


def test_a_message_of_another_strategy_is_refused() -> None:
    """A message of the same size and another meaning is known by its digest."""
    x, contexts = normal(N), []
    for rank, text in enumerate(["topk(0.25)+ef | allgather", "topk(0.25)+dgc | allgather"]):
        contexts.append(local(Strategy.parse(text), rank, 2, {}))
        contexts[-1].begin([x], [torch.empty(N)], StepInfo())
    messages = torch.stack([context.message() for context in contexts])
    for mine, other in ((0, 1), (1, 0)):
        with pytest.raises(PayloadError, match=f"rank {other} sent a message of another bucket"):
            take(contexts[mine], messages)

"""Damage to whatever arrives, at every move of every collective on streams, one rank at a time.

A job ends with PayloadError, or other numbers: never with another error, a write out of bounds,
ranks that wait for each other, or more entries than were sent.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import Strategy, kernels
from gradwire.buckets import Bucket, Parameter
from gradwire.collectives import GTopK
from gradwire.errors import PayloadError
from gradwire.moves import AllGather, Move
from gradwire.runtime.context import BucketContext
from gradwire.runtime.lockstep import _agreed, _next, _perform
from gradwire.strategy import Rounds, StepInfo
from suites import first

MISSES_ITS_OWN = "threshold(1.5)+ef | union"
"""A strategy whose owners take a list of places that became another list for whole; only the rank
whose places they were finds that its values have nowhere to go."""
COLUMNS = "nonzero | columns"
BY_OWNERS = (
    "topk(0.3)+ef | zen",
    "topk(0.3)+ef | zen(variant='paper')",
    "topk(0.3, values='bf16') | sparse_ps",
    "nonzero | sparcml_split",
    "topk(0.3)+ef | dsar",
    MISSES_ITS_OWN,
    "nonzero | omnireduce",
    "nonzero(index='int32') | zen",
)
"""Strategies by owners: a rank that receives damage among the entries tells all others, once,
before anything else is sent."""
CHOOSES_ALLGATHER = "topk(0.3)+ef | sparse_auto"
"""A strategy that takes allgather for so little: there a damaged value is another number."""
OTHERS = (
    COLUMNS,
    "topk(0.3)+ef | gtopk",
    'topk(0.3)+ef | gtopk(variant="butterfly")',
    "topk(0.3, values='bf16')+dgc(0.5) | gtopk(variant='tree')",
    "topk(0.3)+ef | sparcml",
    "nonzero | sparcml",
    "topk(0.3)+ef | oktopk",
    CHOOSES_ALLGATHER,
)
FULL = "nonzero | sparcml"
"""A strategy that is tried with most elements on every rank, so that sums become dense."""
TEXTS = BY_OWNERS + OTHERS
SHAPES = {"a": (40,), "b": (7, 3), "c": (1,)}
LARGE = {"a": (5 * 1024 + 5,), "b": (7, 3)}  # enough for chunks, the last one cut
ROOM = 64
"""The number of elements before, between and behind the results, which nothing may change."""

Change = Callable[[Tensor, random.Random], Tensor]


def bit(x: Tensor, dice: random.Random) -> Tensor:
    x.view(-1)[dice.randrange(x.numel())] ^= 1 << dice.randrange(8)
    return x


def some_bytes(x: Tensor, dice: random.Random) -> Tensor:
    for place in dice.sample(range(x.numel()), min(x.numel(), dice.choice((2, 8, 64)))):
        x.view(-1)[place] ^= dice.choice((1, 128, 255, dice.randrange(1, 256)))
    return x


def all_bytes(x: Tensor, dice: random.Random) -> Tensor:
    return x.copy_(torch.tensor([dice.randrange(256) for _ in range(x.numel())]).view_as(x))


def shorter(x: Tensor, dice: random.Random) -> Tensor:
    return x[..., : max(0, x.shape[-1] - dice.choice((1, 4, 8, 24, 40, 10**6)))].contiguous()


def longer(x: Tensor, dice: random.Random) -> Tensor:
    more = torch.zeros(*x.shape[:-1], dice.choice((1, 4, 8, 32)), dtype=x.dtype)
    return torch.cat([x, more], dim=-1)


CHANGES: tuple[Change, ...] = (bit, some_bytes, all_bytes, shorter, longer)


def whole(world: int, shapes: dict[str, tuple[int, ...]], share: float) -> list[list[Tensor]]:
    """Flat gradients by rank, then by parameter, of which that share is not zero."""
    made = []
    for rank in range(world):
        dice = torch.Generator().manual_seed(rank)
        sizes = [Parameter("", shape).elements for shape in shapes.values()]
        made.append([
            torch.randint(1, 9, (n,), generator=dice).float()
            * (torch.rand(n, generator=dice) < share)
            for n in sizes
        ])  # fmt: skip
    return made


class Job:
    """One step of N ranks. damage: (move, rank, change, its dice)."""

    def __init__(self, text: str, world: int, shapes: dict[str, tuple[int, ...]]) -> None:
        self.world, self.moves = world, list[Move]()
        bucket = Bucket(tuple(Parameter(name, shape) for name, shape in shapes.items()))
        strategy = Strategy.parse(text)
        self.memories: list[dict[str, Any]] = [{} for _ in range(world)]
        self.contexts = [
            BucketContext(strategy, bucket, rank, world, self.memories[rank])
            for rank in range(world)
        ]
        self.given = whole(world, shapes, 0.9 if text == FULL else 0.3)
        self.rooms, self.results = list[Tensor](), list[list[Tensor]]()
        for context, mine in zip(self.contexts, self.given):
            room, at = torch.full((ROOM * 4 + bucket.elements,), 7.0), ROOM
            self.rooms.append(room)
            self.results.append([])
            for x in mine:
                self.results[-1].append(room[at : at + x.numel()])
                at += x.numel() + ROOM
            context.begin([x.clone() for x in mine], self.results[-1], StepInfo(3))

    def run(self, damage: tuple[int, int, Change, random.Random] | None = None) -> list[bool]:
        """Returns which ranks raised PayloadError. Stops where one did, as that rank would."""
        rounds: list[Rounds[None]] = [c.strategy.collective.rounds(c) for c in self.contexts]
        if damage is not None:
            rounds[damage[1]] = damaged(rounds[damage[1]], damage)
        arrived: list[Any] = [None] * self.world
        while True:
            moves, failed = list[Move | None](), [False] * self.world
            for rank, mine in enumerate(rounds):
                try:
                    moves.append(_next(mine, arrived[rank]))
                    assert moves[-1] or self.contexts[rank].finite, "all gradients are finite"
                except PayloadError:
                    failed[rank] = True
            if any(failed) or all(move is None for move in moves):
                return failed
            agreed = _agreed(moves)
            self.moves.append(agreed[0])
            arrived = _perform(agreed)

    def announced(self) -> int:
        """The bytes of what one rank tells all others first."""
        self.run()
        first = self.moves[0]
        assert isinstance(first, AllGather)
        return first.bytes

    def check_rooms(self) -> None:
        for room, results in zip(self.rooms, self.results):
            room = room.clone()
            at = ROOM
            for x in results:
                room[at : at + x.numel()] = 7.0
                at += x.numel() + ROOM
            assert bool((room == 7.0).all()), "written out of bounds"

    def check_counts(self) -> None:
        """Checks that no more entries arrived than were sent; with gtopk, of each parameter as
        many as it selects, or three places for each of these."""
        strategy = self.contexts[0].strategy
        for results in self.results:
            nonzero = [int(x.count_nonzero()) for x in results]
            if strategy.collective.name == "gtopk":
                ks = [strategy.compressor.k(x.numel()) for x in results]  # type: ignore[attr-defined]
                if strategy.collective == GTopK():
                    ks = [3 * k + len(self.contexts) for k in ks]
                assert all(found <= k for found, k in zip(nonzero, ks)), f"{nonzero} of {ks}"
            elif strategy.collective.name not in ("columns", "omnireduce", "sparcml", "dsar"):
                sent = sum(int(x.count_nonzero()) for mine in self.given for x in mine)
                assert sum(nonzero) <= sent

    def check_states(self) -> None:
        """Skips the step, and checks that all is kept as if nothing had been sent."""
        for context, memory, mine in zip(self.contexts, self.memories, self.given):
            try:
                context.end(skipped=True)
            except PayloadError:  # a message of gradients, not of streams: it is the last step
                continue
            if context.strategy.feedback is not None:
                for (name, state), x in zip(memory.items(), mine):
                    assert torch.equal(state["residual"], x), name


class NothingArrives(Exception):
    """The move brings nothing to that rank that could be damaged."""


def damaged(rounds: Rounds[None], damage: tuple[int, int, Change, random.Random]) -> Rounds[None]:
    at, _, change, dice = damage
    number, move = 0, next(rounds)
    while True:
        arrived = yield move
        if number == at:
            arrived = changed(arrived, change, dice)
        number += 1
        try:
            move = rounds.send(arrived)
        except StopIteration:
            return


def changed(arrived: Any, change: Change, dice: random.Random) -> Any:
    """Changes one of the messages."""
    if isinstance(arrived, dict):
        full = [r for r in arrived if arrived[r].numel()]
        if not full:
            raise NothingArrives
        by = dice.choice(full)
        return {r: change(x.clone(), dice) if r == by else x for r, x in arrived.items()}
    if arrived.dtype == torch.uint8:
        return change(arrived.clone(), dice)
    if change in (shorter, longer):
        return change(arrived, dice)
    return change(arrived.clone().view(torch.uint8), dice).view(arrived.dtype)


def all_damage(
    text: str, world: int, shapes: dict[str, tuple[int, ...]], seeds: int
) -> Iterator[tuple[Job, int, list[bool]]]:
    """Yields the job, the move and which ranks noticed, for every move, rank and change."""
    sound = Job(text, world, shapes)
    assert not any(sound.run())
    for at, rank, change in itertools.product(range(len(sound.moves)), range(world), CHANGES):
        for seed in range(seeds):
            job = Job(text, world, shapes)
            dice = random.Random(f"{at} {rank} {change.__name__} {seed}")
            with contextlib.suppress(NothingArrives):
                yield job, at, job.run((at, rank, change, dice))


@pytest.mark.once
@pytest.mark.parametrize(
    ("world", "shapes", "seeds"),
    [
        pytest.param(2, SHAPES, 1, id="2"),
        pytest.param(3, LARGE, 1, id="3 large"),
        pytest.param(2, SHAPES, 4, id="2 often", marks=pytest.mark.full),
        pytest.param(3, SHAPES, 3, id="3", marks=pytest.mark.full),
        pytest.param(5, SHAPES, 1, id="5", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("text", TEXTS)
def test_damage_is_an_error_or_another_number(
    text: str, world: int, shapes: dict[str, tuple[int, ...]], seeds: int
) -> None:
    seen = set()
    for job, at, failed in all_damage(text, world, shapes, seeds):
        job.check_rooms()
        seen.add(any(failed))
        if any(failed):
            job.check_states()
        else:
            job.check_counts()
        move = job.moves[at]
        announces = isinstance(move, AllGather) and move.data.dtype == torch.uint8
        if announces and (at == 0 or text != CHOOSES_ALLGATHER):
            assert any(failed), "what ranks announce is checked to the last bit"
        if text == COLUMNS and at == 1:
            assert any(failed), "sizes depend on which rows there are"
        if at == 1 and text in BY_OWNERS and text != MISSES_ITS_OWN:
            assert len(set(failed)) == 1, "some ranks wait for one that has stopped"
    assert seen == {True, False}


@pytest.mark.once
@pytest.mark.parametrize("part", first(range(5)))
@pytest.mark.parametrize(
    ("text", "world", "at"),
    [
        ("topk(0.3)+ef | zen", 2, 0), ("nonzero | columns", 2, 0), ("nonzero | sparcml", 2, 0),
        ("nonzero | sparcml", 4, 2),
    ],
)  # fmt: skip
def test_every_bit_of_a_count_matters(text: str, world: int, at: int, part: int) -> None:
    """Flags and headers matter, too: backends abort if ranks expect different sizes.

    A part has a bit or two of each byte.
    """
    bits = 8 * Job(text, world, SHAPES).announced() if at == 0 else 8 * 16
    for number in range(part, bits, 5):

        def flip(x: Tensor, dice: random.Random, number: int = number) -> Tensor:
            (x[1] if x.dim() == 2 else x)[number // 8] ^= 1 << number % 8
            return x

        failed = Job(text, world, SHAPES).run((at, 0, flip, random.Random()))
        assert failed == [True] + [False] * (world - 1)


@pytest.mark.parametrize(("variant", "rank", "at"), [("butterfly", 2, 3), ("tree", 1, 4)])
def test_no_parameter_gets_another_s_entries(variant: str, rank: int, at: int) -> None:
    """The first entry of the second parameter becomes one of the first, which has 40 elements."""

    def hand_over(x: Tensor, dice: random.Random) -> Tensor:
        k = 12 + 7 + 1
        places = torch.empty(k, dtype=torch.int32)
        code = kernels.smallest(62, k)
        section = x[: kernels.code_bytes(code, 62, k)]
        kernels.decode_indices(section, 62, code, places)
        free = set(range(40)) - set(places.tolist())
        places[12] = max(free)
        kernels.encode_indices(places.sort().values, 62, code, section)
        x[-3:] = 0  # the third rank is told that none of its own was kept
        return x

    job = Job(f"topk(0.3)+ef | gtopk(variant='{variant}')", 3, SHAPES)
    assert [
        r for r, failed in enumerate(job.run((at, rank, hand_over, random.Random()))) if failed
    ] == [rank]


def test_an_entry_that_was_not_kept_is_not_in_the_result() -> None:
    """The bits behind gtopk's result say so; here in the last message to the third rank."""

    def all_kept(x: Tensor, dice: random.Random) -> Tensor:
        x[-3:] = 255
        return x

    job = Job('topk(0.3)+ef | gtopk(variant="butterfly")', 3, SHAPES)
    assert job.run((3, 2, all_kept, random.Random())) == [False, False, True]


def test_the_union_has_every_place_of_one_s_own() -> None:
    """One of two ranks receives places in the other's half that are not its own."""

    def next_places(x: Tensor, dice: random.Random) -> Tensor:
        """Moves a bitmap's places, behind its shape: as many, all different if they can be."""
        assert len(x) == 16 + 4
        found = "".join(f"{byte:08b}"[::-1] for byte in x[16:].tolist())
        moved = found[:31][::-1] + found[31:]
        bits = torch.tensor([int(moved[i : i + 8][::-1], 2) for i in range(0, 32, 8)])
        return torch.cat([x[:16], bits.byte()])

    job = Job("nonzero | union", 2, SHAPES)
    assert job.run((3, 0, next_places, random.Random())) == [True, False]

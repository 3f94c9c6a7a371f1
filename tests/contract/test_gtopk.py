"""gtopk against a slow and obvious emulation, and what becomes of the entries it cuts."""

from __future__ import annotations

import itertools
import math

import laws
import pytest
import torch
from inputs import integers, ranks
from several import Named, Several, drawn
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.collectives import GTopK
from gradwire.errors import StrategyError

N, DENSITY = 23, 0.2
WORLDS = range(1, 10)
List = dict[int, Tensor]
"""fp32 values by place."""


def largest(x: List, k: int) -> List:
    """The k entries of largest magnitude; ties go to the lower place."""
    ranked = sorted(x, key=lambda place: (-abs(float(x[place])), place))
    return {place: x[place] for place in sorted(ranked[:k])}


def merged(a: List, b: List, k: int) -> List:
    none = torch.tensor(0.0)
    return largest({p: a.get(p, none) + b.get(p, none) for p in a.keys() | b.keys()}, k)


def butterfly(sent: list[List], k: int) -> tuple[List, list[set[int]]]:
    """Returns the result, and for each rank which of its own entries are in it."""
    core = 1 << (len(sent).bit_length() - 1)
    kept, groups = [set(mine) for mine in sent], [dict(mine) for mine in sent]

    def follow() -> None:
        for rank, own in enumerate(kept):
            own.intersection_update(groups[rank % core])

    for guest in range(core, len(sent)):
        groups[guest - core] = merged(groups[guest - core], groups[guest], k)
    follow()
    for step in itertools.takewhile(lambda s: s < core, (1 << j for j in itertools.count())):
        groups = [merged(groups[r], groups[r ^ step], k) for r in range(core)]
        follow()
    return groups[0], kept


def tree(sent: list[List], k: int) -> tuple[List, list[set[int]]]:
    groups, step = list(sent), 1
    while step < len(sent):
        for rank in range(0, len(sent) - step, 2 * step):
            groups[rank] = merged(groups[rank], groups[rank + step], k)
        step *= 2
    return groups[0], [set(mine) & groups[0].keys() for mine in sent]


MERGES = {"butterfly": butterfly, "tree": tree}
VARIANTS = ("shares", *MERGES)


def shared(sent: list[List], k: int, breadth: int) -> set[int]:
    """The places that some rank names, whose sums over all ranks are the result of "shares"."""
    count = min(k, -(-breadth * k // len(sent)))
    return {place for mine in sent for place in largest(mine, count)}


def by_hand(
    variant: str, waiting: list[Tensor], values: str, breadth: int = 3
) -> tuple[Tensor, list[Tensor]]:
    """Takes one step of plain error feedback. Returns the mean and the residuals."""
    short = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[values]
    k = math.ceil(DENSITY * N)
    sent = [largest(dict(enumerate(v)), k) for v in waiting]
    sent = [{p: v.to(short).float() for p, v in mine.items()} for mine in sent]
    if variant == "shares":
        mean, left = torch.zeros(N), [v.clone() for v in waiting]
        for place in shared(sent, k, breadth):
            total = torch.tensor(0.0)
            for v, mine in zip(waiting, left):
                total = total + v[place]
                mine[place] = 0.0
            mean[place] = total / torch.tensor(float(len(sent)))
        return mean, left
    result, kept = MERGES[variant](sent, k)
    mean, left = torch.zeros(N), [v.clone() for v in waiting]
    for place, value in result.items():
        mean[place] = value / torch.tensor(float(len(sent)))
    for mine, own, alive in zip(left, sent, kept):
        for place in alive:
            mine[place] -= own[place]
    return mean, left


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("values", ["fp32", "bf16"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("draw", [integers, ranks])
def test_as_by_hand(draw: object, world: int, values: str, variant: str) -> None:
    """Three steps equal those by hand, bit for bit, for normal gradients and for whole numbers
    with their many ties."""
    text = f"topk({DENSITY}, values={values!r})+ef | gtopk(variant={variant!r})"
    state: list[Named] = [{} for _ in range(world)]
    waiting = [torch.zeros(N) for _ in range(world)]
    for step in range(3):
        xs = draw(world, N, step)  # type: ignore[operator]
        wanted, waiting = by_hand(variant, [v + x for v, x in zip(waiting, xs)], values)
        for result in lockstep(text, xs, step=step, state=state)[0]:
            assert torch.equal(result, wanted)
        for memory, left in zip(state, waiting):
            assert torch.equal(memory["residual"], left)


# -- nothing is lost -----------------------------------------------------------------------------


def divisible(world: int, step: int, scale: int = 1) -> list[Tensor]:
    """Whole numbers whose sums are divided by the number of ranks without rounding."""
    return [x * world * scale for x in integers(world, N, step)]


@pytest.mark.once
@pytest.mark.parametrize("variant", ["shares", "butterfly"])
@pytest.mark.parametrize("feedback", ["ef", "dgc(0.5)", "dgc(0.5, mask=False)"])
@pytest.mark.parametrize("world", WORLDS)
def test_not_a_bit_is_lost(feedback: str, world: int, variant: str) -> None:
    strategy = Strategy.parse(f"topk(0.1)+{feedback} | gtopk(variant={variant!r})")
    laws.law_nothing_is_lost(strategy, [divisible(world, s) for s in range(6)], tolerance=0.0)


@pytest.mark.parametrize("variant", ["shares", "butterfly"])
@pytest.mark.parametrize("values", ["bf16", "fp16"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_not_a_bit_is_lost_of_what_is_rounded(values: str, world: int, variant: str) -> None:
    """Whole numbers up to 8 · 8 · 625 have more digits than 16 bits, and the rest is kept."""
    strategy = Strategy.parse(f"topk(0.1, values={values!r})+ef | gtopk(variant={variant!r})")
    laws.law_nothing_is_lost(strategy, [divisible(world, s, 625) for s in range(6)], 0.0)


@pytest.mark.parametrize("feedback", ["ef21", "ef21(0.5)"])
@pytest.mark.parametrize("variant", ["shares", "butterfly"])
@pytest.mark.parametrize("world", WORLDS)
def test_estimates_are_of_what_arrived(world: int, variant: str, feedback: str) -> None:
    """The ranks' ef21 estimates, of what all know of them, add up to what all know."""
    state: list[Named] = [{} for _ in range(world)]
    for step in range(6):
        text = f"topk(0.1)+{feedback} | gtopk(variant={variant!r})"
        results, _ = lockstep(text, divisible(world, step), step=step, state=state)
        known = torch.stack([memory["estimate"] for memory in state]).sum(0)
        assert torch.equal(known, world * results[0])
    assert bool(known.any())


MEETING = [[3.0, 0, 0], [0, 5.0, 0], [9.0, 0, 0], [0, 0, 1.0]]
"""Rank 0's entry loses to rank 1's; then its place wins by what rank 2 brings."""


def unaccounted(variant: str) -> tuple[list[float], list[list[float]]]:
    """Returns the part of the sum of inputs in neither result nor residuals, and the residuals."""
    state: list[Named] = [{} for _ in MEETING]
    xs = [torch.tensor(x) for x in MEETING]
    results, _ = lockstep(f"topk(0.3)+ef | gtopk(variant={variant!r})", xs, state=state)
    if variant != "shares":
        assert (4 * results[0]).tolist() == [9.0, 0.0, 0.0]
    left = [memory["residual"] for memory in state]
    lost = torch.stack(xs).sum(0) - torch.stack(left).sum(0) - 4 * results[0]
    return lost.tolist(), [v.tolist() for v in left]


def test_the_published_tree_loses_what_was_cut_under_a_place_that_others_bring() -> None:
    assert unaccounted("tree") == ([3, 0, 0], [[0, 0, 0], [0, 5, 0], [0, 0, 0], [0, 0, 1]])


def test_shares_sum_all_that_waits_at_a_place() -> None:
    """Each of four ranks names one place of three; no rank's share is lost or stays behind."""
    assert unaccounted("shares") == ([0, 0, 0], [[0, 0, 0]] * 4)


@pytest.mark.parametrize(("breadth", "places"), [(1, 5), (2, 10), (3, 15), (40, 25)])
def test_breadth_says_how_many_places_there_are(breadth: int, places: int) -> None:
    """`breadth` sets how many places the result has, here of ranks with 5 entries each and no
    place in common."""
    xs = [torch.zeros(500) for _ in range(5)]
    for rank, x in enumerate(xs):
        x[100 * rank : 100 * rank + 50] = torch.arange(50.0) + 1
    text = f"topk(0.01)+ef | gtopk(breadth={breadth})"
    results, _ = lockstep(text, xs)
    assert int(results[0].count_nonzero()) == places
    each = places // 5
    largest = torch.arange(50.0)[50 - each :] + 1
    assert torch.equal(results[0][50 - each : 50], largest / 5)


def test_what_others_left_waiting_goes_along() -> None:
    """Rank 0 never selects place 3, but its residual there is sent when rank 1 names it."""
    state: list[Named] = [{}, {}]
    xs = [torch.tensor([8.0, 4, 2, 1]), torch.tensor([0.0, 0, 0, 6])]
    results, _ = lockstep("topk(0.25)+ef | gtopk", xs, state=state)
    assert results[0].tolist() == [4.0, 0, 0, 3.5]
    assert [memory["residual"].tolist() for memory in state] == [[0, 4, 2, 0], [0, 0, 0, 0]]


def test_without_a_memory_only_what_is_sent_arrives() -> None:
    xs = [torch.tensor([8.0, 4, 2, 1]), torch.tensor([0.0, 0, 0, 6])]
    assert lockstep("topk(0.25) | gtopk", xs)[0][1].tolist() == [4.0, 0, 0, 3.0]


@pytest.mark.parametrize("left", ["topk(0.2)", "topk(0.2)+ef21"])
def test_where_nothing_waits_only_what_is_sent_arrives(left: str) -> None:
    """ef21 keeps no gradients in a residual: with all places named, `allgather` gives the same."""
    mine: list[Named] = [{} for _ in range(3)]
    theirs: list[Named] = [{} for _ in range(3)]
    for step in range(4):
        xs = divisible(3, step)
        found, _ = lockstep(f"{left} | gtopk(breadth=3)", xs, step=step, state=mine)
        wanted, _ = lockstep(f"{left} | allgather", xs, step=step, state=theirs)
        assert torch.equal(found[0], wanted[0])


def test_its_bytes_do_not_grow_with_the_ranks() -> None:
    def sent(text: str, world: int) -> float:
        return lockstep(text, ranks(world, 100_000, 0))[1].bytes_sent[0]

    few, many = (sent("topk(0.01)+ef | gtopk", world) for world in (4, 32))
    assert many < 2 * few
    assert many < sent("topk(0.01)+ef | allgather", 32) / 4
    fewer = sent("topk(0.01)+ef | gtopk(breadth=2)", 32)
    assert fewer < sent('topk(0.01)+ef | gtopk(variant="butterfly")', 32)


@pytest.mark.parametrize("breadth", [0.9, float("inf"), float("nan"), "two"])
def test_a_breadth_that_means_nothing_is_refused(breadth: object) -> None:
    with pytest.raises(StrategyError, match="breadth"):
        GTopK(breadth=breadth)  # type: ignore[arg-type]


def test_the_butterfly_gives_it_back() -> None:
    assert unaccounted("butterfly") == ([0, 0, 0], [[3, 0, 0], [0, 5, 0], [0, 0, 0], [0, 0, 1]])


# -- buckets of several parameters ---------------------------------------------------------------

SHAPES = {"a": (7,), "b": (3, 4), "c": (1,), "none": (0,), "d": (40,)}


@pytest.mark.once
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", ["topk(0.3)+ef", "topk(0.3, values='bf16')+dgc", "topk(1.0)"])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_each_parameter_selects_for_itself(world: int, text: str, variant: str) -> None:
    """Parameters select alike together and alone: `d`, ten times as large, takes no place of the
    others."""
    text = f"{text} | gtopk(variant={variant!r})"
    together = Several(text, SHAPES, world)
    alone = Several(text, SHAPES, world, buckets=[[name] for name in SHAPES])
    for step in range(3):
        gradients = drawn(SHAPES, world, step)
        for mine in gradients:
            mine["d"] *= 10
        for one, other in zip(together.step(gradients), alone.step(gradients)):
            for name in SHAPES:
                laws.same(one[name], other[name], name)
    for one, other in zip(together.kept(), alone.kept()):
        for name, state in one.items():
            for key, value in state.items():
                laws.same(value, other[name][key], f"{name} {key}")


# -- a step that another bucket spoils -----------------------------------------------------------


def whole(world: int, step: int) -> list[Named]:
    return [{n: x.mul(4).round() for n, x in mine.items()} for mine in drawn(SHAPES, world, step)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("values", ["fp32", "bf16"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_a_skipped_step_sent_nothing(world: int, values: str, variant: str) -> None:
    """All of a skipped step stays in the residuals and no velocity is masked, to the bit as the
    equations say."""
    for feedback in ("ef", "dgc(0.5)", "dgc(0.5, nesterov=True)", "dgc(0.5, mask=False)"):
        text = f"topk(0.3, values={values!r})+{feedback} | gtopk(variant={variant!r})"
        job = Several(text, SHAPES, world)
        for step in range(2):
            job.step(whole(world, step))
        before, gradients = job.kept(), whole(world, 2)
        job.step(gradients, skipped=True)
        rule = Strategy.parse(text).feedback
        for was, now, mine in zip(before, job.kept(), gradients):
            for name, g in mine.items():
                more = laws.to_be_sent(rule, g.view(-1), was[name])
                wanted = was[name]["residual"].double() + more
                assert torch.equal(now[name]["residual"].double(), wanted), f"{feedback} {name}"
                if "velocity" in now[name]:
                    u = 0.5 * was[name]["velocity"] + g.view(-1) * (0.5 if rule.nesterov else 1)  # type: ignore[union-attr]
                    assert torch.equal(now[name]["velocity"], u), f"{feedback} {name}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_a_skipped_step_taught_nobody_anything(world: int, variant: str) -> None:
    job = Several(f"topk(0.3)+ef21 | gtopk(variant={variant!r})", SHAPES, world)
    for step in range(2):
        job.step(whole(world, step))
    before = job.kept()
    job.step(whole(world, 2), skipped=True)
    for was, now in zip(before, job.kept()):
        for name in SHAPES:
            for key, value in was[name].items():
                assert torch.equal(now[name][key], value), f"{name} {key}"


@pytest.mark.parametrize("skipped", [False, True])
def test_what_was_cut_is_given_back_once(skipped: bool) -> None:
    """A cut entry is given back once. Twice 2e38 is infinite: to subtract one afterwards would be
    too late."""
    job = Several('topk(0.1)+ef | gtopk(variant="butterfly")', {"w": (4,)}, 2)
    job.step([{"w": torch.tensor([3e38, 0, 0, 0])}, {"w": torch.tensor([0, 2e38, 0, 0])}],
             skipped=skipped)  # fmt: skip
    first, second = (memory["w"]["residual"].tolist() for memory in job.kept())
    assert first == (torch.tensor([3e38, 0, 0, 0]).tolist() if skipped else [0, 0, 0, 0])
    assert second == torch.tensor([0, 2e38, 0, 0]).tolist()

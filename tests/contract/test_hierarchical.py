"""hierarchical works as if machines were ranks; each rank sends a part of its machine's mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import laws
import pytest
import torch
from inputs import integers, ranks
from several import Named, Several, all_nan, drawn, equal
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.errors import PayloadError, StrategyError, UsageError
from gradwire.groups import Machines
from gradwire.runtime.context import BucketContext
from gradwire.runtime.hierarchy import BucketMachineSums
from gradwire.runtime.lockstep import drive
from gradwire.strategy import Rounds
from suites import first

SHAPES = {"a": (30, 40), "b": (700,), "c": (3,), "d": (0,), "e": (9, 5), "f": (64, 3)}
"""Shapes that are cut by rows or by 64s, are smaller than a part, or empty."""
PLACES = [
    (world, per_node)
    for per_node in (1, 2, 4)
    for world in range(1, 9)
    if world % per_node == 0
]  # fmt: skip
every_place = pytest.mark.parametrize(("world", "per_node"), PLACES)
MEMBERS = (
    ("none", "allgather"), ("none", "allreduce"), ("none", "alltoall"), ("none", "powersgd(2)"),
    ("int8", "alltoall"), ("qsgd(4)+ef", "alltoall"), ("fp16+ef", "allreduce"),
    ("signsgd", "vote"), ("signum", "vote"), ("onebit+ef", "allgather"),
    ("threshold(0.5)+ef", "allgather"), ("randk(0.1)+ef", "allreduce"),
    ("topk(0.1)+ef", "allgather"), ("topk(0.1)+ef", "zen"), ("topk(0.1)+ef", "gtopk"),
    ("topk(0.1)+ef", "oktopk"), ("topk(0.1)+ef", "sparcml"), ("dgc(0.1)", "allgather"),
    ("topk(0.1)+dgc(0.9, mask=False)", "zen"), ("dgc(0.1, values='bf16')", "gtopk"),
    ("nonzero", "zen"), ("nonzero", "columns"), ("nonzero", "omnireduce"), ("nonzero", "union"),
    ("nonzero", "sparse_auto(every=2)"), ("topk(0.1)+ef", "sparse_auto(every=2)"),
)  # fmt: skip
"""(compressor and feedback, the collective that crosses machines)."""
every = pytest.mark.parametrize(("left", "outer"), MEMBERS, ids=lambda text: text)


def text_of(left: str, outer: str, per_node: int) -> str:
    return f"{left} | hierarchical(outer={outer!r}, per_node={per_node})"


def sparse(world: int, step: int = 0) -> list[Named]:
    """Gradients of mostly zeros, in whole rows and elsewhere."""
    made = drawn(SHAPES, world, step)
    for rank, mine in enumerate(made):
        for x in mine.values():
            x.view(-1)[torch.arange(x.numel()) % 7 != (rank + step) % 7] = 0.0
            x[(rank + 1) % 3 :: 3] = 0.0
    return made


def given(left: str, world: int, step: int) -> list[Named]:
    return sparse(world, step) if left == "nonzero" else drawn(SHAPES, world, step)


# -- the oracle: a job of one rank per machine -------------------------------------------------


class Flat:
    """For each local rank, a job of the outer member alone among the machines, on the parts."""

    def __init__(self, run: Several, left: str, outer: str, per_node: int) -> None:
        self.per_node, self.run = per_node, run
        self.jobs = []
        for local in range(per_node):
            context: Any = run.contexts[0][local]
            assert isinstance(context._detour, BucketMachineSums)
            self.bounds = [cut.bounds for cut in context._detour.pieces]
            shapes = {p.name: p.shape for p in context.kept.parameters}
            job = Several(f"{left} | {outer}", shapes, run.world // per_node)
            self.jobs.append((context, job))

    def step(self, gradients: list[Named]) -> list[Named]:
        """Returns the equal results of all ranks, put together from all jobs' parts."""
        whole = {n: torch.zeros(shape).view(-1) for n, shape in SHAPES.items()}
        for local, (context, job) in enumerate(self.jobs):
            names = dict(zip(whole, job.shapes))
            places = {n: cut.of_owner(local) for n, cut in zip(whole, context._detour.pieces)}
            parts = []
            for begin in range(0, self.run.world, self.per_node):
                means = {n: self.mean(gradients[begin : begin + self.per_node], n) for n in whole}
                parts.append({
                    names[n]: means[n][slice(*places[n])].view(job.shapes[names[n]]) for n in whole
                })  # fmt: skip
            results = job.step(parts)
            assert all(equal(mine, results[0]) for mine in results)
            for n, x in whole.items():
                x[slice(*places[n])] = results[0][names[n]].view(-1)
        return [{n: x.view(SHAPES[n]) for n, x in whole.items()}] * self.run.world

    def mean(self, gradients: list[Named], name: str) -> Tensor:
        total = gradients[0][name].clone()
        for mine in gradients[1:]:
            total += mine[name]
        return (total / self.per_node).view(-1)

    def check_memory(self) -> None:
        for rank, memory in enumerate(self.run.memories):
            machine, local = divmod(rank, self.per_node)
            job = self.jobs[local][1]
            for name, theirs in zip(SHAPES, job.shapes):
                assert equal(dict(memory[name]), dict(job.memories[machine][theirs])), name


@pytest.mark.once
@every
@pytest.mark.parametrize(("world", "per_node"), [(4, 2), (6, 2), (8, 4), (4, 4), (8, 2)])
def test_machines_are_ranks_of_the_outer_member(
    left: str, outer: str, world: int, per_node: int
) -> None:
    """Results and every rank's state are those of jobs among machines, to the bit, over steps."""
    run = Several(text_of(left, outer, per_node), SHAPES, world)
    flat = Flat(run, left, outer, per_node)
    for step in range(4):
        gradients = given(left, world, step)
        wanted = flat.step(gradients)
        for rank, mine in enumerate(run.step(gradients)):
            assert equal(mine, wanted[rank]), f"step {step}, rank {rank}"
    flat.check_memory()


@pytest.mark.once
@every
@pytest.mark.parametrize("world", [1, 3])
def test_one_rank_per_machine_is_the_outer_member(left: str, outer: str, world: int) -> None:
    run = Several(text_of(left, outer, 1), SHAPES, world)
    flat = Several(f"{left} | {outer}", SHAPES, world)
    for step in range(3):
        gradients = given(left, world, step)
        for one, other in zip(run.step(gradients), flat.step(gradients)):
            assert equal(one, other)
        assert [s.label for s in run.trace.spans] == [s.label for s in flat.trace.spans]
        assert run.trace.bytes_sent == run.trace.bytes_across == flat.trace.bytes_sent


# -- the mean ------------------------------------------------------------------------------------


@pytest.mark.once
@every_place
@pytest.mark.parametrize(
    ("left", "outer"),
    [("none", "allgather"), ("none", "allreduce"), ("none", "alltoall"), ("nonzero", "zen"),
     ("nonzero", "columns"), ("topk(1.0)+ef", "gtopk(breadth=9)"), ("topk(1.0)", "sparcml")],
)  # fmt: skip
def test_whole_numbers_are_the_dense_mean(
    left: str, outer: str, world: int, per_node: int
) -> None:
    strategy = Strategy.parse(text_of(left, outer, per_node))
    for n in (0, 1, 63, 64, 500):
        laws.law_is_the_mean(strategy, integers(world, n))
        laws.law_ranks_end_equal(strategy, ranks(world, n))


def test_three_ranks_to_a_machine_are_one_rounding_away() -> None:
    xs = integers(6, 500)
    result = lockstep(text_of("none", "allgather", 3), xs)[0][0]
    torch.testing.assert_close(result, torch.stack(xs).mean(0), rtol=3e-7, atol=3e-7)


@pytest.mark.once
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every
def test_short_gradients_end_equal_and_near(left: str, outer: str, dtype: torch.dtype) -> None:
    run = Several(text_of(left, outer, 2), SHAPES, 4, dtype=dtype)
    for step in range(2):
        gradients = given(left, 4, step)
        results = run.step(gradients)
        assert all(equal(mine, results[0]) for mine in results)
    if left == "none" and outer != "powersgd(2)":
        for name in SHAPES:
            wanted = torch.stack([mine[name].to(dtype).double() for mine in gradients]).mean(0)
            torch.testing.assert_close(results[0][name].double(), wanted, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_means_that_a_feedback_wants_exact_are_those_of_long_gradients(
    dtype: torch.dtype,
) -> None:
    """The means stay in fp32 buffers of their own, and become 16-bit results at the step's end."""
    strategy = 'lloyd(2)+adam | hierarchical("allgather", per_node=2)'
    given = [torch.linspace(-1.0, 1.0 + r, 300).to(dtype) for r in range(4)]
    short, _ = lockstep(strategy, given)
    long, _ = lockstep(strategy, [x.float() for x in given])
    for one, other in zip(short, long):
        assert one.dtype == dtype
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)
        assert torch.equal(one, short[0])


PARTS_AND_BACK = (
    "compress@gpu, all_to_all@node, decompress@gpu, compress@gpu, all_gather@cross, "
    "decompress@gpu, compress@gpu, all_gather@node, decompress@gpu"
)


@pytest.mark.parametrize(
    "right", ["hierarchical(per_node=1)", f'steps("{PARTS_AND_BACK}", per_node=2)']
)
def test_a_rank_that_compresses_its_own_gradient_measures_its_noise(right: str) -> None:
    """Without, a step of `adam` would be half as long among four ranks of independent noise."""
    given = [one["a"] for one in drawn({"a": (40, 50)}, 4)]
    found, wanted = ([dict[str, Tensor]() for _ in given] for _ in range(2))
    lockstep(f"lloyd(2)+adam | {right}", given, state=found)
    lockstep("lloyd(2)+adam | allgather", given, state=wanted)
    for one, other in zip(found, wanted):
        assert torch.equal(one["noise"], other["noise"])


def test_clipping_comes_before_the_sum() -> None:
    xs = integers(4, 300)
    text = text_of("topk(0.1)+ef", "zen", 2)
    clipped = lockstep(text, xs, clip_scale=0.25)[0]
    for one, other in zip(clipped, lockstep(text, [x * 0.25 for x in xs])[0]):
        assert torch.equal(one, other)


def test_a_result_may_lie_where_its_gradient_does() -> None:
    """A result may overwrite its gradient, as in training."""
    run, gradients = Several(text_of("dgc(0.1)", "zen", 2), SHAPES, 4), drawn(SHAPES, 4)
    wanted = run.step(gradients)
    again = Several(text_of("dgc(0.1)", "zen", 2), SHAPES, 4)
    flat = [[mine[n].reshape(-1).clone() for n in SHAPES] for mine in gradients]
    for context, mine in zip(again.contexts[0], flat):
        context.begin(mine, mine, laws.StepInfo(0))
    drive([c.strategy.collective.rounds(c) for c in again.contexts[0]], again.trace)
    for mine, want in zip(flat, wanted):
        assert all(torch.equal(x, want[n].view(-1)) for x, n in zip(mine, SHAPES))


# -- nothing is lost -----------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("outer", ["allgather", "zen", "gtopk", "sparcml", "oktopk"])
@pytest.mark.parametrize(("world", "per_node"), [(2, 2), (4, 2), (8, 4), (6, 3)])
def test_what_was_not_sent_waits_with_the_owner_of_the_part(
    outer: str, world: int, per_node: int
) -> None:
    """ranks per machine · residuals + world · results = what was given, part by part."""
    run = Several(text_of("topk(0.05)+ef", outer, per_node), SHAPES, world)
    total = {n: torch.zeros(shape, dtype=torch.float64).view(-1) for n, shape in SHAPES.items()}
    arrived = {n: torch.zeros_like(x) for n, x in total.items()}
    for step in range(5):
        gradients = drawn(SHAPES, world, step)
        results = run.step(gradients)
        for p, n in enumerate(SHAPES):
            total[n] += sum(mine[n].double().view(-1) for mine in gradients)
            arrived[n] += world * results[0][n].double().view(-1)
            waiting = torch.zeros_like(total[n])
            for rank, memory in enumerate(run.memories):
                context: Any = run.contexts[0][rank]
                begin, end = context._detour.pieces[p].of_owner(rank % per_node)
                waiting[begin:end] += per_node * memory[n]["residual"].double()
            torch.testing.assert_close(waiting + arrived[n], total[n], rtol=1e-5, atol=1e-4)


@pytest.mark.once
@every
def test_the_state_survives_another_grouping(left: str, outer: str) -> None:
    if "auto" in outer:
        return  # its choice depends on the bucket
    names, text = list(SHAPES), text_of(left, outer, 2)
    whole = Several(text, SHAPES, 4)
    first = Several(text, SHAPES, 4, buckets=[names[:2], names[2:]])
    for step in range(3):
        for run in (whole, first):
            run.step(given(left, 4, step))
    second = Several(
        text, SHAPES, 4, memories=first.memories,
        buckets=[[names[4], names[1]], [names[0]], [names[2], names[3], names[5]]],
    )  # fmt: skip
    second.taken = whole.taken
    for step in range(3, 6):
        gradients = given(left, 4, step)
        for one, other in zip(whole.step(gradients), second.step(gradients)):
            assert equal(one, other)


def test_lockstep_carries_states_of_parts() -> None:
    """A (64, 10) parameter is cut by whole rows, 32 for each of two ranks of a machine."""
    xs = [x.view(64, 10) for x in ranks(4, 640)]
    state: list[dict[str, Tensor]] = [{} for _ in xs]
    for step in range(3):
        lockstep(text_of("dgc(0.1)", "zen", 2), xs, step=step, state=state)
    assert all(m["residual"].shape == m["velocity"].shape == (32, 10) for m in state)
    with pytest.raises(UsageError, match=r"640 elements that its rank.*rank 0's.*has 320"):
        lockstep("dgc(0.1) | zen", xs, state=state)


# -- spoiled and skipped steps -------------------------------------------------------------------

BAD = (float("inf"), -float("inf"), float("nan"))


@pytest.mark.once
@every
@pytest.mark.parametrize("part", first(range(2)))
@pytest.mark.parametrize(("world", "per_node"), first([(4, 2), (4, 4), (6, 2)], 2))
def test_a_bad_number_anywhere_spoils_all_and_leaves_states(
    left: str, outer: str, world: int, per_node: int, part: int
) -> None:
    """A bad number in any parameter, on any rank, leaves states as before the step, to the bit.

    A part has every other parameter of each rank, and all of them of two neighbours.
    """
    run = Several(text_of(left, outer, per_node), SHAPES, world)
    undisturbed = Several(text_of(left, outer, per_node), SHAPES, world)
    for step in range(world):
        for at, name in list(enumerate(n for n in SHAPES if n != "d"))[(step + part) % 2 :: 2]:
            bad, before = given(left, world, 50), run.kept()
            bad[step][name].view(-1)[-1] = BAD[at % 3]
            assert all_nan(run.step(bad))
            for memory, was in zip(run.memories, before):
                assert all(equal(dict(memory[n]), was[n]) for n in SHAPES)
            run.taken -= 1
        gradients = given(left, world, step)
        for one, other in zip(run.step(gradients), undisturbed.step(gradients)):
            assert equal(one, other)


@pytest.mark.parametrize(
    ("left", "outer"),
    [("topk(0.1)+ef", "allgather"), ("none", "allreduce"), ("qsgd(4)+ef", "alltoall"),
     ("none", "powersgd(2)")],
)  # fmt: skip
def test_a_spoiled_step_makes_the_moves_of_any_other(left: str, outer: str) -> None:
    """Otherwise the host would have to know, before the step ends, whether machines may cross."""
    run, moves = Several(text_of(left, outer, 2), SHAPES, 4), []
    for bad in (False, True):
        gradients = drawn(SHAPES, 4)
        if bad:
            gradients[3]["a"][0, 0] = float("nan")
        assert all_nan(run.step(gradients)) == bad
        moves.append([(s.rank, s.label, s.group, s.bytes) for s in run.trace.spans])
    assert moves[0] == moves[1]


@pytest.mark.parametrize("left", ["topk(0.1)+ef", "qsgd(4)+ef", "fp16+ef", "dgc(0.1)"])
@pytest.mark.parametrize("outer", ["allgather", "alltoall"])
def test_a_skipped_step_gives_back(left: str, outer: str) -> None:
    """All of the machine's mean is then in the residuals of the owners of its parts."""
    run = Several(text_of(left, outer, 2), SHAPES, 4)
    for step in range(3):
        run.step(drawn(SHAPES, 4, step))
        before, gradients = run.kept(), drawn(SHAPES, 4, 20 + step)
        run.step(gradients, skipped=True)
        for rank, memory in enumerate(run.memories):
            context: Any = run.contexts[0][rank]
            machine = gradients[rank // 2 * 2 : rank // 2 * 2 + 2]
            for p, n in enumerate(SHAPES):
                mean = torch.stack([mine[n].view(-1) for mine in machine]).mean(0)
                part = mean[slice(*context._detour.pieces[p].of_owner(rank % 2))]
                was = before[rank][n]
                if "velocity" in was:
                    part = part + 0.9 * was["velocity"]
                torch.testing.assert_close(
                    memory[n]["residual"], was["residual"] + part, rtol=1e-5, atol=1e-5
                )


def test_a_skipped_step_in_which_nothing_crossed_gives_back_nothing() -> None:
    run = Several(text_of("qsgd(4)+ef", "alltoall", 2), SHAPES, 4)
    run.step(drawn(SHAPES, 4, 0))
    before, bad = run.kept(), drawn(SHAPES, 4, 1)
    bad[3]["a"][0, 0] = float("nan")
    run.step(bad, skipped=True)
    for memory, was in zip(run.memories, before):
        assert all(equal(dict(memory[n]), was[n]) for n in SHAPES)


def test_a_part_that_overflows_alone_spoils_the_step_and_the_others_give_back() -> None:
    """70,000 is finite, but not in fp16: only the owner of its part can see that."""
    text, shapes = text_of("fp16+ef", "allgather", 2), {"x": (128,)}
    run = Several(text, shapes, 4)
    run.step([{"x": torch.full((128,), 1.0 + 2.0**-12)}] * 4)
    before, x = run.kept(), torch.ones(128)
    x[0] = 70_000.0
    assert all_nan(run.step([{"x": x}] * 4))
    first: Any = run.contexts[0][0]
    owner = next(r for r in (0, 1) if first._detour.pieces[0].of_owner(r)[0] == 0)
    for rank, memory in enumerate(run.memories):
        kept, was = memory["x"]["residual"], before[rank]["x"]["residual"]
        assert torch.equal(kept, was + (0.0 if rank % 2 == owner else 1.0))


# -- what travels --------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "per_node"), [(4, 2), (8, 2), (8, 4), (6, 2), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bytes_follow_the_formula(world: int, per_node: int, dtype: torch.dtype) -> None:
    """512 elements are cut evenly; each message has a header of 32 bytes."""
    xs, machines = ranks(world, 512, dtype=dtype), world // per_node
    part = 512 // per_node
    trace = lockstep(text_of("none", "allgather", per_node), xs)[1]
    inside = 2 * (per_node - 1) * (32 + part * dtype.itemsize)
    across = (machines - 1) * (32 + 32 + 4 * part)
    assert trace.bytes_across == [across] * world
    assert trace.bytes_sent == [inside + across] * world


def test_a_machine_sends_what_one_rank_of_the_outer_member_would() -> None:
    """Two ranks send two parts: together two headers and four roundings up more."""
    xs = ranks(8, 4096)
    flat = lockstep("topk(0.01) | allgather", xs[:4])[1].bytes_sent
    trace = lockstep(text_of("topk(0.01)", "allgather", 2), xs)[1]
    per_machine = [sum(trace.bytes_across[r : r + 2]) for r in range(0, 8, 2)]
    assert all(0 < one - other <= 3 * (32 + 64 + 4 * 15) for one, other in zip(per_machine, flat))


def test_groups_of_one_machine_s_ranks_and_of_one_place() -> None:
    spans = lockstep(text_of("none", "allreduce", 2), ranks(4, 300))[1].spans
    assert [(s.label, s.group) for s in spans if s.rank == 3] == [
        ("all_to_all", "node"), ("all_gather", "cross"), ("all_reduce", "cross"),
        ("all_gather", "node"),
    ]  # fmt: skip


def test_parts_may_take_different_ways() -> None:
    """Each part chooses for itself: one is dense, the other nearly empty."""
    x = torch.zeros(2**15)
    x[: 2**14] = 1.0
    xs = [x.clone() for _ in range(8)]
    x[-1] = 1.0
    results, trace = lockstep(text_of("nonzero", "sparse_auto", 2), xs)
    ways = [tuple(s.label for s in trace.spans if s.rank == r) for r in range(8)]
    assert len(set(ways)) == 2
    assert all(torch.equal(r, xs[0]) for r in results)


# -- damage --------------------------------------------------------------------------------------


def header(arrived: Tensor, word: int, value: int, sender: int, senders: int) -> Tensor:
    arrived = arrived.clone()
    arrived.view(senders, -1)[sender][:32].view(torch.int64)[word] = value
    return arrived


def failures(run: Several, at: int, rank: int, change: Callable[[Any], Any]) -> list[str]:
    """Returns every rank's PayloadError, or ""; raises MoveError if some rank waits forever."""
    said = [""] * run.world

    def heard(rounds: Rounds[None], context: BucketContext) -> Rounds[None]:
        try:
            yield from rounds
            context.end(skipped=False)
        except PayloadError as error:
            said[context.rank] = str(error)

    def damaged(rounds: Rounds[None]) -> Rounds[None]:
        arrived, number = None, 0
        while True:
            try:
                move = rounds.send(arrived)
            except StopIteration:
                return
            arrived = yield move
            if number == at:
                arrived = change(arrived)
            number += 1

    gradients, rounds = drawn(run.shapes, run.world), []
    for context, mine in zip(run.contexts[0], gradients):
        flat = [x.reshape(-1) for x in mine.values()]
        context.begin(flat, flat, laws.StepInfo(0))
        own = context.strategy.collective.rounds(context)
        rounds.append(heard(damaged(own) if context.rank == rank else own, context))
    drive(rounds, run.trace)
    return said


WRONG = {"magic": (0, 0x1234), "flags": (1, 4), "digest": (2, 77), "step": (3, 8)}


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("outer", ["allgather", "zen", "allreduce"])
def test_damage_inside_a_machine_ends_every_rank_of_every_machine(
    outer: str, what: str, rank: int
) -> None:
    run = Several(text_of("topk(0.1)" if outer != "allreduce" else "none", outer, 2), SHAPES, 4)
    said = failures(run, 0, rank, lambda x: header(x, *WRONG[what], 1, 2))
    assert all(said), said
    assert "rank 1" in said[rank]
    assert all("damaged" in text for r, text in enumerate(said) if r != rank)


@pytest.mark.parametrize("cut", [1, 64])
def test_a_message_cut_short_inside_a_machine(cut: int) -> None:
    run = Several(text_of("topk(0.1)+ef", "zen", 2), SHAPES, 4)
    said = failures(run, 0, 2, lambda x: x[:-cut].contiguous())
    assert all(said), said
    assert "by the plan" in said[2]


@pytest.mark.parametrize("what", WRONG)
def test_damage_across_ends_the_machine(what: str) -> None:
    """Other machines have all they need, as in `allgather`. The error says who is meant."""
    run = Several(text_of("topk(0.1)+ef", "allgather", 2), SHAPES, 4)
    said = failures(run, 2, 2, lambda x: header(x, *WRONG[what], 0, 2))
    assert said[:2] == ["", ""]
    assert "across machines, among ranks 0, 2, which are numbered from 0 here" in said[2]
    assert "damaged" in said[3]


@pytest.mark.parametrize("outer", ["allgather", "allreduce", "alltoall", "powersgd(2)"])
def test_what_a_rank_misunderstands_of_other_machines_ends_its_own(outer: str) -> None:
    """The rank still crosses with the other machines, whose results are NaN."""
    run = Several(text_of("none", outer, 2), SHAPES, 4)
    said = failures(run, 1, 2, lambda x: header(x, *WRONG["magic"], 0, 2))
    assert said[:2] == ["", ""]
    assert (
        "across machines, among ranks 0, 2, which are numbered from 0 here: a message must begin"
        in said[2]
    )
    assert "rank 0 received a damaged payload in step 0" in said[3]
    assert all(x.isnan().all() for c in run.contexts[0] for x in c.results)


def test_an_owner_s_damage_across_ends_every_rank() -> None:
    """Owners of zen notify each other; then each notifies its machine."""
    run = Several(text_of("topk(0.1)+ef", "zen", 2), SHAPES, 4)

    said = failures(run, 3, 0, lambda got: {by: x[:-1].contiguous() for by, x in got.items()})
    assert all(said), said


@pytest.mark.parametrize("what", WRONG)
def test_damage_in_the_last_move_is_the_receiver_s(what: str) -> None:
    run = Several(text_of("none", "allreduce", 2), SHAPES, 4)
    said = failures(run, 3, 1, lambda x: header(x, *WRONG[what], 0, 2))
    assert [bool(text) for text in said] == [False, True, False, False]


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "per_node"), [(1, 2), (3, 2), (6, 4), (2, 3)])
def test_ranks_that_machines_cannot_share_evenly(world: int, per_node: int) -> None:
    path = f'none | steps("reduce@node, all_reduce@cross, broadcast@node", per_node={per_node})'
    said = rf"{world} ranks are not a multiple of per_node={per_node}\. Start the same number on "
    for text in (text_of("none", "allgather", per_node), path):
        with pytest.raises(UsageError, match=said + r"each, or give the collective per_node=1\."):
            lockstep(text, integers(world, 10))


def test_machines_by_name() -> None:
    machines = Machines.named(["b", "a", "a", "b"])
    assert machines.ranks == ((0, 3), (1, 2))
    assert str(machines.node(3)) == "node (0, 3)"
    assert str(machines.cross(3)) == "cross (2, 3)"
    assert [str(g) for g in machines.groups()] == [
        "node (0, 3)", "node (1, 2)", "cross (0, 1)", "cross (2, 3)",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"same number of ranks.*'b' has 1, 'a' has 3\. Start"):
        Machines.named(["a", "b", "a", "a"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "none | hierarchical(outer='zenn')",
            r"outer must be a collective, as text.*'zenn' is not a coll",
        ),
        ("none | hierarchical(outer='topk(0.1) | zen')", r"outer must be a collective, as text"),
        ("none | hierarchical(outer=3)", r"outer must be a collective, as text"),
        (
            "none | hierarchical(outer='hierarchical')",
            r"neither looks at machines .*got 'hierarchical'",
        ),
        ("none | hierarchical(outer='zen')", r"'hierarchical\(outer=\"zen\"\)' needs .*'entries'"),
        (
            "topk(0.1) | hierarchical(outer='allreduce')",
            r"needs a compressor that promises 'sums'",
        ),
        ("nonzero+ef | hierarchical(outer='columns')", r"has its own error feedback"),
        ("topk(0.1)+ef21 | hierarchical", r"'ef21' acts on the whole average\. Use ef or dgc"),
        ("none+server_momentum | hierarchical", r"'server_momentum' acts on the whole average"),
        (
            "none | hierarchical(per_node=-1)",
            r"per_node must be the number of ranks.*got -1\. Use",
        ),
        (
            "none | hierarchical(per_node=True)",
            r"per_node must be the number of ranks.*got True\. Use",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_read(text: str, said: str) -> None:
    with pytest.raises(StrategyError, match=said):
        Strategy.parse(text)


def test_an_outer_text_is_the_member_it_stands_for() -> None:
    one = Strategy.parse("""topk(0.1) | hierarchical(outer="zen(variant='paper')")""")
    other = Strategy.parse("""topk(0.1) | hierarchical('zen(variant="paper" )')""")
    assert one == other == Strategy.parse(str(one))
    assert str(one) == """topk(0.1) | hierarchical(outer='zen(variant="paper")')"""
    assert str(Strategy.parse("none | hierarchical(outer='allgather')")) == "none | hierarchical"

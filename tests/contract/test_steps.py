"""steps: every path of the decision tree ends in the mean, on every rank, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from inputs import integers, normal, ranks
from parted import parted
from several import Several, all_nan, drawn, equal
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError, StrategyError
from gradwire.kernels import Scratch
from gradwire.runtime import lockstep as runtime_lockstep
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import State, StepInfo
from gradwire.tasks import Path, paths
from gradwire.trace import Trace
from suites import first

SHAPES = {"a": (30, 40), "b": (700,), "c": (3,), "d": (0,)}
ALL = paths()
ON_ONE = paths(devices=("gpu",))
COMPRESSING = [path for path in ON_ONE if path.compressions]
FLAT = [path for path in ALL if not path.knows_machines]
ALL_PARTED, ON_ONE_PARTED = parted(ALL, 31), parted(ON_ONE, 4)
COMPRESSING_PARTED = parted(COMPRESSING, 4)
SOME = [path for i, path in enumerate(COMPRESSING) if i % 6 == 0 or path.compressions == 4]
"""A sample of the paths that has every sub-tree."""
LEFT = ("topk(0.1)+ef", "dgc(0.1)", "qsgd(4)+ef", "sign(scaled=True)+ef", "fp16+ef")
PLACES = [(4, 2), (6, 2)]
"""(ranks, ranks per machine): 2 machines of 2, and 3 of 2."""
every_part = pytest.mark.parametrize("part", first(range(5)))
every_place = pytest.mark.parametrize(("world", "per_node"), PLACES)


def text_of(left: str, path: Path, per_node: int) -> str:
    machines = f", per_node={per_node}" if path.knows_machines else ""
    return f'{left} | steps("{path}"{machines})'


# -- the mean ------------------------------------------------------------------------------------


@every_place
@pytest.mark.parametrize("part", first(range(32)))
def test_every_option_is_the_dense_mean(world: int, per_node: int, part: int) -> None:
    """All 4,341 are: bit for bit if n is a power of 2, else to the rounding of two divisions."""
    xs = integers(world, 200)
    wanted = torch.stack(xs).mean(0)
    exact = world & (world - 1) == 0
    for path in ALL_PARTED[part]:
        results, _ = lockstep(text_of("none", path, per_node), xs)
        assert all(torch.equal(result, results[0]) for result in results), path
        if exact:
            assert torch.equal(results[0], wanted), path
        else:
            torch.testing.assert_close(results[0], wanted, rtol=2.5e-7, atol=1e-7, msg=str(path))


@pytest.mark.parametrize(("world", "per_node"), [(1, 1), (3, 1), (2, 2), (3, 3), (6, 3), (8, 4)])
@every_part
def test_in_other_places(world: int, per_node: int, part: int) -> None:
    """Paths work on one machine, with a rank per machine, and on one rank, without moves among
    nobody."""
    xs = ranks(world, 130)
    for path in ON_ONE_PARTED[part]:
        results, trace = lockstep(text_of("none", path, per_node), xs)
        torch.testing.assert_close(results[0], torch.stack(xs).mean(0), rtol=1e-5, atol=1e-6)
        assert all(torch.equal(result, results[0]) for result in results)
        assert world > 1 or not trace.spans


@pytest.mark.parametrize("n", [0, 1, 3, 64, 1000])
@every_part
def test_of_any_length(n: int, part: int) -> None:
    for path in ON_ONE_PARTED[part]:
        results, _ = lockstep(text_of("none", path, 2), ranks(4, n))
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_part
def test_short_gradients(dtype: torch.dtype, part: int) -> None:
    xs = ranks(4, 200, dtype=dtype)
    wanted = torch.stack([x.double() for x in xs]).mean(0)
    for path in ON_ONE_PARTED[part]:
        results, _ = lockstep(text_of("none", path, 2), xs)
        assert all(torch.equal(result, results[0]) for result in results)
        torch.testing.assert_close(results[0].double(), wanted, rtol=0.03, atol=0.03)


@every_place
@every_part
def test_ranks_end_equal(world: int, per_node: int, part: int) -> None:
    for number, path in enumerate(COMPRESSING_PARTED[part]):
        run = Several(text_of(LEFT[number % len(LEFT)], path, per_node), SHAPES, world)
        for step in range(2):
            results = run.step(drawn(SHAPES, world, step))
            assert all(equal(mine, results[0]) for mine in results), path


# -- the same as other members -------------------------------------------------------------------

TO_OWNERS = "compress@gpu, all_to_all, decompress@gpu, compress@gpu, all_gather, decompress@gpu"
ACROSS = "reduce_scatter@node, compress@gpu, all_gather@cross, decompress@gpu, all_gather@node"


@pytest.mark.parametrize("left", [*LEFT, "none", "int8+ef"])
@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("compress@gpu, all_gather, decompress@gpu", "allgather"),
        (TO_OWNERS, "alltoall"),
        (ACROSS, "hierarchical(per_node=2)"),
    ],
)
def test_as_the_member_of_that_path(left: str, path: str, member: str) -> None:
    if left.startswith("qsgd"):
        return  # dice depend on the name of a part
    shapes = {"x": (1280,), "y": (640,)}  # no matrices, whose rows would be cut whole
    own = Several(text_of(left, Path.parse(path), 2), shapes, 4)
    other = Several(f"{left} | {member}", shapes, 4)
    for step in range(3):
        gradients = drawn(shapes, 4, step)
        for one, two in zip(own.step(gradients), other.step(gradients)):
            assert equal(one, two)


def test_all_reduce_is_allreduce() -> None:
    xs = ranks(5, 100)
    one, trace = lockstep('none | steps("all_reduce")', xs)
    other, wanted = lockstep("none | allreduce", xs)
    assert torch.equal(one[0], other[0])
    assert trace.bytes_sent == wanted.bytes_sent


# -- nothing is lost -----------------------------------------------------------------------------


def waiting(run: Several) -> dict[str, Tensor]:
    """What all memories hold, in units of the sum of all gradients.

    What h ranks have of an element, where it is compressed, are means of world / h gradients.
    """
    total = {n: torch.zeros(shape, dtype=torch.float64).view(-1) for n, shape in SHAPES.items()}
    plan: Any = run.contexts[0][0]
    tasks = plan._detour._plan.path.tasks
    sites = [i for i, task in enumerate(tasks) if task.name == "compress"]
    for number, key in zip(sites, ("residual", "residual/1", "residual/2", "residual/3")):
        held = {n: torch.zeros_like(x) for n, x in total.items()}
        kept = {n: torch.zeros_like(x) for n, x in total.items()}
        for rank, memory in enumerate(run.memories):
            context: Any = run.contexts[0][rank]
            having = context._detour._plan.before(rank, number)
            if not having.is_active:
                assert all(key not in memory[n] for n in SHAPES)
                continue
            for n, (begin, end) in zip(SHAPES, having.region):
                held[n][begin:end] += 1
                kept[n][begin:end] += memory[n][key].double()
        for n in SHAPES:
            assert bool((held[n] > 0).all())
            total[n] += run.world / held[n] * kept[n]
    return total


@pytest.mark.once
@every_place
@every_part
@pytest.mark.parametrize("left", ["topk(0.05)+ef", "fp16+ef", "qsgd(2)+ef"])
def test_nothing_is_lost(left: str, world: int, per_node: int, part: int) -> None:
    """residuals of all sites + world · results = what was given; a skipped step is kept whole."""
    for path in COMPRESSING_PARTED[part][PLACES.index((world, per_node)) :: 2]:
        run = Several(text_of(left, path, per_node), SHAPES, world)
        given = {
            n: torch.zeros(shape, dtype=torch.float64).view(-1) for n, shape in SHAPES.items()
        }
        arrived = {n: torch.zeros_like(x) for n, x in given.items()}
        for step in range(4):
            gradients, skipped = drawn(SHAPES, world, step), step == 2
            results = run.step(gradients, skipped=skipped)
            kept = waiting(run)
            for n in SHAPES:
                given[n] += sum(mine[n].double().view(-1) for mine in gradients)
                arrived[n] += 0 if skipped else world * results[0][n].double().view(-1)
                torch.testing.assert_close(
                    kept[n] + arrived[n], given[n], rtol=1e-5, atol=1e-4, msg=f"{path} {step}"
                )


# -- spoiled steps -------------------------------------------------------------------------------


@pytest.mark.once
@every_place
@every_part
@pytest.mark.parametrize("left", ["topk(0.1)+ef", "qsgd(4)+ef", "dgc(0.1)"])
def test_a_bad_number_anywhere_spoils_all_and_leaves_states(
    left: str, world: int, per_node: int, part: int
) -> None:
    for number, path in enumerate(SOME[part::5]):
        run = Several(text_of(left, path, per_node), SHAPES, world, exact_undo=True)
        undisturbed = Several(text_of(left, path, per_node), SHAPES, world, exact_undo=True)
        for step in range(2):
            bad, before = drawn(SHAPES, world, 50), run.kept()
            bad[(number + step) % world]["abc"[step]].view(-1)[-1] = float("inf")
            assert all_nan(run.step(bad)), path
            for memory, was in zip(run.memories, before):
                assert all(equal(dict(memory[n]), was[n]) for n in SHAPES), path
            run.taken -= 1
            gradients = drawn(SHAPES, world, step)
            for one, other in zip(run.step(gradients), undisturbed.step(gradients)):
                assert equal(one, other), path


@pytest.mark.parametrize("left", ["topk(0.25)+ef", "topk(0.25)+dgc", "int8+ef"])
def test_a_mean_out_of_range_leaves_states_as_they_were(left: str) -> None:
    """In float16, with results where gradients lie, what is sent is finite and its mean is not."""
    strategy = Strategy.parse(f'{left} | steps("compress@gpu, all_gather, decompress@gpu")')
    bucket, memories = (
        Bucket((Parameter("x", (64,), "float16"),)),
        [dict[str, State]() for _ in "ab"],
    )
    made = [make_context(strategy, bucket, r, 2, m) for r, m in enumerate(memories)]

    def step(number: int, value: float) -> bool:
        given = [torch.full((64,), value * (1 + r / 8)).half() for r in range(2)]
        for context, x in zip(made, given):
            context.begin([x], [x], StepInfo(number))
        drive([context.rounds() for context in made], Trace(2))
        fine = all(context.finite for context in made)
        for context in made:
            context.end(skipped=not fine)
        return fine

    assert step(0, 30_000.0)
    before = [{k: x.clone() for k, x in memory["x"].items()} for memory in memories]
    if "int8" in left:  # which leaves little in residuals
        for memory in memories:
            memory["x"]["residual"].fill_(40_000.0)
        before = [{k: x.clone() for k, x in memory["x"].items()} for memory in memories]
    assert not step(1, 50_000.0)
    for memory, was in zip(memories, before):
        for key, x in memory["x"].items():
            torch.testing.assert_close(x, was[key], rtol=1e-5, atol=0.05)


def test_a_mean_out_of_float16_is_seen_where_results_are_apart() -> None:
    """The second of two steps sends the residual, twice what fits: the step is spoiled, and
    nothing of it is lost."""
    strategy = 'topk(0.25)+ef | steps("compress@gpu, all_gather, decompress@gpu")'
    given = [torch.tensor([6e4, 6e4, 0.0, 0.0]).half() for _ in range(2)]
    states = [dict[str, Any]() for _ in given]
    lockstep(strategy, given, state=states)
    results, _ = lockstep(strategy, given, step=1, state=states)
    assert all(bool(x.isnan().all()) for x in results)
    for state in states:
        assert state["residual"].tolist() == [0.0, 6e4, 0.0, 0.0]


def test_uncompressed_paths_spoil_too() -> None:
    for path in ON_ONE:
        if not path.compressions:
            bad = ranks(4, 100)
            bad[2][7] = float("nan")
            results, _ = lockstep(text_of("none", path, 2), bad)
            assert all(bool(result.isnan().all()) for result in results)


@every_part
def test_clipping_comes_first(part: int) -> None:
    xs = integers(4, 300)
    for path in ON_ONE_PARTED[part]:
        text = text_of("topk(0.1)+ef", path, 2) if path.compressions else text_of("none", path, 2)
        clipped = lockstep(text, xs, clip_scale=0.25)[0]
        for one, other in zip(clipped, lockstep(text, [x * 0.25 for x in xs])[0]):
            assert torch.equal(one, other), path


@pytest.mark.parametrize("left", LEFT)
def test_what_lies_in_memory_does_not_travel(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding between the sections of a message never holds what was in memory."""
    room, perform, sent = Scratch.room, runtime_lockstep._perform, list[Tensor]()

    def noted(moves: Any) -> Any:
        sent.extend(move.data.clone() for move in moves)
        return perform(moves)

    def send_over(what: int) -> list[Tensor]:
        def filled(self: Scratch, name: str, n: int, dtype: torch.dtype, *rest: Any) -> Tensor:
            found = room(self, name, n, dtype, *rest)
            return found.fill_(what) if dtype == torch.uint8 else found

        sent.clear()
        monkeypatch.setattr(Scratch, "room", filled)
        lockstep(text_of(left, Path.parse(TO_OWNERS), 2), ranks(4, 701))
        return list(sent)

    monkeypatch.setattr(runtime_lockstep, "_perform", noted)
    one, other = send_over(0), send_over(0xAA)
    assert one
    assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


# -- damage --------------------------------------------------------------------------------------


def test_damage_is_told() -> None:
    """A header of another step is a clear error, on a rank that goes on to the end of the path."""

    def break_step(arrived: Tensor) -> Tensor:
        arrived.view(4, -1)[2][:32].view(torch.int64)[3] = 8
        return arrived

    text = text_of("topk(0.1)+ef", Path.parse(TO_OWNERS), 2)
    run = Several(text, SHAPES, 4)
    with pytest.raises(PayloadError, match=r"received a damaged payload|rank 2 is at step 8"):
        run.step(drawn(SHAPES, 4), damage=(0, 1, break_step))


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('none | steps("compress@gpu, all_reduce")', "'all_reduce' stands after"),
        ("none | steps(3)", "path must be a list of tasks, as text; got 3"),
        ('none | steps("all_reduce", per_node=2)', "for a path with @node; got per_node=2"),
        (f'none | steps("{ACROSS}", per_node=-1)', "per_node=-1"),
        ("none+momentum(0.9) | steps('all_reduce')", "never does, but has 'momentum"),
        (f'threshold(0.1)+ef | steps("{ACROSS}")', "promises 'fixed'"),
        (f'topk(0.1)+ef21 | steps("{ACROSS}")', "acts on the whole average"),
        (
            'lloyd(2)+adam | steps("reduce, compress@gpu, broadcast, decompress@gpu")',
            "must begin with compress",
        ),
    ],
)
def test_what_cannot_work_is_refused(text: str, says: str) -> None:
    with pytest.raises(StrategyError, match=says):
        Strategy.parse(text)


def test_it_prints_and_parses() -> None:
    for path in (*FLAT, *ALL[::97]):
        for per_node in (0, 2):
            strategy = Strategy.parse(text_of("none", path, per_node))
            assert Strategy.parse(str(strategy)) == strategy
    assert str(Strategy.parse('none | steps(" all_reduce ")')) == 'none | steps("all_reduce")'


def test_states_have_the_shape_of_what_a_rank_looks_after() -> None:
    state: list[dict[str, Tensor]] = [{} for _ in range(4)]
    for step in range(2):
        xs = [normal(640, step + r).view(64, 10) for r in range(4)]
        lockstep(text_of("topk(0.1)+ef", Path.parse(ACROSS), 2), xs, step=step, state=state)
    assert all(memory["residual"].shape == (320,) for memory in state)
    whole: list[dict[str, Tensor]] = [{} for _ in range(4)]
    lockstep(text_of("topk(0.1)+ef", Path.parse(TO_OWNERS), 2), xs, state=whole)
    assert all(memory["residual"].shape == (64, 10) for memory in whole)
    assert sum(memory["residual/1"].numel() for memory in whole) == 640

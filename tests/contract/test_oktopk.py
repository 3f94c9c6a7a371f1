"""oktopk: what is in the result, what goes back, even regions, its volume, and being restarted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from several import Named, Several, all_nan, drawn, equal, mean
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.errors import StrategyError
from gradwire.local import THRESHOLD
from suites import first

SHAPES = {"a": (50, 80), "b": (700,), "c": (3,), "d": (0,), "e": (9, 5)}
REAL = tuple(name for name, shape in SHAPES.items() if 0 not in shape)
TEXT = "topk(0.05)+ef | oktopk"
every_world = pytest.mark.parametrize("world", [1, 2, 3, 5, 8])


def k_of(shape: tuple[int, ...], density: float = 0.05) -> int:
    return -(-torch.Size(shape).numel() * int(density * 100) // 100)


def largest_of_the_sum(gradients: list[Named], name: str, density: float = 0.05) -> Tensor:
    """The result by hand: each rank's top k, summed in rank order, the k largest divided."""
    total = torch.zeros(gradients[0][name].numel())
    k = k_of(tuple(gradients[0][name].shape), density)
    for mine in gradients:
        flat = mine[name].flatten()
        kept = flat.abs().sort(descending=True, stable=True).indices[:k]
        total[kept] += flat[kept]
    means = total / len(gradients)
    count = min(k, int((means != 0).sum()))
    least = means.abs().sort(descending=True).values[count - 1] if count else 1.0
    return torch.where(means.abs() >= least, means, 0.0).view(gradients[0][name].shape)


@every_world
def test_the_first_step_is_exact(world: int) -> None:
    run = Several(TEXT, SHAPES, world)
    gradients = drawn(SHAPES, world)
    for result in run.step(gradients):
        for name in SHAPES:
            assert torch.equal(result[name], largest_of_the_sum(gradients, name)), name


@pytest.mark.parametrize("world", first([1, 3, 2, 5, 8], 2))
def test_nothing_is_lost_ever(world: int) -> None:
    """Results and residuals add up to all gradients, with old thresholds and new."""
    run = Several(TEXT, SHAPES, world)
    given = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in SHAPES.items()}
    arrived = {n: x.clone() for n, x in given.items()}
    for step in range(70):
        gradients = drawn(SHAPES, world, step)
        results = run.step(gradients)
        assert all(equal(result, results[0]) for result in results)
        for name, shape in SHAPES.items():
            given[name] += world * mean(gradients, name)
            arrived[name] += world * results[0][name].double()
            waiting = sum(m[name]["residual"].double() for m in run.memories)
            torch.testing.assert_close(
                arrived[name] + waiting.view(shape), given[name], rtol=0, atol=2e-4
            )


@pytest.mark.parametrize("feedback", ["dgc(0.05)", "topk(0.05, values='bf16')+ef"])
def test_ranks_stay_equal_with_other_memories(feedback: str) -> None:
    run = Several(f"{feedback} | oktopk", SHAPES, 3)
    for step in range(40):
        results = run.step(drawn(SHAPES, 3, step))
        assert all(equal(result, results[0]) for result in results)


def test_between_new_thresholds_results_have_about_k_entries() -> None:
    world, shapes = 4, {"a": (6000,)}
    run, k = Several("topk(0.01)+ef | oktopk", shapes, world), 60
    moves = []
    for step in range(64):
        results = run.step(drawn(shapes, world, step))
        found = int((results[0]["a"] != 0).sum())
        assert k / 2 - 4 <= found <= 2 * k + 4
        assert step % 32 or found == k, "a new threshold is exact"
        moves.append(len(run.trace.spans) // world)
    assert (moves[0], moves[32]) == (8, 7), "with regions and a threshold, with a threshold"
    assert min(moves) == 4, "the old threshold is never used"


@pytest.mark.parametrize("world", first([2, 3, 4, 8, 16], 2))
def test_volume_is_below_the_bound(world: int) -> None:
    """At most 6k(n-1)/n words of 4 bytes travel a step, in the mean of 64 steps of random data,
    with counts and headers."""
    n, density = 60_000, 0.01
    run = Several(f"topk({density})+ef | oktopk", {"a": (n,)}, world)
    total = 0.0
    for step in range(64):
        run.step(drawn({"a": (n,)}, world, step))
        total += sum(run.trace.bytes_sent) / world
    assert total / 64 <= 4 * 6 * (density * n) * (world - 1) / world


@pytest.mark.parametrize("world", first([1, 3, 2, 5, 8], 2))
def test_grouping_changes_nothing(world: int) -> None:
    together = Several(TEXT, SHAPES, world)
    apart = Several(TEXT, SHAPES, world, buckets=[["e", "a"], ["d", "b"], ["c"]])
    for step in range(36):
        gradients = drawn(SHAPES, world, step)
        for one, other in zip(together.step(gradients), apart.step(gradients)):
            assert equal(one, other), step


def test_a_threshold_that_nothing_reaches_is_computed_anew() -> None:
    """Of 7 entries less than half, less the tolerance, is none: one spike would starve the next
    31 steps. One that is not finite is forgotten."""
    for spike in (1000.0, 3e38):
        state: list[dict[str, Tensor]] = [{}, {}]
        for step in range(3):
            x = torch.linspace(1.0, 2.0, 64) * (spike if step == 0 else 1.0)
            (result, _), _ = lockstep("topk(0.1)+ef | oktopk", [x, x], step=step, state=state)
            assert result.count_nonzero() == 7 or not result.isfinite().all()
            assert all(x.isfinite().all() for own in state for x in own.values())


def regions_of(run: Several, rank: int) -> tuple[int, ...]:
    return tuple(run.contexts[0][rank].memory["regions"])


def test_regions_follow_the_entries() -> None:
    """Even ranges would leave nearly all work to one owner if large gradients lie together."""
    world, n = 4, 40_000
    scale = torch.where(torch.arange(n) < n // 10, 10.0, 0.01)

    def skewed(step: int) -> list[Named]:
        return [{"a": g["a"] * scale} for g in drawn({"a": (n,)}, world, step)]

    run = Several("topk(0.01)+ef | oktopk", {"a": (n,)}, world)
    results = run.step(skewed(0))
    ends = [regions_of(run, rank) for rank in range(world)]
    assert len(set(ends)) == 1
    assert ends[0][0] == 0
    assert ends[0][-1] == n
    assert ends[0][-2] < n // 10
    places = results[0]["a"].nonzero().flatten()
    counts = [int(((places >= a) & (places < b)).sum()) for a, b in zip(ends[0], ends[0][1:])]
    assert max(counts) * world <= 1.3 * sum(counts)
    for step in range(1, 64):
        run.step(skewed(step))
    assert regions_of(run, 0) == ends[0]
    run.step(skewed(64))
    assert regions_of(run, 0) != ends[0], "drawn anew"


# -- state ---------------------------------------------------------------------------------------


def test_thresholds_are_equal_on_all_ranks_and_parameters_have_their_own() -> None:
    run = Several(TEXT, SHAPES, 3)
    for step in range(3):
        run.step(drawn(SHAPES, 3, step))
        states = run.kept()
        for name in SHAPES:
            assert len({float(state[name][THRESHOLD]) for state in states}) == 1
            assert states[0][name][THRESHOLD].shape == (1,)
    assert states[0]["d"][THRESHOLD] == 0
    assert states[0]["a"][THRESHOLD] > states[0]["c"][THRESHOLD] / 1e3


def test_resumed_is_uninterrupted() -> None:
    """A resume draws regions anew, which changes nothing: they say who adds, not what."""
    whole = Several(TEXT, SHAPES, 3)
    for step in range(5):
        whole.step(drawn(SHAPES, 3, step))
    resumed = Several(TEXT, SHAPES, 3, memories=whole.kept())
    resumed.taken = whole.taken
    for step in range(5, 40):
        gradients = drawn(SHAPES, 3, step)
        for one, other in zip(whole.step(gradients), resumed.step(gradients)):
            assert equal(one, other)


def forgetful(run: Several) -> Iterator[str]:
    """Removes rank 1's thresholds one by one, then those of all ranks; yields what is missing."""
    for name in REAL:
        run.memories[1][name].pop(THRESHOLD)
        yield f"rank 1 has none for {name}"
    for memory in run.memories:
        for state in memory.values():
            state.pop(THRESHOLD)
    yield "nobody has any"


def test_a_rank_without_threshold_makes_all_find_a_new_one() -> None:
    run = Several("topk(0.05) | oktopk", SHAPES, 3)
    run.step(drawn(SHAPES, 3))
    for step, what in enumerate(forgetful(run), 1):
        gradients = drawn(SHAPES, 3, step)
        results = run.step(gradients)
        assert all(equal(result, results[0]) for result in results), what
        if what == "nobody has any":
            for name in SHAPES:
                wanted = largest_of_the_sum(gradients, name)
                assert torch.equal(results[0][name], wanted), name
        states = run.kept()
        for name in REAL:
            assert len({float(state[name][THRESHOLD]) for state in states}) == 1, what


def test_a_bad_or_skipped_step_leaves_thresholds() -> None:
    run = Several(TEXT, SHAPES, 3, exact_undo=True)
    for step in range(31):
        run.step(drawn(SHAPES, 3, step))
    run.taken = 32  # a step with new thresholds
    before = [{n: float(s[THRESHOLD]) for n, s in memory.items()} for memory in run.memories]
    bad = drawn(SHAPES, 3, 32)
    bad[1]["b"][5] = float("nan")
    assert all_nan(run.step(bad))
    run.taken = 32
    run.step(drawn(SHAPES, 3, 32), skipped=True)
    after = [{n: float(s[THRESHOLD]) for n, s in memory.items()} for memory in run.memories]
    assert before == after


# -- edges ---------------------------------------------------------------------------------------


def test_zeros_and_then_something() -> None:
    run = Several(TEXT, {"a": (400,)}, 2)
    zeros = [{"a": torch.zeros(400)} for _ in range(2)]
    for _ in range(2):
        assert all(not bool(result["a"].any()) for result in run.step(zeros))
    gradients = drawn({"a": (400,)}, 2)
    assert torch.equal(run.step(gradients)[0]["a"], largest_of_the_sum(gradients, "a"))


def test_what_cancels_goes_back() -> None:
    x = torch.zeros(100)
    x[7] = 3.0
    state: list[dict[str, Tensor]] = [{}, {}]
    results, _ = lockstep("topk(0.01)+ef | oktopk", [x, -x], state=state)
    assert not bool(results[0].any())
    assert torch.equal(state[0]["residual"], x)
    assert torch.equal(state[1]["residual"], -x)


def test_places_beyond_what_fp32_counts() -> None:
    """The published code sends indices as floats, so an odd place above 2^24 would move there."""
    n = (1 << 24) + 4
    x = torch.zeros(n)
    x[-1] = 2.0
    result = lockstep("topk(1e-7) | oktopk", [x, x])[0][0]
    assert result.nonzero().flatten().tolist() == [n - 1]


def test_needs_a_fixed_number_of_entries() -> None:
    for text in ("nonzero | oktopk", "int8 | oktopk"):
        with pytest.raises(StrategyError, match="needs a compressor that promises"):
            Strategy.parse(text)

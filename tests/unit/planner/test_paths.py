"""The tree's paths for a profiled job: which fit, what they cost, which are offered, and that a
plan with them is no longer than one without."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import line, profile, with_parts

from gradwire import Strategy, lockstep, tasks
from gradwire.cli.main import main
from gradwire.errors import PlanError, StrategyError
from gradwire.moves import Move
from gradwire.planner import candidates
from gradwire.planner.candidates import FP32
from gradwire.planner.choose import choose
from gradwire.planner.grouping import Grouping, Problem, solve
from gradwire.planner.links import sizes_of
from gradwire.planner.paths import (
    MOST,
    Offer,
    Parts,
    example,
    fitting,
    is_pattern,
    offer,
    undominated,
    whole,
    with_named,
    with_paths,
)
from gradwire.planner.priced import Priced
from gradwire.planner.pricing import price as priced
from gradwire.planner.profile import Profile, StrategyCost
from gradwire.runtime import lockstep as ranks
from suites import first

LEFT = "topk(0.01)+ef"
PATTERN = f"{LEFT} | paths"
FLAT = replace(
    with_parts(profile()), strategies=profile(strategies=["none | allreduce"]).strategies
)
LEVELS = replace(FLAT, hosts=("a", "a", "b", "b"))
on_both = pytest.mark.parametrize("own", [FLAT, LEVELS], ids=["4x1", "2x2"])


# -- which fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "count"),
    [("abcd", 12), ("aabb", 174), ("aaaa", 12), ("aaab", 12), ("ab", 12), ("aabbcc", 174)],
)
def test_paths_fit_machines(hosts: str, count: int) -> None:
    found = fitting(replace(FLAT, hosts=tuple(hosts)))
    assert len(found) == count
    assert any(path.knows_machines for path in found) == (count == 174)


def test_a_pattern_and_what_stands_for_it() -> None:
    answers = {PATTERN: True, "bf16|paths": True, "none | allreduce": False, LEFT: False}
    assert {text: is_pattern(text) for text in answers} == answers
    assert example(PATTERN) == f'{LEFT} | steps("compress@gpu, all_gather, decompress@gpu")'
    assert whole("topk( 0.01 )+ef | paths") == f"{LEFT} | allgather"
    assert example("none | allreduce") == whole("none | allreduce") == "none | allreduce"


# -- what they take ------------------------------------------------------------------------------


@cache
def price(text: str, n: int, per_node: int = 1) -> Priced:
    """Prices a strategy for one matrix of n elements and 4 ranks."""
    return priced(text, [(n // 256, 256)], 4, per_node=per_node)


def seconds_by_hand(own: Profile, path: tasks.Path, n: int) -> tuple[float, float]:
    """The seconds of local work and of moves, for a path of one matrix."""
    left = LEFT if path.compressions else "none"
    local = own.compressors[f"{LEFT} @ cpu"]
    plain = own.compressors["none @ cpu"]
    per_node = 2 if own is LEVELS else 1
    found = price(f'{left} | steps("{path}")', n, per_node)
    work = wire = 0.0
    for move in found.moves:
        wires = "uint8" if move.name in ("all_gather", "broadcast") else move.dtype
        wire += own.moves[f"{move.name} {wires} {move.group}"](move.bytes)
        if move.dtype == "float32":
            brought = move.bytes / 4
            arrives = {"all_gather": brought * move.ranks, "reduce_scatter": brought / move.ranks}
            work += plain.encode(brought) + plain.decode(arrives.get(move.name, brought))
    for step in found.work:
        if step.kind == "encode":
            work += local.encode(step.elements)
        else:
            work += local.decode(step.elements)
            work += (step.contributions - 1) * local.add(step.elements)
    return work, wire


def test_every_flat_path_by_hand() -> None:
    """Sums without compression are included; their numbers are copied before and after moves."""
    parts, sizes = Parts(FLAT, LEFT), sizes_of(FLAT)
    for path in fitting(FLAT):
        text = f'{LEFT if path.compressions else "none"} | steps("{path}")'
        cost = parts.cost([price(text, n) for n in sizes])
        for n in sizes:
            work, wire = seconds_by_hand(FLAT, path, n)
            assert cost.encode(n) + cost.decode(n) == pytest.approx(work)
            assert cost.wire(n) == pytest.approx(wire)
    scattered = parts.cost(
        [priced('none | steps("reduce_scatter, all_gather")', [4096], 4)] * len(sizes)
    )
    plain = FLAT.compressors["none @ cpu"]
    assert scattered.encode(0) == plain.encode(4096)
    assert scattered.decode(0) == plain.decode(1024) + plain.encode(1024) + plain.decode(4096)


def test_what_is_compressed_in_pieces_is_priced_so() -> None:
    """Encoding a piece for each receiver has its own price; at a path's end there are no
    pieces."""
    known = FLAT.compressors[f"{LEFT} @ cpu"]
    apart = replace(known, encode=line(1.0, 0.0))
    own = replace(FLAT, compressors={**FLAT.compressors, f"{LEFT} in pieces @ cpu": apart})
    parts = Parts(own, LEFT)
    for path, seconds in {
        "compress@gpu, all_to_all, all_gather, decompress@gpu": 1.0,
        "compress@gpu, all_gather, decompress@gpu": known.encode(4096),
        "reduce_scatter, compress@gpu, all_gather, decompress@gpu": None,
    }.items():
        cost = parts.cost([priced(f'{LEFT} | steps("{path}")', [4096], 4)])
        if seconds is None:
            assert cost.decode(0) < 1.0
        else:
            assert cost.encode(0) == pytest.approx(seconds)


@cache
def offered_on(hosts: tuple[str, ...]) -> Offer:
    """What stands for the pattern where the ranks are on these hosts."""
    return offer(replace(FLAT, hosts=hosts), PATTERN)


@pytest.mark.parametrize("own", first([LEVELS, FLAT]), ids=["2x2", "4x1"])
def test_offered_are_the_best_of_an_obvious_enumeration(own: Profile) -> None:
    """None offered is dominated, by an obvious search; no other is cheaper at the usual price."""
    offered = offered_on(own.hosts)
    assert offered.fitting == len(fitting(own))
    sizes = [n for n in sizes_of(own) if n % 256 == 0]
    every = {str(path): [seconds_by_hand(own, path, n) for n in sizes] for path in fitting(own)}
    assert 1 <= len(offered.strategies) <= MOST < len(every)
    assert len(offered.strategies) <= offered.undominated
    for text, cost in offered.strategies.items():
        tasks_of = Strategy.parse(text).collective.tasks
        rows = every[str(tasks_of)]
        for (work, wire), n in zip(rows, sizes):
            assert cost.encode(n) + cost.decode(n) == pytest.approx(work)
            assert cost.wire(n) == pytest.approx(wire)
        beaten = [
            other for other, theirs in every.items()
            if all(a[0] < b[0] and a[1] < b[1] for a, b in zip(theirs, rows))
        ]  # fmt: skip
        assert not beaten, f"{text} asks more than {beaten}"
    best = [str(Strategy.parse(text).collective.tasks) for text in offered.strategies]
    bills = [
        {path: price * rows[i][0] + rows[i][1] for path, rows in every.items()}
        for i in range(len(sizes))[-4:] for price in (0.25, 0.5, 1.0, 2.0, 4.0)
    ]  # fmt: skip
    near = {path: min(own[path] / min(own.values()) for own in bills) for path in every}
    assert all(near[path] <= 1.25 for path in best)
    assert [near[path] for path in best] == sorted(near[path] for path in best)
    for own_bills in bills:
        cheapest = min(own_bills, key=own_bills.__getitem__)
        assert cheapest in ("all_reduce", *best), "fp32 was measured, which is all_reduce"


@on_both
def test_undominated_by_trying_all_pairs(own: Profile) -> None:
    parts, sizes = Parts(own, LEFT), sizes_of(own)
    costs = {
        text: parts.cost([price(text, n, 2) for n in sizes])
        for path in fitting(own)
        for text in [f'{LEFT if path.compressions else "none"} | steps("{path}")']
    }

    def asks(cost: StrategyCost) -> list[float]:
        links = [cost.link_seconds(n) for n in sizes]
        starts = [cost.wire(n) - link for n, link in zip(sizes, links)]
        return [*(cost.encode(n) + cost.decode(n) for n in sizes), *starts, *links]

    rows = {text: asks(cost) for text, cost in costs.items()}
    front = {
        tuple(row) for row in rows.values()
        if not any(o != row and all(a <= b for a, b in zip(o, row)) for o in rows.values())
    }  # fmt: skip
    kept = undominated(costs, sizes)
    assert {tuple(rows[text]) for text in kept} == front
    assert len(kept) == len(front), "of equals one"


@pytest.mark.parametrize(
    ("own", "n"), first([(FLAT, 4096), (LEVELS, 4096), (FLAT, 65_536), (LEVELS, 65_536)], 2)
)
def test_prices_are_those_of_the_path_as_it_runs(
    own: Profile, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lockstep agrees: the bytes of the first rank, and the seconds of the moves that it made."""
    made = list[Move]()
    perform: Any = ranks._perform

    def recording(moves: list[Move]) -> Any:
        if moves[0].group is None or 0 in moves[0].group.ranks:
            made.append(moves[0])
        return perform(moves)

    monkeypatch.setattr(ranks, "_perform", recording)
    dice = torch.Generator().manual_seed(0)
    given = [torch.randn(n // 256, 256, generator=dice) for _ in range(4)]
    for text, cost in offered_on(own.hosts).strategies.items():
        made.clear()
        run = text.replace('")', '", per_node=2)') if "@node" in text else text
        _, trace = lockstep(run, given)
        assert cost.bytes(n) == pytest.approx(trace.bytes_sent[0]), text
        seconds = 0.0
        for move in made:
            data: torch.Tensor = move.data  # type: ignore[attr-defined]
            passed_on = move.name in ("all_gather", "broadcast", "gather", "all_to_all")
            dtype = "uint8" if passed_on else "float32"
            name = f"{move.name} {dtype} {move.where}"
            seconds += own.moves[name](data.numel() * data.element_size())
        assert cost.wire(n) == pytest.approx(seconds), text


def test_a_measured_strategy_stands_for_its_path() -> None:
    """A path with the same moves is not offered again, and no measured strategy is priced anew."""
    own = with_parts(profile())
    assert f"{LEFT} | allgather" in own.strategies
    own = replace(own, moves={**own.moves, "all_to_all uint8 world": line(1.0, 1.0)})
    free = replace(own, strategies=FLAT.strategies)
    (first_of_all, *_) = with_paths(free, [PATTERN])[1]
    assert first_of_all == example(PATTERN)
    texts = with_paths(own, [PATTERN])[1]
    assert example(PATTERN) not in texts
    assert 'none | steps("all_reduce")' not in texts
    known = replace(free, strategies={**free.strategies, first_of_all: free.cost(FP32)})
    assert with_paths(known, [PATTERN])[0].cost(first_of_all) == free.cost(FP32)


def test_a_compressor_is_known_however_it_was_typed() -> None:
    """Profiles name compressors as they were typed; strategies print defaults shortly."""
    given = with_parts(FLAT, "qsgd(4)")
    (cost,) = FLAT.strategies.values()
    measured = replace(given, strategies={**FLAT.strategies, "qsgd(4) | allgather": cost})
    for left in ("qsgd(4)", "qsgd", "qsgd(bits=4)"):
        free = offer(given, f"{left} | paths").strategies
        assert example("qsgd | paths") in free
        own = offer(measured, f"{left} | paths").strategies
        assert own.keys() == free.keys() - {example("qsgd | paths")}, "it makes the same moves"


def test_only_what_may_be_used() -> None:
    once = offer(
        LEVELS, PATTERN, lambda text: not Strategy.parse(text).collective.compresses_again
    )
    assert once.fitting == sum(path.compressions < 2 for path in fitting(LEVELS))
    none = offer(FLAT, PATTERN, lambda text: False)
    assert (none.fitting, none.undominated, none.strategies) == (0, 0, {})


# -- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "rate", "work"),
    first(list(product(["abcd", "aabb"], [2e8, 1e9, 1e10], [1e-10, 1e-8])), 4),
)
def test_a_plan_with_paths_is_no_longer_than_one_without(
    hosts: str, rate: float, work: float
) -> None:
    given = with_parts(profile(bits_per_second=rate), bits_per_second=rate, work=work)
    given = replace(given, hosts=tuple(hosts))
    plain = choose(given)
    own, texts, _ = with_paths(given, [*given.strategies, PATTERN])
    found = choose(own, texts)
    assert found.best.seconds <= plain.best.seconds * (1 + 1e-9)
    assert found.lower_bound <= found.best.seconds


def test_a_search_that_paths_lead_astray_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def astray(problem: Problem) -> tuple[Grouping, float]:
        if len(problem.options) > 1 and not any("steps(" in text for text in problem.options):
            return solve(problem)
        worst = Grouping((len(problem.tensors),), (0,))
        return worst, problem.seconds(worst)

    monkeypatch.setattr(candidates, "SOLVERS", {"joint": astray})
    given = with_parts(profile(bits_per_second=2e8), bits_per_second=2e8)
    given = replace(given, moves={**given.moves, "all_reduce float32 world": line(1.0, 1.0)})
    own, texts, _ = with_paths(given, [*given.strategies, "none | paths"])
    assert len(texts) > len(given.strategies)
    assert choose(own, texts).best.seconds == choose(given).best.seconds


def test_a_path_wins_where_it_has_the_least_to_move() -> None:
    """Its numbers are not compressed, and its all-to-all takes next to nothing."""
    given = with_parts(profile(bits_per_second=2e8), bits_per_second=2e8)
    given = replace(given, moves={**given.moves, "all_to_all uint8 world": line(1e-4, 1e-9)})
    plain = choose(given, ["none | allreduce"]).best.seconds
    own, texts, _ = with_paths(given, ["none | allreduce", "none | paths"])
    found = choose(own, texts)
    assert "compress@gpu, all_to_all" in str(found.best.plan.main_strategy)
    assert found.best.seconds < 0.8 * plain


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "pattern", "told"),
    [
        (replace(FLAT, moves={}), PATTERN, "the profile has 0 moves"),
        (FLAT, "int8+ef | paths", "but not 'int8+ef @ cpu'"),
        (replace(FLAT, compressors={}), PATTERN, "Profile again with --strategies"),
    ],
)
def test_what_was_not_measured_is_named(own: Profile, pattern: str, told: str) -> None:
    with pytest.raises(PlanError, match="a path is priced by") as caught:
        offer(own, pattern)
    assert told in str(caught.value)


@pytest.mark.parametrize("left", ["threshold(0.1)+ef", "lloyd(2)+muon", "magic"])
def test_what_paths_do_not_take_is_refused(left: str) -> None:
    with pytest.raises(StrategyError):
        with_paths(FLAT, [f"{left} | paths"])


def test_the_command_offers_and_tells(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "profile.json"
    LEVELS.save(kept)
    asked = ["plan", "--profile", str(kept), "--optimizer", "sgd", "--lanes", "1", "--json"]
    asked += ["--allow", "none | allreduce", PATTERN]
    assert main(asked) == 0
    out = capsys.readouterr()
    (told,) = json.loads(out.out)["paths"]
    once = sum(path.compressions < 2 for path in fitting(LEVELS))
    assert (told["pattern"], told["fitting"]) == (PATTERN, once)
    assert f"{once} of 174 paths fit" in out.err
    assert 0 < len(told["strategies"]) <= min(MOST, told["undominated"])
    assert main([*asked, "--workers", "8"]) == 2
    assert "needs the cluster of the profile" in capsys.readouterr().err
    assert main(["plan", "--profile", str(kept), "--allow", PATTERN]) == 2, (
        "none is sound with all"
    )


def test_a_path_that_compresses_once_loses_what_its_compressor_does() -> None:
    """Its error is known, so an error budget and a pattern can be combined."""
    gathered = f"{LEFT} | allgather"
    cost = profile(strategies=[gathered]).strategies[gathered]
    known = {**FLAT.strategies, gathered: replace(cost, error=0.4, errors={"w0": 0.3})}
    own = replace(FLAT, strategies=known)
    once, twice = (
        f'{LEFT} | steps("{path}")' for path in (
            "compress@gpu, all_gather, decompress@gpu",
            "compress@gpu, all_to_all, decompress@gpu, compress@gpu, all_gather, decompress@gpu",
        )
    )  # fmt: skip
    found = with_named(own, [once, twice, FP32]).strategies
    assert (found[once].error, dict(found[once].errors)) == (0.4, {"w0": 0.3})
    assert found[twice].error is None
    assert found.keys() == {*known, once, twice}
    assert with_named(replace(own, moves={}), [once]).strategies == known, "nothing to price by"


def test_a_plan_with_priced_paths_is_explained_by_its_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f'{LEFT} | steps("compress@gpu, all_gather, decompress@gpu")'
    plan = choose(with_named(LEVELS, [text]), [FP32, text]).best.plan
    assert text in map(str, plan.strategies)
    plan.save(tmp_path / "plan.json")
    LEVELS.save(tmp_path / "profile.json")
    assert main(["explain", str(tmp_path / "plan.json"), "--profile",
                 str(tmp_path / "profile.json")]) == 0  # fmt: skip
    assert text in capsys.readouterr().out

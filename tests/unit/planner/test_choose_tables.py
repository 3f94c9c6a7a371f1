"""Tables whose gradients are rows: their fastest measured strategy, on the timeline."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_choose import model, profile

from gradwire import Plan, Strategy
from gradwire.buckets import Parameter
from gradwire.errors import PlanError
from gradwire.planner.candidates import FP32, Maker, tables_of, timeline_of
from gradwire.planner.choose import choose, judge
from gradwire.planner.explain import explain
from gradwire.planner.profile import Profile, Ready, TableCost
from gradwire.tuning.auto import at_once

COLUMNS, ZEN = "none | columns", "nonzero | zen"
TABLES = [Parameter(name, (1000, 16), "float32", True) for name in ("words", "users")]


def known(*costs: TableCost, bytes_per_second: float = 1e8) -> Profile:
    ready = [*model(), *(Ready(p, 0.011) for p in TABLES)]
    return replace(profile(bytes_per_second, ready=ready), tables=costs)


def cost(strategy: str, wire: float, names: tuple[str, ...] = ("words", "users")) -> TableCost:
    return TableCost(names, strategy, 1e-4, wire, 1e-4)


def rows_of(plan: Plan) -> dict[tuple[str, ...], str]:
    pairs = zip(plan.buckets, plan.strategies)
    return {bucket.names: str(strategy) for bucket, strategy in pairs if bucket.has_rows}


def test_they_travel_together_by_the_fastest_way() -> None:
    own = known(cost(COLUMNS, 5e-3), cost(ZEN, 3e-3))
    assert rows_of(choose(own).best.plan) == {("words", "users"): ZEN}
    slower = known(cost(COLUMNS, 3e-3), cost(ZEN, 5e-3))
    assert rows_of(choose(slower).best.plan) == {("words", "users"): COLUMNS}


def test_what_was_not_measured_travels_as_usual() -> None:
    assert rows_of(choose(known()).best.plan) == {("words",): COLUMNS, ("users",): COLUMNS}
    one = known(cost(ZEN, 1e-3, ("users",)))
    assert rows_of(choose(one).best.plan) == {("words",): COLUMNS, ("users",): ZEN}
    strange = known(cost(ZEN, 1e-3, ("users", "another")))
    assert {str(s) for _, s in tables_of(strange)} == {COLUMNS}


def test_their_time_is_on_the_timeline() -> None:
    without, slow = known(), known(cost(COLUMNS, 50e-3))
    plan = choose(slow, [FP32]).best.plan
    assert timeline_of(slow, plan).iteration_seconds > 50e-3
    assert timeline_of(without, plan).iteration_seconds < 40e-3, "nobody measured it"
    halved = slow.slowed(0.5)
    assert halved.tables[0].wire == 25e-3
    assert timeline_of(halved, plan).iteration_seconds < timeline_of(slow, plan).iteration_seconds


def test_the_way_of_a_table_is_the_best_beside_all_else() -> None:
    """Columns are faster alone, but the link is busy already, and the processor is not."""
    names = ("words", "users")
    busy = TableCost(names, ZEN, 45e-3, 3e-3, 0.0), TableCost(names, COLUMNS, 0.0, 40e-3, 0.0)
    own = known(*busy, bytes_per_second=2e7)
    found = choose(own, [FP32], lanes=[1, 2])
    assert rows_of(found.best.plan) == {names: ZEN}
    plan, by_columns = found.best.plan, Strategy.parse(COLUMNS)
    pairs = zip(plan.buckets, plan.strategies)
    strategies = tuple(by_columns if bucket.has_rows else own for bucket, own in pairs)
    other = judge(own, replace(plan, strategies=strategies))
    assert found.best.seconds < 0.8 * other.best.seconds
    assert other.gap > found.gap > -1e-9
    assert found.gap < 0.2


def test_so_it_is_in_a_plan_with_everything_at_once() -> None:
    """It races beside the planner's own, and would win by its groups with tables as usual."""
    own = known(cost(COLUMNS, 5e-3), cost(ZEN, 3e-3))
    for measured, way in ((own, ZEN), (known(), COLUMNS)):
        ((names, found),) = rows_of(at_once(measured, Strategy.parse(FP32))).items()
        assert (set(names), found) == ({"words", "users"}, way)


def test_groups_are_searched_again_beside_the_way_of_a_table() -> None:
    """A plan found beside columns is changed to zen; the groups that suit zen are better yet."""
    names = ("words", "users")
    ways = TableCost(names, ZEN, 10.5e-3, 0.5e-3, 0.0), TableCost(names, COLUMNS, 0.0, 10e-3, 0.0)
    own = known(*ways, bytes_per_second=2e7)
    found = choose(own, [FP32]).best
    once = min(c.seconds for c in Maker(own).plans([FP32]))
    assert rows_of(found.plan) == {names: ZEN}
    assert found.seconds < 0.99 * once


def test_a_story_says_what_they_take() -> None:
    own = known(cost(COLUMNS, 5e-3), cost(ZEN, 3e-3))
    choice = choose(own)
    (group,) = [g for g in explain(choice, own).groups if g.decided_by == "rows"]
    assert group.why.endswith("alone 'nonzero | zen' takes 3.2 ms, 'none | columns' takes 5.2 ms")
    assert group.done_seconds > group.ready_seconds
    without = known()
    groups = [g for g in explain(choose(without), without).groups if g.decided_by == "rows"]
    assert all("was not measured" in g.why for g in groups)


def test_profiles_keep_it() -> None:
    own = known(cost(COLUMNS, 5e-3), cost(ZEN, 3e-3))
    assert Profile.from_json(own.to_json()) == own
    document = json.loads(own.to_json())
    del document["tables"]
    assert Profile.from_json(json.dumps(document)) == replace(own, tables=())
    document["tables"] = [{"parameters": [], "strategy": ZEN, "encode": 0, "wire": 0, "decode": 0}]
    with pytest.raises(PlanError, match="tables"):
        Profile.from_json(json.dumps(document))


def test_no_table_is_lost_where_measured_buckets_overlap() -> None:
    third = Parameter("items", (1000, 16), "float32", True)
    own = known(cost(COLUMNS, 1e-3), cost(ZEN, 1e-3, ("users", "items")))
    own = replace(own, ready=(*own.ready, Ready(third, 0.012)))
    found = [bucket.names for bucket, _ in tables_of(own)]
    assert found == [("words", "users"), ("items",)]

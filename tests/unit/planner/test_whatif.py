"""Other clusters: the same one gives the same profile, a law is found again, and invariants."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from profiles import LOCAL, few, profile, resnet50

from gradwire.buckets import Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.planner.choose import choose
from gradwire.planner.curves import Curve
from gradwire.planner.fit import Fit
from gradwire.planner.links import EFFICIENCY, fitted, loaded, starts
from gradwire.planner.priced import PricedMove
from gradwire.planner.profile import Contention, Profile
from gradwire.planner.tables import table
from gradwire.planner.whatif import Again, on, own_cluster, wanted
from gradwire.topology import NODE_BYTES_PER_SECOND, NODE_LATENCY_SECONDS, Cluster

LOOKED_AT = (0, 100, 1000, 10**4, 10**5, 10**6, 1.5e6)


def equal_rate(bits_per_second: float) -> float:
    """The link rate of a cluster whose best move has an inefficiency of 1.1 to its bits."""
    return bits_per_second / 1.1 / EFFICIENCY


# -- the same cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", LOCAL)
def test_the_own_cluster_gives_the_profile_again(text: str) -> None:
    own = profile()
    one, other = own.strategies[text], on(own, own_cluster(own)).strategies[text]
    for n in LOOKED_AT:
        assert other.wire(n) == pytest.approx(one.wire(n), rel=0.02)
        assert other.encode(n) == pytest.approx(one.encode(n), rel=1e-9)
        assert other.decode(n) == pytest.approx(one.decode(n), rel=1e-9)
    assert other.latency_seconds == pytest.approx(one.latency_seconds, rel=0.02)
    assert other.per_parameter_seconds == one.per_parameter_seconds


def test_and_the_same_plan() -> None:
    own = profile(parameters=resnet50())
    one, other = choose(own, lanes=[1]), choose(on(own, own_cluster(own)), lanes=[1])
    assert other.best.seconds == pytest.approx(one.best.seconds, rel=0.01)
    assert other.best.plan.main_strategy == one.best.plan.main_strategy


def test_floors_and_knees_stay() -> None:
    own = profile()
    bent = Curve(((0.0, 2e-3), (5e4, 2e-3), (4e5, 9e-3)), 5e-8)
    costs = dict(own.strategies)
    costs["none | allreduce"] = replace(
        costs["none | allreduce"], wire=Fit(bent), latency_seconds=2e-3
    )
    own = replace(own, strategies=costs)
    again = on(own, own_cluster(own)).strategies["none | allreduce"].wire
    for n in (0, 256, 1024, 65_536, 1_048_576):
        assert again(n) == pytest.approx(bent(n), rel=0.02)


# -- the law -------------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(("world", "rate"), [(4, 1e8), (16, 1e9), (2, 1e9), (64, 1e10)])
@pytest.mark.parametrize("text", [t for t in LOCAL if "alltoall" not in t])
def test_another_cluster_of_the_same_law(text: str, world: int, rate: float) -> None:
    own = profile()
    said = on(own, Cluster(world, cross_bits_per_second=equal_rate(rate)))
    true = profile(world, rate).strategies[text]
    for n in LOOKED_AT[1:]:
        wanted = max(true.wire(n), 1e-4)
        assert said.strategies[text].wire(n) == pytest.approx(wanted, rel=0.1)


def test_two_kinds_of_moves_in_one_strategy() -> None:
    said = on(profile(), Cluster(16, cross_bits_per_second=equal_rate(2e8)))
    true = profile(16, 2e8).strategies["int8+ef | alltoall"].wire
    assert said.strategies["int8+ef | alltoall"].wire(1e6) == pytest.approx(true(1e6), rel=0.1)


def test_what_is_fitted() -> None:
    links, cluster = fitted(profile())
    assert links.start_seconds == pytest.approx(1e-4, rel=0.35)
    assert links.inefficiency["all_reduce"] == pytest.approx(1.0, rel=0.01)
    assert links.inefficiency["all_gather"] == pytest.approx(1.15 / 1.1, rel=0.03)
    assert links.inefficiency["all_to_all"] == pytest.approx(1.5 / 1.1, rel=0.1)
    assert cluster.cross_bits_per_second == pytest.approx(equal_rate(1e9), rel=0.02)


def test_few_bytes_prove_little() -> None:
    """A sparse strategy's wire took 50 ms more of software, which other links do not change."""
    own, text = profile(), 'topk(0.01)+ef | gtopk(variant="butterfly")'
    cost = own.strategies[text]
    slow = replace(cost, wire=Fit(Curve(((0.0, 3e-3), (1.6e6, 0.053)))), latency_seconds=3e-3)
    own = replace(own, strategies={**own.strategies, text: slow})
    links, known = fitted(own)
    assert links.inefficiency["exchange"] < 0.05 / (profile().strategies[text].wire(1.6e6))
    fast = on(own, known.with_rate(100 * known.cross_bits_per_second)).strategies[text]
    assert 0.01 < fast.wire(1.6e6) < 0.053, "4 ms, if all of it were bytes"


def test_a_known_cluster_is_taken_as_it_is() -> None:
    known = Cluster(4, cross_bits_per_second=2e9, cross_latency_seconds=2e-5)
    links, cluster = fitted(profile(), known)
    assert cluster == known
    assert links.inefficiency["all_reduce"] == pytest.approx(2 * 1.1 * EFFICIENCY, rel=0.05)
    own = on(profile(), known, known).strategies["none | allreduce"]
    assert own.wire(1e6) == pytest.approx(profile().strategies["none | allreduce"].wire(1e6))


def test_more_contributions_are_more_decoding() -> None:
    own = profile()
    text, dense = "topk(0.01)+ef | allgather", "none | allreduce"
    more = on(own, Cluster(64, cross_bits_per_second=1e9))
    assert more.strategies[text].decode(1e6) > 1.3 * own.strategies[text].decode(1e6)
    assert more.strategies[dense].decode(1e6) == own.strategies[dense].decode(1e6)
    assert more.strategies[text].per_parameter_seconds > 5e-5


def test_latency_is_paid_per_start_up() -> None:
    own = profile()
    near, far = (
        on(own, Cluster(8, cross_latency_seconds=s)).strategies["none | allreduce"]
        for s in (0.0, 0.01)
    )
    assert far.latency_seconds - near.latency_seconds == pytest.approx(14 * 0.01)
    assert far.wire(1e6) - near.wire(1e6) == pytest.approx(14 * 0.01)


@pytest.mark.parametrize(
    ("name", "n", "gloo", "nccl"),
    [("all_reduce", 8, 14, 6), ("all_gather", 8, 7, 7), ("exchange", 8, 1, 1),
     ("broadcast", 5, 3, 3), ("gather", 5, 4, 4), ("all_reduce", 1, 0, 0)],
)  # fmt: skip
def test_start_ups(name: str, n: int, gloo: float, nccl: float) -> None:
    assert (starts(name, n, "gloo"), starts(name, n, "nccl")) == (gloo, nccl)


def test_ranks_of_a_host_share_its_link() -> None:
    cluster = Cluster(4, 8)

    def of(name: str, group: str) -> float:
        return loaded(PricedMove(name, 1, 1.0, 1.0, "uint8", group, 4), cluster)

    assert of("all_reduce", "world") == 1.0, "a ring leaves a host once"
    assert of("all_reduce", "cross") == 8.0, "eight rings at once"
    assert of("all_to_all", "world") == pytest.approx(8 * 24 / 31)
    assert of("gather", "world") == pytest.approx(24 / 31), "one rank receives, of one host"
    assert of("gather", "cross") == 8.0, "a rank of the host in each of eight gathers"
    assert of("all_gather", "node") == 1.0
    assert loaded(PricedMove("all_to_all", 1, 1.0, 1.0, "uint8", "world", 4), Cluster(4)) == 1.0


# -- what must hold ------------------------------------------------------------------------------


def test_slower_links_make_no_step_shorter() -> None:
    again = Again(profile(parameters=resnet50()))
    rates = (1e12, 1e11, 1e10, 1e9, 1e8, 1e7)
    steps = [
        choose(again.on(Cluster(8, cross_bits_per_second=rate)), lanes=[1]).best.seconds
        for rate in rates
    ]
    assert all(b >= a * 0.99 for a, b in pairwise(steps)), steps


def test_at_the_ends_of_bandwidth() -> None:
    own = profile(parameters=few(), start_seconds=1e-7, backward_seconds=0.02)
    fast = choose(on(own, Cluster(4, cross_bits_per_second=1e14)), lanes=[1])
    assert fast.best.plan.main_strategy.compressor.name in ("none", "bf16")
    slow = choose(on(own, Cluster(4, cross_bits_per_second=1e5)), lanes=[1])
    for bucket, strategy in zip(slow.best.plan.buckets, slow.best.plan.strategies):
        if len(bucket.parameters[0].shape) > 1:
            assert strategy.compressor.name == "topk"


def test_slower_moves_take_fewer_processors() -> None:
    own = profile()
    half = on(own, own_cluster(own).with_rate(own_cluster(own).cross_bits_per_second / 2))
    assert half.contention.wire_demand == pytest.approx(own.contention.wire_demand / 2)
    more = on(own, Cluster(4, cross_bits_per_second=1e12, processors_per_rank=3.0))
    assert (more.contention.wire_demand, more.contention.cores) == (0.3, 3.0)


def test_start_ups_wait_for_processors_unless_each_rank_has_one_to_spare() -> None:
    shared = Contention(1.0, 0.3, 4.0, 0.5, 0.2, 1e-3)
    own = replace(profile(), contention=shared)
    slower = replace(shared, wire_demand=pytest.approx(0.15))  # type: ignore[arg-type]
    halved = own_cluster(own).with_rate(own_cluster(own).cross_bits_per_second / 2)
    assert on(own, halved).contention == slower
    assert on(own, own_cluster(own)).contention == shared
    spare = replace(own_cluster(own), processors_per_rank=2.0)
    assert on(own, spare).contention == Contention(2.0, 0.3, start_sharing=0.5)
    busy = replace(own_cluster(own), processors_per_rank=1.5)
    assert on(own, busy).contention == replace(shared, cores=1.5)


def test_profiles_of_one_host_are_of_its_memory() -> None:
    own = replace(profile(), hosts=("a",) * 4)
    assert own_cluster(own).hosts == 1
    again = on(own, own_cluster(own)).strategies["none | allreduce"]
    assert again.wire(1e6) == pytest.approx(own.strategies["none | allreduce"].wire(1e6))
    apart = on(own, Cluster(4, cross_bits_per_second=1e8))
    assert apart.strategies["none | allreduce"].wire(1e6) > 5 * again.wire(1e6)


# -- tables --------------------------------------------------------------------------------------


def test_a_table_and_its_crossovers() -> None:
    own = profile(parameters=few(), backward_seconds=0.02)
    told: list[tuple[str, float, float, str]] = []

    def progress(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        told.append((stage, done, of, now))

    found = table(own, [16, 4], [1e12, 1e8], Cluster(1), progress=progress)
    assert (found.workers, found.rates) == ((4, 16), (1e8, 1e12))
    assert [[c.workers for c in row] for row in found.cells] == [[4, 4], [16, 16]]
    assert list(dict.fromkeys(now for _, _, _, now in told if now)) == [
        "4 workers, 0.1 Gbit/s", "4 workers, 1000 Gbit/s",
        "16 workers, 0.1 Gbit/s", "16 workers, 1000 Gbit/s",
    ]  # fmt: skip
    assert {(stage, of) for stage, _, of, _ in told} == {("cells", 4)}
    done = [at for _, at, _, _ in told]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 4)
    decisions = [[cell.decision for cell in row] for row in found.cells]
    assert all(slow != fast for slow, fast in decisions)
    assert {(c.before.decision, c.after.decision) for c in found.crossovers} >= {
        tuple(row) for row in decisions
    }
    assert all(cell.seconds >= 0.999 * cell.lower_bound for row in found.cells for cell in row)


def test_models_of_more_elements_than_one_parameter_may_have() -> None:
    large, larger = (
        profile(parameters=[Parameter(f"w{i}", (8192, 8192)) for i in range(count)])
        for count in (16, 64)
    )
    elsewhere = Cluster(8, cross_bits_per_second=1e9)
    for text in LOCAL:
        one, other = (on(own, elsewhere).strategies[text] for own in (large, larger))
        assert other.wire(2**32) == pytest.approx(4 * one.wire(2**30), rel=0.01)


def test_up_to_16384_workers() -> None:
    own = profile(parameters=few())
    found = table(own, [16_384], [1e9], Cluster(1, 8), strategies=["bf16 | allreduce"])
    assert found.cells[0][0].workers == 16_384
    with pytest.raises(PlanError, match="at most 16384 workers"):
        table(own, [32_768], [1e9], Cluster(1))
    with pytest.raises(PlanError, match="must fill hosts of"):
        table(own, [12], [1e9], Cluster(1, 8))


# -- what is asked for ---------------------------------------------------------------------------


def test_what_is_not_said_is_the_profiles() -> None:
    own = profile()
    known = own_cluster(own)
    assert wanted(own) == replace(
        known, node_bytes_per_second=NODE_BYTES_PER_SECOND,
        node_latency_seconds=NODE_LATENCY_SECONDS,
    )  # fmt: skip
    far = wanted(own, workers=64, per_host=8, latency_seconds=1e-3)
    assert (far.hosts, far.ranks_per_host, far.cross_latency_seconds) == (8, 8, 1e-3)
    assert far.cross_bits_per_second == known.cross_bits_per_second
    assert wanted(own, Cluster(2, 4, 5e9), workers=16) == Cluster(4, 4, 5e9)
    like = Cluster(16, 1, 5e9, node_bytes_per_second=3e11, node_latency_seconds=1e-6)
    assert wanted(own, like, per_host=8) == replace(like, hosts=2, ranks_per_host=8)


def test_ranks_of_one_host_become_hosts() -> None:
    own = replace(profile(), hosts=("a",) * 4)
    assert wanted(own, bits_per_second=1e9).hosts == 4
    assert wanted(own, per_host=4).hosts == 1
    with pytest.raises(PlanError, match="--bandwidth 1gbit"):
        wanted(own, workers=8)


# -- errors --------------------------------------------------------------------------------------


def with_only(own: Profile, *texts: str) -> Profile:
    some = next(iter(own.strategies.values()))
    return replace(own, strategies=dict.fromkeys(texts, some))


def test_what_is_measured_only_is_left_out() -> None:
    unpriced = "topk(0.01)+ef | oktopk"
    own = with_only(profile(), "none | allreduce", unpriced)
    assert list(on(own, Cluster(8)).strategies) == ["none | allreduce"]
    assert Again(own).usable(None) == ["none | allreduce"]
    with pytest.raises(PlanError, match="measured only"):
        Again(own).usable([unpriced])
    with pytest.raises(PlanError, match="can be priced; the profile has 'topk"):
        on(with_only(profile(), unpriced), Cluster(8))


def test_machines_that_do_not_divide_a_cluster_block_no_plan() -> None:
    """A strategy with a number of ranks to a machine is left out where it does not fit."""
    fixed = 'bf16 | hierarchical(outer="allreduce", per_node=2)'
    own = with_only(profile(), "none | allreduce", fixed)
    again, odd, even = Again(own), Cluster(3), Cluster(4)
    assert list(again.on(odd).strategies) == again.usable(None, odd) == ["none | allreduce"]
    assert list(again.on(even).strategies) == again.usable(None, even) == list(own.strategies)
    with pytest.raises(UsageError, match="3 ranks are not a multiple of per_node=2"):
        again.usable([fixed], odd)
    found = table(own, [3, 4], [1e9], Cluster(1), strategies=["none | allreduce", fixed])
    assert found.cells[0][0].strategy == "none | allreduce"


def test_one_rank_says_nothing_of_links() -> None:
    own = replace(profile(), hosts=("a",))
    with pytest.raises(PlanError, match=r"profile's 1 rank do not, .* with two ranks or more"):
        on(own, Cluster(8))
    known = Cluster(1, cross_bits_per_second=1e9)
    assert on(own, Cluster(8), known).strategies["none | allreduce"].wire(1e6) > 0.05


def test_a_model_whose_moves_are_all_start_ups_is_too_small() -> None:
    own = profile(strategies=["none | allreduce"])
    level = replace(own.strategies["none | allreduce"], wire=Fit(Curve(((0.0, 6e-4),), 0.0)))
    own = replace(own, strategies={"none | allreduce": replace(level, latency_seconds=6e-4)})
    with pytest.raises(PlanError, match=r"profile's 4 ranks do not, .* Profile a larger model"):
        on(own, Cluster(8))


def test_bytes_take_time_even_where_none_was_seen() -> None:
    own = profile()
    flat = replace(own.strategies["bf16 | allreduce"], wire=Fit(Curve(((0.0, 6e-4),), 0.0)))
    own = replace(own, strategies={**own.strategies, "bf16 | allreduce": flat})
    known = own_cluster(own)
    assert on(own, known).strategies["bf16 | allreduce"].wire(1e6) == pytest.approx(6e-4)
    slow = known.with_rate(known.cross_bits_per_second / 100)
    assert on(own, slow).strategies["bf16 | allreduce"].wire(1e6) > 0.5


def test_paths_and_machines_are_priced_again() -> None:
    own, texts = profile(), (
        'int8+ef | hierarchical(outer="alltoall")',
        'topk(0.01) | steps("reduce_scatter@node, compress@gpu, all_gather@cross, decompress@gpu, '
        'all_gather@node")',
    )  # fmt: skip
    own = with_only(own, "none | allreduce", *texts)
    for text in texts:
        near, far = (
            on(own, Cluster(hosts, 8, cross_bits_per_second=1e9)).strategies[text].wire(1e6)
            for hosts in (2, 64)
        )
        assert 0 < near < far


def test_errors_are_those_that_were_measured() -> None:
    own = profile()
    costs = {text: replace(cost, error=0.25) for text, cost in own.strategies.items()}
    other = on(replace(own, strategies=costs), Cluster(16, cross_bits_per_second=1e9))
    assert {cost.error for cost in other.strategies.values()} == {0.25}
    assert choose(other, lanes=[1], error_budget=0.3).best.error is not None


def test_gradients_of_two_bytes_are_priced_as_such() -> None:
    own = profile()
    ready = tuple(r._replace(parameter=replace(r.parameter, dtype="bfloat16")) for r in own.ready)
    other = replace(own, ready=ready)
    wide, thin = (on(p, Cluster(16)).strategies["none | allreduce"] for p in (own, other))
    assert thin.bytes(1e6) == pytest.approx(0.5 * wide.bytes(1e6))


def test_hosts_that_disagree() -> None:
    with pytest.raises(PlanError, match="of the profile's hosts, 'a' has 3 and 'b' has 1"):
        on(replace(profile(), hosts=("a", "a", "a", "b")), Cluster(8))

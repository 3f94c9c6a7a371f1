"""A strategy is a value: it prints, parses, compares and hashes like one."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import Strategy, beside
from gradwire.collectives import AllGatherSum, AllReduceSum, Hierarchical, Steps
from gradwire.compressors import Float16, Identity, Sign, TopK
from gradwire.errors import StrategyError
from gradwire.families import COLLECTIVES, COMPRESSORS, FEEDBACK
from gradwire.feedback import (
    EF21,
    ErrorFeedback,
    Momentum,
    MomentumCorrection,
    Muon,
    ServerAdam,
    ServerMomentum,
    SharedMomentum,
)
from gradwire.registry import ALIASES

# How to draw each parameter that a member has. A new parameter without a line here fails below.
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "density": st.floats(0, 1, exclude_min=True) | st.just(1),
    "momentum": st.floats(0, 1, exclude_max=True) | st.just(0),
    "nesterov": st.booleans(),
    "mask": st.booleans(),
    "decay": st.floats(0, 1, exclude_min=True) | st.just(1),
    "bits": st.sampled_from([2, 4, 8]),
    "lloyd.bits": st.sampled_from([1, 2]),
    "turns": st.integers(1, 9),
    "muon.turns": st.integers(4, 9),
    "turn": st.integers(0, 3),
    "beta1": st.floats(0, 1, exclude_max=True) | st.just(0),
    "beta2": st.floats(0, 1, exclude_max=True) | st.just(0),
    "eps": st.floats(0, 1, exclude_min=True, exclude_max=True),
    "local": st.booleans(),
    "fp8.variant": st.sampled_from(["e4m3", "e5m2"]),
    "mx.variant": st.sampled_from(["e2m1", "e3m2", "e2m3", "e4m3"]),
    "bound": st.floats(1e-4, 0.5),
    "by": st.sampled_from(['mx(variant="e2m3")', "int8", "topk(0.01)"]),
    "gtopk.variant": st.sampled_from(["shares", "butterfly", "tree"]),
    "gtopk.breadth": st.floats(1, 100),
    "zen.variant": st.sampled_from(["chunks", "paper"]),
    "nonzero.index": st.sampled_from(["auto", "int32"]),
    "rest": st.sampled_from(["", "qsgd(4) | alltoall", "bf16 | allreduce"]),
    "means": st.sampled_from(["", "lloyd(2, turns=2)", "int8"]),
    "every": st.integers(1, 1000),
    "outer": st.sampled_from(["allgather", "zen(variant='paper')", "columns", "powersgd(2)"]),
    "per_node": st.integers(0, 64),
    "path": st.sampled_from(
        [
            "compress@gpu, all_gather, decompress@cpu",
            "reduce_scatter@node, compress@gpu, all_gather@cross, decompress@cpu, all_gather@node",
        ]
    ),
    "steps.per_node": st.just(0),
    "scaled": st.booleans(),
    "clip": st.none() | st.floats(0, 100, exclude_min=True),
    "scale": st.booleans(),
    "rank": st.integers(1, 64),
    "value": st.floats(2.0**-100, 100),
    "values": st.sampled_from(["fp32", "bf16", "fp16"]),
    "index": st.sampled_from(["auto", "int32", "gap16", "gap8", "elias_fano", "bitmap"]),
}


def key_of(member: Any, field: str) -> str:
    """A parameter's key in DRAWN: with its member's name where that has values of its own."""
    own = f"{member.name}.{field}"
    return own if own in DRAWN else field


def members(family: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Any member with any valid parameters, with defaults left out or given."""

    def draw(member: Any) -> st.SearchStrategy[Any]:
        required, optional = {}, {}
        for f in dataclasses.fields(member):
            target = required if f.default is dataclasses.MISSING else optional
            target[f.name] = DRAWN[key_of(member, f.name)]
        drawn = st.fixed_dictionaries(required, optional=optional)
        in_turn = drawn.filter(lambda kw: kw.get("turn", 0) < kw.get("turns", 1))
        return in_turn.map(lambda kw: member(**kw))

    return st.sampled_from(sorted(family)).flatmap(lambda name: draw(family[name]))


@st.composite
def written(draw: st.DrawFn) -> Strategy:
    """A strategy whose members can work together."""
    compressor, collective = draw(members(COMPRESSORS)), draw(members(COLLECTIVES))
    claims = compressor.claims(100)
    if not all(getattr(claims, promise) for promise in collective.needs):
        collective = AllGatherSum()
    memory = st.none() if collective.own_feedback else st.none() | members(FEEDBACK)
    feedback = draw(memory)
    by_parts = isinstance(collective, Hierarchical | Steps)
    if by_parts and isinstance(
        feedback, EF21 | ServerMomentum | ServerAdam | SharedMomentum | Muon
    ):
        feedback = None
    if isinstance(feedback, Muon) and claims.elements and not claims.entries:
        feedback = dataclasses.replace(feedback, turns=1, turn=0)  # or some would never be sent
    return Strategy(compressor, collective, feedback)


def test_every_parameter_of_every_member_can_be_drawn() -> None:
    families = itertools.chain(COMPRESSORS.values(), FEEDBACK.values(), COLLECTIVES.values())
    names = {key_of(member, f.name) for member in families for f in dataclasses.fields(member)}
    assert names == set(DRAWN)


@given(written())
def test_parse_of_print_is_the_same_strategy(strategy: Strategy) -> None:
    again = Strategy.parse(str(strategy))
    assert again == strategy
    assert str(again) == str(strategy)
    assert hash(again) == hash(strategy)
    assert str(strategy.expand()) == str(strategy)


@given(
    DRAWN["density"], DRAWN["momentum"], st.booleans(), st.booleans(), DRAWN["values"],
    DRAWN["index"],
)  # fmt: skip
def test_the_alias_is_its_long_form(
    density: float, momentum: float, nesterov: bool, mask: bool, values: str, index: str
) -> None:
    text = (
        f"dgc({density!r}, momentum={momentum!r}, nesterov={nesterov}, mask={mask}, "
        f'values="{values}", index="{index}") | allgather'
    )
    strategy = Strategy.parse(text)
    memory = MomentumCorrection(momentum, nesterov, mask)
    long = Strategy(TopK(density, values, index), AllGatherSum(), memory)
    assert str(strategy) == text
    assert strategy == long == Strategy.parse(str(strategy)) == Strategy.parse(str(long))
    assert hash(strategy) == hash(long)
    assert str(strategy.expand()) == str(long)


@pytest.mark.parametrize(
    ("text", "strategy", "printed"),
    [
        ("none|allreduce", Strategy(Identity(), AllReduceSum()), "none | allreduce"),
        ("  none()  |  allreduce() ", Strategy(Identity(), AllReduceSum()), "none | allreduce"),
        ("fp16 | allgather", Strategy(Float16(), AllGatherSum()), "fp16 | allgather"),
        (
            "topk(density=1e-2) + ef | allgather",
            Strategy(TopK(0.01), AllGatherSum(), ErrorFeedback()),
            "topk(0.01)+ef | allgather",
        ),
        (
            "topk(0.01)+dgc(0.9, False, True) | allgather",
            Strategy(TopK(0.01), AllGatherSum(), MomentumCorrection()),
            "topk(0.01)+dgc | allgather",
        ),
        (
            "topk(0.01)+dgc(0.8, nesterov=True) | allgather",
            Strategy(TopK(0.01), AllGatherSum(), MomentumCorrection(0.8, True)),
            "topk(0.01)+dgc(momentum=0.8, nesterov=True) | allgather",
        ),
        (
            "none+server_momentum | allreduce",
            Strategy(Identity(), AllReduceSum(), ServerMomentum()),
            "none+server_momentum | allreduce",
        ),
        (
            "dgc( 1e-3 ) | allgather",
            Strategy(TopK(0.001), AllGatherSum(), MomentumCorrection()),
            "dgc(0.001) | allgather",
        ),
        (
            "topk( 0.01,index = 'gap8',values='bf16' )|allgather",
            Strategy(TopK(0.01, "bf16", "gap8"), AllGatherSum()),
            'topk(0.01, values="bf16", index="gap8") | allgather',
        ),
        (
            "topk(0.01, 'fp32', 'auto') | allgather",
            Strategy(TopK(0.01), AllGatherSum()),
            "topk(0.01) | allgather",
        ),
        (
            "dgc(0.01, values='fp16') | allgather",
            Strategy(TopK(0.01, "fp16"), AllGatherSum(), MomentumCorrection()),
            'dgc(0.01, values="fp16") | allgather',
        ),
        (
            "signum(momentum=0.5) | allgather",
            Strategy(Sign(), AllGatherSum(), Momentum(0.5)),
            "signum(momentum=0.5) | allgather",
        ),
    ],
)
def test_reads_what_people_write(text: str, strategy: Strategy, printed: str) -> None:
    assert Strategy.parse(text) == strategy
    assert str(Strategy.parse(text)) == printed


ALIASES_BY_HAND: dict[str, tuple[str, Strategy]] = {
    "dgc(0.001)": (
        "topk(0.001)+dgc",
        Strategy(TopK(0.001), AllGatherSum(), MomentumCorrection()),
    ),
    'dgc(0.001, mask=False, values="bf16", index="gap16")': (
        'topk(0.001, values="bf16", index="gap16")+dgc(mask=False)',
        Strategy(TopK(0.001, "bf16", "gap16"), AllGatherSum(), MomentumCorrection(mask=False)),
    ),
    "efsignsgd": (
        "sign(scaled=True)+ef",
        Strategy(Sign(scaled=True), AllGatherSum(), ErrorFeedback()),
    ),
    "signsgd": ("sign", Strategy(Sign(), AllGatherSum())),
    "signum": ("sign+momentum", Strategy(Sign(), AllGatherSum(), Momentum(0.9))),
    "signum(0.5)": (
        "sign+momentum(momentum=0.5)",
        Strategy(Sign(), AllGatherSum(), Momentum(0.5)),
    ),
}


@pytest.mark.parametrize("alias", ALIASES_BY_HAND)
def test_an_alias_prints_as_typed_and_expands(alias: str) -> None:
    long, strategy = ALIASES_BY_HAND[alias]
    parsed = Strategy.parse(f"{alias} | allgather")
    assert parsed == strategy
    assert hash(parsed) == hash(strategy)
    assert str(parsed) == f"{alias} | allgather"
    assert str(parsed.expand()) == f"{long} | allgather"
    assert parsed.expand().alias is None


def test_a_changed_strategy_is_not_written_by_its_alias() -> None:
    """An alias says what its text said: here a momentum of 0.9."""
    parsed = Strategy.parse("dgc(0.01) | allgather")
    changed = dataclasses.replace(
        parsed, feedback=dataclasses.replace(parsed.feedback, momentum=0.8)
    )  # type: ignore
    assert str(changed) == "topk(0.01)+dgc(momentum=0.8) | allgather"
    assert Strategy.parse(str(changed)) == changed
    assert str(copy.deepcopy(parsed)) == str(pickle.loads(pickle.dumps(parsed))) == str(parsed)


def test_every_alias_is_tried() -> None:
    assert {alias.partition("(")[0] for alias in ALIASES_BY_HAND} == set(ALIASES)


def test_different_strategies_differ() -> None:
    texts = [
        "none | allreduce",
        "none | allgather",
        "fp16 | allgather",
        "topk(0.01) | allgather",
        "topk(0.02) | allgather",
        "topk(0.01)+ef | allgather",
        "dgc(0.01) | allgather",
        "dgc(0.01, momentum=0.8) | allgather",
        "dgc(0.01, mask=False) | allgather",
        "dgc(0.01, nesterov=True) | allgather",
        'dgc(0.01, values="bf16") | allgather',
        'topk(0.01, values="bf16") | allgather',
        'topk(0.01, values="fp16") | allgather',
        'topk(0.01, index="int32") | allgather',
        'topk(0.01, index="elias_fano") | allgather',
        "efsignsgd | allgather",
        "signsgd | allgather",
        "signum | allgather",
        "signum(0.8) | allgather",
    ]
    for one, other in itertools.combinations(map(Strategy.parse, texts), 2):
        assert one != other
        assert str(one) != str(other)


def test_members_and_strategies_are_frozen() -> None:
    strategy = Strategy.parse("topk(0.01)+dgc | allgather")
    for value, name in (
        (strategy, "compressor"),
        (strategy.compressor, "density"),
        (strategy.feedback, "momentum"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 0.5)


@pytest.mark.parametrize(
    ("text", "dense"),
    [
        ("topk(0.01) | allgather", "none | allreduce"),
        ("topk(0.01)+ef | allgather", "none | allreduce"),
        (
            "dgc(0.01) | allgather",
            "none+server_momentum(momentum=0.9, nesterov=False) | allreduce",
        ),
        (
            "dgc(0.01, 0.5, nesterov=True) | allgather",
            "none+server_momentum(momentum=0.5, nesterov=True) | allreduce",
        ),
    ],
)
def test_dense_keeps_the_dynamics(text: str, dense: str) -> None:
    """Beside DGC, dense parameters have the same momentum, as the optimizer has none."""
    assert beside.dense(Strategy.parse(text)) == Strategy.parse(dense)


def test_a_pair_is_refused_exactly_when_a_promise_is_missing() -> None:
    for compressor, collective in itertools.product(
        [TopK(0.1), Identity(), Float16()], [AllGatherSum(), AllReduceSum()]
    ):
        missing = [p for p in collective.needs if not getattr(compressor.claims(1 << 20), p)]
        try:
            Strategy(compressor, collective)
        except StrategyError:
            assert missing
        else:
            assert not missing

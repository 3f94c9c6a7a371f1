"""A plan says what travels together, how, and in which order; it is readable and versioned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import Plan, Strategy, beside
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PlanError, StrategyError

SPARSE = Strategy.parse("topk(0.01)+ef | allgather")
DENSE = Strategy.parse("none | allreduce")

# In order of registration: gradients become ready from the last to the first.
MODEL = [
    Parameter("embed.weight", (100, 8)),
    Parameter("block.weight", (8, 8)),
    Parameter("block.bias", (8,)),
    Parameter("head.weight", (10, 8)),
    Parameter("head.bias", (10,)),
    Parameter("scale", ()),
]


def names(plan: Plan) -> list[list[str]]:
    return [list(bucket.names) for bucket in plan.buckets]


# -- making ------------------------------------------------------------------------------------


def test_matrices_travel_compressed_and_vectors_dense_in_ready_order() -> None:
    plan = Plan.make(MODEL, SPARSE)
    assert names(plan) == [
        ["scale", "head.bias", "block.bias"],
        ["head.weight", "block.weight", "embed.weight"],
    ]
    assert plan.strategies == (DENSE, SPARSE)
    assert plan.lanes == 1
    assert Plan.make(MODEL, str(SPARSE)) == plan, "by its text"


def test_what_adds_up_on_the_wire_takes_vectors_along() -> None:
    plan = Plan.make(MODEL, DENSE)
    assert names(plan) == [[p.name for p in reversed(MODEL)]]
    assert plan.strategies == (DENSE,)


def test_beside_momentum_correction_vectors_get_the_same_momentum() -> None:
    plan = Plan.make(MODEL, Strategy.parse("dgc(0.01, momentum=0.8) | allgather"))
    assert plan.strategies[0] == Strategy.parse("none+server_momentum(0.8) | allreduce")


def test_random_elements_add_up_but_vectors_still_travel_dense() -> None:
    plan = Plan.make(MODEL, Strategy.parse("randk(0.1)+ef | allreduce"))
    assert str(plan.strategy_of("block.bias")) == "none | allreduce"
    assert str(plan.strategy_of("block.weight")) == "randk(0.1)+ef | allreduce"


def test_directions_take_vectors_along() -> None:
    plan = Plan.make(MODEL, Strategy.parse("signsgd | vote"))
    assert {str(s) for s in plan.strategies} == {"signsgd | vote"}


def test_a_cap_splits_and_a_larger_parameter_stands_alone() -> None:
    plan = Plan.make(MODEL, SPARSE, bucket_bytes=4 * (80 + 64))
    assert names(plan) == [
        ["scale", "head.bias", "block.bias"],
        ["head.weight", "block.weight"],
        ["embed.weight"],
    ]
    plan = Plan.make(MODEL, SPARSE, bucket_bytes=1)
    assert [len(bucket.names) for bucket in plan.buckets] == [1, 3, 1, 1]


def test_a_dtype_has_buckets_of_its_own_dense_ones_too() -> None:
    mixed = [
        Parameter("a.weight", (4, 4), "bfloat16"),
        Parameter("a.bias", (4,), "bfloat16"),
        Parameter("norm", (4,)),
        Parameter("b.weight", (4, 4)),
        Parameter("b.bias", (4,), "bfloat16"),
    ]
    plan = Plan.make(mixed, SPARSE)
    assert names(plan) == [["b.weight"], ["norm"], ["b.bias", "a.bias"], ["a.weight"]]
    assert [b.dtype for b in plan.buckets] == ["float32", "float32", "bfloat16", "bfloat16"]


def test_dtypes_that_alternate_make_as_few_buckets_as_ddp_has() -> None:
    """A network in bf16 with norms in fp32: DDP, too, fills a bucket of each dtype."""
    layers = [
        p for i in range(50)
        for p in (Parameter(f"{i}.weight", (8, 8), "bfloat16"), Parameter(f"{i}.norm", (8,)))
    ]  # fmt: skip
    assert [len(b.names) for b in Plan.make(layers, DENSE).buckets] == [50, 50]


class Counted(Parameter):
    """A parameter that counts how often it is looked at."""

    looks = 0

    @property
    def bytes(self) -> int:
        Counted.looks += 1
        return super().bytes

    @property
    def elements(self) -> int:
        Counted.looks += 1
        return super().elements

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return self is other

    __hash__ = Parameter.__hash__


@pytest.mark.parametrize("strategy", [DENSE, SPARSE])
def test_a_plan_of_many_parameters_looks_at_each_a_few_times(strategy: Strategy) -> None:
    """Ten thousand parameters took minutes, in which a job stood still."""
    shapes = [(64, 64), (64,)] * 200
    Counted.looks = 0
    Plan.make([Counted(f"p{i}", shape) for i, shape in enumerate(shapes)], strategy)
    assert Counted.looks <= 10 * len(shapes)


def test_explicit_buckets_are_kept_and_issued_when_they_can_be_ready() -> None:
    """A bucket waits for its first-registered parameter, whose gradient comes last."""
    plan = Plan.make(
        MODEL, SPARSE, buckets=[["embed.weight", "head.weight"], ["block.weight", "block.bias"]]
    )
    assert names(plan) == [
        ["scale", "head.bias"],
        ["block.weight", "block.bias"],
        ["embed.weight", "head.weight"],
    ]
    assert plan.strategies == (DENSE, SPARSE, SPARSE)


def test_lanes_are_kept() -> None:
    assert Plan.make(MODEL, SPARSE, lanes=3).lanes == 3


@pytest.mark.parametrize(
    ("buckets", "said"),
    [
        ([["embed.weight", "nope", "neither"]], "got nope, neither"),
        ([[]], "got an empty list"),
        ([["head.bias"], ["head.weight", "head.bias"]], "head.bias is in several"),
        ([["head.bias", "head.bias"]], "head.bias is in several"),
        (["head.bias"], "got 'head.bias' alone. Put it in brackets"),
        ([5], "got 5 alone. Put it in brackets"),
    ],
)
def test_explicit_buckets_that_cannot_be_are_refused(buckets: list[list[str]], said: str) -> None:
    with pytest.raises(PlanError) as raised:
        Plan.make(MODEL, SPARSE, buckets=buckets)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket_bytes": 0}, "bucket_bytes must be a number of bytes above 0; got 0"),
        ({"bucket_bytes": float("nan")}, "got nan"),
        ({"bucket_bytes": "25MB"}, "got '25MB'"),
        ({"lanes": 1.5}, "a whole number of lanes, at least one; got .* and 1.5 lanes"),
        ({"lanes": "2"}, "and '2' lanes"),
        ({"dense": ["embed.wieght"]}, "names of the model.s parameters; got embed.wieght"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.make(MODEL, SPARSE, **options)


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(StrategyError, match="cannot read the strategy 5"):
        Plan.make(MODEL, 5)  # type: ignore[arg-type]


def test_what_is_listed_and_kept_dense_is_refused() -> None:
    with pytest.raises(PlanError, match=r"embed\.weight is in both"):
        Plan.make(MODEL, SPARSE, buckets=[["embed.weight"]], dense=["embed.weight"])


def test_an_explicit_bucket_of_two_dtypes_is_refused() -> None:
    mixed = [Parameter("a", (2, 2)), Parameter("b", (2, 2), "float16")]
    with pytest.raises(PlanError, match=r"all dense; \['a', 'b'\] have float16, float32. Split"):
        Plan.make(mixed, SPARSE, buckets=[["a", "b"]])


def test_rows_in_float64_are_refused() -> None:
    """Whatever sends them: they are summed in float32."""
    table = Parameter("table", (9, 4), "float64", sparse=True)
    said = r"sparse gradients must be float32.*; table are float64\. Convert to float32, or"
    with pytest.raises(PlanError, match=said):
        Plan.make([table], "none | allreduce")
    with pytest.raises(PlanError, match=said):
        Plan((Bucket((table,)),), (Strategy.parse("none | allgather"),))


def test_a_plan_needs_a_strategy_per_bucket_and_a_lane() -> None:
    bucket = Bucket((MODEL[0],))
    with pytest.raises(PlanError, match="got 0 strategies for 1 buckets, and 1 lanes"):
        Plan((bucket,), ())
    with pytest.raises(PlanError, match="got 1 strategies for 1 buckets, and 0 lanes"):
        Plan((bucket,), (DENSE,), lanes=0)


PARAMETERS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), max_size=3).map(tuple), st.sampled_from(["float32", "float16"])
    ),
    min_size=1,
    max_size=12,
).map(lambda rows: [Parameter(f"p{i}", s, d) for i, (s, d) in enumerate(rows)])
STRATEGIES = st.sampled_from(
    ["none | allreduce", "topk(0.1)+ef | allgather", "dgc(0.01) | allgather", "bf16 | allgather"]
).map(Strategy.parse)


@given(PARAMETERS, STRATEGIES, st.integers(1, 500), st.data())
def test_every_plan_fits_its_model_and_survives_json(
    parameters: list[Parameter], strategy: Strategy, cap: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(parameters), unique=True, max_size=4))
    explicit = [[p.name] for p in chosen]
    plan = Plan.make(parameters, strategy, bucket_bytes=cap, buckets=explicit)
    plan.check(parameters)
    assert sorted(n for b in plan.buckets for n in b.names) == sorted(p.name for p in parameters)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest() == plan.digest()
    for parameter in parameters:
        how = plan.strategy_of(parameter.name)
        listed = any(parameter.name in names for names in explicit)
        adds_up = strategy.compressor.claims(1).sums
        whole = adds_up or listed or len(parameter.shape) > 1
        assert how == (strategy if whole else beside.dense(strategy))


# -- checking ----------------------------------------------------------------------------------


def test_check_says_which_parameters_differ() -> None:
    plan = Plan.make(MODEL, SPARSE)
    other = [p for p in MODEL if p.name not in ("embed.weight", "head.bias")]
    other = [Parameter("head.weight", (11, 8)) if p.name == "head.weight" else p for p in other]
    other = [Parameter("scale", (), "float16") if p.name == "scale" else p for p in other]
    other.append(Parameter("extra", (1,)))
    with pytest.raises(PlanError) as raised:
        plan.check(other)
    said = str(raised.value)
    assert "only in the plan: head.bias, embed.weight" in said
    assert "only in the model: extra" in said
    assert "head.weight float32[10, 8] (the model has float32[11, 8])" in said
    assert "scale float32[] (the model has float16[])" in said
    assert "block" not in said
    assert said.endswith("Make a new plan for this model.")


def test_check_cuts_long_lists() -> None:
    with pytest.raises(PlanError) as raised:
        Plan.make([], SPARSE).check([Parameter(f"p{i}", (1,)) for i in range(9)])
    assert "only in the model: p0, p1, p2, p3, p4 …" in str(raised.value)


def test_check_does_not_mind_the_order() -> None:
    Plan.make(MODEL, SPARSE).check(MODEL[::-1])


def test_strategy_of_knows_every_parameter_and_no_other() -> None:
    plan = Plan.make(MODEL, SPARSE)
    assert plan.strategy_of("embed.weight") == SPARSE
    assert plan.strategy_of("scale") == DENSE
    with pytest.raises(KeyError):
        plan.strategy_of("nope")


def test_the_digest_differs_when_anything_that_matters_does() -> None:
    renamed = [Parameter("first", (100, 8)), *MODEL[1:]]
    reshaped = [Parameter("embed.weight", (800,)), *MODEL[1:]]
    retyped = [Parameter("embed.weight", (100, 8), "float16"), *MODEL[1:]]
    plans = [
        Plan.make(MODEL, SPARSE),
        Plan.make(MODEL, Strategy.parse("topk(0.02)+ef | allgather")),
        Plan.make(MODEL, Strategy.parse("topk(0.01) | allgather")),
        Plan.make(MODEL, SPARSE, lanes=2),
        Plan.make(MODEL, SPARSE, bucket_bytes=1),
        Plan.make(MODEL, SPARSE, buckets=[["scale"]]),
        Plan.make(MODEL[:-1], SPARSE),
        *(Plan.make(model, SPARSE) for model in (renamed, reshaped, retyped)),
    ]
    assert len({plan.digest() for plan in plans}) == len(plans)


def test_the_digest_sees_through_aliases() -> None:
    short, long = "dgc(0.01) | allgather", "topk(0.01)+dgc | allgather"
    one, other = (Plan.make(MODEL, Strategy.parse(text)) for text in (short, long))
    assert one == other
    assert one.digest() == other.digest()


# -- files -------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    plan = Plan.make(MODEL, Strategy.parse("dgc(0.01) | allgather"), lanes=2)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(str(tmp_path / "plan.json"))
    assert loaded == plan
    assert str(loaded.strategies[-1]) == "dgc(0.01) | allgather", "aliases stay as typed"


def test_another_format_is_refused_by_number() -> None:
    data = json.loads(Plan.make(MODEL, SPARSE).to_json())
    for number in (2, 0, "1", None):
        with pytest.raises(
            PlanError, match="a plan must have format 1 in this version of"
        ) as raised:
            Plan.from_json(json.dumps({**data, "format": number}))
        assert repr(number) in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '"plan"',
        '{"format": 1}',
        '{"format": 1, "lanes": 1, "buckets": [{}]}',
        '{"format": 1, "lanes": 1, "buckets": [{"strategy": "none | allreduce"}]}',
        '{"format": 1, "lanes": "x", "buckets": []}',
        '{"format": 1, "lanes": null, "buckets": []}',
        '{"format": 1, "lanes": 1, "buckets": {"a": 1}}',
        '{"format": 1, "lanes": 1, "buckets": [{"strategy": "none | allreduce",'
        ' "parameters": []}]}',
        '{"format": 1, "lanes": 1, "buckets": [{"strategy": "none | allreduce", "parameters":'
        ' [{"name": "w", "shape": "ab", "dtype": "float32"}]}]}',
    ],
)
def test_what_is_no_plan_is_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError, match=r"Write the plan again|Plan.save"):
        Plan.from_json(text)


def test_a_strategy_that_cannot_be_read_is_named() -> None:
    text = Plan.make(MODEL, SPARSE).to_json().replace("topk(0.01)", "topq(0.01)")
    with pytest.raises(PlanError, match=r"buckets\[\d\]\.strategy .*'topq' is not a compressor"):
        Plan.from_json(text)


def test_a_path_without_a_plan_is_a_plan_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"must name a readable file; .*missing.json"):
        Plan.load(tmp_path / "missing.json")
    with pytest.raises(PlanError, match="must name a readable file"):
        Plan.load(tmp_path)
    for path in (5, None, b"plan.json"):
        with pytest.raises(PlanError, match="must name a readable file; got"):
            Plan.load(path)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a plan must be text; got 5"):
        Plan.from_json(5)  # type: ignore[arg-type]
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00plan")
    with pytest.raises(PlanError):
        Plan.load(tmp_path / "binary")


TABLES = [
    Parameter("left", (9, 4), sparse=True),
    Parameter("right", (7, 2), sparse=True),
    Parameter("top", (4, 4)),
    Parameter("out", (9, 4), "bfloat16", sparse=True),
    Parameter("out2", (9, 4), sparse=True),
    Parameter("bias", (4,)),
]


def test_sparse_gradients_travel_as_rows_neighbours_together() -> None:
    plan = Plan.make(TABLES, SPARSE, bucket_bytes=1)
    rows = [("out2",), ("out",), ("left", "right")]
    found = dict(zip([b.names for b in plan.buckets], map(str, plan.strategies)))
    assert list(found) == [("bias",), ("out2",), ("out",), ("top",), ("left", "right")]
    assert {found[names] for names in rows} == {"none | columns"}
    assert found["top",] == str(SPARSE)
    assert Plan.from_json(plan.to_json()) == plan
    own = Plan.make(TABLES, Strategy.parse("nonzero | columns"), buckets=[["out2", "left"]])
    assert ("out2", "left") in [b.names for b in own.buckets]
    assert str(own.strategy_of("right")) == "nonzero | columns"


def test_sparse_gradients_have_no_dense_company() -> None:
    with pytest.raises(PlanError, match=r"\['left', 'top'\] have float32, sparse float32. Split"):
        Plan.make(TABLES, SPARSE, buckets=[["left", "top"]])
    with pytest.raises(PlanError, match=r"left would be sent by .*'none \| columns' for this"):
        Plan((Bucket((TABLES[0],)),), (SPARSE,))
    dense = [Parameter(p.name, p.shape, p.dtype) for p in TABLES]
    with pytest.raises(PlanError, match=r"left sparse float32\[9, 4\] \(the model has float32\["):
        Plan.make(TABLES, SPARSE).check(dense)


def test_a_plan_is_taken_with_a_rank_s_own_parts() -> None:
    whole = [Parameter("a", (11, 6)), Parameter("b", (1,)), Parameter("c", (4, 6))]
    plan = Plan.make(whole, "bf16 | allreduce", buckets=[["b"], ["a", "c"]], lanes=2)
    assert plan.of_parts(whole, {"a", "b", "c"}) == plan
    mine = [Parameter("a", (5, 6)), Parameter("c", (4, 3))]
    found = plan.of_parts(mine, {"a", "b", "c"})
    assert [bucket.parameters for bucket in found.buckets] == [tuple(mine)]
    assert (found.strategies, found.lanes) == (plan.strategies[:1], 2)
    found.check(mine)
    assert plan.of_parts([], {"a", "b", "c"}).buckets == ()
    for wrong in (
        Parameter("a", (5, 5)),
        Parameter("a", (30,)),
        Parameter("a", (5, 6), "float16"),
    ):
        with pytest.raises(PlanError, match="different: a float32"):
            plan.of_parts([wrong, mine[1]], {"a", "b", "c"}).check([wrong, mine[1]])
    with pytest.raises(PlanError, match="only in the plan: b"):
        plan.of_parts(mine, {"a", "c"}).check(mine)  # this model has no b anywhere

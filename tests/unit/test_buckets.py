"""Which parameters travel together: sizes, offsets, caps, digests."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.buckets import Bucket, Parameter, by_name, digest, group

DTYPES = ["float32", "float16", "bfloat16"]
PARAMETERS = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(DTYPES)), max_size=12).map(
    lambda rows: [Parameter(f"p{i}", (n,), dtype) for i, (n, dtype) in enumerate(rows)]
)


@pytest.mark.parametrize(
    ("shape", "dtype", "elements", "size"),
    [
        ((), "float32", 1, 4),
        ((3,), "float32", 3, 12),
        ((2, 3, 4), "float16", 24, 48),
        ((5, 0), "bfloat16", 0, 0),
        ((7,), "bfloat16", 7, 14),
        ((7,), "float64", 7, 56),
    ],
)
def test_a_parameter_knows_its_size(
    shape: tuple[int, ...], dtype: str, elements: int, size: int
) -> None:
    parameter = Parameter("w", shape, dtype)
    assert parameter.elements == elements
    assert parameter.bytes == size


def test_a_bucket_lays_its_parameters_one_after_another() -> None:
    bucket = Bucket((Parameter("a", (2, 3)), Parameter("b", ()), Parameter("c", (4,))))
    assert bucket.names == ("a", "b", "c")
    assert bucket.sizes == (6, 1, 4)
    assert bucket.offsets == (0, 6, 7)
    assert bucket.elements == 11
    assert bucket.bytes == 44
    assert bucket.dtype == "float32"


def names(buckets: list[Bucket]) -> list[list[str]]:
    return [list(bucket.names) for bucket in buckets]


def test_a_group_ends_where_the_cap_would_be_passed() -> None:
    a, b, c, d = (Parameter(x, (10,)) for x in "abcd")  # 40 bytes each
    assert names(group([a, b, c, d], 80)) == [["a", "b"], ["c", "d"]]
    assert names(group([a, b, c, d], 79)) == [["a"], ["b"], ["c"], ["d"]]
    assert names(group([a, b, c, d], 120)) == [["a", "b", "c"], ["d"]]
    assert names(group([a, b, c, d], 1)) == [["a"], ["b"], ["c"], ["d"]]
    assert group([], 80) == []


def test_dtypes_that_alternate_fill_one_bucket_each() -> None:
    a, b = Parameter("a", (1,)), Parameter("b", (1,), "float16")
    c, d = Parameter("c", (1,), "float16"), Parameter("d", (1,))
    assert names(group([a, b, c, d], 1000)) == [["a", "d"], ["b", "c"]]
    assert names(group([a, b, c, d], 4)) == [["a"], ["b", "c"], ["d"]]


@given(PARAMETERS, st.integers(1, 300))
def test_grouping_keeps_order_loses_nothing_and_respects_the_cap(
    parameters: list[Parameter], cap: int
) -> None:
    buckets = group(parameters, cap)
    for bucket in buckets:
        assert len({p.dtype for p in bucket.parameters}) == 1
        assert bucket.bytes <= cap or len(bucket.parameters) == 1
    for dtype in DTYPES:
        own = [bucket for bucket in buckets if bucket.dtype == dtype]
        alike = [p for p in parameters if p.dtype == dtype]
        assert [p for bucket in own for p in bucket.parameters] == alike
        for one, after in itertools.pairwise(own):
            assert one.bytes + after.parameters[0].bytes > cap, "cut without need"


@given(PARAMETERS)
def test_offsets_add_up(parameters: list[Parameter]) -> None:
    for bucket in group(parameters, 200):
        ends = [o + n for o, n in zip(bucket.offsets, bucket.sizes)]
        assert [0, *ends[:-1]] == list(bucket.offsets)
        assert ends[-1] == bucket.elements


def test_the_digest_tells_facts_apart() -> None:
    facts = [(1,), (2,), ("1",), (1, 1), ((1,),), (None,), (1.0,), ()]
    digests = {digest(*f) for f in facts}
    assert len(digests) == len(facts)
    assert all(0 <= d < 2**63 for d in digests), "it travels as an int64"


def test_the_digest_is_the_same_in_every_process() -> None:
    """Ranks compare digests, so they are not salted as hash() is."""
    code = "from gradwire.buckets import digest; print(digest('a', (1, 2), None))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert seen == {str(digest("a", (1, 2), None))}


def test_by_name() -> None:
    a, b = Parameter("a", (1,)), Parameter("b", (2,))
    assert by_name([a, b]) == {"a": a, "b": b}

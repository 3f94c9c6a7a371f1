"""merge_streams, top_of_two and contained against their twins, and their checks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import DTYPES, bits, same
from sorted_streams import (
    DAMAGE,
    DENSITIES,
    DTYPE,
    FILL,
    KINDS,
    SIZES,
    Stream,
    outputs,
    stream,
    untouched,
)

from gradwire.errors import KernelError, PayloadError
from gradwire.extension import TWIN
from gradwire.kernels import (
    accumulate,
    contained,
    merge_streams,
    top_of_two,
)
from gradwire.kernels.native import use
from gradwire.kernels.torch import contained as contained_twin
from suites import first

pytestmark = pytest.mark.usefixtures("instruction_set")
top_of_two_twin = in_torch(top_of_two)
DIVISORS = st.sampled_from([1.0, 3.0, 4.0, -7.0, 2.0**-130])


def i32(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


def bound(n: int, streams: list[Stream]) -> int:
    return min(n, sum(p.numel() for p, _ in streams))


def merged(n: int, streams: list[Stream], divisor: float, out: Stream) -> Stream:
    """Returns the result; checks that nothing behind it is written."""
    count = merge_streams(n, [s[0] for s in streams], [s[1] for s in streams], divisor, *out)
    assert untouched(out[0][count:], out[1][count:])
    return out[0][:count], out[1][:count]


def merged_twin(n: int, streams: list[Stream], divisor: float, out: Stream) -> Stream:
    with use(TWIN):
        return merged(n, streams, divisor, out)


def equal(one: Stream, two: Stream) -> bool:
    return one[0].tolist() == two[0].tolist() and same(one[1], two[1])


@given(
    st.lists(st.tuples(KINDS, DENSITIES, DTYPE), max_size=5),
    st.one_of(SIZES, st.just(200_001)),
    DTYPE,
    DIVISORS,
    st.integers(0, 3),
)
def test_merge_same_bits_as_twin(
    drawn: list[tuple[str, float, torch.dtype]],
    n: int,
    dtype: torch.dtype,
    divisor: float,
    slack: int,
) -> None:
    streams = [stream(n, share, r, d, kind) for r, (kind, share, d) in enumerate(drawn)]
    room = bound(n, streams)
    found = merged(n, streams, divisor, outputs(room + slack, dtype))
    assert equal(found, merged_twin(n, streams, divisor, outputs(room, dtype)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("density", [0.0005, 0.02, 0.4])
def test_merge_is_accumulate_without_its_zeros(density: float, dtype: torch.dtype) -> None:
    n = 300_007
    streams = [stream(n, density, seed, dtype) for seed in range(4)]
    places, values = merged(n, streams, 3.0, outputs(bound(n, streams), dtype))
    dense = torch.empty(n, dtype=dtype)
    accumulate(dense, [s[0] for s in streams], [s[1] for s in streams], 3.0)
    assert same(dense[places.long()], values)
    rest = dense.clone()
    rest[places.long()] = 0
    assert not rest.any()


@pytest.mark.parametrize("spread", first([1, 4096, 65536, 1_000_000, 20_000_000], 4))
def test_merge_of_clusters_far_apart(spread: int) -> None:
    """There is nothing between the clusters, and the last place is the largest possible."""
    n = 100 * spread + 17
    first = (torch.arange(101) * spread).int()
    second = torch.cat([first[::3], i32(n - 1)]) if spread > 1 else i32(n - 1)
    streams = [(first, torch.ones(101)), (second, torch.ones(second.numel()))]
    places, values = merged(n, streams, 1.0, outputs(bound(n, streams), torch.float32))
    wanted = torch.cat([first, i32(n - 1)])
    assert places.tolist() == wanted.tolist()
    assert values[-1] == 1
    if spread > 1:
        assert values[:-1].tolist() == [2.0 if j % 3 == 0 else 1.0 for j in range(101)]


@pytest.mark.parametrize("n", [10, 1000])
def test_merge_by_hand(n: int) -> None:
    inf, nan = float("inf"), float("nan")
    streams = [
        (i32(0, 3, 5, 6, 9), torch.tensor([1.0, 2.0, inf, inf, -0.0])),
        (i32(0, 2, 6, 8), torch.tensor([-1.0, nan, -inf, 2.0**-149])),
    ]
    places, values = merged(n, streams, 2, outputs(9, torch.float32))
    assert places.tolist() == [2, 3, 5, 6, 8]  # 1 - 1 and -0 are zero
    assert bits(values) == bits(torch.tensor([nan, 1.0, inf, nan, 0.0]))
    assert merge_streams(n, [], [], 2, *outputs(0, torch.float16)) == 0
    assert merge_streams(0, [i32()], [torch.ones(0)], 2, *outputs(0, torch.bfloat16)) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_merge_refuses_damaged_places(damage: str, dtype: torch.dtype) -> None:
    n = 1000
    good, bad = stream(n, 0.3, 1, dtype), stream(n, 0.3, 3, dtype)
    bad = DAMAGE[damage](bad[0], n), bad[1]
    out = outputs(n, dtype)
    with pytest.raises(PayloadError, match="payload 1: indices must ascend strictly within 0"):
        merge_streams(n, [good[0], bad[0]], [good[1], bad[1]], 2.0, *out)
    with pytest.raises(PayloadError, match="payload 0: indices must ascend strictly within 0"):
        top_of_two(n, *bad, *good, 10, *out)
    with pytest.raises(PayloadError, match="payload 1: indices must ascend strictly within 0"):
        top_of_two(n, *good, *bad, 10, *out)
    assert untouched(*out)


def test_merge_refuses_wrong_buffers() -> None:
    place, value = i32(0, 4), torch.ones(2)
    out = outputs(2, torch.float32)
    with pytest.raises(KernelError, match="must hold the largest result, 4 entries, not 2"):
        merge_streams(9, [place, place], [value, value], 1.0, *out)
    with pytest.raises(KernelError, match="values must have the shape of the places_out"):
        merge_streams(9, [place], [value], 1.0, out[0], out[1][1:])
    with pytest.raises(KernelError, match="places_out must be int32"):
        merge_streams(9, [place], [value], 1.0, out[0].long(), out[1])
    with pytest.raises(KernelError, match="divisor must not be 0"):
        merge_streams(9, [place], [value], 0.0, *out)
    with pytest.raises(KernelError, match="n must not be negative, but is -1"):
        merge_streams(-1, [], [], 1.0, *out)
    with pytest.raises(KernelError, match=r"at most 2\^31-1"):
        merge_streams(2**31, [], [], 1.0, *out)
    with pytest.raises(PayloadError, match="payload 0: values must be"):
        merge_streams(9, [place], [value[1:]], 1.0, *out)
    with pytest.raises(PayloadError, match="equal length"):
        merge_streams(9, [place], [], 1.0, *out)
    with pytest.raises(KernelError, match="contiguous"):
        merge_streams(9, [place], [value], 1.0, out[0], torch.zeros(4)[::2])
    assert untouched(*out)


@given(st.lists(st.binary(max_size=48), min_size=2, max_size=2), st.integers(0, 60))
def test_faces_take_any_bytes(data: list[bytes], n: int) -> None:
    """Arbitrary bytes are refused with nothing written, or give what the twin gives."""
    raw = [
        torch.tensor(list(d[: len(d) // 4 * 4]), dtype=torch.uint8).view(torch.int32) for d in data
    ]
    for prepare in (lambda p: p, lambda p: p % 61, lambda p: (p % 61).sort().values):
        places = [prepare(p) for p in raw]
        values = [torch.arange(float(p.numel())) + 1 for p in places]
        a, b = zip(places, values)
        room = sum(p.numel() for p in places)
        calls = (
            lambda out, a=places, b=values: merge_streams(n, a, b, 2.0, *out),
            lambda out, a=a, b=b: top_of_two(n, *a, *b, 3, *out),
        )
        twins = (
            lambda out, a=places, b=values: in_torch(merge_streams)(n, a, b, 2.0, *out),
            lambda out, a=a, b=b: top_of_two_twin(n, *a, *b, 3, *out),
        )
        for call, twin in zip(calls, twins):
            out, wanted = outputs(room, torch.float32), outputs(room, torch.float32)
            try:
                count = call(out)
            except PayloadError:
                assert untouched(*out)
                with pytest.raises(PayloadError):
                    twin(wanted)
            else:
                assert count == twin(wanted)
                assert equal(out, wanted)


def top(n: int, a: Stream, b: Stream, k: int, dtype: torch.dtype = torch.float32) -> Stream:
    room = min(k, n, a[0].numel() + b[0].numel())
    out = outputs(room, dtype)
    count = top_of_two(n, *a, *b, k, *out)
    assert untouched(out[0][count:], out[1][count:])
    return out[0][:count], out[1][:count]


def top_twin(n: int, a: Stream, b: Stream, k: int, dtype: torch.dtype) -> Stream:
    out = outputs(a[0].numel() + b[0].numel(), dtype)
    count = top_of_two_twin(n, *a, *b, k, *out)
    return out[0][:count], out[1][:count]


@given(
    KINDS, KINDS, DENSITIES, DENSITIES, SIZES, st.floats(0, 1.2), DTYPE, DTYPE, DTYPE,
    st.integers(0, 9),
)  # fmt: skip
def test_top_same_bits_as_twin_and_both_ways(
    kind: str,
    other: str,
    density: float,
    more: float,
    n: int,
    share: float,
    dtype: torch.dtype,
    mixed: torch.dtype,
    to: torch.dtype,
    seed: int,
) -> None:
    a, b = stream(n, density, seed, dtype, kind), stream(n, more, seed + 1, mixed, other)
    k = int(share * (a[0].numel() + b[0].numel()))
    found = top(n, a, b, k, to)
    assert equal(found, top_twin(n, a, b, k, to))
    swapped = top(n, b, a, k, to)
    assert found[0].tolist() == swapped[0].tolist()
    integers = torch.int32 if to == torch.float32 else torch.int16
    assert torch.equal(found[1].clone().view(integers), swapped[1].clone().view(integers))


def test_top_symmetric_whatever_the_nan() -> None:
    payloads = torch.tensor([0x7FC00001, 0x7F800001, -0x3FFFFF, 0x7FFFFFFF]).int()
    one = payloads.view(torch.float32)
    two = payloads.roll(1).view(torch.float32)
    a, b = (i32(1, 2, 3, 4), one), (i32(1, 2, 3, 9), two)
    for k in range(1, 6):
        found, swapped = top(10, a, b, k), top(10, b, a, k)
        assert found[0].tolist() == swapped[0].tolist() == [1, 2, 3, 4, 9][:k]
        assert found[1].view(torch.int32).tolist() == [0x7FC00000] * k
        assert swapped[1].view(torch.int32).tolist() == [0x7FC00000] * k


def test_top_by_hand() -> None:
    inf, nan = float("inf"), float("nan")
    a = i32(0, 2, 4, 9), torch.tensor([3.0, -1.0, 1.0, -2.0])
    b = i32(2, 4, 5), torch.tensor([-2.0, -1.0, 3.0])
    assert top(10, a, b, 2)[0].tolist() == [0, 2]  # 3, -3, 0, 3, -2: ties to the lower place
    assert top(10, a, b, 3)[1].tolist() == [3, -3, 3]
    assert top(10, a, b, 4)[0].tolist() == [0, 2, 5, 9]
    for k in (5, 6, 100):
        assert top(10, a, b, k)[0].tolist() == [0, 2, 4, 5, 9]
    assert top(10, a, b, 0)[0].tolist() == []
    nothing = i32(), torch.ones(0)
    assert top(10, nothing, nothing, 3)[0].tolist() == []
    assert bits(top(10, nothing, (i32(9), torch.tensor([-0.0])), 1)[1]) == [-(2**31)]
    wild = i32(1, 3, 5), torch.tensor([-inf, nan, 2.0])
    assert top(10, a, wild, 1)[0].tolist() == [3]
    assert top(10, a, wild, 2)[0].tolist() == [1, 3]
    assert top(10, a, wild, 3)[0].tolist() == [0, 1, 3]


@pytest.mark.once
@pytest.mark.parametrize("kind", ["normal", "equal", "two values", "denormal", "signed zeros"])
def test_top_of_many(kind: str) -> None:
    """There are so many entries that a sample estimates where the k-th lies."""
    n = 400_000
    a, b = stream(n, 0.2, 1, kind=kind), stream(n, 0.2, 2, kind=kind)
    for k in (1, 1000, a[0].numel()):
        assert equal(top(n, a, b, k), top_twin(n, a, b, k, torch.float32))


def test_top_refuses() -> None:
    a, b = (i32(0, 4), torch.ones(2)), (i32(1), torch.ones(1))
    out = outputs(2, torch.float32)
    with pytest.raises(KernelError, match="must hold the largest result, 3 entries, not 2"):
        top_of_two(10, *a, *b, 3, *out)
    with pytest.raises(KernelError, match="k must not be negative, but is -1"):
        top_of_two(10, *a, *b, -1, *out)
    with pytest.raises(PayloadError, match="payload 1: values must be"):
        top_of_two(10, *a, b[0], a[1], 2, *out)
    assert untouched(*out)


@given(SIZES, DENSITIES, DENSITIES, st.integers(0, 9))
def test_contained_same_as_twin(n: int, density: float, more: float, seed: int) -> None:
    places, among = stream(n, density, seed)[0], stream(n, more, seed + 1)[0]
    found, wanted = (torch.empty(places.numel(), dtype=torch.bool) for _ in range(2))
    found.fill_(True)
    contained(places, among, found)
    contained_twin(places, among, wanted)
    assert found.tolist() == wanted.tolist()


def test_contained_by_hand_and_its_checks() -> None:
    out = torch.full((4,), True)
    contained(i32(0, 3, 5, 8), i32(1, 3, 8, 9), out)
    assert out.tolist() == [False, True, False, True]
    contained(i32(0, 3, 5, 2**31 - 2), i32(), out)
    assert out.tolist() == [False] * 4
    for wrong in (i32(3, 1, 5, 8), i32(-1, 1, 5, 8), i32(1, 1, 5, 8)):
        with pytest.raises(PayloadError, match="places must ascend strictly"):
            contained(wrong, i32(1), out)
        with pytest.raises(PayloadError, match="among must ascend strictly"):
            contained(i32(0, 3, 5, 8), wrong, out)
    with pytest.raises(PayloadError, match="among must be int32"):
        contained(i32(0, 3, 5, 8), torch.tensor([1]), out)
    with pytest.raises(KernelError, match=r"out must be torch\.bool"):
        contained(i32(0, 3, 5, 8), i32(1), out.int())
    with pytest.raises(KernelError, match=r"out must have shape \(4,\)"):
        contained(i32(0, 3, 5, 8), i32(1), out[1:])
    assert out.tolist() == [False] * 4


def test_nothing_is_left_between_calls() -> None:
    """Tiles are used again: a sum does not see that of another call, even of a refused one."""
    n = 200_000
    first, second = stream(n, 0.001, 1), stream(n, 0.001, 2)
    one = merged(n, [first], 1.0, outputs(first[0].numel(), torch.float32))
    merged(n, [first, second], 1.0, outputs(n, torch.float32))
    with pytest.raises(PayloadError):
        merge_streams(n - 1, [second[0]], [second[1]], 1.0, *outputs(n, torch.float32))
    again = merged(n, [first], 1.0, outputs(first[0].numel(), torch.float32))
    assert equal(one, again)
    assert FILL not in again[0].tolist() or FILL in first[0].tolist()

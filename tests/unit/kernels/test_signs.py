"""Signs, their sums and the largest magnitude: by hand, as the twins, and with x not finite."""

import itertools
import math
from functools import partial
from typing import NamedTuple

import pytest
import torch
from coded import LARGEST, SIZES, inputs
from samples import DTYPES, NATIVE, draw, finite, same, told

from gradwire.errors import KernelError, PayloadError
from gradwire.extension import TWIN
from gradwire.kernels import (
    SumCodes,
    accumulate_codes,
    add_codes,
    encode_codes,
    formats,
    largest,
    tensors,
)
from gradwire.kernels.formats import SIGNS, SIGNS1, SIGNS2, TERNARY, unpack_bits
from gradwire.kernels.native import use
from gradwire.kernels.torch import add_codes as add_codes_twin
from gradwire.kernels.torch import encode_codes as encode_codes_twin
from gradwire.kernels.torch import largest as largest_twin
from gradwire.kernels.values import SILENCE, Noise

pytestmark = pytest.mark.usefixtures("instruction_set")
MANY = [*SIZES, 63, 64, 65, 4095, 4096, 4097, 8256]
NAN, INF = float("nan"), float("inf")
Pair = tuple[torch.Tensor, torch.Tensor]


BY_VALUES = (SIGNS, SIGNS1, SIGNS2)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_signs_are_the_same_where_subnormal_numbers_count_as_zero(count: int) -> None:
    """torch.set_flush_denormal(True) changes arithmetic; a subnormal number keeps its sign."""
    x = torch.tensor([1e-40, -1e-40, 0.0, -0.0, 1.0, -1.0] * 30)
    form, noise = BY_VALUES[count], Noise.of("w")
    found = []
    for flush in (False, True):
        bits, values = torch.zeros(form.code_bytes(180), dtype=torch.uint8), torch.ones(count)
        torch.set_flush_denormal(flush)
        try:
            assert finite(
                encode_codes, form, x, bits, values, noise=noise if count < 2 else SILENCE
            )
        finally:
            torch.set_flush_denormal(False)
        found.append(unpack_bits(bits, 180).view(-1, 6))
    assert torch.equal(*found)
    assert found[0][:, [0, 4]].count_nonzero() == 0
    assert found[0][:, [1, 5]].all()
    assert len(found[0][:, [2, 3]].unique()) == (1 if count == 2 else 2), "zeros by dice"


def accumulate_signs(out: torch.Tensor, payloads: list[Pair], divisor: float) -> None:
    form = BY_VALUES[payloads[0][1].numel() if payloads else 0]
    accumulate_codes([SumCodes(form, out, payloads, divisor)])


def accumulate_signs_twin(out: torch.Tensor, payloads: list[Pair], divisor: float) -> None:
    with use(TWIN):
        accumulate_signs(out, payloads, divisor)


class Packed(NamedTuple):
    bits: torch.Tensor
    values: torch.Tensor
    finite: bool


def packed(x: torch.Tensor, count: int = 2, fill: int = 0xFF) -> Packed:
    form, n = BY_VALUES[count], x.numel()
    bits = torch.full((form.code_bytes(n) + 1,), fill, dtype=torch.uint8)[1:]
    values = torch.full((form.scales(n),), NAN)
    return Packed(bits, values, finite(partial(encode_codes, form), x, bits, values))


def payload(n: int, seed: int, count: int) -> Pair:
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (SIGNS.code_bytes(n) + 1,), generator=g).to(torch.uint8)[1:]
    return bits, torch.randn(BY_VALUES[count].scales(n), generator=g)


def check_pack(x: torch.Tensor, what: str) -> None:
    wanted_bits = torch.empty(SIGNS.code_bytes(x.numel()), dtype=torch.uint8)
    for count, fill in ((0, 0x00), (1, 0xFF), (2, 0x00)):
        form = BY_VALUES[count]
        wanted = torch.full((form.scales(x.numel()),), NAN)
        good = finite(partial(encode_codes_twin, form), x, wanted_bits, wanted)
        found = packed(x, count, fill)
        assert found.finite == good, what
        assert same(found.values, wanted), what
        assert not good or torch.equal(found.bits, wanted_bits), what


@NATIVE
@pytest.mark.parametrize("n", MANY)
def test_bits_sums_and_largest_as_twin(n: int) -> None:
    for kind, x in inputs(formats.INT8, n).items():
        dtypes = DTYPES if kind in ("normal", "ties", "broken", "signed zeros") else DTYPES[:1]
        for dtype in dtypes:
            check_pack(x.to(dtype), f"{kind}, {dtype}")
            for squares in (False, True):
                mine, wanted = (f(x.to(dtype), squares) for f in (largest, largest_twin))
                assert mine == wanted or math.isnan(wanted[0]), (kind, dtype)
                assert math.isnan(mine[0]) == math.isnan(wanted[0])


@NATIVE
def test_a_large_input_as_twin() -> None:
    x = draw("laplace", 1_000_003, 5, shift=1)
    check_pack(x, "large")
    check_pack(x[::3], "strided")
    check_pack(x.half()[1:], "odd address")
    assert largest(x, squares=True) == largest_twin(x, squares=True)
    assert largest(x[::3]) == largest_twin(x[::3])


def test_signs_by_hand() -> None:
    x = torch.tensor([-1.0, 2.0, -0.0, 0.0, -4.0, 8.0, 16.0, -32.0, -(2.0**-149), 64.0])
    found = packed(x)
    assert found.bits.tolist() == [0b1001_0001, 0b01]  # both zeros count as positive
    assert found.values.tolist() == [-37.0 / 4, 90.0 / 6]
    assert packed(x, 1).values.tolist() == [pytest.approx(127.0 / 10)]
    assert packed(x, 0).finite
    for count in (0, 1, 2):
        empty = packed(torch.empty(0), count)
        assert empty.values.numel() == 0
        assert empty.finite
    assert largest(torch.tensor([1.0, -3.0, 2.0]), squares=True) == (3.0, 14.0)
    assert largest(torch.empty(0), squares=True) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 100, 4097, 100_003])
def test_means_are_near_the_exact_ones(n: int, dtype: torch.dtype) -> None:
    x = draw("laplace", n, n, dtype)
    exact, (low, high) = x.double(), packed(x).values.tolist()
    mean, below = float(exact.abs().mean()), int((x < 0).sum())
    sums = float(exact.clamp(max=0).sum()), float(exact.clamp(min=0).sum())
    assert packed(x, 1).values.tolist() == [pytest.approx(mean, rel=1e-6)]
    assert low == pytest.approx(sums[0] / max(below, 1), rel=1e-5)
    assert high == pytest.approx(sums[1] / max(n - below, 1), rel=1e-5)
    most, squares = largest(x, squares=True)
    assert most == float(exact.abs().max())
    assert squares == pytest.approx(float(exact.square().sum()), rel=1e-6)


@pytest.mark.parametrize("value", [INF, -INF, NAN, -NAN])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 63, 300, 5000])
def test_inf_and_nan_are_told_wherever_they_are(value: float, dtype: torch.dtype, n: int) -> None:
    for place in {0, n // 2, n - 1}:
        x = torch.randn(n).to(dtype)
        assert packed(x).finite
        assert math.isfinite(largest(x)[0])
        x[place] = value
        assert not packed(x).finite
        assert not math.isfinite(largest(x)[0])


def test_sums_beyond_fp32_count_as_not_finite() -> None:
    x = torch.full((200,), LARGEST)
    assert packed(x[:1]).finite
    assert not packed(x).finite
    assert not packed(-x).finite
    assert packed(-x).values.tolist() == [0.0, 0.0]
    assert largest(x) == (LARGEST, 0.0)


@NATIVE
@pytest.mark.parametrize("n", MANY)
def test_sums_of_payloads_as_twin(n: int) -> None:
    divisors = itertools.cycle([1.0, 3.0, 4.0, -7.0, 2.0**126, 2.0**-126, 1e30, 2.0**-149])
    for dtype, count in itertools.product(DTYPES, (0, 1, 2, 8, 33)):
        payloads = [payload(n, seed, count % 3) for seed in range(count)]
        out, wanted = torch.full((n + 1,), NAN, dtype=dtype)[1:], torch.empty(n, dtype=dtype)
        divisor = next(divisors)
        accumulate_signs(out, payloads, divisor)
        accumulate_signs_twin(wanted, payloads, divisor)
        assert same(out, wanted), (dtype, count, divisor)


@NATIVE
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("factor", [1.0, -1.0, 0.3, -1e30, 0.0])
def test_add_as_twin(count: int, factor: float) -> None:
    for n in (0, 1, 63, 128, 129, 5003):
        bits, values = payload(n, n, count)
        v = draw("normal", n, 3, shift=1)
        wanted = v.clone()
        add_codes(BY_VALUES[count], v, bits, values, factor)
        add_codes_twin(BY_VALUES[count], wanted, bits, values, factor)
        assert same(v, wanted)


@NATIVE
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shift", [0, 1])
def test_large_targets_written_around_the_cache(
    dtype: torch.dtype, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "STREAM_BYTES", 4096)
    n = 100_077
    held, wanted = torch.empty(n + 64, dtype=dtype), torch.empty(n, dtype=dtype)
    start = -held.data_ptr() % 64 // held.element_size() + shift
    out = held[start : start + n]
    assert tensors.goes_around(out)
    payloads = [payload(n, seed, 2) for seed in range(3)]
    accumulate_signs(out, payloads, 3.0)
    accumulate_signs_twin(wanted, payloads, 3.0)
    assert torch.equal(out, wanted)


def test_values_by_hand() -> None:
    bits, out = torch.tensor([0b0000_0101], dtype=torch.uint8), torch.full((4,), 9.0)
    accumulate_signs(out, [(bits, torch.empty(0))], 1.0)
    assert out.tolist() == [-1.0, 1.0, -1.0, 1.0]
    accumulate_signs(out, [(bits, torch.tensor([3.0]))], 2.0)
    assert out.tolist() == [-1.5, 1.5, -1.5, 1.5]
    pair = (bits, torch.tensor([-3.0, 0.5])), (bits, torch.tensor([-1.0, 1.0]))
    accumulate_signs(out, list(pair), -2.0)
    assert out.tolist() == [2.0, -0.75, 2.0, -0.75]
    add_codes(SIGNS2, out, bits, torch.tensor([-3.0, 0.5]), 2.0)
    assert out.tolist() == [-4.0, 0.25, -4.0, 0.25]
    accumulate_signs(out, [], 2.0)
    assert out.tolist() == [0.0] * 4


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    n, out = 100, torch.full((100,), 7.0)
    good, bad = payload(n, 1, 2), payload(n, 2, 2)
    bad[1][1] = value
    for accumulate in (accumulate_signs, accumulate_signs_twin):
        with pytest.raises(PayloadError, match=r"payload 1: .*must be finite.*1 of 2"):
            accumulate(out, [good, bad], 2.0)
    assert (out == 7.0).all()


def test_wrong_buffers_are_refused() -> None:
    x, bits = torch.ones(20), torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(KernelError, match=r"codes must have shape \(3,\)"):
        told(partial(encode_codes, SIGNS1), x, bits[1:], torch.ones(1))
    with pytest.raises(KernelError, match=r"scales must have shape \(2,\)"):
        told(partial(encode_codes, SIGNS2), x, bits, torch.ones(3))
    with pytest.raises(KernelError, match=r"scales must have shape \(2,\)"):
        accumulate_codes([SumCodes(SIGNS2, x, [(bits, torch.ones(3))], 1.0)])
    with pytest.raises(KernelError, match=r"scales must be torch\.float32"):
        accumulate_signs(x, [(bits, torch.ones(2).double())], 1.0)


def test_sums_of_signs_and_of_blocks_stop_at_the_first_that_is_bad() -> None:
    """The sum stops at the first bad segment, whatever its format; those before it are written."""
    good, bad = payload(20, 1, 2), payload(20, 2, 2)
    bad[1][1] = NAN
    codes = torch.zeros(TERNARY.code_bytes(20), dtype=torch.uint8), torch.ones(1)
    outs = [torch.full((20,), 7.0) for _ in range(4)]
    work = [(SIGNS2, good), (TERNARY, codes), (SIGNS2, bad), (TERNARY, codes)]
    segments = [SumCodes(form, out, [one], 1.0) for (form, one), out in zip(work, outs)]
    with pytest.raises(PayloadError, match=r"payload 0: .*must be finite"):
        accumulate_codes(segments)
    assert [bool((out == 7.0).all()) for out in outs] == [False, False, True, True]

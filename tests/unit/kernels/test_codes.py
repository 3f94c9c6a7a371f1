"""Quantizers against their twins, against bytes worked out by hand, and on damaged payloads."""

import itertools

import pytest
import torch
from coded import FORMATS, LARGEST, NOISE, SIZES, Pair, buffers, damaged, inputs, small_floats
from samples import DTYPES, NATIVE, finite, same, told
from single import accumulate_codes

from gradwire.errors import KernelError, PayloadError
from gradwire.extension import TWIN
from gradwire.kernels import (
    Noise,
    add_codes,
    encode_codes,
    formats,
    new_status,
    random_bits,
    tensors,
)
from gradwire.kernels.formats import Format
from gradwire.kernels.native import use
from gradwire.kernels.torch import add_codes as add_codes_twin
from gradwire.kernels.torch import encode_codes as encode_codes_twin
from gradwire.kernels.torch.codes import decode_codes as decode_codes_twin

pytestmark = pytest.mark.usefixtures("instruction_set")
EACH = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
DIVISORS = [1.0, 3.0, 4.0, -7.0, -0.25, 2.0**126, 2.0**127, 2.0**-126, 2.0**-149, 1e30, 3e-30]
NAN, INF = float("nan"), float("inf")


def accumulate_codes_twin(
    form: Format, out: torch.Tensor, payloads: list[Pair], by: float
) -> None:
    with use(TWIN):
        accumulate_codes(form, out, payloads, by)


def encoded(form: Format, x: torch.Tensor, noise: Noise = NOISE, fill: int = 0xFF) -> Pair:
    codes, scales = buffers(form, x.numel(), fill)
    assert finite(encode_codes, form, x, codes, scales, noise=noise)
    return codes, scales


def decoded(form: Format, payload: Pair, n: int) -> torch.Tensor:
    out = torch.empty(n)
    accumulate_codes(form, out, [payload], 1.0)
    return out


def check_encode(form: Format, x: torch.Tensor, what: str) -> None:
    clip = 1.5 if form.in_all and x.numel() % 2 else None
    how, wanted = {"noise": NOISE, "clip": clip}, buffers(form, x.numel())
    good = finite(encode_codes_twin, form, x, *wanted, **how)
    for fill in (0x00, 0xFF):
        mine = buffers(form, x.numel(), fill)
        assert finite(encode_codes, form, x, *mine, **how) == good, what
        if good:
            assert torch.equal(mine[0], wanted[0]), what
            assert same(mine[1], wanted[1]), what


@NATIVE
@EACH
@pytest.mark.parametrize("n", SIZES)
def test_codes_and_scales_as_twin(form: Format, n: int) -> None:
    for kind, x in inputs(form, n).items():
        dtypes = DTYPES if kind in ("normal", "ties", "broken") else DTYPES[:1]
        for dtype in dtypes:
            check_encode(form, x.to(dtype), f"{kind}, {dtype}")


@NATIVE
@EACH
def test_strided_inputs_as_twin(form: Format) -> None:
    x = torch.randn(4000)
    check_encode(form, x[::3], "stride")
    check_encode(form, x[1:], "odd address")
    check_encode(form, x.bfloat16()[1:], "odd address")


@NATIVE
@EACH
@pytest.mark.parametrize("n", SIZES)
def test_sums_as_twin(form: Format, n: int) -> None:
    divisors = itertools.cycle(DIVISORS)
    for dtype, count in itertools.product(DTYPES, (0, 1, 2, 8)):
        payloads = [damaged(form, n, seed) for seed in range(count)]
        out, wanted = torch.full((n + 1,), NAN, dtype=dtype)[1:], torch.empty(n, dtype=dtype)
        divisor = next(divisors)
        accumulate_codes(form, out, payloads, divisor)
        accumulate_codes_twin(form, wanted, payloads, divisor)
        assert same(out, wanted), (dtype, count, divisor)


@NATIVE
@EACH
@pytest.mark.parametrize("divisor", DIVISORS)
def test_any_divisor_and_many_payloads_as_twin(form: Format, divisor: float) -> None:
    n = 2 * form.block + 9
    payloads = [damaged(form, n, seed) for seed in range(33)]
    out, wanted = torch.empty(n), torch.empty(n)
    accumulate_codes(form, out, payloads, divisor)
    accumulate_codes_twin(form, wanted, payloads, divisor)
    assert same(out, wanted)


@NATIVE
@EACH
@pytest.mark.parametrize("factor", [1.0, -1.0, 0.5, 0.3, -2.7, 1e-30, 1e30, 0.0])
def test_add_as_twin(form: Format, factor: float) -> None:
    sizes = (0, 7, form.block, 2 * form.block + 33)
    for n, by in [*((n, factor) for n in sizes), (99, 3e37)]:
        codes, scales = damaged(form, n, n)
        v = torch.randn(n + 1)[1:]
        wanted = v.clone()
        add_codes(form, v, codes, scales, by)
        add_codes_twin(form, wanted, codes, scales, by)
        assert same(v, wanted)


@NATIVE
@EACH
def test_large_targets_written_around_the_cache(
    form: Format, instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores around the cache give the same, at aligned and other addresses; so does encoding."""
    if instruction_set == "twin":
        pytest.skip("compared with itself")
    monkeypatch.setattr(tensors, "STREAM_BYTES", 4096)
    n = 100_517
    x = torch.randn(n)
    payload = encoded(form, x)
    wanted = decode_codes_twin(form, *payload, n)
    for dtype, shift in ((torch.float32, 0), (torch.float32, 1), (torch.bfloat16, 0)):
        held = torch.empty(n + 64, dtype=dtype)
        start = -held.data_ptr() % 64 // held.element_size() + shift
        out = held[start : start + n]
        assert (out.data_ptr() % 64 == 0) == (shift == 0)
        assert tensors.goes_around(out)
        accumulate_codes(form, out, [payload], 4.0)
        assert torch.equal(out, (wanted / 4.0).to(dtype))
    check_encode(form, x, "large")


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 300, 1300])
def test_inf_and_nan_are_told_wherever_they_are(value: float, dtype: torch.dtype, n: int) -> None:
    for form in FORMATS.values():
        for place in {0, n // 2, n - 1}:
            x = torch.randn(n).to(dtype)
            x[place] = value
            codes, scales = buffers(form, n)
            assert not finite(encode_codes, form, x, codes, scales, noise=NOISE)


# -- by hand -----------------------------------------------------------------------------------


def check_bytes(form: Format, x: list[float], codes: list[int], scales: list[float]) -> Pair:
    payload = encoded(form, torch.tensor(x))
    assert payload[0].tolist() == codes
    assert payload[1].tolist() == scales
    return payload


def test_int8_by_hand() -> None:
    x = [127.0, -127.0, 0.5, 1.5, -2.5, 0.49, -0.0, 126.5]  # ties to even
    payload = check_bytes(formats.INT8, x, [127, 129, 0, 2, 254, 0, 0, 126], [1.0])
    assert decoded(formats.INT8, payload, 8).tolist() == [127, -127, 0, 2, -2, 0, 0, 126]
    check_bytes(formats.INT8, [254.0, -1.0, 3.0], [127, 0, 2], [2.0])


def test_e4m3_by_hand() -> None:
    x = [448.0, -448.0, 1.0, 1.0625, 1.1875, 2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9, -0.0]
    codes = [0x7E, 0xFE, 0x38, 0x38, 0x3A, 0x08, 0x01, 0x00, 0x02, 0x80]
    payload = check_bytes(formats.E4M3, x, codes, [1.0])
    wanted = [448, -448, 1.0, 1.0, 1.25, 2.0**-6, 2.0**-9, 0.0, 2.0**-8, 0.0]
    assert decoded(formats.E4M3, payload, 10).tolist() == wanted


def test_e5m2_by_hand() -> None:
    x = [57344.0, -57344.0, 1.0, 1.125, 1.375, 2.0**-14, 2.0**-16, 2.0**-17, 1.5 * 2.0**-16]
    codes = [0x7B, 0xFB, 0x3C, 0x3C, 0x3E, 0x04, 0x01, 0x00, 0x02]
    payload = check_bytes(formats.E5M2, x, codes, [1.0])
    wanted = [57344, -57344, 1.0, 1.0, 1.5, 2.0**-14, 2.0**-16, 0.0, 2.0**-15]
    assert decoded(formats.E5M2, payload, 9).tolist() == wanted


def test_levels_by_hand() -> None:
    """A value on a level stays there whatever the noise; the parts of a block share a byte."""
    x = [1.0, -1.0, 0.0, 1.0, -1.0]  # two of a part: codes 2 0 | 1 2 | 0 _ | _ _
    payload = check_bytes(formats.LEVELS2, x, [0b00_00_01_10, 0b00_00_10_00], [1.0])
    assert decoded(formats.LEVELS2, payload, 5).tolist() == x
    x = [7.0, -7.0, 0.0, 3.0, -2.0]  # codes 14 0 7 | 10 5 _
    payload = check_bytes(formats.LEVELS4, x, [0xAE, 0x50, 0x07], [1.0])
    assert decoded(formats.LEVELS4, payload, 5).tolist() == x
    payload = check_bytes(formats.LEVELS8, [127.0, -127.0, 5.0, -0.0], [127, 129, 5, 0], [1.0])
    assert decoded(formats.LEVELS8, payload, 4).tolist() == [127, -127, 5, 0]


def test_levels_round_by_the_noise() -> None:
    x = torch.tensor([7.0, 2.25, -2.25, 0.75] * 3)
    codes = encoded(formats.LEVELS8, x * 127 / 7)[0].view(torch.int8)
    scaled = x.abs().double() * 127 / 7
    chance = random_bits(NOISE, 12).double() / 2**32
    up = (chance + scaled % 1.0 >= 1.0).double()
    assert torch.equal(codes.abs().double(), scaled.floor() + up)


@EACH
def test_the_noise_counts_where_a_format_is_random(form: Format) -> None:
    x, other = inputs(form, 1000)["normal"], NOISE._replace(first=NOISE.first ^ 1)
    written = []
    for noise in (NOISE, other):
        codes, scales = buffers(form, x.numel())
        encode_codes(form, x, codes, scales, new_status(), noise)
        written.append(codes)
    assert torch.equal(*written) is not form.random


def test_ternary_by_hand() -> None:
    x = [1.0, -1.0, 0.0, 1.0, -1.0, 0.0]  # two of a part: digits 2 0 | 1 2 | 0 1 | 0 0 | 0 0
    first, second = 2 * 81 + 27, 2 * 27 + 9
    codes = [-(-first * 256 // 243), -(-second * 256 // 243)]
    assert codes == [200, 67]
    payload = check_bytes(formats.TERNARY, x, codes, [1.0])
    assert decoded(formats.TERNARY, payload, 6).tolist() == x


def test_a_whole_block_of_ternary_is_interleaved() -> None:
    x = torch.zeros(1280)
    x[1], x[16] = 1.0, -1.0  # digits 2 and 0 in the first place; 1 is the digit of a zero
    codes = encoded(formats.TERNARY, x)[0]
    zero, one, less = (-(-number * 256 // 243) for number in (121, 121 + 81, 121 - 81))
    assert (zero, one, less) == (128, 213, 43)
    assert codes[:4].tolist() == [zero, less, one, zero]
    assert (codes[4:] == zero).all()


def test_powers_by_hand() -> None:
    x = [1.0, -2.0, 0.0, -0.0, 0.5, 2.0**-126, 2.0**127, LARGEST, -4.0]
    codes = [127, 128, 0, 0, 126, 1, 254, 254, 129, 0b0000_1010, 0b1]
    payload = check_bytes(formats.POWERS, x, codes, [])
    wanted = [1.0, -2.0, 0.0, 0.0, 0.5, 2.0**-126, 2.0**127, 2.0**127, -4.0]
    assert decoded(formats.POWERS, payload, 9).tolist() == wanted


def test_lloyd_by_hand() -> None:
    """The mean magnitude is 2; parts of a block share a byte; 0 and -0 count as above."""
    x = [1.0, -4.0, 0.0, -0.0, 5.0]  # signs 1 0 1 1 1, one of a part
    payload = check_bytes(formats.LLOYD1, x, [0b11101], [2.0])
    assert decoded(formats.LLOYD1, payload, 5).tolist() == [2, -2, 2, 2, 2]
    x = [1.0, -4.0, 2.46, -2.47, 0.07]  # two of a part: codes 2 0 | 2 0 | 2 _
    payload = check_bytes(formats.LLOYD2, x, [0b00_10_10_10, 0b00_00_00_00], [2.0])
    wanted = [level * 2.0 for level in (0.5675, -1.8925, 0.5675, -1.8925, 0.5675)]
    assert decoded(formats.LLOYD2, payload, 5).tolist() == pytest.approx(wanted)


def test_microscaling_by_hand() -> None:
    """A scale's exponent for each 32; two parts share a byte; 7 is clipped to 6; ties to even."""
    x = [6.0, 7.0, -1.25, 0.25, 0.75, -0.0]  # codes 7 7 10 | 0 2 8
    payload = check_bytes(formats.E2M1X, x, [127, 0x07, 0x27, 0x8A], [])
    assert decoded(formats.E2M1X, payload, 6).tolist() == [6, 6, -1, 0, 1, 0]
    x = [0.0] * 32 + [48.0, 2.0]  # the second 32: by 8; codes 7 0 (0.25 is a tie)
    check_bytes(formats.E2M1X, x, [0, 130, *[0] * 15, 0x70, 0x00], [])
    x = [
        -28.0,
        1.0,
        0.0625,
        0.09375,
        31.9,
    ]  # codes 63 12 1 | 2 31 _, whose upper bits are 3 0 | 0 0 | 1 _
    payload = check_bytes(formats.E3M2X, x, [127, 0x2F, 0xFC, 0x01, 0b01_00_11, 0b00], [])
    assert decoded(formats.E3M2X, payload, 5).tolist() == [-28, 1, 0.0625, 0.125, 28]
    x = [7.5, -1.0, 0.0625, 0.1875]  # codes 31 40 | 0 2
    payload = check_bytes(formats.E2M3X, x, [127, 0x0F, 0x28, 0b00_00_10_01], [])
    assert decoded(formats.E2M3X, payload, 4).tolist() == [7.5, -1, 0, 0.25]
    x = [500.0, -448.0, 2.0**-9, 1.0625]
    payload = check_bytes(formats.E4M3X, x, [127, 0x7E, 0xFE, 0x01, 0x38], [])
    assert decoded(formats.E4M3X, payload, 4).tolist() == [448, -448, 2.0**-9, 1.0]


@pytest.mark.parametrize("name", ["e2m1x", "e3m2x", "e2m3x", "e4m3x"])
def test_every_small_float_means_what_it_should(name: str) -> None:
    form = FORMATS[name]
    numbers = small_floats(form.bits, form.mantissa)
    for code in range(1 << form.bits):
        size = code % (1 << form.bits - 1)
        value = numbers[size].item() if size < len(numbers) else 480.0  # e4m3's NaN
        value = -value if size < code else value
        planes = [code >> lowest & 15 if bits < 8 else code for lowest, bits in form.planes]
        for exponent, scale in ((127, 1.0), (0, 0.0), (100, 2.0**-27), (255, None)):
            if scale is None:  # no encoder writes it; it reads as the largest written
                scale = 2.0 ** (127 - 2 ** (form.bits - 2 - form.mantissa))
            codes = torch.tensor([exponent, *planes], dtype=torch.uint8)
            assert float(decoded(form, (codes, torch.empty(0)), 1)) == value * scale


def test_the_largest_magnitude_decides_the_scale_of_its_32_alone() -> None:
    x = torch.ones(600)
    x[40] = 1000.0
    back = decoded(formats.E2M1X, encoded(formats.E2M1X, x), 600)
    assert torch.equal(back[:32], x[:32])
    assert torch.equal(back[64:], x[64:])
    assert back[40] == 768.0
    assert bool((back[32:40] == 0).all())


@pytest.mark.parametrize("bits", [1, 2])
def test_lloyd_loses_what_max_found(bits: int) -> None:
    """The error on a normal distribution is that of Max 1960, table I."""
    form = formats.LLOYD1 if bits == 1 else formats.LLOYD2
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    lost = (decoded(form, encoded(form, x), x.numel()) - x).square().mean()
    assert float(lost) == pytest.approx({1: 0.3634, 2: 0.1175}[bits], rel=0.01)


@pytest.mark.parametrize("form", [formats.LEVELS4, formats.LEVELS8, formats.LEVELS2])
@pytest.mark.parametrize("number", [0, 255, 2**31, 2**32 - 256, 2**32 - 1])
def test_a_level_stays_whatever_the_number(form: Format, number: int) -> None:
    """In fp32 the sum of level and noise would now and then be rounded to the level above."""
    noise = NOISE._replace(shift=0)
    shift = number - int(random_bits(noise, 2)[1])
    for level in range(int(form.steps) + 1):
        x = torch.tensor([form.steps, -level])
        payload = encoded(form, x, noise._replace(shift=shift % 2**32))
        assert decoded(form, payload, 2).tolist() == x.tolist()


@EACH
def test_values_of_the_format_come_back(form: Format) -> None:
    n = 1 << 16
    if form is formats.POWERS:
        x = 2.0 ** torch.arange(-149, 128).repeat(n)[:n]
        x[x < 2.0**-126] = 0.0  # of denormals the exponent alone does not tell the number
    elif form in (formats.E4M3, formats.E5M2):
        codes = torch.arange(256).repeat(n)[:n].to(torch.uint8)
        dtype = torch.float8_e4m3fn if form is formats.E4M3 else torch.float8_e5m2
        x = codes.view(dtype).float()
        x = torch.where(x.isfinite(), x, form.steps)
    elif form.mantissa is not None:
        values = small_floats(form.bits, form.mantissa)
        x = torch.cat([values, -values]).repeat(n)[:n]
        x[::32] = values[-1]  # else a group whose largest magnitude is small has a smaller scale
        x[32:64] *= 2.0**-96
        x[64:96] *= 2.0**110
    elif form.mean:  # one bit gives back one magnitude; two bits only 0
        x = torch.tensor([3.0, -3.0]).repeat(n)[:n]
        x = x if form is formats.LLOYD1 else 0 * x
    else:
        x = torch.arange(-form.steps, form.steps + 1).repeat(n)[:n]
        x[:: min(form.block, 256)] = form.steps
    assert torch.equal(decoded(form, encoded(form, x), n), x)


# -- the ends of the range, and damage --------------------------------------------------------


@EACH
def test_finite_values_stay_finite(form: Format) -> None:
    x = torch.tensor([LARGEST, -LARGEST, 1.0, 3e38]).repeat(form.block)
    payload = encoded(form, x)
    back = decoded(form, payload, x.numel())
    assert back.isfinite().all()
    add_codes(form, x, *payload, -1.0)
    assert x.isfinite().all()


@EACH
def test_what_is_too_small_for_a_scale_is_zero(form: Format) -> None:
    if form.steps == 0:
        pytest.skip("no scale")
    n = form.block + 3
    for value, counts in ((2.0**-96, True), (2.0**-96 * (1 - 2.0**-24), False), (0.0, False)):
        payload = encoded(form, torch.full((n,), value))
        wanted = value if counts else 0.0
        assert decoded(form, payload, n).tolist() == pytest.approx([wanted] * n, rel=1e-6)


@EACH
@pytest.mark.parametrize("n", [1, 8, 257, 1281, 5003])
def test_any_bytes_are_codes(form: Format, n: int) -> None:
    """Any bytes decode to finite values, unless the format has codes for others."""
    codes, scales = damaged(form, n, n, 1e30)
    out = decoded(form, (codes, scales), n)
    if form is formats.E5M2:
        assert torch.equal(out.isfinite(), (codes & 0x7F) < 0x7C)
    elif form is not formats.POWERS:
        assert out.isfinite().all()


@EACH
def test_every_byte_means_what_it_should(form: Format) -> None:
    """Each of the 256 bytes, as the first of a block of one element, decodes to its value."""
    if form.mantissa is not None:
        pytest.skip("a scale comes first: see below")
    for byte in range(256):
        extra = (0x00,) if form is formats.POWERS else ()
        codes = torch.tensor([byte, *extra], dtype=torch.uint8)
        value = float(decoded(form, (codes, torch.ones(form.scales(1))), 1))
        signed = byte - 256 * (byte > 127)
        if form in (formats.INT8, formats.LEVELS8):
            assert value == signed
        elif form is formats.LEVELS2:
            assert value == byte % 4 - 1
        elif form is formats.LEVELS4:
            assert value == byte % 16 - 7
        elif form is formats.TERNARY:
            assert value == byte * 3 // 256 - 1
        elif form is formats.LLOYD1:
            assert value == byte % 2 * 2 - 1
        elif form is formats.LLOYD2:
            levels = -formats.OUTER, -formats.INNER, formats.INNER, formats.OUTER
            assert value == pytest.approx(levels[byte % 4])
        elif form is formats.POWERS:
            assert value == (0.0 if byte == 0 else INF if byte == 255 else 2.0 ** (byte - 127))
        elif form is formats.E4M3 and byte % 128 == 0x7F:
            assert value == (480.0 if byte < 128 else -480.0)
        else:
            dtype = torch.float8_e4m3fn if form is formats.E4M3 else torch.float8_e5m2
            assert same(torch.tensor([value]), codes.view(dtype).float() + 0.0)


@EACH
@pytest.mark.parametrize("scale", [INF, -INF, NAN, 3.4e38, -3.4e38])
def test_scales_that_no_encoder_writes_are_refused(form: Format, scale: float) -> None:
    if form.steps <= 1 and abs(scale) < INF:
        pytest.skip("within the range of this format" if form.steps else "no scale")
    n = 2 * form.block
    out = torch.full((n,), 7.0)
    good, bad = damaged(form, n, 1), damaged(form, n, 2)
    if form.scales(n) == 0:
        pytest.skip("no scale")
    bad[1][-1] = scale
    for accumulate in (accumulate_codes, accumulate_codes_twin):
        with pytest.raises(PayloadError, match=r"payload 1: scales must be finite.*1 of"):
            accumulate(form, out, [good, bad], 2.0)
    assert (out == 7.0).all()


def test_wrong_buffers_are_refused() -> None:
    form, x = formats.LEVELS4, torch.ones(600)
    codes, scales = buffers(form, 600)
    with pytest.raises(KernelError, match=r"codes must have shape \(300,\)"):
        told(encode_codes, form, x, codes[1:], scales)
    with pytest.raises(KernelError, match=r"scales must have shape \(2,\)"):
        accumulate_codes(form, x, [(codes, scales[1:])], 1.0)
    with pytest.raises(KernelError, match=r"codes must be torch\.uint8"):
        add_codes(form, x, codes.view(torch.int8), scales, 1.0)
    with pytest.raises(KernelError, match="factor must be finite"):
        add_codes(form, x, codes, scales, INF)
    with pytest.raises(KernelError, match="divisor must not be 0"):
        accumulate_codes(form, x, [], 0.0)
    with pytest.raises(KernelError, match="x must be float32"):
        told(encode_codes, form, x.double(), codes, scales)
    with pytest.raises(KernelError, match="contiguous"):
        accumulate_codes(form, torch.ones(1200)[::2], [], 1.0)

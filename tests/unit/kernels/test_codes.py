"""Quantizers against their twins, against bytes worked out by hand, and on damaged payloads."""

import pytest
import torch
from coded import FORMATS, LARGEST, NOISE, Pair, buffers, damaged
from samples import same

from gradwire.errors import PayloadError
from gradwire.kernels import Noise, accumulate_codes, add_codes, encode_codes, formats, random_bits
from gradwire.kernels.codes import (
    accumulate_codes_twin,
    add_codes_twin,
)
from gradwire.kernels.formats import Format

pytestmark = pytest.mark.usefixtures("instruction_set")
EACH = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
DIVISORS = [1.0, 3.0, 4.0, -7.0, -0.25, 2.0**126, 2.0**127, 2.0**-126, 2.0**-149, 1e30, 3e-30]
NAN, INF = float("nan"), float("inf")


def top_of(form: Format, x: torch.Tensor) -> float:
    return float(x.float().abs().max()) if form.one_scale and x.numel() else 0.0


def encoded(form: Format, x: torch.Tensor, noise: Noise = NOISE, fill: int = 0xFF) -> Pair:
    codes, scales = buffers(form, x.numel(), fill)
    assert encode_codes(form, x, codes, scales, noise, top_of(form, x))
    return codes, scales.fill_(top_of(form, x)) if form.one_scale else scales


def decoded(form: Format, payload: Pair, n: int) -> torch.Tensor:
    out = torch.empty(n)
    accumulate_codes(form, out, [payload], 1.0)
    return out


@EACH
@pytest.mark.parametrize("factor", [1.0, -1.0, 0.5, 0.3, -2.7, 1e-30, 1e30, 0.0])
def test_add_as_twin(form: Format, factor: float) -> None:
    for n in (0, 7, form.block, 2 * form.block + 33):
        codes, scales = damaged(form, n, n)
        v = torch.randn(n + 1)[1:]
        wanted = v.clone()
        add_codes(form, v, codes, scales, factor)
        add_codes_twin(form, wanted, codes, scales, factor)
        assert same(v, wanted)


@pytest.mark.parametrize("form", [formats.LEVELS4, formats.LEVELS8, formats.LEVELS2])
@pytest.mark.parametrize("number", [0, 255, 2**31, 2**32 - 256, 2**32 - 1])
def test_a_level_stays_whatever_the_number(form: Format, number: int) -> None:
    """The sum of level and number in fp32 would be rounded to the level above now and then."""
    noise = NOISE._replace(shift=0)
    shift = number - int(random_bits(noise, 2)[1])
    for level in range(int(form.steps) + 1):
        x = torch.tensor([form.steps, -level])
        payload = encoded(form, x, noise._replace(shift=shift % 2**32))
        assert decoded(form, payload, 2).tolist() == x.tolist()


@EACH
def test_finite_values_stay_finite(form: Format) -> None:
    x = torch.tensor([LARGEST, -LARGEST, 1.0, 3e38]).repeat(form.block)
    payload = encoded(form, x)
    back = decoded(form, payload, x.numel())
    assert back.isfinite().all()
    add_codes(form, x, *payload, -1.0)
    assert x.isfinite().all()


@EACH
def test_every_byte_means_what_it_should(form: Format) -> None:
    """A byte in the first place of a block of one element."""
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

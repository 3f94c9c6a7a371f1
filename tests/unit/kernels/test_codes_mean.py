"""Stochastic formats: the mean over noises is x, and ranks err in opposite directions.

Thresholds are at about five standard deviations; seeds are fixed.
"""

import pytest
import torch
from coded import FORMATS, Pair, buffers
from samples import finite
from single import accumulate_codes

from gradwire.kernels import Noise, encode_codes, formats
from gradwire.kernels.formats import Format

STOCHASTIC = ("levels2", "levels4", "levels8", "ternary", "powers")
EACH = pytest.mark.parametrize("form", [FORMATS[name] for name in STOCHASTIC], ids=STOCHASTIC)
STEPS = 500


def encoded(form: Format, x: torch.Tensor, noise: Noise) -> Pair:
    codes, scales = buffers(form, x.numel())
    assert finite(encode_codes, form, x, codes, scales, noise=noise)
    return codes, scales


def means(form: Format, x: torch.Tensor, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of x as it arrives over many steps, and the variance of a single step."""
    total, squares = torch.zeros_like(x).double(), torch.zeros_like(x).double()
    out = torch.empty_like(x)
    for step in range(STEPS):
        accumulate_codes(form, out, [encoded(form, x, Noise.of(f"1/{step}/w", rank))], 1.0)
        total += out
        squares += out.double().square()
    mean = total / STEPS
    return mean, (squares / STEPS - mean.square()).clamp(min=0)


def variance(form: Format, x: torch.Tensor) -> torch.Tensor:
    """The variance of one element: (upper - x) (x - lower), with x's neighbours in the format."""
    magnitude = x.abs().double()
    if form is formats.POWERS:
        lower = 2.0 ** magnitude.log2().floor()
        return (2 * lower - magnitude) * (magnitude - lower)
    if form.in_all:
        top = magnitude.max().expand_as(x)
    else:
        blocks = magnitude.view(-1, form.block)
        top = blocks.amax(1, keepdim=True).expand_as(blocks).reshape(-1)
    step = top / form.steps
    share = magnitude / step % 1.0
    return share * (1 - share) * step.square()


@EACH
@pytest.mark.parametrize("rank", [0, 3])
def test_the_mean_is_x_and_the_variance_as_it_should_be(form: Format, rank: int) -> None:
    x = torch.randn(2048, generator=torch.Generator().manual_seed(9))
    mean, found = means(form, x, rank)
    expected = variance(form, x)
    error = (mean - x.double()) / (expected / STEPS).sqrt().clamp(min=1e-9)
    usual = error[expected > 0.05 * expected.mean()]
    assert float(usual.abs().max()) < 5.5
    assert abs(float(usual.mean())) * usual.numel() ** 0.5 < 5
    assert float(usual.square().mean()) == pytest.approx(1.0, abs=5 * (2 / usual.numel()) ** 0.5)
    assert float(found.sum() / expected.sum()) == pytest.approx(1.0, abs=0.02)


@EACH
@pytest.mark.parametrize("value", [1e-3, 1e-5])
def test_small_values_beside_a_large_one_are_not_lost(form: Format, value: float) -> None:
    n = 1 << 20
    x = torch.full((n,), value)
    x[:: form.block] = 1.0
    out = torch.empty(n)
    accumulate_codes(form, out, [encoded(form, x, Noise.of("1/0/w"))], 1.0)
    small = x < 1.0
    spread = float(variance(form, x[: n // form.block * form.block]).sum()) ** 0.5
    assert abs(float(out.double()[small].sum() - x.double()[small].sum())) < 5 * spread + 1e-3


@EACH
def test_signs_make_no_difference(form: Format) -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(2))
    out, negative = torch.empty(3000), torch.empty(3000)
    accumulate_codes(form, out, [encoded(form, x, Noise.of("w"))], 1.0)
    accumulate_codes(form, negative, [encoded(form, -x, Noise.of("w"))], 1.0)
    assert torch.equal(out, -negative)


@EACH
@pytest.mark.parametrize("world", [2, 4, 8])
def test_ranks_with_equal_inputs_err_in_opposite_directions(form: Format, world: int) -> None:
    n = 100 * 1280
    x = torch.randn(n, generator=torch.Generator().manual_seed(4))
    out, errors = torch.empty(n), []
    for name in ("1/0/w", "1/0/w/{}"):  # one noise, rotated for each rank; independent noises
        noises = [Noise.of(name.format(rank), rank) for rank in range(world)]
        accumulate_codes(form, out, [encoded(form, x, noise) for noise in noises], world)
        errors.append(float((out.double() - x).square().mean()))
    expected = float(variance(form, x).mean()) / world
    assert errors[1] == pytest.approx(expected, rel=0.05)
    assert errors[0] < 0.8 * expected

"""Inputs for the tests of quantizers: all formats, values where rounding is decided, bytes."""

import torch
from samples import DISTRIBUTIONS

from gradwire.kernels import Noise, formats
from gradwire.kernels.formats import Format

FORMATS = {
    "int8": formats.INT8,
    "e4m3": formats.E4M3,
    "e5m2": formats.E5M2,
    "levels2": formats.LEVELS2,
    "levels4": formats.LEVELS4,
    "levels8": formats.LEVELS8,
    "ternary": formats.TERNARY,
    "powers": formats.POWERS,
    "lloyd1": formats.LLOYD1,
    "lloyd2": formats.LLOYD2,
    "e2m1x": formats.E2M1X,
    "e3m2x": formats.E3M2X,
    "e2m3x": formats.E2M3X,
    "e4m3x": formats.E4M3X,
}
SIZES = [0, 1, 7, 8, 255, 256, 257, 511, 512, 513, 1279, 1280, 1281, 5003]
NOISE = Noise.of("0/0/weight", 3)
LARGEST = torch.finfo(torch.float32).max
Pair = tuple[torch.Tensor, torch.Tensor]


def small_floats(bits: int, mantissa: int) -> torch.Tensor:
    """All numbers from 0 on of so many bits and mantissa bits, without e4m3's last one, a NaN."""
    least = 2 - 2 ** (bits - 2 - mantissa)
    exponents = torch.arange(least, least + 2 ** (bits - 1 - mantissa) - 1)
    normal = 1 + torch.arange(2**mantissa) / 2**mantissa
    numbers = torch.cat([(normal - 1) * 2.0**least, *(normal * 2.0**e for e in exponents)])
    return numbers[:-1] if bits == 8 else numbers


def _between(values: torch.Tensor, n: int) -> torch.Tensor:
    """The values and the means of neighbours, with the largest once in each 256 elements."""
    values = values.sort().values
    all_ = torch.cat([values, (values[1:] + values[:-1]) / 2])
    x = torch.cat([all_, -all_]).repeat(-(-n // (2 * all_.numel())))[:n]
    x[::256] = values[-1]
    return x


def ties(form: Format, n: int) -> torch.Tensor:
    """The values that the format holds exactly, and the midpoints between them."""
    if form in (formats.E4M3, formats.E5M2):
        dtype = torch.float8_e4m3fn if form is formats.E4M3 else torch.float8_e5m2
        values = torch.arange(128, dtype=torch.uint8).view(dtype).float()
        return _between(values[values.isfinite()], n)
    if form.mantissa is not None:
        return _between(small_floats(form.bits, form.mantissa), n)
    if form is formats.POWERS:
        return _between(2.0 ** torch.arange(-149, 128), n)
    return _between(torch.arange(form.steps + 1), n)


def inputs(form: Format, n: int) -> dict[str, torch.Tensor]:
    """Maps a name to (n,) fp32 values, finite unless the name says otherwise."""
    g = torch.Generator().manual_seed(n)
    kinds = ("normal", "laplace", "zeros", "signed zeros", "equal", "denormal", "spike", "sparse")
    found = {kind: DISTRIBUTIONS[kind](n, g) for kind in kinds}
    normal = torch.randn(n, generator=g)
    signs = torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0)
    found |= {
        "huge": normal.clamp(-3.4, 3.4) * 1e38,
        "large": normal * 1e30,
        "largest": signs * LARGEST,
        "tiny": normal * 2.0**-100,
        "around the least scale": signs * 2.0 ** torch.linspace(-97, -95.5, n),
        "many exponents": normal * 2.0 ** torch.linspace(-120, 100, n),
        "ties": ties(form, n),
        "broken": DISTRIBUTIONS["broken"](n, g),
    }
    return found


def buffers(form: Format, n: int, fill: int = 0xFF) -> Pair:
    """Codes, filled with `fill`, at an odd address, and scales."""
    codes = torch.full((form.code_bytes(n) + 1,), fill, dtype=torch.uint8)[1:]
    return codes, torch.full((form.scales(n),), float("nan"))


def damaged(form: Format, n: int, seed: int, scale: float = 1.0) -> Pair:
    """Arbitrary bytes as codes, with finite scales of both signs."""
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (form.code_bytes(n) + 1,), generator=g).to(torch.uint8)[1:]
    return codes, torch.randn(form.scales(n), generator=g) * scale

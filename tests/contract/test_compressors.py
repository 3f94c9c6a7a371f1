"""The laws of a compressor, for every member, on ordinary, drawn and nasty inputs."""

from __future__ import annotations

import instances
import laws
import pytest
import torch
from hypothesis import given
from inputs import DENORMAL, FLOATS, NASTY, VECTORS, normal, ranks
from instances import COMPRESSORS, OWN_CLASS, payload
from torch import Tensor

from gradwire.compressors import BFloat16, Float16, TopK
from gradwire.kernels import is_raised, new_status
from gradwire.strategy import Compressor

every = pytest.mark.parametrize("compressor", COMPRESSORS, ids=instances.ids)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SPARSE = [c for c in COMPRESSORS if isinstance(c, TopK)]
every_topk = pytest.mark.parametrize("compressor", SPARSE, ids=instances.ids)

SIZES = (0, 1, 2, 7, 100, 1001)


@every
@every_dtype
def test_payload_is_what_is_claimed(compressor: Compressor, dtype: torch.dtype) -> None:
    for n in SIZES:
        by_hand = payload(compressor, n, dtype.itemsize)
        laws.law_payload_is_what_is_claimed(compressor, normal(n, dtype=dtype), by_hand)


@pytest.mark.once
@every
@pytest.mark.parametrize("name", NASTY)
def test_nasty_inputs(compressor: Compressor, name: str) -> None:
    x = NASTY[name]
    by_hand = payload(compressor, len(x), 4)
    laws.law_payload_is_what_is_claimed(compressor, x, by_hand)
    laws.law_same_seed_same_bytes(compressor, x)
    laws.law_input_is_not_changed(compressor, x)
    laws.law_contraction(compressor, x)
    laws.law_encoding_again_changes_nothing(compressor, x)
    laws.law_accumulate_sums_in_rank_order(compressor, [x, -x, x])


@every
@every_dtype
def test_ordinary_inputs(compressor: Compressor, dtype: torch.dtype) -> None:
    for n in SIZES:
        x = normal(n, seed=n, dtype=dtype)
        laws.law_same_seed_same_bytes(compressor, x)
        laws.law_input_is_not_changed(compressor, x)
        laws.law_lossless_if_claimed(compressor, x)
        laws.law_contraction(compressor, x)
        laws.law_encoding_again_changes_nothing(compressor, x)
        laws.law_add_adds_what_decode_writes(compressor, x)
        laws.law_places_are_what_decode_writes(compressor, x)


@every
def test_a_short_dtype_makes_no_difference(compressor: Compressor) -> None:
    for n in SIZES:
        laws.law_a_short_dtype_makes_no_difference(compressor, normal(n, seed=n))


@every
@given(x=VECTORS)
def test_drawn_inputs(compressor: Compressor, x: Tensor) -> None:
    laws.law_lossless_if_claimed(compressor, x)
    laws.law_contraction(compressor, x)
    laws.law_encoding_again_changes_nothing(compressor, x)
    laws.law_accumulate_sums_in_rank_order(compressor, [x, x.flip(0), -x])


@every
@every_dtype
def test_exact_on_its_own_class(compressor: Compressor, dtype: torch.dtype) -> None:
    """What a compressor is made for comes back unchanged."""
    for n in SIZES:
        x = OWN_CLASS[compressor.name](compressor, normal(n, seed=n, dtype=dtype))
        laws.law_exact_on_its_own_class(compressor, x)


@every
def test_unbiased_if_claimed(compressor: Compressor) -> None:
    """Claims to be unbiased hold for values that are far apart and for a partial last block."""
    for n in (1, 7, 1301):
        laws.law_unbiased_if_claimed(compressor, normal(n, seed=n))
    for name in ("all equal", "one spike", "geometric"):
        laws.law_unbiased_if_claimed(compressor, NASTY[name])


@every
@every_dtype
@pytest.mark.parametrize("world", instances.WORLDS)
def test_accumulate_sums_in_rank_order(
    compressor: Compressor, dtype: torch.dtype, world: int
) -> None:
    """Order shows in sums of huge and tiny terms, and in results in a short format."""
    xs = ranks(world, 101)
    laws.law_accumulate_sums_in_rank_order(compressor, xs, dtype)
    scaled = [x * 10.0 ** (3 * (i % 2)) * (-1) ** i for i, x in enumerate(xs)]
    laws.law_accumulate_sums_in_rank_order(compressor, scaled, dtype)


@every
@given(x=VECTORS)
def test_sums_if_claimed(compressor: Compressor, x: Tensor) -> None:
    whole = x.round().clamp(-8, 8)
    laws.law_sums_if_claimed(compressor, [whole, whole.flip(0), -whole, whole])


@every
@pytest.mark.parametrize("n", [1, 50, 1300])
def test_what_is_not_finite_is_told(compressor: Compressor, n: int) -> None:
    laws.law_tells_what_is_not_finite(compressor, normal(n))
    laws.law_finite_elements_can_be_decoded(compressor, n)


@every
def test_a_gradient_in_pieces_of_memory(compressor: Compressor) -> None:
    """A message's sections may lie anywhere in memory, and encoding does not touch neighbours."""
    x = normal(50)
    whole = laws.encoded(compressor, x)
    for shift in (8, 40):
        room = [torch.full((s.nbytes + 2 * shift,), 0x5A, dtype=torch.uint8) for s in whole]
        inside = [r[shift:-shift].view(s.dtype) for r, s in zip(room, whole)]
        compressor.encode(x, inside, laws.KEY, new_status())
        for r, a, b in zip(room, inside, whole):
            used = laws.used(compressor, b)
            laws.same(a[used], b[used], f"shifted by {shift}")
            assert set(r[:shift].tolist()) | set(r[-shift:].tolist()) == {0x5A}
        laws.same(
            laws.decoded(compressor, inside, 50), laws.decoded(compressor, whole, 50), "decoded"
        )


# -- topk --------------------------------------------------------------------------------------


@every_topk
@every_dtype
def test_topk_selects_the_largest(compressor: TopK, dtype: torch.dtype) -> None:
    for n in SIZES:
        laws.law_topk_selects_the_largest(compressor, normal(n, seed=n, dtype=dtype))
    for x in (*NASTY.values(), DENORMAL):
        laws.law_topk_selects_the_largest(compressor, x.to(dtype))


@every_topk
@given(x=VECTORS)
def test_topk_selects_the_largest_of_drawn_vectors(compressor: TopK, x: Tensor) -> None:
    laws.law_topk_selects_the_largest(compressor, x)


@pytest.mark.parametrize(
    ("density", "n", "k"),
    [
        (0.001, 0, 0),
        (0.001, 1, 1),
        (0.001, 999, 1),
        (0.001, 1000, 1),
        (0.001, 1001, 2),
        (0.5, 3, 2),
        (1, 5, 5),
        (1.0, 5, 5),
        (0.25, 25_600_000, 6_400_000),
    ],
)
def test_topk_sends_k(density: float, n: int, k: int) -> None:
    assert TopK(density).k(n) == TopK(density).claims(n).elements == k
    assert TopK(density, index="int32").claims(n).sections == (("int32", k), ("float32", k))


def test_topk_of_equal_magnitudes_takes_the_first() -> None:
    x = torch.tensor([0.0, -2.0, 2.0, 1.0, 2.0, -2.0])
    indices, values = laws.encoded(TopK(0.5, index="int32"), x)
    assert indices.tolist() == [1, 2, 4]
    assert values.tolist() == [-2.0, 2.0, 2.0]


def test_topk_of_zeros_sends_k_zeros() -> None:
    indices, values = laws.encoded(TopK(0.5, index="int32"), torch.zeros(6))
    assert indices.tolist() == [0, 1, 2]
    assert values.tolist() == [0.0, 0.0, 0.0]


# -- casts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", [Float16(), BFloat16()], ids=instances.ids)
def test_casts_round_to_nearest_even(compressor: Compressor) -> None:
    halfway = {"fp16": 2.0**-11, "bf16": 2.0**-8}[compressor.name]
    x = torch.tensor([1.0, 1 + halfway, 1 + 3 * halfway, 1 + 1.01 * halfway])
    wanted = torch.tensor([1.0, 1.0, 1 + 4 * halfway, 1 + 2 * halfway])
    assert torch.equal(laws.through(compressor, x), wanted)


def test_fp16_beyond_its_range_is_told_and_nothing_is_sent() -> None:
    x, status = torch.tensor([65504.0, 65519.0, -65504.0, 1e-9]), new_status()
    sections = laws.sections_for(Float16(), 4, "float32")
    Float16().encode(x, sections, laws.KEY, status)
    assert sections[0].tolist() == [65504.0, 65504.0, -65504.0, 0.0]
    assert not is_raised(status)
    x[1] = 65520.0
    Float16().encode(x, sections, laws.KEY, status)
    assert sections[0].tolist() == [0.0] * 4
    assert is_raised(status)


def test_bf16_has_the_range_of_fp32() -> None:
    x = torch.tensor([1e38, -1e38, 1e-38])
    assert torch.allclose(laws.through(BFloat16(), x), x, rtol=2**-8)

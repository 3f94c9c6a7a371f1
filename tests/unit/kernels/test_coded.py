"""accumulate_coded, compared with accumulate of the same places."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import DTYPES, draw, same
from single import accumulate_coded

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import INDEX_CODES, accumulate, add_coded, code_bytes, encode_indices

pytestmark = pytest.mark.usefixtures("instruction_set")


def places_of(n: int, density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n, generator=generator) < density).nonzero().view(-1).int()


def coded(places: torch.Tensor, n: int, code: str) -> torch.Tensor:
    section = torch.empty(code_bytes(code, n, places.numel()), dtype=torch.uint8)
    encode_indices(places, n, code, section)
    return places if code == "int32" else section


@given(
    st.lists(
        st.tuples(
            st.sampled_from(INDEX_CODES),
            st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0]),
            st.sampled_from(DTYPES),
        ),
        max_size=4,
    ),
    st.sampled_from([0, 1, 4097, 30_001]),
    st.sampled_from([1.0, 3.0, 8.0]),
)
def test_the_sum_of_the_same_places(
    drawn: list[tuple[str, float, torch.dtype]], n: int, divisor: float
) -> None:
    places = [places_of(n, share, r) for r, (_, share, _) in enumerate(drawn)]
    values = [draw("normal", p.numel(), r, drawn[r][2]) for r, p in enumerate(places)]
    codes = [code for code, _, _ in drawn]
    sections = [coded(p, n, code) for p, code in zip(places, codes)]
    out, wanted = torch.full((n,), 7.0), torch.empty(n)
    accumulate_coded(out, codes, sections, values, divisor)
    accumulate(wanted, places, values, divisor)
    assert same(out, wanted)


@pytest.mark.parametrize("code", INDEX_CODES)
def test_damage_is_named_and_nothing_is_written(code: str) -> None:
    n = 4096
    out, places = torch.full((n,), 7.0), places_of(n, 0.3, 0)
    values, good = torch.ones(places.numel()), coded(places, n, code)
    bad = torch.full_like(good, 1)  # the same entry twice, or too few or too many bits
    bad[-1] = 127 if code != "int32" else 1
    with pytest.raises(PayloadError, match="payload 1: "):
        accumulate_coded(out, [code] * 2, [good, bad], [values] * 2, 2.0)
    with pytest.raises(PayloadError, match="payload 1: "):
        accumulate_coded(out, [code] * 2, [good, good[:-1]], [values] * 2, 2.0)
    with pytest.raises(PayloadError, match="payload 1: values must be"):
        accumulate_coded(out, [code] * 2, [good] * 2, [values, values.int()], 2.0)
    assert (out == 7.0).all()


@pytest.mark.parametrize("code", INDEX_CODES)
def test_more_entries_than_elements_are_damage(code: str) -> None:
    """The sender's, not that of the arguments."""
    out, good = torch.full((5,), 7.0), coded(torch.arange(5, dtype=torch.int32), 5, code)
    section = torch.zeros(24, dtype=torch.uint8)
    with pytest.raises(PayloadError, match=r"payload 1 must have at most 5 entries.* has 6"):
        accumulate_coded(out, [code] * 2, [good, section], [torch.ones(5), torch.ones(6)], 1.0)
    with pytest.raises(PayloadError, match="payload 0 must have at most 5 entries"):
        add_coded(out, section, code, torch.ones(6), 1.0)
    assert (out == 7.0).all()


def test_wrong_arguments_are_refused() -> None:
    out, place = torch.full((5,), 7.0), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(KernelError, match="equal length"):
        accumulate_coded(out, ["int32"], [place], [], 1.0)
    with pytest.raises(KernelError, match="index code must be one of"):
        accumulate_coded(out, ["zip"], [place], [torch.ones(2)], 1.0)
    with pytest.raises(KernelError, match="divisor must not be 0"):
        accumulate_coded(out, ["int32"], [place], [torch.ones(2)], 0.0)
    with pytest.raises(KernelError, match=r"out must not share memory .* shares 8 bytes"):
        accumulate_coded(out, ["int32"], [out.view(torch.int32)[:2]], [torch.ones(2)], 1.0)
    assert (out == 7.0).all()

"""reaching returns all elements of at least some magnitude, and no others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import DISTRIBUTIONS, DTYPES, bits, draw, same, told

from gradwire.errors import KernelError
from gradwire.kernels import Reaching, new_status
from gradwire.kernels import reaching as reaching_face
from gradwire.kernels.torch.selection import reaching as reaching_twin

pytestmark = pytest.mark.usefixtures("instruction_set")
SIZES = [0, 1, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 129, 1000, 1023, 1025, 4097, 70_001]
LEASTS = [2.0**-149, 2.0**-126, 1e-3, 0.5, 1.0, 1.5, 2.5, 3e4, 3e38]


def reaching(x: torch.Tensor, least: float) -> Reaching:
    return reaching_face(x, least, new_status())


def check(x: torch.Tensor, least: float) -> None:
    before, (wanted, finite) = x.clone(), told(reaching_twin, x, least)
    found, said = told(reaching_face, x, least)
    assert found.places.dtype == torch.int32
    assert found.values.dtype == torch.float32
    assert bits(found.places) == bits(wanted.places)
    assert bits(found.values) == bits(wanted.values)
    assert said == finite
    assert same(x, before)


@given(
    st.sampled_from(sorted(DISTRIBUTIONS)),
    st.integers(0, 300),
    st.sampled_from(LEASTS),
    st.sampled_from(DTYPES),
    st.integers(0, 3),
    st.integers(0, 2**20),
)
def test_same_bits_as_twin(
    kind: str, n: int, least: float, dtype: torch.dtype, shift: int, seed: int
) -> None:
    check(draw(kind, n, seed, dtype, shift), least)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_every_size(n: int, dtype: torch.dtype) -> None:
    for kind in ("normal", "sparse", "broken", "zeros", "equal"):
        for least in (2.0**-149, 0.5, 1.5, 1e30):
            check(draw(kind, n, 1, dtype), least)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_and_only_those_by_hand(dtype: torch.dtype) -> None:
    for n in (1, 40, 1000):
        x = draw("normal", n, 3, dtype)
        content = x.float().tolist()
        for least in (0.1, 1.0, 2.0):
            found, finite = told(reaching_face, x, least)
            wanted = [i for i, a in enumerate(content) if abs(a) >= least]
            assert found.places.tolist() == wanted
            assert found.values.tolist() == [content[i] for i in wanted]
            assert finite


@pytest.mark.parametrize("n", SIZES)
def test_none_and_all(n: int) -> None:
    x = draw("normal", n, 2)
    none, finite = told(reaching_face, x, 1e6)
    assert none.places.tolist() == none.values.tolist() == []
    assert finite
    x = torch.where(x == 0, torch.ones(()), x)
    whole = reaching(x, 2.0**-149)
    assert whole.places.tolist() == list(range(n))
    assert same(whole.values, x)


def test_exactly_at_the_limit_counts() -> None:
    below = float(torch.nextafter(torch.tensor(0.5), torch.tensor(0.0)))
    x = torch.tensor([0.5, -0.5, below, -below] * 20)
    assert reaching(x, 0.5).places.tolist() == [i for i in range(80) if i % 4 < 2]
    tiny = torch.tensor([2.0**-149, -(2.0**-149), 0.0, -0.0] * 20)
    assert reaching(tiny, 2.0**-149).places.tolist() == [i for i in range(80) if i % 4 < 2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("n", [1, 16, 17, 1000])
def test_what_is_not_finite_is_left_out_and_reported(
    n: int, value: float, dtype: torch.dtype
) -> None:
    for place in {0, n // 2, n - 1}:
        x = torch.full((n,), 2.0, dtype=dtype)
        x[place] = value
        found, finite = told(reaching_face, x, 1.0)
        assert not finite
        assert found.places.tolist() == [i for i in range(n) if i != place]
        assert (found.values == 2.0).all()
        assert not told(reaching_face, x, 3.0)[1], "no finite element reaches it"


def test_the_largest_finite_number_is_finite() -> None:
    for dtype in DTYPES:
        x = torch.full((40,), torch.finfo(dtype).max, dtype=dtype)
        found, finite = told(reaching_face, x, 1.0)
        assert finite
        assert found.places.numel() == 40


def test_a_view_that_is_not_contiguous() -> None:
    x = draw("normal", 2000, 4)
    found = reaching(x[::2], 1.0)
    wanted = reaching_twin(x[::2].contiguous(), 1.0, new_status())
    assert bits(found.places) == bits(wanted.places)
    assert same(found.values, wanted.values)


def test_a_longer_result_after_a_shorter_one_and_back() -> None:
    """The buffer is used again: a result is valid until the next call."""
    for n in (10, 5000, 100, 20_000, 3):
        check(draw("normal", n, n), 0.5)


@pytest.mark.parametrize("least", [0.0, -1.0, float("nan"), float("inf"), 1e-50])
def test_a_limit_that_is_no_magnitude_is_refused(least: float) -> None:
    with pytest.raises(KernelError, match="least must be"):
        reaching(torch.ones(3), least)


def test_other_tensors_are_refused() -> None:
    for x in (torch.ones(3, dtype=torch.float64), torch.ones(2, 2), torch.ones(3).int()):
        with pytest.raises(KernelError):
            reaching(x, 1.0)

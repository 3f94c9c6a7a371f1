"""topk against its twin and against a sort."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import DISTRIBUTIONS, DTYPES, NATIVE, bits, draw, finite, same, told

from gradwire.errors import KernelError
from gradwire.kernels import check_index_range, fallbacks, new_status, reaching, topk
from gradwire.kernels.torch import topk as topk_twin
from gradwire.kernels.torch.selection import reaching as reaching_twin

pytestmark = pytest.mark.usefixtures("instruction_set")
HINTS = st.sampled_from([0.0, -1.0, 1e-45, 1e-3, 0.5, 1.0, 3.0, 1e30, float("inf"), float("nan")])


class Selected(NamedTuple):
    indices: torch.Tensor
    values: torch.Tensor
    hint: float
    finite: bool


def select(x: torch.Tensor, k: int, hint: float = 0.0) -> Selected:
    indices = torch.full((k,), -7, dtype=torch.int32)
    values = torch.full((k,), float("nan"))
    return Selected(indices, values, *told(topk, x, k, indices, values, hint=hint))


def by_sort(x: torch.Tensor, k: int) -> tuple[list[int], list[float]]:
    """The definition, in Python: the first k by (-|x|, index), then sorted by index."""
    content = [a if a - a == 0.0 else 0.0 for a in x.float().tolist()]
    order = sorted(range(len(content)), key=lambda i: (-abs(content[i]), i))[:k]
    return sorted(order), [content[i] for i in sorted(order)]


def check_against_twin(x: torch.Tensor, k: int, *hints: float) -> None:
    before = x.clone()
    indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
    good = finite(topk_twin, x, k, indices, values)
    for hint in hints:
        found = select(x, k, hint)
        assert found.finite == good
        assert torch.equal(found.indices, indices)
        assert same(found.values, values)
        assert same(x, before)


@given(
    st.sampled_from(sorted(DISTRIBUTIONS)),
    st.integers(0, 300),
    st.floats(0, 1),
    st.sampled_from(DTYPES),
    st.integers(0, 3),
    HINTS,
    st.integers(0, 2**20),
)
def test_same_bits_as_twin(
    kind: str, n: int, density: float, dtype: torch.dtype, shift: int, hint: float, seed: int
) -> None:
    check_against_twin(draw(kind, n, seed, dtype, shift), int(density * n), hint)


@NATIVE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", sorted(DISTRIBUTIONS))
def test_large_same_bits_as_twin(kind: str, dtype: torch.dtype, instruction_set: str) -> None:
    if instruction_set == "twin":
        pytest.skip("compared with itself")
    x = draw(kind, 100_003, 1, dtype, shift=1)
    for k in (1, 100, 9_000, 60_000, 100_002):
        check_against_twin(x, k, 0.0, 0.7, 1e9)


@given(st.lists(st.floats(width=32), max_size=80), st.floats(0, 1), HINTS)
def test_is_the_top_by_definition(content: list[float], density: float, hint: float) -> None:
    x = torch.tensor(content, dtype=torch.float32)
    k = int(density * len(content))
    found = select(x, k, hint)
    order, kept = by_sort(x, k)
    assert found.indices.tolist() == order
    assert found.values.tolist() == kept
    assert found.finite == bool(x.isfinite().all())


def test_ties_go_to_the_lower_index() -> None:
    x = torch.tensor([1.0, -2.0, 1.0, 2.0, -1.0, 0.5])
    assert select(x, 4)[0].tolist() == [0, 1, 2, 3]
    assert select(torch.zeros(50_000), 3)[0].tolist() == [0, 1, 2]


def test_too_few_non_zeros_are_filled_up_with_the_first_zeros() -> None:
    x = torch.zeros(1000)
    x[[5, 700]] = torch.tensor([1.0, -1.0])
    indices, values, *_ = select(x, 5)
    assert indices.tolist() == [0, 1, 2, 5, 700]
    assert values.tolist() == [0, 0, 0, 1, -1]


def test_nothing_of_nothing() -> None:
    assert select(torch.empty(0), 0).finite
    assert select(torch.ones(5), 0, hint=0.25)[2:] == (0.25, True)


def test_strided_input_is_read_as_it_is() -> None:
    x = torch.arange(20.0)[::2]
    assert select(x, 2)[1].tolist() == [16, 18]


def test_a_hint_that_is_too_high_is_counted(instruction_set: str) -> None:
    if instruction_set == "twin":
        pytest.skip("the twin has no hints")
    x = draw("normal", 5000, 0)
    before = fallbacks()
    hint = select(x, 50).hint
    select(x, 50, hint)
    assert fallbacks() == before
    select(x, 50, 100.0)
    assert fallbacks() == before + 1


def test_limits_are_stated() -> None:
    x, indices, values = torch.ones(4), torch.empty(5, dtype=torch.int32), torch.empty(5)
    status = new_status()
    with pytest.raises(KernelError, match="k must be between 0 and the number of elements, 4"):
        topk(x, 5, indices, values, status)
    with pytest.raises(KernelError, match="values must have shape"):
        topk(x, 4, indices[:4], values, status)
    with pytest.raises(KernelError, match=r"indices must be torch\.int32"):
        topk(x, 4, indices[:4].long(), values[:4], status)
    with pytest.raises(KernelError, match="contiguous"):
        topk(x, 2, indices[:4:2], values[:2], status)
    with pytest.raises(KernelError, match="float32, bfloat16 or float16"):
        topk(x.double(), 4, indices[:4], values[:4], status)
    with pytest.raises(KernelError, match="one dimension"):
        topk(x.view(2, 2), 4, indices[:4], values[:4], status)
    for wrong in (status.repeat(2), torch.zeros(1), status[0], status.to("meta")):
        with pytest.raises(
            KernelError, match=r"status must be torch\.int64 of shape \(1,\) on cpu"
        ):
            topk(x, 4, indices[:4], values[:4], wrong)


def test_index_range() -> None:
    check_index_range(2**31 - 1)
    with pytest.raises(
        KernelError, match="2147483647 elements, but this one has 2147483648; split it"
    ):
        check_index_range(2**31)
    with pytest.raises(KernelError, match="split it or exclude it"):  # a view, not allocated
        select(torch.zeros(1).expand(2**31), 0)


MANY = 100_000


def many(kind: str) -> torch.Tensor:
    """Data for ranking by a sample, and data that mislead it: each period fits one of its
    steps."""
    noise = torch.randn(MANY, generator=torch.Generator().manual_seed(1))
    period = torch.arange(MANY)
    return {
        "normal": noise,
        "few magnitudes": (noise * 4).round(),
        "one magnitude": noise.sign(),
        "ascending": period.float(),
        "descending": -period.flip(0).float(),
        "every eighth is large": noise + 100.0 * (period % 8 == 0),
        "every twelfth is small": noise * (period % 12 != 0) + 1e-3,
        "broken": torch.where(period % 9 == 0, float("nan"), noise),
    }[kind]


@pytest.mark.once
@pytest.mark.parametrize("k", [1, 500, 20_000, 50_000, 97_000, MANY - 1])
@pytest.mark.parametrize(
    "kind",
    ["normal", "few magnitudes", "one magnitude", "ascending", "descending",
     "every eighth is large", "every twelfth is small", "broken"],
)  # fmt: skip
def test_many_candidates(kind: str, k: int) -> None:
    x = many(kind)
    hint = select(x, k).hint
    check_against_twin(x, k, 0.0, hint, 0.8 * hint)


@NATIVE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reaching_same_bits_as_twin_however_many_there_were(dtype: torch.dtype) -> None:
    x = draw("normal", 70_001, 3, dtype)
    x[[0, 4096, 70_000]] = float("inf")
    for least in (3.0, 0.5, 1e-30, 2.0, 1e30, 0.1):
        found, wanted = told(reaching, x, least), told(reaching_twin, x, least)
        assert bits(found[0].places) == bits(wanted[0].places)
        assert bits(found[0].values) == bits(wanted[0].values)
        assert not found[1]
        assert not wanted[1]
    assert told(reaching, x[:0], 1.0)[0].places.numel() == 0


def test_a_hint_of_another_room_is_one() -> None:
    """A hint from CUDA, which has two thresholds, serves as a hint on the CPU."""
    x, words = torch.randn(1000), torch.tensor([2.0, 1.5])
    places, values = torch.empty(10, dtype=torch.int32), torch.empty(10)
    again, others = torch.empty(10, dtype=torch.int32), torch.empty(10)
    status = new_status()
    topk(x, 10, places, values, status, words)
    topk(x, 10, again, others, status)
    assert torch.equal(places, again)

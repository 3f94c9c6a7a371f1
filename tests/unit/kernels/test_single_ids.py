"""Which rows each list has, and which need no owner: against the twin, by hand, and the checks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import KernelError
from gradwire.kernels import single_ids
from gradwire.kernels.torch import single_ids as single_ids_twin

FAR = 2**31 - 1


def i32(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int32)


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=6), st.sampled_from([3, 200, 5000, FAR]),
    st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_same_as_twin(counts: list[int], among: int, ascending: bool, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    ids = [torch.randint(-among, among, (k,), generator=g).int().unique() for k in counts]
    ids = [own if ascending else own[torch.randperm(len(own), generator=g)] for own in ids]
    for found, wanted in zip(single_ids(ids), single_ids_twin(ids), strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def test_by_hand() -> None:
    """All but 7 are in one list only; lists have two, three and two of these: each keeps two."""
    ids = [i32(2, 7, -FAR - 1), i32(3, 7, FAR, 8), i32(9, 1)]
    union, single, at = single_ids(ids)
    assert union.tolist() == [-FAR - 1, 1, 2, 3, 7, 8, 9, FAR]
    assert single.tolist() == [True, True, True, True, False, False, True, True]
    assert at.tolist() == [2, 4, 0, 3, 4, 7, 5, 6, 1]


def test_two_lists_send_all_and_one_has_nobody_to_send_to() -> None:
    for ids in ([i32(1, 2, 3), i32(3)], [i32(5, 6)], [i32(), i32()]):
        assert bool(single_ids(ids)[1].all())


def test_two_of_four_that_have_a_row_share_it_with_the_others_by_an_owner() -> None:
    """Two of four lists have row 1, and 2·3 > 4; the others have one more row of their own."""
    ids = [i32(1, 4), i32(1, 5), i32(2, 6), i32(3, 7)]
    union, single, _ = single_ids(ids)
    assert union[~single].tolist() == [1, 6, 7]


def test_what_is_no_list_of_ids_is_refused() -> None:
    good = i32(1)
    for wrong in ([], [good, good.long()], [good, good[None]]):
        with pytest.raises(KernelError, match=r"one or more lists of int32, \(k,\), not "):
            single_ids(wrong)
    good.untyped_storage().resize_(0)
    with pytest.raises(KernelError, match=r"ids .*memory"):
        single_ids([good])

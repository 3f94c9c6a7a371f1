"""Entries of sparse payloads, and the rounding error of their values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels import WriteEntries, write_entries

PLACES = torch.tensor([1, 4, 5], dtype=torch.int32)


def entries(
    values: Tensor, dtype: torch.dtype, sent: Tensor | None, residual: Tensor | None
) -> WriteEntries:
    section, out = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=dtype)
    return WriteEntries(PLACES, values, 6, "int32", section, out, sent, residual)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_rounding_takes_goes_back(dtype: torch.dtype) -> None:
    """What is sent and what is kept add up to what was given, to the bit, in every format."""
    values, residual = torch.tensor([1.00123, -7e-6, 1e6]), torch.full((6,), 0.25)
    given = values.clone()
    one = entries(values, dtype, sent := torch.empty(3), residual)
    write_entries([one])
    most = torch.finfo(dtype).max
    assert torch.equal(one.out, given.clamp(-most, most).to(dtype))
    assert torch.equal(sent, one.out.float())
    assert torch.equal(values, given - sent)
    wanted = torch.full((6,), 0.25)
    wanted[PLACES.long()] += values
    assert torch.equal(residual, wanted)


def test_without_a_residual_values_stay() -> None:
    values = torch.tensor([1.00123, -7e-6, 3.0])
    one = entries(values.clone(), torch.bfloat16, sent := torch.empty(3), None)
    write_entries([one])
    assert torch.equal(one.values, values)
    assert torch.equal(sent, one.out.float())


def test_what_cannot_be_kept_is_refused() -> None:
    values, sent, residual = torch.ones(3), torch.zeros(3), torch.zeros(6)
    for own, rest, what in (
        (None, residual, "residual needs sent"),
        (sent[:2], None, r"sent must have shape \(3,\)"),
        (values, None, "sent must not share memory"),
        (sent, residual[:5], r"residual must have shape \(6,\)"),
        (residual[:3], residual, "residual must not share memory"),
    ):
        with pytest.raises(KernelError, match=what):
            write_entries([entries(values, torch.bfloat16, own, rest)])

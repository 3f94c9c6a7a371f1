"""Arguments that no kernel may receive: found by tests/fuzz, refused where all calls pass."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import single
import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import KernelError
from gradwire.kernels import Journal, Noise, formats
from gradwire.kernels.choices import search_options
from gradwire.kernels.coded import decoded_places
from gradwire.kernels.jobs import Jobs, Machine, jobs_of
from gradwire.kernels.schedule import simulate_step
from gradwire.kernels.update import update_many_topk

HUGE = 10**400
WELL = kernels.new_status()
pytestmark = pytest.mark.usefixtures("instruction_set")


def places(*given: int) -> Tensor:
    return torch.tensor(given, dtype=torch.int32)


def freed() -> Tensor:
    """A tensor without memory, as sharding leaves its flat parameters between steps."""
    x = torch.ones(8)
    x.untyped_storage().resize_(0)
    return x


def view_of_freed() -> Tensor:
    """Its address is not 0, but its offset in bytes."""
    x = torch.ones(10)[2:]
    x.untyped_storage().resize_(0)
    return x


def unaligned() -> Tensor:
    return torch.frombuffer(bytearray(40), dtype=torch.float32, offset=1, count=8)


@pytest.mark.parametrize(
    "x",
    [
        freed(), view_of_freed(), unaligned(), torch.ones(8).to_sparse(),
        torch.ones(8, device="meta"), torch._neg_view(torch.ones(8)),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "call",
    [
        kernels.is_finite,
        kernels.largest,
        lambda x: kernels.cast(torch.ones(8), x),
        lambda x: kernels.add(torch.ones(8), places(*range(8)), x, 1.0),
        lambda x: kernels.accumulate(torch.ones(8), [places(*range(8))], [x], 1.0),
        lambda x: kernels.accumulate_dense(torch.ones(8), [x], 1.0),
    ],
)
def test_a_tensor_has_its_elements_in_memory(call: Callable[[Tensor], object], x: Tensor) -> None:
    with pytest.raises(KernelError, match=r"memory|meta device|on one device"):
        call(x)


@pytest.mark.parametrize("x", [view_of_freed(), torch._neg_view(torch.ones(8))])
def test_a_gradient_of_a_known_update_has_its_elements_in_memory(x: Tensor) -> None:
    """A view of freed storage ended the process; a negated view was read with the other sign."""
    known, well = kernels.Known(), kernels.new_status()
    update = kernels.UpdateTopk(
        torch.ones(8), None, torch.zeros(8), 0, places(), torch.ones(0), None, None
    )
    update_many_topk([update], well, known)
    with pytest.raises(KernelError, match=r"^gradient must .*memory"):
        update_many_topk([update._replace(gradient=x)], well, known)
    assert torch.equal(update.residual, torch.ones(8))


def test_a_sum_in_place_is_fp32() -> None:
    """With 16 bits a value in memory and 32 written, the kernel wrote beyond the end."""
    with pytest.raises(KernelError, match=r"v must be torch\.float32, not torch\.bfloat16"):
        kernels.add_cast(torch.zeros(64, dtype=torch.bfloat16), torch.ones(64), 1.0)


def test_places_with_a_stride_are_read_where_they_are() -> None:
    """A contiguous copy of the places was once freed before it was read."""
    wide = torch.arange(2000, dtype=torch.int32)
    v = torch.zeros(2000)
    kernels.add(v, wide[::2], torch.ones(1000), 2.0)
    assert torch.equal(v.view(-1, 2), torch.tensor([2.0, 0.0]).expand(1000, 2))


@pytest.mark.parametrize("wrong", [places(1, 9), places(-1, 0), places(1, 1)])
def test_what_is_restored_was_taken_there(wrong: Tensor) -> None:
    with pytest.raises(KernelError, match=r"ascend strictly within 0 \.\.\. 7, but entry"):
        kernels.restore_topk(None, torch.zeros(8), wrong, torch.ones(2), None)


def test_of_many_none_is_restored_where_one_is_refused() -> None:
    good = kernels.UndoTopk(None, None, torch.zeros(8), places(1, 2), torch.ones(2), None, None)
    bad = good._replace(residual=torch.zeros(2))
    with pytest.raises(KernelError, match=r"within 0 \.\.\. 1, but entry 1 is 2"):
        kernels.undo_many_topk([good, bad])
    assert not good.residual.any()
    kernels.undo_many_topk([good])
    assert good.residual.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    kernels.undo_many_topk([])


def _shared() -> list[Callable[[], object]]:
    """Returns calls whose places share memory with what they write."""
    memory = torch.zeros(8)
    own = memory.view(torch.int32)[:4]
    x, out, values = torch.arange(8.0), memory[2:6], memory[:4]
    rows, good = memory.view(4, 2), places(0, 1, 2, 3)
    wanted: list[Callable[[], object]] = [
        lambda: kernels.topk(x, 4, own, values, WELL),
        lambda: kernels.update_topk(
            x, None, memory, 4, own, torch.zeros(4), None, WELL, momentum=None
        ),
        lambda: kernels.restore_topk(None, memory, own.copy_(good), torch.ones(4), None),
        lambda: kernels.add(memory, own.copy_(good), torch.ones(4), 1.0),
        lambda: kernels.accumulate(memory, [own.copy_(good)], [torch.ones(4)], 1.0),
        lambda: kernels.place_stream(memory, own.copy_(good), torch.ones(4)),
        lambda: kernels.merge_streams(
            8, [own.copy_(good)], [torch.ones(4)], 1.0, own, torch.zeros(4)
        ),
        lambda: kernels.top_of_two(
            8, own.copy_(good), torch.ones(4), good, torch.ones(4), 4, torch.zeros_like(good), out
        ),
        lambda: kernels.split_stream(own.copy_(good), torch.ones(4), 2, 0, own, torch.ones(4)),
        lambda: kernels.scatter_stripes(rows, own.copy_(good), [0, 2], torch.ones(8)),
        lambda: kernels.gather_stripes(torch.ones(4, 2), own.copy_(good), [0, 2], memory),
        lambda: kernels.encode_indices(own.copy_(good), 8, "int32", memory.view(torch.uint8)[:16]),
        lambda: kernels.hash_partition(own.copy_(good), 2, [1, 2], own),
    ]
    return wanted


@pytest.mark.parametrize("call", _shared(), ids=range(len(_shared())))
def test_places_do_not_change_while_they_are_read(call: Callable[[], object]) -> None:
    with pytest.raises(KernelError, match="must not share memory"):
        call()


def test_an_expanded_vector_has_the_memory_of_one_number() -> None:
    """Memory behind an expanded vector's one number is not part of it."""
    memory = torch.ones(100)
    x, own = memory[:1].expand(64), memory[1:9].view(torch.int32)
    kernels.topk(x, 8, own, torch.zeros(8), WELL)
    assert own.tolist() == list(range(8))


def test_a_vector_with_a_stride_ends_at_its_last_number() -> None:
    """Half the places of twice the elements: beyond x's own bytes, but within its memory."""
    memory = torch.ones(100)
    with pytest.raises(KernelError, match="must not share memory"):
        kernels.topk(memory[::2], 8, memory[60:68].view(torch.int32), torch.zeros(8), WELL)


def _numbers() -> list[tuple[str, Callable[[], object]]]:
    x, bits = torch.ones(8), torch.zeros(1, dtype=torch.uint8)
    codes, scales = torch.zeros(8, dtype=torch.uint8), torch.zeros(1)
    n = formats.POWERS.code_bytes(8)
    jobs = jobs_of([0.0], [[[(1, 1.0)]]])
    good = Machine(1, 1.0, 0.0, 1.0, 0.0)
    choice = torch.zeros(1, dtype=torch.int32)
    empty = torch.empty(0, dtype=torch.int32, device="meta")
    return [
        ("factor must be finite", lambda: kernels.add_cast(x, x, HUGE)),
        ("32 bits", lambda: kernels.random_bits(Noise(-1, 0), 8)),
        ("not be negative", lambda: kernels.random_bits(Noise(0, 0), -8)),
        ("2^31-1", lambda: kernels.random_bits(Noise(0, 0), 2**62)),
        ("2^32-1", lambda: kernels.random_bits(Noise(0, 0), 8, 2**63)),
        ("32 bits", lambda: kernels.strata(Noise(0, 2**32), 8, places(0))),
        ("32 bits", lambda: kernels.encode_codes(
            formats.SIGNS1, x, bits, scales, WELL, Noise(0, 0, 2**40)
        )),
        ("32 bits", lambda: kernels.encode_codes(
            formats.INT8, x, codes, scales, WELL, Noise(-1, 0)
        )),
        *(("clip must be", lambda clip=clip: kernels.encode_codes(
            formats.TERNARY, x, codes[:2], scales, WELL, clip=clip
        )) for clip in (0.0, -1.0, torch.nan, HUGE)),
        ("32 bits", lambda: single.update_codes(
            formats.POWERS, x, None, x.clone(), torch.zeros(n, dtype=torch.uint8),
            torch.zeros(0), Noise(0, -1), WELL, momentum=None, journal=Journal(),
        )),
        ("1 to 65536", lambda: kernels.hash_partition(places(1), 2**63, [1, 2], places(0))),
        ("1 to 256", lambda: kernels.hash_partition(places(1), 1, [1, 2], places(0), None, 300)),
        ("together", lambda: kernels.hash_partition(places(1), 9, [1, 2], places(0), (2**30, 0))),
        ("k must be", lambda: decoded_places(0, bits, 8, "bitmap", -1)),
        ("k must be", lambda: decoded_places(0, bits, 8, "bitmap", 2**62)),
        ("rows", lambda: kernels.sum_rows([places(0)], [torch.ones(())], 1.0, torch.float32)),
        ("memory", lambda: Jobs(empty.double(), *[empty] * 3, empty.double())),
        ("too large for its type", lambda: jobs_of([HUGE], [[[(1, 1.0)]]])),
        ("too large for its type", lambda: jobs_of([0.0], [[[(2**40, 1.0)]]])),
        ("start_slowdown", lambda: simulate_step(
            jobs, good._replace(start_slowdown=HUGE), choice
        )),
        ("repeats", lambda: simulate_step(jobs, good, choice, 0)),
        ("limit", lambda: search_options(jobs, good, choice, limit=HUGE)),
    ]  # fmt: skip


@pytest.mark.parametrize(("rule", "call"), _numbers(), ids=range(len(_numbers())))
def test_a_number_has_a_range(rule: str, call: Callable[[], object]) -> None:
    with pytest.raises(KernelError, match=re.escape(rule)):
        call()


def test_a_momentum_that_is_0_in_fp32_is_0() -> None:
    """Such a momentum counts as 0; the twin used to divide by it."""
    velocity, residual, ones = torch.full((8,), 3.0), torch.full((8,), 5.0), torch.ones(8)
    none = places(), torch.zeros(0), torch.zeros(0)
    kernels.undo_topk(ones, velocity, residual, *none, momentum=1e-320)
    assert velocity.tolist() == [3.0] * 8
    assert residual.tolist() == [2.0] * 8


def test_whole_numbers_count_as_real_ones() -> None:
    """Integers of any size are taken: a hint changes the time and never the result."""
    found = places(0, 0)
    kernels.topk(torch.arange(8.0), 2, found, torch.zeros(2), WELL, HUGE)
    assert found.tolist() == [6, 7]
    two = places(0, 1), torch.ones(2)
    assert kernels.top_of_two(4, *two, *two, 2**70, places(0, 0, 0, 0), torch.zeros(4)) == 2
    machine = Machine(1, HUGE, 0.0, HUGE, 0.0)
    assert simulate_step(jobs_of([0.0], [[[(1, 1.0)]]]), machine, places(0)) == 1.0


def test_a_velocity_that_nothing_looks_at_may_be_anything() -> None:
    residual, none = torch.zeros(4), torch.eye(2).to_sparse()
    at, values = torch.tensor([1, 3], dtype=torch.int32), torch.tensor([2.0, 5.0])
    kernels.restore_topk(none, residual, at, values, None, mask=False)
    assert residual.tolist() == [0.0, 2.0, 0.0, 5.0]

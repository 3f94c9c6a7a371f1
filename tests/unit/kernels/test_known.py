"""What passed a check is not checked again, all else is; and gradients are not retained."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import Strategy, kernels
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.update import update_many_topk
from gradwire.kernels.values import SILENCE
from gradwire.local import KeptParts
from gradwire.runtime.context import BucketContext
from gradwire.strategy import StepInfo


def test_the_same_things_are_checked_once() -> None:
    known, calls = kernels.Known(), list[str]()
    one, other = torch.zeros(3), torch.zeros(3)

    def checked(name: str, facts: object, *tensors: Tensor | None) -> int:
        known.check(name, facts, tensors, lambda: calls.append(name))
        return len(calls)

    assert checked("a", (3,), one, None) == 1
    assert checked("a", (3,), one, None) == 1
    assert checked("a", (4,), one, None) == 2, "other facts"
    assert checked("a", (4,), other, None) == 3, "another tensor, though an equal one"
    assert checked("a", (4,), other) == 4, "fewer"
    assert checked("a", (4,), None, other) == 5, "in another order"
    assert checked("b", (4,), None, other) == 6
    assert checked("b", (4,), None, other) == 6


def test_what_fails_is_not_known() -> None:
    known, x = kernels.Known(), torch.zeros(3)

    def fails() -> None:
        raise KernelError("no")

    for _ in range(2):
        with pytest.raises(KernelError):
            known.check("a", (), (x,), fails)


def entries(k: int, dtype: torch.dtype = torch.float32) -> kernels.WriteEntries:
    places = torch.arange(k, dtype=torch.int32)
    section = torch.empty(k, dtype=torch.int32)
    return kernels.WriteEntries(
        places, torch.ones(k), 8, "int32", section, torch.empty(k).to(dtype)
    )


def wrong(segment: Any) -> list[Any]:
    """Returns the segment once for each of its tensors, with that tensor of another dtype."""
    tensors = [i for i, part in enumerate(segment) if isinstance(part, Tensor)]
    return [
        type(segment)(*(x.to(torch.float64) if i == at else x for i, x in enumerate(segment)))
        for at in tensors
    ]


def updates() -> list[Any]:
    n, k = 8, 3
    rows = [torch.randn(n) for _ in range(2)]
    taken = torch.empty(k, dtype=torch.int32), torch.empty(k)
    form = Strategy.parse("int8 | alltoall").compressor.format()  # type: ignore[attr-defined]
    codes = torch.empty(form.code_bytes(n), dtype=torch.uint8)
    scales = torch.empty(form.scales(n))
    return [
        kernels.UpdateTopk(rows[0], None, rows[1], k, *taken, None, None),
        kernels.UpdateCodes(form, rows[0], None, rows[1], codes, scales, SILENCE, None),
        kernels.CastInto(rows[0], torch.empty(n, dtype=torch.bfloat16)),
        entries(k),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_a_call_that_knows_refuses_what_it_does_not_know(kind: int) -> None:
    segment, known, status = updates()[kind], kernels.Known(), kernels.new_status()

    def call(one: Any) -> None:
        def asks() -> kernels.Work:
            yield [one]

        kernels.together([asks()], status, known)

    call(segment)
    call(segment)
    for other in wrong(segment):
        with pytest.raises(KernelError):
            call(other)
    call(segment)


TEXTS = [
    "topk(0.2)+ef | allgather",
    "dgc(0.2) | allgather",
    "int8+ef | allgather",
    "lloyd(2)+adam | allgather",
    "none | allreduce",
    "bf16 | allreduce",
    "none | allgather",
    "int8+ef | alltoall",
    "qsgd(4) | alltoall",
    "topk(0.2)+ef | alltoall",
    'lloyd(1)+adam | alltoall(means="lloyd(2)")',
]


def context_of(text: str, count: int) -> BucketContext:
    bucket = Bucket(tuple(Parameter(f"p{i}", (8, 4)) for i in range(count)))
    return BucketContext(Strategy.parse(text), bucket, 0, 1, {})


def take_step(context: BucketContext, own: list[Tensor], step: int) -> None:
    """One rank alone: what it sends arrives, in the same memory in every step."""
    context.begin(own, own, StepInfo(step))
    rounds, arrived = context.rounds(), None
    while True:
        try:
            move: Any = rounds.send(arrived)
        except StopIteration:
            break
        gathers = move.name == "all_gather"
        arrived = move.data.view(1, -1) if gathers else move.data
    context.end(skipped=False)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_are_not_kept(text: str, count: int) -> None:
    context = context_of(text, count)
    for step in range(2):
        own = [torch.randn(32) for _ in range(count)]
        take_step(context, own, step)
        left = [weakref.ref(x) for x in own]
        del own
        gc.collect()
        assert not any(ref() is not None for ref in left)


@pytest.mark.parametrize("text", TEXTS)
def test_a_later_step_checks_only_its_gradients(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, checked = context_of(text, 3), list[str]()
    real = kernels.Known.check

    def counting(
        known: kernels.Known, name: str, facts: object, tensors: Any, check: Callable[[], Any]
    ) -> None:
        def noted() -> None:
            checked.append(name)
            check()

        real(known, name, facts, tensors, noted)

    monkeypatch.setattr(kernels.Known, "check", counting)
    steps = list[list[str]]()
    for step in range(4):
        checked.clear()
        take_step(context, [torch.randn(32) for _ in range(3)], step)
        steps.append(list(checked))
    assert steps[0]
    assert steps[2:] == [[], []]


def test_parts_are_the_same_objects_until_something_changes() -> None:
    kept, x, places = KeptParts(), torch.arange(6.0), [slice(0, 2), slice(2, 6), None]
    first = kept.cut([x, None], places)
    assert [[part if part is None else part.tolist() for part in own] for own in first] == [
        [[0.0, 1.0], None], [[2.0, 3.0, 4.0, 5.0], None], [x.tolist(), None]
    ]  # fmt: skip
    assert kept.cut([x, None], list(places)) is first
    x.data = torch.zeros(6)  # other memory
    assert kept.cut([x, None], places)[0][0].tolist() == [0.0, 0.0]
    assert kept.cut([x, None], places[:1])[0][0].tolist() == [0.0, 0.0]
    assert kept.cut([x[:], None], places[:1])[0][0] is not kept.cut([x, None], places[:1])[0][0]
    assert len(kept.cut([x], places[:1])[0]) == 1


def halved(x: Tensor) -> None:
    x.data = x.data[: len(x) // 2]


def of_another_dtype(x: Tensor) -> None:
    x.data = x.data.view(torch.int32).to(torch.float16)


def freed(x: Tensor) -> None:
    x.untyped_storage().resize_(0)


def restrided(x: Tensor) -> None:
    """As large as before and at the same address, it now spans the memory of others."""
    x.as_strided_((len(x),), (2,))


@pytest.mark.parametrize("change", [halved, of_another_dtype, freed, restrided])
@pytest.mark.parametrize("which", ["residual", "indices", "values"])
def test_the_same_tensor_with_other_memory_is_looked_at(change: Any, which: str) -> None:
    n, k = 8, 4
    one = kernels.UpdateTopk(
        torch.randn(n), None, torch.randn(2 * n)[:n], k, torch.empty(n, dtype=torch.int32)[:k],
        torch.empty(n)[:k], None, None,
    )  # fmt: skip
    known, status = kernels.Known(), kernels.new_status()
    update_many_topk([one], status, known)
    change(getattr(one, which))
    with pytest.raises(KernelError):
        update_many_topk([one], status, known)


@pytest.mark.parametrize("change", [halved, of_another_dtype, freed])
@pytest.mark.parametrize("which", ["places", "values", "section"])
def test_the_same_segment_with_other_memory_is_looked_at(change: Any, which: str) -> None:
    one, known = entries(4), kernels.Known()
    for _ in range(2):
        kernels.write_entries([one], None, known)
    change(getattr(one, which))
    for _ in range(2):
        with pytest.raises(KernelError):
            kernels.write_entries([one], None, known)


def test_other_segments_of_the_same_tensors_are_looked_at() -> None:
    known, one = kernels.Known(), entries(4)
    kernels.write_entries([one], None, known)
    kernels.write_entries([one._replace()], None, known)
    for other in (one._replace(n=2), one._replace(code="bitmap")):
        with pytest.raises(KernelError):
            kernels.write_entries([other], None, known)
    kernels.write_entries([one], None, known)


def test_a_list_that_is_filled_anew_is_another() -> None:
    payloads, known = [torch.ones(8), torch.ones(8)], kernels.Known()
    segment = kernels.SumDense(torch.empty(8), payloads, 2.0)
    kernels.add_up([segment], None, known)
    payloads[1] = torch.ones(3)
    with pytest.raises(PayloadError):
        kernels.add_up([segment], None, known)


def test_the_same_tensors_dealt_out_otherwise_are_looked_at() -> None:
    """The same tensors in other roles, as values or in another payload, are checked again."""
    rows, one, other = [torch.ones(8) for _ in range(4)], torch.empty(8), torch.empty(8)
    places = [torch.arange(4, dtype=torch.int32), torch.arange(8, dtype=torch.int32)]
    known = kernels.Known()
    coded = kernels.SumCoded(one, ["int32"] * 2, [places[1]] * 2, rows[:2], 1.0)
    kernels.add_up([coded], None, known)
    moved = coded._replace(sections=[*coded.sections, rows[0]], values=rows[1:2])
    with pytest.raises(KernelError):
        kernels.add_up([moved], None, known)
    sums = [kernels.SumDense(one, rows[:2], 2.0), kernels.SumDense(other, rows[2:], 2.0)]
    kernels.add_up(sums, None, known)
    dealt = [kernels.SumDense(one, rows[:3], 2.0), kernels.SumDense(other, rows[3:], 2.0)]
    kernels.add_up(dealt, None, known)
    assert one.tolist() == [1.5] * 8
    assert other.tolist() == [0.5] * 8

"""A device that the host's memory stands in for: what it refuses, and what it records."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import KernelError
from gradwire.runtime.host_copies import HostCopies
from gradwire.runtime.verdict import Verdict, settle
from noted_cuda import Memory, Stream
from posed import Scene, WrongDevice, behind
from posing import on_device, posing

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with posing() as made:
        yield made


def there(*numbers: float, device: torch.device = SECOND) -> Tensor:
    return torch.tensor(numbers, device=device)


def test_numbers_are_computed_and_stay_on_their_device(scene: Scene) -> None:
    x = torch.arange(6.0, device="cuda:1").view(2, 3)
    total = (x.t() @ x)[1:].sum(0, keepdim=True).to(torch.bfloat16)
    assert total.device == SECOND
    assert total.is_cuda
    assert behind(total).tolist() == [[27.0, 39.0, 51.0]]
    x[0] = 7.0
    assert x.cpu().tolist() == [[7.0] * 3, [3.0, 4.0, 5.0]]
    assert (x > 4.0).nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [1, 2]]
    assert (~(x[1] > 3.0)).tolist() == [True, False, False]
    assert x.t().contiguous().stride() == (2, 1)
    assert torch.zeros(1, device="cuda").device == FIRST, "the current one"
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device == SECOND


def test_a_view_is_of_the_same_memory_and_its_changes_are_counted(scene: Scene) -> None:
    x = there(1.0, 2.0, 3.0, 4.0)
    flat = x.view(2, 2).view(-1)
    assert flat.data_ptr() == x.data_ptr()
    before = x._version
    flat.add_(1.0)
    x.copy_(x * 2.0)
    assert x._version == before + 2
    assert behind(x).tolist() == [4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x + there(1.0, 2.0, device=FIRST),
        lambda x: x.add_(torch.ones(2)),
        lambda x: x.copy_(there(1.0, 2.0, device=FIRST)),
        lambda x: x.__setitem__(0, torch.tensor([1.0])),
        lambda x: torch.cat([x, torch.ones(2)]),
        lambda x: kernels.accumulate_dense(x, [there(1.0, 2.0, device=FIRST)], 2.0),
    ],
)  # fmt: skip
def test_tensors_of_several_devices_do_not_work_together(
    scene: Scene, work: Callable[[Tensor], object]
) -> None:
    with pytest.raises((WrongDevice, KernelError)):
        work(there(1.0, 2.0))


def test_a_number_of_the_host_s_goes_with_any(scene: Scene) -> None:
    assert behind(there(1.0, 2.0) * torch.tensor(3.0)).tolist() == [3.0, 6.0]


def test_what_gradwire_reads_is_noted_while_it_is_watched(scene: Scene) -> None:
    verdict = Verdict(1, SECOND)
    verdict.begin(0)
    settle([verdict])
    assert not scene.found
    with scene.watching():
        verdict.begin(1)
        assert verdict.fine
        assert not bool(verdict.word), "a test may ask"
        settle([verdict])
    assert scene.found == {
        "runtime/verdict.py fine: __int__", "runtime/verdict.py settle: tolist"
    }  # fmt: skip


def test_what_comes_down_is_there_once_somebody_waits(scene: Scene) -> None:
    copies, synchronize = HostCopies(SECOND), Stream.synchronize
    x = there(1.0, 2.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stream, "synchronize", lambda stream: None)
        early = copies.down(x)
        assert early.tolist() != [1.0, 2.0]
    synchronize(torch.cuda.current_stream(SECOND))  # type: ignore[arg-type]
    assert early.tolist() == [1.0, 2.0]
    assert copies.down(x + 1.0).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("too_early", [False, True])
def test_what_goes_up_is_not_written_meanwhile(scene: Scene, too_early: bool) -> None:
    pinned, room = torch.zeros(2, pin_memory=True), torch.empty(2, device=SECOND)
    room.copy_(pinned, non_blocking=True)
    if not too_early:
        torch.cuda.current_stream(SECOND).synchronize()
    pinned.fill_(1.0)
    torch.cuda.current_stream(SECOND).synchronize()
    assert scene.found == (
        {"a test: memory that the host writes on its way up"} if too_early else set()
    )


@pytest.mark.parametrize("waits", [False, True])
def test_a_stream_uses_what_another_one_has_written(scene: Scene, waits: bool) -> None:
    lane, main = torch.cuda.Stream(SECOND), torch.cuda.current_stream(SECOND)  # type: ignore[no-untyped-call]
    x = there(1.0, 2.0)
    x.add_(1.0)
    if waits:
        lane.wait_event(main.record_event())
    with torch.cuda.stream(lane):
        x.mul_(2.0)
    if waits:
        main.wait_stream(lane)
    x.add_(1.0)
    told = {"a test: lane does not wait for main", "a test: main does not wait for lane"}
    assert scene.found == (set() if waits else told)


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_is_given_back_when_nobody_uses_it(scene: Scene, recorded: bool) -> None:
    lane, main = torch.cuda.Stream(SECOND), torch.cuda.current_stream(SECOND)  # type: ignore[no-untyped-call]
    x = there(1.0, 2.0)
    lane.wait_stream(main)
    with torch.cuda.stream(lane):
        _ = x + 1.0
    if recorded:
        x.record_stream(lane)
    del x
    there(3.0).add_(1.0)
    told = {"a test: memory that lane uses is main's again"}
    assert scene.found == (set() if recorded else told)


def test_readers_need_not_wait_for_each_other() -> None:
    main, one, other = (Stream(name, SECOND) for name in ("main", "one", "other"))
    memory, event = Memory(main), main.record_event()
    for lane in (one, other):
        lane.wait_event(event)
        assert memory.used(lane, writes=False) == []
    assert memory.used(main, writes=True) == [one, other]


def test_gradients_of_a_model_on_processors_arrive_there(scene: Scene) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    moved, arrived = on_device(model, SECOND, scene), list[Tensor]()
    (p,) = moved.parameters()
    p.register_post_accumulate_grad_hook(arrived.append)  # type: ignore[no-untyped-call]
    for _ in range(2):
        moved(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert arrived == [p, p]
    assert p.grad is not None
    assert p.grad.device == SECOND
    assert behind(p.grad).tolist() == [[6.0, 8.0]]
    with torch.no_grad():
        p.fill_(0.5)
    assert model(torch.tensor([[3.0, 4.0]])).item() == 3.5, "it computes with the same numbers"


def test_torch_is_as_it_was_afterwards() -> None:
    names = ("Stream", "Event", "current_stream", "_lazy_init", "device")
    before = [getattr(torch.cuda, name) for name in names]
    with posing():
        assert torch.cuda.Stream is not before[0]
    assert [getattr(torch.cuda, name) for name in names] == before

"""The memory of a step: no allocation in the steady state, and the amounts in docstrings."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.kernels import memory
from gradwire.runtime.context import BucketContext
from gradwire.runtime.lockstep import _agreed, _next, _perform
from gradwire.strategy import State, StepInfo

SHAPE, N, WORLD = (400, 500), 200_000, 2
SMALL_BYTES = 4096
COMPRESSORS = (
    "none", "fp16", "bf16", "int8", "fp8", "fp8(variant='e5m2')", "qsgd(2)", "qsgd(4)", "qsgd(8)",
    "natural", "terngrad", "terngrad(clip=2.5)", "sign", "sign(scaled=True)", "onebit",
    "topk(0.05)", "topk(0.05, values='bf16')", "topk(0.05, values='fp16')",
    *(f"topk(0.05, index='{c}')" for c in ("int32", "gap16", "gap8", "elias_fano", "bitmap")),
    "randk(0.05)", "randk(0.05, scale=True)", "threshold(1.0)", "nonzero",
)  # fmt: skip
FEEDBACK = ("ef", "ef(decay=0.9)", "dgc", "dgc(mask=False)", "ef21", "momentum")
STRATEGIES = (
    *(f"{c} | allgather" for c in COMPRESSORS),
    *(f"{c}+ef | allgather" for c in COMPRESSORS),
    *(f"{c} | allreduce" for c in ("none", "fp16", "bf16", "randk(0.05)", "bf16+ef")),
    *(f"topk(0.05)+{memory} | allgather" for memory in FEEDBACK),
    # Masking what sends nearly everything is left to the composition: docs of `make_encoder`.
    *(f"int8+{memory} | allgather" for memory in FEEDBACK if memory != "dgc"),
    *(f"{c} | alltoall" for c in ("int8", "int8+ef", "efsignsgd", "qsgd(4)+ef", "topk(0.05)+ef")),
    "signsgd | vote", "signum | vote", "powersgd(2)", "none+server_momentum | allreduce",
)  # fmt: skip


class Allocations(TorchDispatchMode):
    """Every result of an operation that has memory of its own and is not small."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {_place(x) for x in _tensors([args, kwargs or {}])}
        result = function(*args, **(kwargs or {}))
        for x in _tensors([result]):
            size = x.untyped_storage().nbytes()
            if size > SMALL_BYTES and _place(x) not in given:
                self.found.append(f"{size} bytes by {function} in {_line()}")
        return result


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _tensors(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, dict):
        yield from _tensors(list(nested.values()))
    elif isinstance(nested, list | tuple):
        for x in nested:
            yield from _tensors(x)


def _line() -> str:
    """The line of gradwire's own code that made the allocation."""
    ours = [f for f in traceback.extract_stack() if "/gradwire/" in f.filename]
    if not ours:
        return "a test"
    last = ours[-1]
    return f"{last.filename.rpartition('/gradwire/')[2]}:{last.lineno} {last.line}"


def gradients(text: str, dtype: torch.dtype) -> list[Tensor]:
    """Normal gradients; for messages of any length, sparse ones with one number of entries."""
    dice = torch.Generator().manual_seed(0)
    found = [torch.randn(N, generator=dice) for _ in range(WORLD)]
    if text.startswith(("threshold", "nonzero")):
        found = [torch.where(torch.arange(N) % 20 == r, 2.0, 0.0) for r in range(WORLD)]
    return [x.to(dtype) for x in found]


def contexts_of(text: str, dtype: torch.dtype = torch.float32) -> list[BucketContext]:
    bucket = Bucket((Parameter("w", SHAPE, str(dtype).removeprefix("torch.")),))
    return [BucketContext(Strategy.parse(text), bucket, r, WORLD, {}) for r in range(WORLD)]


def run(
    contexts: Sequence[BucketContext], given: Sequence[Tensor], steps: int, steady: int = 2
) -> list[str]:
    """Returns the allocations from step `steady` on, the network's left out; results in place."""
    held, found = [x.clone() for x in given], Allocations()
    for step in range(steps):
        for context, x, g in zip(contexts, held, given):
            x.copy_(g)
            context.begin([x], [x], StepInfo(step))
        rounds = [c.strategy.collective.rounds(c) for c in contexts]
        arrived: list[Any] = [None] * WORLD
        while True:
            if step >= steady:
                with found:
                    moves = [_next(r, value) for r, value in zip(rounds, arrived)]
            else:
                moves = [_next(r, value) for r, value in zip(rounds, arrived)]
            if all(move is None for move in moves):
                break
            arrived = _perform(_agreed(moves))
        for context in contexts:
            if step >= steady:
                with found:
                    context.end(skipped=False)
            else:
                context.end(skipped=False)
    return found.found


@pytest.mark.parametrize("text", STRATEGIES)
def test_from_the_third_step_on_nothing_is_allocated(text: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        found = run(contexts_of(text, dtype), gradients(text, dtype), steps=5)
        assert not found, "\n".join([str(dtype), *sorted(set(found))])


def test_the_counting_counts() -> None:
    with Allocations() as counted:
        x = torch.zeros(5000)
        x.add_(1.0)
        x.view(50, 100)[3].mul_(2.0)
        torch.zeros(100)
        assert not counted.found[1:]
        x.clone()
    assert len(counted.found) == 2


# -- as docstrings state -------------------------------------------------------------------------

STATE: dict[str, tuple[str, ...]] = {
    "none": (),
    "topk(0.05)": (),
    "topk(0.05)+ef": ("residual",),
    "int8+ef": ("residual",),
    "bf16+ef(decay=0.9)": ("residual",),
    "threshold(1.0)+ef": ("residual",),
    "topk(0.05)+dgc": ("residual", "velocity"),
    "int8+dgc(mask=False)": ("residual", "velocity"),
    "int8+dgc": ("residual", "velocity"),
    "topk(0.05)+ef21": ("estimate", "mean"),
    "sign+momentum": ("velocity",),
    "none+server_momentum": ("velocity",),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("text", STATE)
def test_state_has_the_buffers_that_are_stated(text: str, dtype: torch.dtype) -> None:
    contexts = contexts_of(f"{text} | allgather", dtype)
    run(contexts, gradients(text, dtype), steps=2)
    for context in contexts:
        state: State = context.codec.states[0]
        assert sorted(state) == sorted(STATE[text])
        of_gradient = "server_momentum" in text  # its one buffer has the gradient's dtype
        for value in state.values():
            assert value.dtype == (dtype if of_gradient else torch.float32)
            assert value.numel() == N
            assert value.untyped_storage().nbytes() == N * value.element_size()


@pytest.mark.parametrize("collective", ["alltoall", "allgather"])
def test_an_owner_keeps_its_share_of_a_buffer(collective: str) -> None:
    contexts = contexts_of(f"int8+ef | {collective}")
    run(contexts, gradients("", torch.float32), steps=2)
    owned = sum(
        v.numel()
        for c in contexts
        for key, v in c.codec.states[0].items()
        if key.startswith("owner")
    )
    assert owned == (N if collective == "alltoall" else 0)


def held_bytes(root: object) -> int:
    """The bytes of all tensors that an object of gradwire's holds, each counted once."""
    seen: dict[int, int] = {}
    todo, known = [root], set()
    while todo:
        x = todo.pop()
        if id(x) in known:
            continue
        known.add(id(x))
        if isinstance(x, Tensor):
            seen[_place(x)] = x.untyped_storage().nbytes()
        elif isinstance(x, dict):
            todo += list(x.values())
        elif isinstance(x, list | tuple):
            todo += list(x)
        elif type(x).__module__.startswith("gradwire") and hasattr(x, "__dict__"):
            todo += list(vars(x).values())
    return sum(seen.values())


@pytest.mark.parametrize("memory_of", ["", "+ef", "+dgc"])
@pytest.mark.parametrize("values", ["fp32", "bf16", "fp16"])
def test_topk_holds_what_its_docstring_says(values: str, memory_of: str) -> None:
    contexts = contexts_of(f"topk(0.05, values='{values}'){memory_of} | allgather")
    run(contexts, gradients("", torch.float32), steps=3)
    k = N // 20
    for context in contexts:
        others = [dict(context.codec.states[0]), context.codec.buffer]  # an encoder knows both
        held = held_bytes([context.codec._encoders, *others]) - held_bytes(others)
        each = 2 + (values != "fp32") + (memory_of == "+dgc")
        assert held <= 4 * k * each, f"{held / 4 / k} times k"


def in_a_new_thread(work: Callable[[], None]) -> int:
    """The bytes of scratch that a thread has after `work`; a new thread has none before."""
    found: list[int] = []

    def whole() -> None:
        work()
        own = getattr(memory._local, "scratch", None)
        found.append(held_bytes(own) if own else 0)

    thread = threading.Thread(target=whole)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("text", ["threshold(1.0)", "nonzero"])
def test_ragged_members_take_ten_bytes_per_entry(text: str) -> None:
    compressor = Strategy.parse(f"{text} | allgather").compressor
    contexts = contexts_of(f"{text} | allgather")
    given, k, slack = gradients(text, torch.float32), N // 20, 2048
    messages: list[Tensor] = []

    def encode() -> None:
        for context, x in zip(contexts, given):
            context.begin([x], [x.clone()], StepInfo(0))
            messages.append(context.message()[: int(context.length[0])])

    def decode() -> None:
        contexts[0].accumulate(torch.stack(messages))

    assert k * 8 <= in_a_new_thread(encode) <= k * 10 + slack
    assert in_a_new_thread(decode) <= WORLD * (k * 4 + slack)
    assert compressor.claims(N).fixed is False


def test_randk_takes_k_places() -> None:
    contexts = contexts_of("randk(0.05)+ef | allgather")
    given = gradients("", torch.float32)
    assert in_a_new_thread(lambda: _nothing(run(contexts, given, steps=2))) <= 4 * N // 20


@pytest.mark.parametrize("text", ["int8+ef", "qsgd(4)+ef", "efsignsgd", "onebit+ef", "natural"])
def test_quantizers_take_no_memory_beside_their_sections(text: str) -> None:
    """They use no scratch, and hold nothing but the message and the state."""
    contexts = contexts_of(f"{text} | allgather")
    given = gradients("", torch.float32)
    assert in_a_new_thread(lambda: _nothing(run(contexts, given, steps=3))) == 0
    for context in contexts:
        context._inbox = context.codec.known = None  # views of what the network brought
        assert held_bytes(context.codec._encoders) <= held_bytes(dict(context.codec.states[0]))
        own = held_bytes(context) - held_bytes(dict(context.codec.states[0]))
        assert own <= context.codec.layout.bytes + SMALL_BYTES


def _nothing(_: object) -> None:
    """Drops the result of a call made for its effect."""

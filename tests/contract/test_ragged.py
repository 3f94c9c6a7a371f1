"""threshold and nonzero: messages whose length depends on the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import laws
import pytest
import torch
from inputs import normal
from instances import PLACES, message_bytes
from several import EVERYBODY, Named, Several, all_nan, drawn, equal
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.compressors import NonZero, Threshold
from gradwire.errors import PayloadError, StrategyError
from gradwire.layout.message import HEADER_BYTES
from gradwire.runtime.contexts import make_context
from gradwire.strategy import Compressor, StepInfo

SHAPES = {"a": (7, 11), "b": (129,), "c": (1,), "d": (0,), "e": (3, 3)}
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
NONZERO, THRESHOLD = "nonzero | allgather", "threshold(0.5) | allgather"
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
every_text = pytest.mark.parametrize("text", [NONZERO, THRESHOLD])


def sparse(share: float, seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Named:
    """Gradients with about that share of elements of magnitude 1 to 2; the rest is zero."""
    dice = torch.Generator().manual_seed(seed)
    return {
        n: torch.where(
            torch.rand(s, generator=dice) < share,
            (1 + torch.rand(s, generator=dice)) * (1 - 2 * (torch.rand(s, generator=dice) < 0.5)),
            torch.zeros(s),
        )
        for n, s in shapes.items()
    }  # fmt: skip


def payload_bytes(n: int, k: int, item: int) -> int:
    """The bytes of a payload by hand: two words, places in their shortest code, values."""
    places = min(size(n, k) for size in PLACES.values())
    return 16 + places + -places % 16 + item * k


def by_hand(mine: Named, item: int) -> int:
    """The bytes of one rank's message."""
    counts = [(x.numel(), int((x != 0).sum())) for x in mine.values()]
    padded = [message_bytes(payload_bytes(n, k, item)) - 32 for n, k in counts]
    return 32 + sum(padded)


def naive_mean(gradients: Sequence[Named], name: str, dtype: torch.dtype) -> Tensor:
    """The mean: a sum in rank order in fp32, and one division."""
    total = torch.zeros(gradients[0][name].shape)
    for mine in gradients:
        total = total + mine[name].to(dtype).float()
    return (total / torch.tensor(float(len(gradients)))).to(dtype)


# -- lengths -------------------------------------------------------------------------------------

SHARES = {
    "empty, few, all": (0.0, 0.1, 1.1),
    "all empty": (0.0, 0.0, 0.0),
    "all full": (1.1, 1.1, 1.1),
    "few": (0.05, 0.02, 0.1),
    "one rank": (0.5,),
    "one rank, empty": (0.0,),
    "only the last": (0.0, 0.0, 0.0, 0.0, 1.1),
}


@every_float
@every_text
@pytest.mark.parametrize("shares", SHARES)
def test_the_mean_of_messages_of_any_length(text: str, shares: str, dtype: torch.dtype) -> None:
    run = Several(text, SHAPES, len(SHARES[shares]), dtype=dtype)
    for step in range(3):
        gradients = [sparse(s, 10 * step + r) for r, s in enumerate(SHARES[shares])]
        results = run.step(gradients)
        for mine in results:
            for name in SHAPES:
                assert torch.equal(mine[name], naive_mean(gradients, name, dtype)), name


@every_text
@pytest.mark.parametrize("shares", SHARES)
def test_bytes_are_those_of_the_longest_and_of_the_lengths(text: str, shares: str) -> None:
    for dtype in FLOATS:
        world = len(SHARES[shares])
        run = Several(text, SHAPES, world, dtype=dtype)
        gradients = [sparse(s, r) for r, s in enumerate(SHARES[shares])]
        run.step(gradients)
        item = dtype.itemsize if text == NONZERO else 4
        longest = max(by_hand(mine, item) for mine in gradients)
        wanted = 16 * (world - 1) + (world - 1) * longest
        assert run.trace.bytes_sent == [float(wanted)] * world


@every_text
@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 64, 65])
def test_many_parameters_that_send_everything(text: str, n: int, count: int) -> None:
    """Payloads begin at multiples of 16, and the longest message has room for that."""
    shapes = {f"p{i}": (n,) for i in range(count)}
    gradients = [sparse(1.1, r, shapes) for r in range(2)]
    for mine in Several(text, shapes, 2).step(gradients):
        for name in shapes:
            assert torch.equal(mine[name], naive_mean(gradients, name, torch.float32))


@pytest.mark.parametrize("compressor", [NonZero(), Threshold(0.5)], ids=str)
@every_float
def test_what_is_used_stays_within_the_claim(compressor: Compressor, dtype: torch.dtype) -> None:
    for n in range(34):
        ((_, claimed),) = compressor.claims(
            n, laws.dtype_name(torch.zeros(0, dtype=dtype))
        ).sections
        for k in range(n + 1):
            order = torch.randperm(n, generator=torch.Generator().manual_seed(n * 100 + k))
            x = torch.zeros(n, dtype=dtype)
            x[order[:k]] = 1.5
            (section,) = laws.encoded(compressor, x)
            used = int(section[:8].view(torch.int64))
            item = dtype.itemsize if compressor == NonZero() else 4
            assert used == payload_bytes(n, k, item)
            assert used <= claimed == len(section)
            assert torch.equal(laws.decoded(compressor, [section[:used]], n), x.float())


@every_text
def test_what_a_threshold_takes(text: str) -> None:
    """A value exactly at the threshold is sent, and a negative one, too; nothing else travels."""
    x = torch.tensor(
        [0.5, -0.5, 0.49999997, -0.49999997, 2.0**-149, -(2.0**-149), 0.0, -0.0, 3e38]
    )
    result = lockstep(text, [x])[0][0]
    wanted = x if text == NONZERO else torch.where(x.abs() >= 0.5, x, torch.zeros(()))
    assert torch.equal(result, wanted)


@pytest.mark.parametrize("compressor", ["nonzero", "threshold(0.5)"])
@pytest.mark.parametrize("collective", ["alltoall", "allreduce", "vote", "powersgd(2)"])
def test_only_allgather_takes_them(compressor: str, collective: str) -> None:
    with pytest.raises(StrategyError, match="needs a compressor that promises"):
        Strategy.parse(f"{compressor} | {collective}")


@pytest.mark.parametrize("value", ["0", "-1.0", "float", "'1'", "True", "1e-39", "None"])
def test_a_threshold_that_is_no_magnitude_is_refused(value: str) -> None:
    with pytest.raises(StrategyError):
        Strategy.parse(f"threshold({value}) | allgather")


# -- memory --------------------------------------------------------------------------------------


@every_float
@pytest.mark.parametrize("text", ["threshold(1.0)+ef", "threshold(3.0)+ef", "nonzero+ef"])
def test_nothing_is_lost(text: str, dtype: torch.dtype) -> None:
    run = Several(f"{text} | allgather", SHAPES, 3, dtype=dtype)
    given = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    arrived = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    slack = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    for step in range(8):
        gradients = drawn(SHAPES, 3, step)
        (mine, *_) = run.step(gradients)
        for name, shape in SHAPES.items():
            given[name] += sum(g[name].to(dtype).double() for g in gradients)
            arrived[name] += 3 * mine[name].double()
            kept = torch.stack([m[name]["residual"].double() for m in run.memories]).sum(0)
            lost = (kept.view(shape) + arrived[name] - given[name]).abs()
            if lost.numel():  # of the result's own format, once a step
                assert float(lost.max()) <= slack * 20 * (step + 1), f"step {step}, {name}"


def test_what_waits_is_below_the_threshold() -> None:
    run = Several("threshold(1.0)+ef | allgather", SHAPES, 2)
    for step in range(6):
        run.step(drawn(SHAPES, 2, step, scale=0.3))
        for memory in run.memories:
            for name in SHAPES:
                assert bool((memory[name]["residual"].abs() < 1.0).all())


@pytest.mark.parametrize("exact_undo", [True, False])
@pytest.mark.parametrize("where", ["a", "b", "c", "e"])
@pytest.mark.parametrize("text", ["threshold(1.0)+ef", "threshold(1.0)+dgc", "nonzero+ef"])
def test_one_bad_number_spoils_all_and_leaves_states(
    text: str, where: str, exact_undo: bool
) -> None:
    run = Several(f"{text} | allgather", SHAPES, 3, exact_undo=exact_undo)
    for step in range(4):
        before, bad = run.kept(), drawn(SHAPES, 3, 50 + step)
        bad[1][where].view(-1)[0] = float("nan")
        assert all_nan(run.step(bad))
        for memory, was in zip(run.memories, before):
            for name, state in memory.items():
                assert set(state) == set(was[name])
                for key, value in state.items():
                    assert torch.allclose(value, was[name][key], rtol=1e-5, atol=1e-5), name
        run.step(drawn(SHAPES, 3, step))


@pytest.mark.parametrize("text", ["threshold(1.0)+ef", "nonzero+ef"])
def test_a_skipped_step_gives_back(text: str) -> None:
    run = Several(f"{text} | allgather", SHAPES, 3)
    for step in range(3):
        before, gradients = run.kept(), drawn(SHAPES, 3, step)
        run.step(gradients, skipped=True)
        for rank, memory in enumerate(run.memories):
            for name in SHAPES:
                waited = before[rank][name].get("residual", torch.zeros(()))
                wanted = waited + gradients[rank][name].view(-1)
                assert torch.allclose(memory[name]["residual"], wanted, rtol=1e-5, atol=1e-5)
        run.step(drawn(SHAPES, 3, 10 + step))


@pytest.mark.parametrize("text", [NONZERO, THRESHOLD, "threshold(0.5)+ef | allgather"])
def test_the_grouping_never_changes_the_result(text: str) -> None:
    whole = Several(text, SHAPES, 3)
    apart = Several(text, SHAPES, 3, buckets=[["e", "b"], ["c"], ["d", "a"]])
    for step in range(3):
        gradients = drawn(SHAPES, 3, step)
        one = whole.step(gradients)
        for mine, other in zip(one, apart.step(gradients)):
            assert equal(mine, other)
            assert equal(mine, one[0])


# -- damage --------------------------------------------------------------------------------------

N = 9  # elements of "b", odd, so that values of 16 bits end anywhere


def word(place: int, change: Callable[[int], int]) -> Callable[[Tensor], None]:
    """Returns damage that changes a word of the first payload."""

    def damage(message: Tensor) -> None:
        words = message[32:48].view(torch.int64)
        words[place] = change(int(words[place]))

    return damage


def of(value: int) -> Callable[[int], int]:
    return lambda was: value


def more(value: int) -> Callable[[int], int]:
    return lambda was: was + value


def of_other_width(was: int) -> int:
    """The word with bf16 for fp32, or fp32 for 16 bits. The other 16-bit format is no error: it
    only gives other numbers."""
    return was // 4 * 4 + (1 if was % 4 == 0 else 0)


LENGTHS = (-(2**63), -1, 0, 7, 8, 9, 12, 15, 16, 17, 24, 10**6, 2**40, 2**63 - 1)
DAMAGE: dict[str, Callable[[Tensor], None]] = {
    **{f"length {value}": word(0, of(value)) for value in LENGTHS},
    **{f"length by {value:+}": word(0, more(value)) for value in (-8, -4, -2, -1, 1, 2, 4, 8, 16)},
    **{f"count by {value:+}": word(1, more(4 * value)) for value in (-6, -2, -1, 1, 2, 30)},
    **{f"count {value}": word(1, of(4 * value)) for value in (-1, N + 1, 2**40, 2**61 - 1)},
    "another format": word(1, of_other_width),
    "no format": word(1, lambda was: was | 3),
    "places too many": lambda message: message[48:50].fill_(0xFF),
    "no places": lambda message: message[48:56].fill_(0),
}


def five_of_nine(shapes: dict[str, tuple[int, ...]]) -> list[Named]:
    """Gradients with five or six elements of each parameter, so that bitmaps are shortest."""
    found = []
    for rank in range(3):
        mine = {n: torch.zeros(s) for n, s in shapes.items()}
        for x in mine.values():
            x[: 5 + rank % 2] = 1.5 + rank
        found.append(mine)
    return found


@pytest.mark.parametrize("receiver", [0, 1, 2])
@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize(
    ("text", "dtype"),
    [(NONZERO, torch.float32), (NONZERO, torch.bfloat16), (THRESHOLD, torch.float16)],
    ids=str,
)
def test_damage_is_a_payload_error_that_names_the_sender(
    text: str, dtype: torch.dtype, name: str, receiver: int
) -> None:
    shapes: dict[str, tuple[int, ...]] = {"b": (N,), "c": (N,)}

    def change(messages: Tensor) -> Tensor:
        DAMAGE[name](messages[1])
        return messages

    run = Several(text, shapes, 3, dtype=dtype)
    with pytest.raises(PayloadError, match=r"payload 1|rank 1"):
        run.step(five_of_nine(shapes), damage=(1, receiver, change))


@pytest.mark.parametrize("text", [NONZERO, "threshold(0.5)+ef | allgather"])
@pytest.mark.parametrize("cut", [1, 4, 8, 16, 24, 40, 64, 1000])
def test_a_message_cut_short_is_a_payload_error(text: str, cut: int) -> None:
    def change(messages: Tensor) -> Tensor:
        return messages[:, : max(0, messages.shape[1] - cut)].contiguous()

    shapes: dict[str, tuple[int, ...]] = {"b": (N,), "c": (N,)}
    run = Several(text, shapes, 3)
    with pytest.raises(PayloadError):
        run.step(five_of_nine(shapes), damage=(1, 0, change))


@pytest.mark.parametrize("length", [-1, 0, 8, 33, 31, 40])
def test_damaged_lengths_that_all_ranks_agree_on_are_a_payload_error(length: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {"b": (N,), "c": (N,)}
    run = Several(NONZERO, shapes, 3)
    with pytest.raises(PayloadError):
        run.step(five_of_nine(shapes), damage=(0, EVERYBODY, lambda x: x.fill_(length)))


@pytest.mark.parametrize("bit", [0, 5, 62, 64, 127])
def test_a_damaged_length_names_who_told_it(bit: int) -> None:
    """Otherwise one rank would expect another size than the others, and backends abort."""

    def change(lengths: Tensor) -> Tensor:
        lengths[1].view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        return lengths

    run = Several(NONZERO, SHAPES, 3)
    with pytest.raises(PayloadError, match="what rank 1 sent"):
        run.step(drawn(SHAPES, 3), damage=(0, 2, change))


@pytest.mark.parametrize("what", range(4))
def test_a_damaged_header_names_the_rank(what: int) -> None:
    said = ("rank 1's begins with", "rank 1's begins with", "rank 1 sent a message of another",
            "rank 1 is at step")[what]  # fmt: skip

    def change(messages: Tensor) -> Tensor:
        messages[1, :32].view(torch.int64)[what] = 99
        return messages

    run = Several(THRESHOLD, SHAPES, 3)
    with pytest.raises(PayloadError, match=said):
        run.step(drawn(SHAPES, 3), damage=(1, 2, change))


@pytest.mark.parametrize("text", ["threshold(0.5)+ef | allgather", "nonzero | allgather"])
def test_a_spoiled_step_sends_no_payload(text: str) -> None:
    """A spoiled step sends a header alone, and takes back what was encoded, wherever that lies."""
    bucket = Bucket((Parameter("a", (500,)), Parameter("b", (300,))))
    context = make_context(Strategy.parse(text), bucket, 0, 2, {})
    for step, spoiled in enumerate((False, True, False)):
        given = [normal(n, step + n) for n in bucket.sizes]
        if spoiled:
            given[0][7] = torch.inf
        context.begin(given, [x.clone() for x in given], StepInfo(step))
        context.message()
        assert (int(context.length[0]) == HEADER_BYTES) == spoiled
        if spoiled:
            context.codec.spoil()
        context.end(skipped=False)
    waits = context.codec.states[0].get("residual")
    assert waits is None or bool(waits.isfinite().all())

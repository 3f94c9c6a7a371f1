"""alltoall and vote: which rank owns what, what an owner computes, and what it remembers."""

from __future__ import annotations

import re
from collections.abc import Callable

import laws
import pytest
import torch
from inputs import integers, ranks
from several import Named, Several, all_nan, drawn, equal, mean
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.compressors import Sign
from gradwire.errors import PayloadError, StrategyError
from gradwire.layout.pieces import Pieces
from gradwire.local import OWNERS_RESIDUAL
from gradwire.strategy import Key

SHAPES = {"a": (30, 40), "b": (700,), "c": (3,), "d": (0,), "e": (9, 5)}
CODERS = ("int8", "qsgd(4)", "sign", "sign(scaled=True)", "onebit", "topk(0.1)", "terngrad")
MEMORIES = ("int8+ef", "qsgd(4)+ef", "efsignsgd", "onebit+ef", "topk(0.1)+ef", "bf16+ef",
            'onebit+ef | alltoall(means="qsgd(4)")')  # fmt: skip
every_world = pytest.mark.parametrize("world", [1, 2, 3, 5, 8])


# -- pieces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", range(1, 9))
def test_pieces_cover_every_element_once(world: int) -> None:
    for n in range(1001):
        pieces = Pieces.of("weight", n, world)
        assert len(pieces.bounds) == world
        at = 0
        for begin, end in pieces.bounds:
            assert begin == at <= end
            assert begin % 64 == 0 or begin == n, "pieces begin at cache lines"
            at = end
        assert at == n
        sizes = [end - begin for begin, end in pieces.bounds]
        assert max(sizes) < n / world + 64
        assert sorted(pieces.owners()) == list(range(world)), "an owner of two pieces"
        for rank in range(world):
            j = pieces.number_of(rank)
            assert pieces.owners()[j] == rank
            assert pieces.of_owner(rank) == pieces.bounds[j]


@pytest.mark.parametrize("world", range(2, 9))
def test_owners_rotate_with_the_name(world: int) -> None:
    """The first piece, the only one of a small parameter, falls to every rank about as often."""
    first = [Pieces.of(f"layers.{i}.weight", 40, world).owners()[0] for i in range(100 * world)]
    counts = [first.count(rank) for rank in range(world)]
    assert min(counts) > 50, counts
    again = [Pieces.of(f"layers.{i}.weight", 9000, world).owners()[0] for i in range(100 * world)]
    assert again == first, "the owner depends on the size"


# -- the result, by an independent reference -----------------------------------------------------


def reference(text: str, xs: list[Tensor], step: int) -> Tensor:
    """The result of alltoall without memory, piece by piece, from a compressor's parts alone."""
    compressor, world, n = Strategy.parse(f"{text} | alltoall").compressor, len(xs), len(xs[0])
    size = -(-n // (64 * world)) * 64
    first = Pieces.of("x", n, world).first_owner
    result = torch.full((n,), float("nan"))
    for j in range(world):
        begin, end = min(j * size, n), min((j + 1) * size, n)
        owner = (first + j) % world
        payloads = [
            laws.encoded(compressor, x[begin:end], Key(0, step, f"x/{j}", rank))
            for rank, x in enumerate(xs)
        ]
        total = torch.zeros(end - begin)
        for rank, payload in enumerate(payloads):
            key = Key(0, step, f"x/{j}", rank)
            total = total + laws.decoded(compressor, payload, end - begin, key)
        again = Key(0, step, f"x/mean of {owner}", owner)
        divided = total / torch.tensor(float(world))
        result[begin:end] = laws.through(compressor, divided, again)
    return result


@pytest.mark.once
@every_world
@pytest.mark.parametrize("text", [*CODERS, "randk(0.3)", "natural", "fp8", "none", "bf16"])
def test_the_result_is_the_reference_s(text: str, world: int) -> None:
    for step, n in enumerate((0, 1, 63, 500, 1000)):
        xs = ranks(world, n, step)
        wanted = reference(text, xs, step)
        for result in lockstep(f"{text} | alltoall", xs, step=step)[0]:
            laws.same(result, wanted, f"n = {n}")


@pytest.mark.once
@every_world
@pytest.mark.parametrize("text", [f"{c} | alltoall" for c in CODERS] + ["sign | vote"])
def test_several_parameters_are_each_as_alone(text: str, world: int) -> None:
    """A parameter's result is the same in every grouping, and all ranks end equal."""
    whole = Several(text, SHAPES, world)
    apart = Several(text, SHAPES, world, buckets=[["e", "a"], ["d", "b"], ["c"]])
    for step in range(2):
        gradients = drawn(SHAPES, world, step)
        one, other = whole.step(gradients), apart.step(gradients)
        for mine, theirs in zip(one, other):
            assert equal(mine, one[0])
            assert equal(theirs, mine)


# -- the majority --------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 3, 5, 7])
def test_the_vote_of_an_odd_number_is_the_majority_of_signs(world: int) -> None:
    for step, n in enumerate((1, 64, 65, 777)):
        xs = ranks(world, n, step)
        ayes = torch.stack([x > 0 for x in xs]).sum(0)
        wanted = torch.where(2 * ayes > world, 1.0, -1.0)
        for result in lockstep("signsgd | vote", xs, step=step)[0]:
            assert torch.equal(result, wanted)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_ties_are_fair_and_equal_on_all_ranks(world: int) -> None:
    n = 20_000
    x = ranks(1, n)[0]
    xs = [x, -x] * (world // 2)
    seen = []
    for step in range(3):
        results = lockstep("signsgd | vote", xs, step=step)[0]
        assert all(torch.equal(r, results[0]) for r in results)
        assert set(results[0].unique().tolist()) == {-1.0, 1.0}
        assert abs(float(results[0].mean())) < 5 / n**0.5, "ties lean to one side"
        follows = float((results[0] * x.sign()).mean())
        assert abs(follows) < 5 / n**0.5, "ties follow a rank"
        seen.append(results[0])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs(float((seen[one] * seen[other]).mean())) < 5 / n**0.5, "the same dice again"


def test_where_there_is_a_majority_dice_have_no_say() -> None:
    xs = [x.sign() for x in ranks(4, 5000)]
    total = torch.stack(xs).sum(0)
    result = lockstep("signsgd | vote", xs)[0][0]
    assert torch.equal(result[total != 0], total.sign()[total != 0])


@pytest.mark.parametrize("text", ["sign | allgather", "signsgd | vote", "sign | alltoall"])
def test_zeros_get_both_signs_about_equally(text: str) -> None:
    n = 20_000
    (result,) = lockstep(text, [torch.zeros(n)])[0]
    assert set(result.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(result.mean())) < 5 / n**0.5


def test_the_dice_of_zeros_follow_the_key() -> None:
    n, x = 4000, torch.zeros(4000)
    thrown = {
        name: laws.through(Sign(), x, key)
        for name, key in (
            ("plain", Key(0, 0, "w")), ("again", Key(0, 0, "w")), ("seed", Key(1, 0, "w")),
            ("step", Key(0, 1, "w")), ("name", Key(0, 0, "v")), ("rank", Key(0, 0, "w", 1)),
        )
    }  # fmt: skip
    assert torch.equal(thrown["plain"], thrown["again"])
    for name in ("seed", "step", "name"):
        assert abs(float((thrown["plain"] * thrown[name]).mean())) < 5 / n**0.5, name
    assert not torch.equal(thrown["plain"], thrown["rank"])
    mixed = torch.tensor([0.0, -0.0, 3.0, -3.0]).repeat(1000)
    signs = laws.through(Sign(), mixed).view(-1, 4)
    assert (signs[:, 2] == 1).all()
    assert (signs[:, 3] == -1).all()
    assert abs(float(signs[:, :2].mean())) < 5 / 2000**0.5


# -- the owner's memory --------------------------------------------------------------------------


def written(text: str) -> str:
    return text if "|" in text else f"{text} | alltoall"


def test_means_travel_by_a_compressor_of_their_own() -> None:
    """The means take the bytes of their own compressor, and lose nothing if it is lossless."""
    xs = ranks(4, 4096)
    exact, coarse = 'lloyd(1)+ef | alltoall(means="none")', "lloyd(1)+ef | alltoall"
    (mine, *_), trace = lockstep(exact, xs)
    wanted = lockstep("lloyd(1)+ef | allgather", xs)[0][0]
    assert torch.allclose(mine, wanted, atol=0.1), "scales are of other blocks"
    more = trace.bytes_sent[0] - lockstep(coarse, xs)[1].bytes_sent[0]
    assert more == pytest.approx(3 * 1024 * (4 - 1 / 8), rel=0.05)


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ("3", "alltoall's means must be a compressor, as text; got 3"),
        ('"foo"', "'foo' is not a compressor"),
        ('"int8+ef"', "'int8 + ef' is not a compressor"),
        ('"nonzero"', "promises 'fixed'"),
        ('"sign"', "'onebit' and 'sign' one sends directions"),
    ],
)
def test_means_of_no_compressor_are_refused(means: str, said: str) -> None:
    with pytest.raises(StrategyError, match=re.escape(said)):
        Strategy.parse(f"onebit+ef | alltoall(means={means})")


@pytest.mark.once
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("text", MEMORIES)
def test_over_fifty_steps_the_mean_is_the_true_mean(text: str, world: int) -> None:
    """What the first and the second compression lose is sent later."""
    xs = ranks(world, 300)
    wanted = torch.stack([x.double() for x in xs]).mean(0)
    state = [dict[str, Tensor]() for _ in xs]
    arrived, off = torch.zeros(300, dtype=torch.float64), []
    for step in range(50):
        arrived += lockstep(written(text), xs, step=step, state=state)[0][0].double()
        off.append(float((arrived / (step + 1) - wanted).norm() / wanted.norm()))
    assert off[49] < 0.2
    assert off[49] < max(off[4] / 2.5, 1e-5), "it does not fall"


@pytest.mark.parametrize("text", MEMORIES)
def test_only_owners_remember_and_only_their_piece(text: str) -> None:
    run = Several(written(text), SHAPES, 3)
    run.step(drawn(SHAPES, 3))
    for name, shape in SHAPES.items():
        n = int(torch.Size(shape).numel())
        for rank, memory in enumerate(run.memories):
            begin, end = Pieces.of(name, n, 3).of_owner(rank)
            assert memory[name][OWNERS_RESIDUAL].shape == (end - begin,)
            assert memory[name]["residual"].shape == (n,)


@pytest.mark.parametrize("text", ["int8 | alltoall", "topk(0.1)+momentum(0.9) | alltoall"])
def test_without_error_feedback_no_owner_remembers(text: str) -> None:
    run = Several(text, SHAPES, 3)
    run.step(drawn(SHAPES, 3))
    assert all(OWNERS_RESIDUAL not in state for m in run.memories for state in m.values())


def one_bad_number(gradients: list[Named]) -> None:
    gradients[1]["a"][3, 3] = float("nan")


def sums_that_overflow(gradients: list[Named]) -> None:
    """Makes the owners' sums overflow, though every gradient and every payload is finite."""
    for mine in gradients:
        mine["a"][:2] = 3e38


def one_owner_s_sum_overflows(gradients: list[Named]) -> None:
    """Makes a sum overflow of which other owners learn when they have encoded and moved on."""
    for mine in gradients:
        mine["b"][5] = 3e38


SPOILED = [
    (text, spoil)
    for text in (*MEMORIES, "dgc(0.1)")
    for spoil in (one_bad_number, sums_that_overflow, one_owner_s_sum_overflows)
    if spoil is not one_owner_s_sum_overflows
    or not text.startswith(("efsignsgd", "onebit+ef"))  # means
]


@pytest.mark.once
@pytest.mark.parametrize("exact_undo", [True, False])
@pytest.mark.parametrize(("text", "spoil"), SPOILED)
def test_a_spoiled_step_leaves_the_states(
    text: str, spoil: Callable[[list[Named]], None], exact_undo: bool
) -> None:
    run = Several(written(text), SHAPES, 3, exact_undo=exact_undo)
    for step in (0, 1):
        if step:
            for earlier in range(3):
                run.step(drawn(SHAPES, 3, earlier))
        before, bad = run.kept(), drawn(SHAPES, 3, 9)
        spoil(bad)
        assert all_nan(run.step(bad))
        for memory, was in zip(run.memories, before):
            for name, state in memory.items():
                assert set(state) == set(was[name]), f"{name}: state appeared or went"
                for key, value in state.items():
                    if exact_undo:
                        assert torch.equal(value, was[name][key]), f"{name}: {key}"
                    else:
                        close = torch.allclose(value, was[name][key], rtol=1e-5, atol=1e-5)
                        assert close, f"{name}: {key}"
    for mine in run.step(drawn(SHAPES, 3, 4)):
        assert all(bool(x.isfinite().all()) for x in mine.values())


@pytest.mark.parametrize("text", MEMORIES)
def test_a_skipped_step_gives_back_and_restores_the_owner(text: str) -> None:
    run = Several(written(text), SHAPES, 3)
    for step in range(4):
        gradients, before = drawn(SHAPES, 3, step), run.kept()
        run.step(gradients, skipped=True)
        for rank, memory in enumerate(run.memories):
            for name, state in memory.items():
                was, zero = before[rank][name], torch.zeros(())
                if OWNERS_RESIDUAL in was:
                    kept = was[OWNERS_RESIDUAL]
                    assert torch.allclose(state[OWNERS_RESIDUAL], kept, rtol=1e-5, atol=1e-5)
                else:
                    assert OWNERS_RESIDUAL not in state
                wanted = was.get("residual", zero) + gradients[rank][name].view(-1)
                assert torch.allclose(state["residual"], wanted, rtol=1e-5, atol=1e-5)
        run.step(drawn(SHAPES, 3, 10 + step))


@pytest.mark.parametrize("text", [*MEMORIES, "dgc(0.1)"])
def test_the_state_survives_another_grouping(text: str) -> None:
    names = list(SHAPES)
    whole = Several(written(text), SHAPES, 3)
    first = Several(written(text), SHAPES, 3, buckets=[names[:2], names[2:]])
    for step in range(3):
        for run in (whole, first):
            run.step(drawn(SHAPES, 3, step))
    second = Several(
        written(text), SHAPES, 3, memories=first.memories,
        buckets=[[names[4], names[1]], [names[0]], [names[2], names[3]]],
    )  # fmt: skip
    second.taken = whole.taken
    for step in range(3, 6):
        gradients = drawn(SHAPES, 3, step)
        for one, other in zip(whole.step(gradients), second.step(gradients)):
            assert equal(one, other)
    for memory, wanted in zip(second.memories, whole.memories):
        for name, state in memory.items():
            assert equal(dict(state), dict(wanted[name]))


def test_whole_numbers_that_every_format_holds_are_the_mean() -> None:
    xs = integers(4, 300)
    result = lockstep("none | alltoall", xs)[0][0]
    assert torch.equal(result, torch.stack(xs).sum(0) / 4)


@pytest.mark.parametrize(
    ("text", "most"), [("int8", 0.02), ("qsgd(8)", 0.02), ("natural", 0.5), ("fp8", 0.06)]
)
def test_several_parameters_come_near_their_means(text: str, most: float) -> None:
    gradients = drawn(SHAPES, 3)
    (mine, *_) = Several(written(text), SHAPES, 3).step(gradients)
    for name in ("a", "b", "e"):
        wanted = mean(gradients, name)
        assert float((mine[name].double() - wanted).norm() / wanted.norm()) < most


# -- damage --------------------------------------------------------------------------------------

HEADER: dict[str, tuple[int, int, str]] = {
    "magic": (0, 0x1234, "rank 1's begins with 0x1234"),
    "flags": (1, 4, "rank 1's begins with"),
    "digest": (2, 77, "rank 1 sent a message of another bucket"),
    "step": (3, 8, "rank 1 is at step 8"),
}


def of_rank_1(arrived: Tensor, world: int) -> Tensor:
    """What rank 1 sent, in either move: all messages of a move have one length."""
    return arrived.view(world, -1)[1]


@pytest.mark.parametrize("receiver", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1], ids=["first move", "second move"])
@pytest.mark.parametrize("what", HEADER)
@pytest.mark.parametrize("text", ["int8 | alltoall", "int8+ef | alltoall", "signsgd | vote"])
def test_a_damaged_header_names_the_rank(text: str, what: str, at: int, receiver: int) -> None:
    word, value, said = HEADER[what]

    def change(arrived: Tensor) -> Tensor:
        of_rank_1(arrived, 3)[:32].view(torch.int64)[word] = value
        return arrived

    run = Several(text, SHAPES, 3)
    with pytest.raises(PayloadError, match=said):
        run.step(drawn(SHAPES, 3), damage=(at, receiver, change))


@pytest.mark.parametrize("receiver", [0, 2])
@pytest.mark.parametrize("text", ["int8+ef | alltoall", "signsgd | vote"])
def test_an_owner_tells_all_of_damage_that_it_alone_received(text: str, receiver: int) -> None:
    def change(arrived: Tensor) -> Tensor:
        of_rank_1(arrived, 3)[:32].view(torch.int64)[3] = 8
        return arrived

    run = Several(text, SHAPES, 3)
    with pytest.raises(PayloadError) as raised:
        run.step(drawn(SHAPES, 3), damage=(0, receiver, change))
    assert str(raised.value).count("rank 1 is at step 8") == 1
    assert str(raised.value).count(f"rank {receiver} received a damaged payload") == 2


# The rank that received it names the sender; the others are told which rank that was.
NAMED = r"'a'.*payload 1|'a'.*rank 1|rank \d received a damaged payload"


@pytest.mark.parametrize("receiver", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1], ids=["first move", "second move"])
@pytest.mark.parametrize("text", ["int8", "int8+ef", "qsgd(4)", "efsignsgd", "onebit", "terngrad"])
def test_a_damaged_scale_names_the_parameter_and_the_rank(
    text: str, at: int, receiver: int
) -> None:
    """Scales come first in these payloads, right behind the header."""

    def change(arrived: Tensor) -> Tensor:
        of_rank_1(arrived, 3)[32:36].view(torch.float32).fill_(float("nan"))
        return arrived

    run = Several(written(text), {"a": (900,)}, 3)
    with pytest.raises(PayloadError, match=NAMED):
        run.step(drawn(run.shapes, 3), damage=(at, receiver, change))


@pytest.mark.parametrize("at", [0, 1], ids=["first move", "second move"])
@pytest.mark.parametrize("index", ["int32", "gap8", "elias_fano", "bitmap"])
def test_damaged_places_name_the_parameter_and_the_rank(index: str, at: int) -> None:
    def change(arrived: Tensor) -> Tensor:
        of_rank_1(arrived, 3)[32:40].fill_(0xFE)
        return arrived

    run = Several(f"topk(0.1, index='{index}')+ef | alltoall", {"a": (900,)}, 3)
    with pytest.raises(PayloadError, match=NAMED):
        run.step(drawn(run.shapes, 3), damage=(at, 2, change))


@pytest.mark.parametrize("at", [0, 1], ids=["first move", "second move"])
@pytest.mark.parametrize("cut", [1, 8, 64])
def test_a_message_cut_short_is_a_payload_error(at: int, cut: int) -> None:
    def change(arrived: Tensor) -> Tensor:
        return arrived[..., :-cut].contiguous()

    run = Several("int8+ef | alltoall", SHAPES, 3)
    with pytest.raises(PayloadError, match="by the plan"):
        run.step(drawn(SHAPES, 3), damage=(at, 0, change))

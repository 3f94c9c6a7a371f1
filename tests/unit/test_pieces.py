"""A parameter coded piece by piece, with feedback: in one pass, with the same bits as composed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.kernels import UpdateTopk, is_raised, new_status
from gradwire.kernels.update import update_many_topk
from gradwire.layout.message import Layout
from gradwire.layout.pieces import Pieces
from gradwire.local import Own
from gradwire.runtime.encoder import ComposedEncoder, make_encoder
from gradwire.runtime.pieces import PieceByPiece
from gradwire.strategy import Key, Sections, StepInfo

WORLD = 3
IN_ONE_PASS = (
    "int8+ef", "terngrad(clip=2.5)+ef", "fp8+ef", "qsgd(4)+ef", "natural+ef",
    "int8+dgc(mask=False)", "topk(0.1)+ef", "dgc(0.1)",
    'topk(0.1, values="bf16")+dgc(momentum=0.5, nesterov=True)',
)  # fmt: skip
SIZES = (1, 64, 200, 5000, 20_011)  # of 1 and 64 two pieces are empty


def pieces_of(text: str, n: int) -> tuple[Strategy, PieceByPiece]:
    strategy = Strategy.parse(f"{text} | alltoall")
    return strategy, PieceByPiece(strategy.compressor, Pieces.of("w", n, WORLD).bounds)


def sections_of(pieces: PieceByPiece, n: int) -> Sections:
    layout = Layout.of([pieces.claims(n)])
    return layout.views(torch.zeros(layout.bytes, dtype=torch.uint8))[0]


def gradient(n: int, step: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(step))


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("text", [*IN_ONE_PASS, "topk(0.1)", "none"])
def test_same_bits_as_the_composition(text: str, n: int) -> None:
    strategy, pieces = pieces_of(text, n)
    both = (
        make_encoder(pieces, strategy.feedback), ComposedEncoder(pieces, strategy.feedback)
    )  # fmt: skip
    states: list[dict[str, Tensor]] = [{}, {}]
    for step in range(3):
        written = []
        for encoder, state in zip(both, states):
            written.append(sections_of(pieces, n))
            info, key = StepInfo(step, 0.5 if step else 1.0), Key(7, step, "w", 1)
            status = new_status()
            encoder.encode(gradient(n, step), state, written[-1], info, key, status)
            assert not is_raised(status)
            encoder.release()
        assert all(same(a, b) for a, b in zip(*written))
        assert states[0].keys() == states[1].keys()
        assert all(same(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("text", ["terngrad(clip=0.5)", "qsgd(4)", "threshold(0.5)"])
def test_beside_others_a_compressor_writes_what_it_writes_alone(text: str) -> None:
    compressor, n = Strategy.parse(f"{text} | allgather").compressor, 5000
    written, x, key = [], gradient(n, 1), Key(7, 0, "w", 1)
    for alone in (True, False):
        claimed = compressor.claims(n).sections
        sections = [torch.zeros(size, dtype=getattr(torch, kind)) for kind, size in claimed]
        if alone:
            compressor.encode(x, sections, key, new_status())
        else:
            encoder = ComposedEncoder(compressor, None)
            encoder.encode(x, {}, sections, StepInfo(0), key, new_status())
        written.append(sections)
    assert all(same(a, b) for a, b in zip(*written))


@pytest.mark.parametrize("n", SIZES[1:])
def test_the_places_are_those_of_what_arrives(n: int) -> None:
    _, pieces = pieces_of("randk(0.3)", n)
    sections, key, arrived = sections_of(pieces, n), Key(7, 0, "w", 1), torch.zeros(n)
    status = new_status()
    pieces.encode(torch.ones(n), sections, key, status)
    assert not is_raised(status)
    places = pieces.places(sections, n, key)
    assert places is not None
    pieces.decode(sections, arrived, key)
    assert places.tolist() == arrived.nonzero().flatten().tolist()


@pytest.mark.parametrize(("text", "dice"), [("int8", 1), ("qsgd(4)", WORLD)])
def test_each_piece_is_coded_where_it_lies(text: str, dice: int) -> None:
    """Each piece also has dice of its own, if it is random."""
    _, pieces = pieces_of(text, 5000)
    sections = sections_of(pieces, 5000)
    blocks = pieces.blocks(sections, Key(0, 0, "w"))
    assert [block.place for block in blocks] == [slice(*bounds) for bounds in pieces.bounds]
    assert all(block.codes is codes for block, codes in zip(blocks, sections[1::2]))
    assert len({block.noise for block in blocks}) == dice


def test_what_is_not_in_blocks_by_itself_is_not_in_pieces() -> None:
    _, pieces = pieces_of("topk(0.1)", 5000)
    assert not pieces.blocks(sections_of(pieces, 5000), Key(0, 0, "w"))


@pytest.mark.parametrize("text", ["int8+ef", "topk(0.1)+ef", "dgc(0.1)"])
def test_kernels_are_asked_once_for_all_pieces(text: str) -> None:
    strategy, pieces = pieces_of(text, 5000)
    encoder, sections = make_encoder(pieces, strategy.feedback), sections_of(pieces, 5000)
    own, status = Own(gradient(5000, 0), {}, StepInfo(0), Key(7, 0, "w")), new_status()
    work, asked = encoder.work(own, sections, status), list[int]()
    segments = next(work, None)
    while segments is not None:
        asked.append(len(segments))
        selects = isinstance(segments[0], UpdateTopk)
        given = update_many_topk(segments, status) if selects else []
        try:
            segments = work.send(given)
        except StopIteration:
            break
    assert asked == [WORLD] * (1 if "int8" in text else 2)


@pytest.mark.parametrize("text", ["topk(0.1)+ef", "dgc(0.1)"])
def test_a_step_that_makes_the_state_puts_nothing_aside(text: str) -> None:
    """The first step after a resume, which knows no threshold, keeps all of it in the journal."""
    strategy, pieces = pieces_of(text, 5000)
    state, put_aside = dict[str, Tensor](), []
    for step in range(2):
        encoder, sections = make_encoder(pieces, strategy.feedback), sections_of(pieces, 5000)
        given = gradient(5000, step), state, sections, StepInfo(step), Key(7, step, "w")
        encoder.encode(*given, new_status())
        put_aside.append(sum(own.journal.elements for own in encoder.encoders))
    assert put_aside == [0, 5000]


@pytest.mark.parametrize("text", IN_ONE_PASS)
def test_a_first_step_that_is_spoiled_leaves_no_state(text: str) -> None:
    strategy, pieces = pieces_of(text, 5000)
    encoder, state = make_encoder(pieces, strategy.feedback), dict[str, Tensor]()
    x, sections, status = gradient(5000, 0), sections_of(pieces, 5000), new_status()
    x[7] = torch.inf
    encoder.encode(x, state, sections, StepInfo(0), Key(7, 0, "w"), status)
    assert is_raised(status)
    encoder.undo(x, state, sections, StepInfo(0))
    assert not state


@pytest.mark.parametrize("text", [one for one in IN_ONE_PASS if "topk" in one or "dgc(0.1" in one])
def test_what_was_sent_of_every_piece_is_given_back(text: str) -> None:
    """It is put back into a state that was loaded since."""
    strategy, pieces = pieces_of(text, 5000)
    encoder, state = make_encoder(pieces, strategy.feedback), dict[str, Tensor]()
    for step in range(2):
        sections, status = sections_of(pieces, 5000), new_status()
        encoder.encode(
            gradient(5000, step), state, sections, StepInfo(step), Key(7, step, "w"), status
        )
        kept, arrived = state["residual"].clone(), torch.zeros(5000)
        pieces.decode(sections, arrived)
        state = {name: x.clone() for name, x in state.items()}
        encoder.give_back(state, sections)
        assert same(state["residual"], kept + arrived)
        assert bool(arrived.any())
        encoder.release()


@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("text", IN_ONE_PASS)
def test_every_piece_is_undone(text: str, spoiled: bool) -> None:
    """It works even if gradients are so large beside the state that inverting would lose it."""
    n = 5000
    strategy, pieces = pieces_of(text, n)
    encoder, state = make_encoder(pieces, strategy.feedback), dict[str, Tensor]()
    sections = sections_of(pieces, n)
    status = new_status()
    encoder.encode(gradient(n, 0), state, sections, StepInfo(0), Key(7, 0, "w"), status)
    assert not is_raised(status)
    encoder.release()
    before = {name: value.clone() for name, value in state.items()}
    x = gradient(n, 1) * 1e8
    x[n // 2] = torch.inf if spoiled else 0.0
    status = new_status()
    encoder.encode(x, state, sections, StepInfo(1), Key(7, 1, "w"), status)
    assert is_raised(status) == spoiled
    encoder.undo(x, state, sections, StepInfo(1))
    for name, value in before.items():
        assert same(state[name], value), "all of it was put aside"

"""Work done together: one call for many parameters gives the bits of one call after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from samples import draw
from single import accumulate_coded, accumulate_codes, adam_codes, update_codes

from gradwire import kernels
from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import UpdateCodes, UpdateTopk, Work, cpu, new_status, together
from gradwire.kernels.formats import INT8, LLOYD2, TERNARY, Format
from gradwire.kernels.segments import AdamCodes, CastInto, Reach, SumCoded, SumCodes
from gradwire.kernels.values import AdamStep, Noise

pytestmark = pytest.mark.usefixtures("instruction_set")
NOISE, HOW = Noise.of("together"), AdamStep.of(3, 0.9, 0.99, 1e-8)
SIZES = 1, 700, 0, 3000


def coded(form: Format, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(form.code_bytes(n), dtype=torch.uint8), torch.zeros(form.scales(n))


def update(n: int, form: Format, seed: int) -> UpdateCodes:
    g, v = draw("normal", n, seed), draw("normal", n, seed + 1)
    return UpdateCodes(form, g, None, v, *coded(form, n), NOISE, None, clip=1.5)


def topk(n: int, seed: int) -> UpdateTopk:
    g, v, k = draw("normal", n, seed), draw("normal", n, seed + 1), -(-n // 10)
    return UpdateTopk(g, None, v, k, torch.zeros(k, dtype=torch.int32), torch.zeros(k), None, None)


def step(n: int, form: Format, seed: int) -> AdamCodes:
    g, m, q, v = (draw("normal", n, seed + i) for i in range(4))
    return AdamCodes(form, g, (m, q.square()), v, HOW, *coded(form, n), NOISE, 0.5)


def tensors(segment: Any) -> list[torch.Tensor]:
    flat = [x for value in segment for x in (value if isinstance(value, tuple) else (value,))]
    return [x for x in flat if isinstance(x, torch.Tensor)]


def asking(*rounds: Any, found: list[Any]) -> Work:
    for segments in rounds:
        answer = yield segments
        found.append(answer)


def test_many_are_as_one_after_the_other() -> None:
    """Several formats, some of them not coded in one pass, and parameters without elements."""
    forms = (INT8, LLOYD2, TERNARY, INT8)
    for make in (update, step):
        together_, alone = ([make(n, f, n) for n, f in zip(SIZES, forms)] for _ in range(2))
        status = new_status()
        together([asking([segment], found=[]) for segment in together_], status)
        for segment in alone:
            given = segment._asdict()
            (update_codes if make is update else adam_codes)(**given, status=new_status())
        for mine, wanted in zip(together_, alone):
            assert all(map(torch.equal, tensors(mine), tensors(wanted)))
        assert not status


def test_each_gets_its_own_answers_in_order() -> None:
    hints: list[list[Any]] = [[] for _ in range(3)]
    both = [topk(700, 1), update(700, INT8, 3), topk(300, 5)]
    later, alone = topk(3000, 7), [topk(700, 1), topk(300, 5), topk(3000, 7)]
    works = [
        asking(both, found=hints[0]), asking([later], [], found=hints[1]),
        asking(found=hints[2]),
    ]  # fmt: skip
    together(works, new_status())
    wanted = [kernels.update_topk(**segment._asdict(), status=new_status()) for segment in alone]
    assert hints == [[[wanted[0], None, wanted[1]]], [[wanted[2]], []], []]


def test_what_is_asked_for_at_one_time_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels.instruction_set() == "twin":
        pytest.skip("a room's calls are counted")
    calls = []
    original = cpu.update_codes
    monkeypatch.setattr(
        cpu, "update_codes", lambda all, word: (calls.append(len(all)), original(all, word))[1]
    )
    rounds = [[[update(n, INT8, n)], [update(n, INT8, n)]] for n in SIZES]
    rounds[1].pop()
    together([asking(*own, found=[]) for own in rounds], new_status())
    assert calls == [4, 3]


@pytest.mark.parametrize("first", [[], [CastInto(torch.ones(2), torch.zeros(2))]], ids=len)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_later_search_does_not_touch_what_was_found(first: list[Any], is_first: bool) -> None:
    """Even if one work searches while the other writes what it has found."""
    x, other = torch.tensor([0.0, 1.0, 0.0, 2.0]), torch.tensor([9.0, 0.0, 8.0, 0.0])
    sent = [torch.zeros(2, dtype=torch.int32), torch.zeros(2)]

    def writes() -> Work:
        (found,) = yield [Reach(x, 0.5)]
        yield [kernels.WriteEntries(*found, 4, "int32", *sent)]

    works = [writes(), asking(first, [Reach(other, 0.5)], found=[])]
    together(works[::-1] if is_first else works, new_status())
    assert [part.tolist() for part in sent] == [[1, 3], [1.0, 2.0]]


def test_one_that_is_not_finite_raises_the_word_of_all() -> None:
    segments = [update(n, INT8, n) for n in SIZES]
    segments[1].gradient[5] = torch.inf
    status = new_status()
    together([asking([segment], found=[]) for segment in segments], status)
    assert status


def test_what_a_work_raises_is_raised() -> None:
    def fails() -> Iterator[Any]:
        yield []
        raise KernelError("no")

    with pytest.raises(KernelError, match="no"):
        together([fails(), asking([update(3, INT8, 0)], found=[])], new_status())


def listed(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places in gap8, with values."""
    places = torch.arange(seed, n, 9, dtype=torch.int32)
    section = torch.empty(kernels.code_bytes("gap8", n, places.numel()), dtype=torch.uint8)
    kernels.encode_indices(places, n, "gap8", section)
    return section, torch.randn(places.numel(), generator=torch.Generator().manual_seed(seed))


def test_sums_of_all_kinds_are_what_each_is_by_itself() -> None:
    n = 700
    codes, lists = [coded(INT8, n), coded(INT8, n)], [listed(n, 2), listed(n, 5)]
    sections, values = [s for s, _ in lists], [v for _, v in lists]
    first, second, *outs = (torch.full((n,), 7.0) for _ in range(6))
    accumulate_codes(INT8, first, codes, 2.0)
    accumulate_coded(second, ["gap8"] * 2, sections, values, 3.0)
    of_codes = [SumCodes(INT8, out, codes, 2.0) for out in outs[::2]]
    of_places = [SumCoded(out, ["gap8"] * 2, sections, values, 3.0) for out in outs[1::2]]
    kernels.add_up([of_codes[0], of_places[0], of_codes[1], of_places[1]])
    for out, wanted in zip(outs, (first, second, first, second)):
        assert torch.equal(out, wanted)
    kernels.add_up([])


def test_of_bad_payloads_the_first_is_named_and_what_follows_is_not_written() -> None:
    n = 700
    good = coded(INT8, n)
    bad = (good[0], torch.full_like(good[1], torch.nan))
    outs = [torch.full((n,), 7.0) for _ in range(3)]
    lists = [[good], [good, bad], [good]]
    with pytest.raises(PayloadError, match="payload 1: scales must be finite"):
        kernels.add_up([SumCodes(INT8, out, own, 2.0) for out, own in zip(outs, lists)])
    assert [float(out[0]) for out in outs] == [0.0, 7.0, 7.0]


def test_of_bad_lists_the_first_is_named_and_what_follows_is_not_written() -> None:
    n, (good, values) = 700, listed(700, 2)
    bad = torch.full_like(good, 255)
    outs = [torch.full((n,), 7.0) for _ in range(3)]
    given = [[good, good], [good, bad], [good, good]]
    with pytest.raises(PayloadError, match="payload 1: "):
        kernels.add_up(
            [SumCoded(out, ["gap8"] * 2, s, [values] * 2, 2.0) for out, s in zip(outs, given)]
        )
    assert [float(out[0]) for out in outs] == [0.0, 7.0, 7.0]


def test_a_word_that_is_none_is_refused_even_for_nothing() -> None:
    with pytest.raises(KernelError, match="status must be"):
        kernels.codes.update_codes([], torch.zeros(2))

"""Recurrences and exact selections on CUDA, in the interpreter: the same bits as the twins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from interpreted import every_float, same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import drawn, places
from gradwire.errors import KernelError
from gradwire.kernels import Journal, UndoTopk, UpdateTopk, cuda, new_status, update_codes, use
from gradwire.kernels.cuda import selection
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.native import TWIN
from gradwire.kernels.update import update_many_topk
from gradwire.kernels.values import Hint, Words

SIZES = (5000, 0, 1, 4096, 40, 4095, 4097, 70_000, 3000)
KS = (50, 0, 1, 2048, 40, 4000, 1, 700, 0)
RULES = [(None, False), (0.9, False), (0.9, True)]
every_rule = pytest.mark.parametrize(("momentum", "nesterov"), RULES)


def segments(
    step: int, momentum: float | None, nesterov: bool, kind: str, dtype: torch.dtype,
    hints: Sequence[Hint], state: list[tuple[Tensor | None, Tensor]],
) -> list[UpdateTopk]:  # fmt: skip
    return [
        UpdateTopk(
            drawn(n, 31 * step + i, kind, dtype), u, v, k,
            torch.full((k,), -1, dtype=torch.int32), torch.full((k,), 7.0),
            None if u is None else torch.full((k,), 7.0), momentum, nesterov,
            mask=i % 2 == 0, scale=0.5, decay=0.9 if momentum is None else 1.0, hint=hints[i],
        )
        for i, ((u, v), n, k) in enumerate(zip(state, SIZES, KS))
    ]  # fmt: skip


def tensors(made: Sequence[UpdateTopk]) -> list[Tensor]:
    return [
        x for one in made
        for x in (one.indices, one.values, one.residual, one.velocity, one.velocities)
        if x is not None
    ]  # fmt: skip


@pytest.mark.once
@every_rule
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("normal", torch.float32),
        ("ties", torch.bfloat16),
        ("zeros", torch.float16),
        ("bad", torch.float32),
    ],
)
def test_updates_of_many_are_the_twins(
    momentum: float | None, nesterov: bool, kind: str, dtype: torch.dtype
) -> None:
    """The first step takes the exact path; later ones use the hint, a word on the device."""

    def begun() -> list[tuple[Tensor | None, Tensor]]:
        return [
            (None if momentum is None else drawn(n, 7 + i), drawn(n, 5 + i))
            for i, n in enumerate(SIZES)
        ]

    states: list[list[tuple[Tensor | None, Tensor]]] = [begun(), begun()]
    hints: list[Sequence[Hint]] = [[0.0] * len(SIZES)] * 2
    for step in range(3):
        made = [
            segments(step, momentum, nesterov, kind, dtype, *own) for own in zip(hints, states)
        ]
        turns = iter(made)

        def given(
            status: Tensor, turns: Iterator[list[UpdateTopk]] = turns
        ) -> tuple[list[object], list[Tensor]]:
            own = next(turns)
            return [own, status], tensors(own)

        hints = same_by_both([cuda.update_topk, twins.update_topk], given)
        assert all(isinstance(hint, Words) for hint in hints[0])


@every_float
@pytest.mark.parametrize("n", [5000, 4096, 77])
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "bad"])
def test_selections_without_memory_are_the_twins(kind: str, n: int, dtype: torch.dtype) -> None:
    hint: Hint = 0.0
    for step, k in enumerate((30, 30, n - 1, 0)):

        def given(
            status: Tensor, step: int = step, k: int = k, hint: Hint = hint
        ) -> tuple[list[object], list[Tensor]]:
            x = drawn(n, step, kind, dtype)
            indices, values = torch.zeros(k, dtype=torch.int32), torch.zeros(k)
            return [x, k, indices, values, status, hint], [x, indices, values]

        hint, _ = same_by_both([cuda.topk, twins.topk], given)


def launched(monkeypatch: pytest.MonkeyPatch, made: Sequence[UpdateTopk]) -> list[str]:
    """The names of the kernels that an update launches."""
    names = list[str]()

    def noted(kernel: Any, *given: Any, **constants: Any) -> None:
        names.append(kernel.fn.__name__)
        launch(kernel, *given, **constants)

    with monkeypatch.context() as patched:
        patched.setattr(selection, "launch", noted)
        cuda.update_topk(made, new_status())
    return names


NINE = ["mark", "scan", "compact", *["digit"] * 4, "count", "emit"]


@pytest.mark.parametrize(
    ("sizes", "k", "wanted"),
    [
        ((4096, 1, 70), 1, ["choose"]),
        ((4097, 5000), 1, NINE),
        ((4096, 4097, 1), 1, ["choose", *NINE]),
        ((4096, 4097, 1), 0, ["mark"]),
        ((4096, 1), 0, ["mark"]),
    ],
)
def test_what_is_one_block_is_chosen_from_in_one_launch(
    sizes: Sequence[int], k: int, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = torch.zeros(k, dtype=torch.int32)
    made = [
        UpdateTopk(drawn(n, 1), None, drawn(n, 2), k, places.clone(), torch.zeros(k), None, None)
        for n in sizes
    ]
    assert launched(monkeypatch, made) == wanted


@pytest.mark.parametrize("kind", ["normal", "ties", "bad"])
def test_the_next_threshold_of_a_block_is_the_twin_s(kind: str) -> None:
    """The next hint is the k-th largest, by which journals know what is large, in both words."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            UpdateTopk(
                drawn(n, n, kind), None, torch.zeros(n), k, torch.zeros(k, dtype=torch.int32),
                torch.zeros(k), None, None,
            )
            for n, k in ((4096, 40), (40, 40), (10, 1))
        ]  # fmt: skip
        return [made, status], tensors(made)

    mine, wanted = same_by_both([cuda.update_topk, twins.update_topk], given)
    for words, number in zip(mine, wanted):
        assert words.view().tolist() == [pytest.approx(number, abs=0)] * 2


@every_rule
@pytest.mark.parametrize("n", [4096, 300, 5000])
def test_neighbours_and_what_was_not_finite_before(
    n: int, momentum: float | None, nesterov: bool
) -> None:
    """Selection is exact for magnitudes that differ in their last bit, five alike. Infinite ones
    are chosen last, are sent as zero and stay."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = []
        for k in (1, n // 3, n // 2, n - 1, n):
            order = torch.randperm(n, generator=torch.Generator().manual_seed(k))
            v = (order // 5 + 2**30).int().view(torch.float32)
            v[[1, 9, n - 1]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
            u = None if momentum is None else torch.zeros(n)
            made.append(UpdateTopk(
                torch.zeros(n), u, v, k, torch.zeros(k, dtype=torch.int32), torch.zeros(k),
                None if u is None else torch.zeros(k), momentum, nesterov,
            ))  # fmt: skip
        return [made, status], tensors(made)

    same_by_both([cuda.update_topk, twins.update_topk], given)


@every_rule
def test_a_block_is_kept_whole_where_a_gradient_is_large(
    momentum: float | None, nesterov: bool
) -> None:
    for n, large in ((4096, 1e9), (50, -1e12), (50, 1.0)):
        u, v = None if momentum is None else drawn(n, 1), drawn(n, 2)
        old, g, journal = [x.clone() for x in (u, v) if x is not None], drawn(n, 3), Journal()
        g[n - 1] = large
        places, values = torch.zeros(5, dtype=torch.int32), torch.zeros(5)
        velocities = None if u is None else torch.zeros(5)
        one = UpdateTopk(
            g, u, v, 5, places, values, velocities, momentum, nesterov, hint=2.0, journal=journal
        )
        cuda.update_topk([one], new_status())
        assert journal.elements == (0 if large == 1.0 else n)
        Journal.put_all_back([(journal, u, v)])
        if large != 1.0:
            assert all(map(torch.equal, (x for x in (u, v) if x is not None), old))


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_what_many_keep_comes_back_at_once(momentum: float | None) -> None:
    """Journals are undone in one call, though some are empty or hold less than was asked."""
    sizes, large = (50, 9 * 4096, 4096, 4096 + 1, 0), (1e9, 1e9, 1.0, -1e9, 1.0)
    made, old, journals = [], [], [Journal() for _ in sizes]
    for n, far, journal in zip(sizes, large, journals):
        g, v, u = drawn(n, 3), drawn(n, 2), None if momentum is None else drawn(n, 1)
        g[n - 1 :] = far
        places, nothing = torch.zeros(0, dtype=torch.int32), torch.zeros(0)
        made.append(UpdateTopk(
            g, u, v, 0, places, nothing, None if u is None else nothing, momentum, hint=2.0,
            journal=journal,
        ))  # fmt: skip
        old.append([x.clone() for x in (u, v) if x is not None])
    for own in (made[:2], made[2:]):
        cuda.update_topk(own, new_status())
    assert [journal.elements for journal in journals] == [50, 4096, 0, 1, 0]
    Journal.put_all_back([
        *((one.journal, one.velocity, one.residual) for one in made), (None, None, torch.zeros(9)),
    ])  # fmt: skip
    for one, before, journal in zip(made, old, journals):
        part = slice(len(one.residual) - journal.elements, None)
        now = [x for x in (one.velocity, one.residual) if x is not None]
        assert all(torch.equal(x[part], y[part]) for x, y in zip(now, before))


@pytest.mark.parametrize("hint", [1e-30, 0.5, 2.0, 1e30])
def test_no_threshold_changes_what_is_selected(hint: float) -> None:
    """The selection is the same whether all, many, few or no elements are candidates."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        indices, values = torch.zeros(50, dtype=torch.int32), torch.zeros(50)
        return [drawn(9000, 1), 50, indices, values, status, hint], [indices, values]

    same_by_both([cuda.topk, twins.topk], given)


@every_rule
@every_float
@pytest.mark.parametrize("takes", [True, False])
def test_undoing_many_is_the_twins(
    momentum: float | None, nesterov: bool, dtype: torch.dtype, takes: bool
) -> None:
    """Undoing equals the twins', and so does giving back, where there is no gradient."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = []
        for i, n in enumerate((5000, 0, 1, 4096, 70)):
            k = n // 9 if takes else 0
            v, u = drawn(n, 3 + i), None if momentum is None else drawn(n, 7 + i)
            g = drawn(2 * n, i, dtype=dtype)[::2] if i == 4 else drawn(n, i, dtype=dtype)
            v[11:12] = 3e38
            made.append(UndoTopk(
                None if i == 3 else g, u, v, places(n, k, i), drawn(k, 5),
                None if u is None else drawn(k, 6), momentum, nesterov, i % 2 == 0, 0.5, 0.9,
            ))  # fmt: skip
        return [made], [x for one in made for x in one[1:3] if x is not None]

    found = same_by_both([cuda.undo_topk, twins.undo_topk], given)
    assert found == [5, 5]


def test_places_that_are_none_are_left_out() -> None:
    """Invalid places are skipped: on a device the host does not wait to learn of them."""
    u, v, wide = torch.zeros(4), torch.zeros(4), torch.zeros(12)
    wrong = torch.tensor([-1, 2, 4, -(2**31), 2**31 - 1], dtype=torch.int32)
    one = UndoTopk(None, u, v, wrong, torch.ones(5), torch.ones(5), 0.9)
    for own in (one, one._replace(velocity=wide[4:8], residual=wide[4:8], mask=False)):
        assert cuda.undo_topk([own]) == 1
    assert u.tolist() == v.tolist() == [0, 0, 1, 0]
    assert wide.tolist() == [0] * 6 + [1] + [0] * 5


def test_a_velocity_that_is_none_has_no_place() -> None:
    one = UndoTopk(None, None, torch.zeros(4), places(4, 2, 1), *torch.ones((2, 2)), None)
    cuda.undo_topk([one])
    assert one.residual.sum() == 2


@every_rule
def test_large_blocks_are_kept_and_come_back_to_the_bit(
    momentum: float | None, nesterov: bool
) -> None:
    """Blocks with a gradient far beyond the threshold are kept: inverting would lose them."""
    n = 20 * 4096
    u, v = None if momentum is None else drawn(n, 1), drawn(n, 2)
    old_u, old_v = None if u is None else u.clone(), v.clone()
    g, journal = drawn(n, 3), Journal()
    g[5 * 4096 + 7], g[9 * 4096] = 1e9, -1e12
    places, none = torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    one = UpdateTopk(
        g, u, v, 0, places, none, None if u is None else none, momentum, nesterov, False,
        hint=1.0, journal=journal,
    )  # fmt: skip
    cuda.update_topk([one], new_status())
    assert journal.elements == 2 * 4096
    journal.check(u, v)
    none = torch.zeros(0)
    cuda.undo_topk([UndoTopk(g, u, v, places, none, none, momentum, nesterov, False)])
    Journal.put_all_back([(journal, u, v)])
    for block in (5, 9):
        part = slice(block * 4096, (block + 1) * 4096)
        assert torch.equal(v[part], old_v[part])
        assert u is None or old_u is None or torch.equal(u[part], old_u[part])
    assert torch.allclose(v, old_v, atol=1e-4)


def test_a_segment_that_selects_nothing_leaves_its_neighbour_s_candidates_alone() -> None:
    """All elements of a segment with k = 0 reach its threshold, but it has room for none."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            UpdateTopk(
                drawn(n, n), None, drawn(n, 2 * n), k, torch.zeros(k, dtype=torch.int32),
                torch.zeros(k), None, None, hint=1e-20 if k == 0 else 2.0,
            )
            for n, k in ((6000, 0), (5000, 50), (4096, 0))
        ]  # fmt: skip
        return [made, status], tensors(made)

    same_by_both([cuda.update_topk, twins.update_topk], given)


@pytest.mark.parametrize("hint", [1e300, -1.0, torch.tensor([0.5], dtype=torch.float64)], ids=str)
def test_a_threshold_of_any_kind_is_only_slower(hint: Hint) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        indices, values = torch.zeros(50, dtype=torch.int32), torch.zeros(50)
        return [drawn(5000, 1), 50, indices, values, status, hint], [indices, values]

    same_by_both([cuda.topk, twins.topk], given)


def test_memory_that_is_given_to_other_tensors_is_theirs() -> None:
    """A caching allocator gives the same address to tensors of other lengths, and the same lengths
    to other addresses; what is cached by size must not depend on addresses."""
    rooms = [cuda.update_topk, twins.update_topk]
    memory = [torch.zeros(20_000) for _ in rooms]
    for step, (begin, n, k) in enumerate(
        [(0, 5000, 50), (0, 40, 50), (0, 40, 40), (8, 5000, 50), (0, 5000, 50), (6000, 5000, 50)]
    ):
        k, turns = min(k, n), iter(memory)

        def given(
            status: Tensor, step: int = step, begin: int = begin, n: int = n, k: int = k,
            turns: Iterator[Tensor] = turns,
        ) -> tuple[list[object], list[Tensor]]:  # fmt: skip
            own = next(turns)
            g, v = own[begin : begin + n], own[begin + n : begin + 2 * n]
            g.copy_(drawn(n, step))
            places = torch.zeros(k, dtype=torch.int32)
            one = UpdateTopk(g, None, v, k, places, torch.zeros(k), None, None)
            return [[one], status], tensors([one])

        same_by_both(rooms, given)


def test_too_many_elements_are_refused() -> None:
    from gradwire.kernels.cuda.tables import MOST, programs

    assert programs(MOST, 4096) == (524272,)
    with pytest.raises(KernelError, match="at most 2,147,418,112 elements"):
        programs(MOST + 1, 4096)


@pytest.mark.parametrize("room", [TWIN, "triton"])
def test_no_updates_are_no_work(room: str) -> None:
    """As on the CPU."""
    status = new_status()
    with use(room):
        assert list(update_many_topk([], status)) == []
        update_codes([], status)
    assert not status

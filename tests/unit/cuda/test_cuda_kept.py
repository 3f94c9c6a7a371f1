"""Old blocks that a device keeps in a journal: those that an inverted step would lose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from interpreted import same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import drawn
from gradwire.kernels import Journal, UndoTopk, UpdateCodes, UpdateTopk, cuda, new_status
from gradwire.kernels.cuda.codes import tile_of
from gradwire.kernels.cuda.formats import written
from gradwire.kernels.cuda.kept import LEAST, slots_of
from gradwire.kernels.formats import E4M3, INT8, LEVELS2, LEVELS4, LLOYD1, LLOYD2, Format
from gradwire.kernels.values import Noise

BLOCK = 4096
FORMATS = [INT8, E4M3, LEVELS2, LEVELS4, LLOYD1, LLOYD2]
RULES = [(None, False), (0.9, False), (0.9, True)]
every_rule = pytest.mark.parametrize(("momentum", "nesterov"), RULES)
every_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"format {form.number}")
NOTHING = torch.zeros(0, dtype=torch.int32), torch.zeros(0)


class Held:
    """The state of one parameter, a copy of it from before the update, and its journal."""

    def __init__(self, n: int, momentum: float | None, nesterov: bool, of: float = 1.0) -> None:
        self.how = momentum, nesterov
        self.v, self.u = of * drawn(n, 2), None if momentum is None else of * drawn(n, 1)
        self.was = [x.clone() for x in self.state()]
        self.journal = Journal()

    def state(self) -> list[Tensor]:
        return [x for x in (self.v, self.u) if x is not None]

    def selects(self, g: Tensor, hint: float) -> UpdateTopk:
        """An update that selects nothing."""
        places, none = NOTHING
        return UpdateTopk(
            g, self.u, self.v, 0, places, none, None if self.u is None else none, *self.how, False,
            hint=hint, journal=self.journal,
        )  # fmt: skip

    def codes(self, form: Format, g: Tensor, hint: float) -> UpdateCodes:
        codes = torch.zeros(form.code_bytes(g.numel()), dtype=torch.uint8)
        return UpdateCodes(
            form, g, self.u, self.v, codes, torch.zeros(form.scales(g.numel())), Noise.of("it"),
            *self.how, hint=hint, journal=self.journal,
        )  # fmt: skip

    def takes_back(self, done: UpdateTopk | UpdateCodes) -> None:
        if isinstance(done, UpdateCodes):
            cuda.add_codes(done.form, self.v, done.codes, done.scales, 1.0)
        places, none = NOTHING
        velocities = None if self.u is None else none
        cuda.undo_topk([
            UndoTopk(done.gradient, self.u, self.v, places, none, velocities, *self.how, False)
        ])  # fmt: skip
        Journal.put_all_back([(self.journal, self.u, self.v)])

    def is_exact(self, part: slice) -> bool:
        return all(torch.equal(x[part], y[part]) for x, y in zip(self.state(), self.was))

    def is_rounded(self, g: Tensor, part: slice) -> bool:
        """Whether each element is back up to the rounding by its own gradient and state."""
        limit = 16 * 2.0**-24 * torch.stack([g.abs(), *(y.abs() for y in self.was)]).amax(0)
        return all(
            bool(((x - y).abs() <= limit)[part].all()) for x, y in zip(self.state(), self.was)
        )


def spiked(n: int, at: Sequence[int], of: float = 1e20) -> Tensor:
    g = drawn(n, 3)
    g[list(at)] = of
    return g


@pytest.mark.once
@every_rule
@pytest.mark.parametrize("spike", [1e20, 1.6e38, 3e38, -3e38, torch.inf, torch.nan])
@every_format
def test_quantizers_keep_what_a_spike_would_lose(
    form: Format, spike: float, momentum: float | None, nesterov: bool
) -> None:
    """A spike is kept in whole tiles and in the rest after them."""
    known = written(form)
    assert known is not None
    tile = tile_of(known)
    n = 2 * tile + form.block + 7
    spikes = [5, n - 3]
    held, g = Held(n, momentum, nesterov), spiked(n, spikes, spike)
    one = held.codes(form, g, 4.0)
    cuda.update_codes([one], new_status())
    held.takes_back(one)
    assert held.is_exact(slice(0, tile))
    assert held.is_exact(slice(2 * tile + form.block, n))
    assert tile < held.journal.elements < n, "the tile between them is not kept"


@every_format
def test_a_last_tile_is_kept_once(form: Format) -> None:
    """The last tile is kept once: its whole blocks, the rest after them, or both have a spike."""
    known = written(form)
    assert known is not None
    first = tile_of(known)
    last, n = first + form.block, first + form.block + 7
    for spikes in ([first], [last + 3], [first, last + 3]):
        held = Held(n, 0.9, True)
        one = held.codes(form, spiked(n, spikes), 4.0)
        cuda.update_codes([one], new_status())
        begin = first if first in spikes else last
        assert held.journal.elements == n - begin
        held.takes_back(one)
        assert held.is_exact(slice(begin, n))


@every_rule
def test_what_is_coded_is_the_same_with_a_journal(momentum: float | None, nesterov: bool) -> None:
    """A journal changes no code, scale, state or status, of many at once, some keeping nothing."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made, written = [], []
        for i, n in enumerate((3000, 0, 1, 2048, 700)):
            held, g = Held(n, momentum, nesterov), spiked(n, [0] if n > 1 else [], 1e20)
            one = held.codes(INT8, g, 0.0 if i == 3 else 4.0)
            made.append(one if i % 2 == 0 else one._replace(journal=None))
            written += [*held.state(), one.codes, one.scales]
        return [made, status], written

    same_by_both([cuda.update_codes, twins.update_codes], given)


def test_ordinary_steps_of_quantizers_keep_nothing() -> None:
    for form in FORMATS:
        for hint in (0.0, 4.0):
            held = Held(5000, None, False, 1e-2)
            cuda.update_codes([held.codes(form, drawn(5000, 3), hint)], new_status())
            assert held.journal.elements == 0


@every_rule
def test_without_a_threshold_what_waits_tells_what_is_far_larger(
    momentum: float | None, nesterov: bool
) -> None:
    """Blocks whose gradient far exceeds the residual are kept, not those that come first: far more
    blocks have gradients than there is room for."""
    n = 80 * BLOCK
    held, g = Held(n, momentum, nesterov), 100 * drawn(n, 3)
    held.v[7 * BLOCK : 8 * BLOCK] *= 1e-9  # a smaller residual than elsewhere
    held.was[0] = held.v.clone()
    g[[70 * BLOCK, 79 * BLOCK + 1]] = 1e20
    one = held.selects(g, 0.0)
    cuda.update_topk([one], new_status())
    assert held.journal.elements == 3 * BLOCK
    held.takes_back(one)
    for block in (7, 70, 79):
        assert held.is_exact(slice(block * BLOCK, (block + 1) * BLOCK))
    assert held.is_rounded(g, slice(8 * BLOCK, 70 * BLOCK))


def test_a_threshold_of_zeros_is_none() -> None:
    """A threshold that is the least number above 0, as when zeros are selected, counts as none.
    Otherwise all blocks with any gradient would be kept, leaving no room for those that matter."""
    n, spike = 80 * BLOCK, 70 * BLOCK + 5
    held, g = Held(n, 0.9, False), torch.zeros(n)
    g[::BLOCK] = 1e-3
    g[spike] = 1e20
    one = held.selects(g, 2.0**-149)
    cuda.update_topk([one], new_status())
    assert held.journal.elements == BLOCK
    held.takes_back(one)
    assert held.is_exact(slice(70 * BLOCK, 71 * BLOCK))


def test_zeros_beside_no_threshold_keep_nothing() -> None:
    """With a gradient and a residual of zeros and no threshold, nothing is kept."""
    held = Held(3000, None, False, 0.0)
    cuda.update_topk([held.selects(torch.zeros(3000), 0.0)], new_status())
    assert held.journal.elements == 0


@every_rule
def test_what_there_is_no_room_for_is_off_by_the_rounding_of_its_gradient(
    momentum: float | None, nesterov: bool
) -> None:
    """Without room an element is off by its gradient's rounding; others of its block are exact."""
    n = 72 * BLOCK
    ((room,), _) = slots_of((n,), momentum is not None, BLOCK)
    assert room == (18 if momentum is None else 9)
    held = Held(n, momentum, nesterov)
    g = spiked(n, range(0, n, BLOCK), 1e12)
    one = held.selects(g, 4.0)
    cuda.update_topk([one], new_status())
    held.takes_back(one)
    assert held.journal.elements == room * BLOCK
    exact = [held.is_exact(slice(at, at + BLOCK)) for at in range(0, n, BLOCK)]
    assert sum(exact) == room
    assert held.is_rounded(g, slice(0, n))


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_small_tensors_have_room_for_all(momentum: float | None) -> None:
    """Tensors of up to 32,768 elements have room for all blocks, larger ones a byte an element."""
    sizes = (1, 5000, LEAST, LEAST + 1, 64 * BLOCK, 1 << 24)
    for block in (1024, 2048, BLOCK):
        slots, begins = slots_of(sizes, momentum is not None, block)
        whole = [-(-n // block) for n in sizes]
        assert list(slots[:3]) == whole[:3]
        assert slots[3] == LEAST // block
        assert slots[5] == whole[5] // (4 if momentum is None else 8)
        assert list(begins) == [sum(slots[:i]) for i in range(len(sizes) + 1)]
    held = Held(LEAST, momentum, False)
    one = held.selects(spiked(LEAST, range(0, LEAST, BLOCK)), 4.0)
    cuda.update_topk([one], new_status())
    held.takes_back(one)
    assert held.is_exact(slice(0, LEAST))


MAGNITUDES = [1e-30, 1.0, 1e20, 1.02e31, 1.6e38, 1.75e38, 3e38, 3.4e38]


@every_rule
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_gradients_of_all_magnitudes_are_undone_as_by_the_twins(
    momentum: float | None, nesterov: bool, decay: float
) -> None:
    """Gradients are undone alike: those added, those left alone, and states as large as they."""
    some = [*MAGNITUDES, *(-x for x in MAGNITUDES), torch.inf, -torch.inf, torch.nan, 0.0]

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = []
        for state in (drawn(5000, 2), torch.tensor(some).repeat_interleave(250)):
            g = torch.tensor(some).repeat(250)
            for goes in (True, False):
                v, u = state.clone(), None if momentum is None else state.clone().flip(0)
                places, none = NOTHING
                one = UpdateTopk(g, u, v, 0, places, none, None if u is None else none, momentum,
                                 nesterov, False, 1.0, decay)  # fmt: skip
                if goes:
                    twins.update_topk([one], new_status())
                made.append(UndoTopk(
                    g, u, v, *NOTHING, one.velocities, momentum, nesterov, False, 1.0, decay,
                ))  # fmt: skip
        return [made], [x for one in made for x in one[1:3] if x is not None]

    same_by_both([cuda.undo_topk, twins.undo_topk], given)

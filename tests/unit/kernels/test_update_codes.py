"""update_codes is advance, encode_codes and add_codes, bit for bit."""

import pytest
import torch
from coded import FORMATS, LARGEST, NOISE, buffers
from hypothesis import given
from hypothesis import strategies as st
from samples import DISTRIBUTIONS, DTYPES, NATIVE, bits, draw, finite, told
from single import adam_codes, update_codes

from gradwire.errors import KernelError
from gradwire.extension import TWIN
from gradwire.kernels import (
    Journal,
    add_codes,
    advance,
    encode_codes,
    instruction_set,
    nothing_taken,
    undo_topk,
    use,
)
from gradwire.kernels.native import available_sets
from gradwire.kernels.values import AdamStep

pytestmark = pytest.mark.usefixtures("instruction_set")
CODED = pytest.mark.parametrize("name", sorted(set(FORMATS) - {"ternary"}))
FORMS = {"feedback": (None, False), "momentum": (0.9, False), "nesterov": (0.9, True)}
SIZES = [0, 1, 7, 255, 256, 257, 511, 512, 513, 1279, 4095, 4096, 4097, 8193, 20_001, 70_001]


def same(x: torch.Tensor | None, y: torch.Tensor | None) -> bool:
    """As `samples.same`, but fast for large tensors."""
    if x is None or y is None:
        return x is y
    if not x.is_floating_point():
        return torch.equal(x, y)
    integers = torch.int32 if x.dtype == torch.float32 else torch.int16
    alike = x.view(integers) == y.view(integers)
    return x.dtype == y.dtype and bool((alike | (x.isnan() & y.isnan())).all())


class Held:
    """One rank's state, its sections, and its journal."""

    def __init__(self, name: str, n: int, momentum: float | None, a: float = 1.0) -> None:
        self.form, self.momentum = FORMATS[name], momentum
        self.residual = draw("normal", n, 1, shift=1) * a
        self.velocity = None if momentum is None else draw("normal", n, 2) * a
        self.codes, self.scales = buffers(self.form, n)
        self.journal = Journal()

    def fused(self, g: torch.Tensor, journal: bool = True, **how: object) -> bool:
        return finite(
            update_codes, self.form, g, self.velocity, self.residual, self.codes, self.scales,
            NOISE, momentum=self.momentum, journal=self.journal if journal else None, **how,
        )  # fmt: skip

    def one_by_one(self, g: torch.Tensor, journal: bool = True, **how: object) -> bool:
        good = finite(
            advance, g, self.velocity, self.residual, momentum=self.momentum,
            journal=self.journal if journal else None, **how,
        )  # fmt: skip
        told(encode_codes, self.form, self.residual, self.codes, self.scales, noise=NOISE)
        add_codes(self.form, self.residual, self.codes, self.scales, -1.0)
        return good

    def take_back(self, g: torch.Tensor, hint: float = 0.0, **how: object) -> None:
        add_codes(self.form, self.residual, self.codes, self.scales, 1.0)
        nothing = nothing_taken(self.residual)
        undo_topk(
            g, self.velocity, self.residual, *nothing,
            None if self.velocity is None else nothing[1], momentum=self.momentum, mask=False,
            journal=self.journal, **how,
        )  # fmt: skip

    def everything(self) -> list[torch.Tensor]:
        held = [self.residual, self.scales, self.codes.int()]
        return held if self.velocity is None else [*held, self.velocity]


def check(name: str, g: torch.Tensor, momentum: float | None, **how: object) -> None:
    fused, wanted = (Held(name, g.numel(), momentum) for _ in "ab")
    before = g.clone()
    assert fused.fused(g, **how) == wanted.one_by_one(g, **how)
    for one, other in zip(fused.everything(), wanted.everything()):
        assert same(one, other)
    assert fused.journal.elements == wanted.journal.elements
    assert same(g, before)


@NATIVE
@CODED
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("n", SIZES)
def test_every_size(n: int, form: str, name: str) -> None:
    momentum, nesterov = FORMS[form]
    for dtype in DTYPES if n < 5000 else DTYPES[:1]:
        g = draw("normal", n, 3, dtype)
        check(name, g, momentum, nesterov=nesterov)
        check(name, g, momentum, nesterov=nesterov, hint=0.05)


@given(
    st.sampled_from(sorted(set(FORMATS) - {"ternary"})),
    st.sampled_from(sorted(set(DISTRIBUTIONS) - {"broken"})),
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 700),
    st.sampled_from(DTYPES),
    st.sampled_from([1.0, 0.37, -2.0]),
    st.sampled_from([1.0, 0.9, -1.0]),
    st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_drawn(
    name: str, kind: str, form: str, n: int, dtype: torch.dtype, scale: float, decay: float,
    hint: float,
) -> None:  # fmt: skip
    momentum, nesterov = FORMS[form]
    g = draw(kind, n, 5, dtype)
    check(name, g, momentum, nesterov=nesterov, scale=scale, decay=decay, hint=hint)


@NATIVE
@CODED
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_gradients_that_are_not_finite(value: float, form: str, name: str) -> None:
    """They are reported and left out: velocity and residual stay there, all else is updated."""
    momentum, nesterov = FORMS[form]
    for n, dtype in ((1, DTYPES[0]), (256, DTYPES[1]), (513, DTYPES[2]), (9001, DTYPES[0])):
        for places in ([0], [n - 1], [n // 2], list(range(n))):
            g = draw("normal", n, 3, dtype)
            g[places] = value
            for hint in (0.0, 1.0):
                check(name, g, momentum, nesterov=nesterov, hint=hint)
        held = Held(name, n, momentum)
        assert not held.fused(torch.full((n,), value), nesterov=nesterov)
        assert held.residual.isfinite().all()


@pytest.mark.parametrize("name", ["lloyd1", "lloyd2"])
@pytest.mark.parametrize("n", [77, 500, 513 + 333])
def test_a_mean_that_rounds_up_beyond_the_largest_float_is_the_largest(name: str, n: int) -> None:
    """All is finite, so nothing is reported, and the residual stays finite."""
    g = torch.full((n,), LARGEST)
    check(name, g, None)
    held = Held(name, n, None, 0.0)
    assert held.fused(g)
    assert held.residual.isfinite().all()
    assert held.scales[-1] == LARGEST / 2  # the largest scale


@NATIVE
@CODED
def test_what_cannot_be_encoded_is_not_subtracted(name: str) -> None:
    """A residual that is not finite already is reported, and stays as it is."""
    held, fresh = Held(name, 600, None), Held(name, 600, None)
    for one in (held, fresh):
        one.residual[550] = float("nan")
    how = AdamStep.of(1, 0.9, 0.99, 1e-8)
    zeros = torch.zeros(600)
    if instruction_set() != TWIN:  # whose codes leave out what is not finite
        assert not held.fused(zeros)
        assert same(held.residual, fresh.residual)
        moments = zeros.clone(), zeros.clone()
        to = held.codes, held.scales
        assert not finite(adam_codes, held.form, zeros, moments, held.residual, how, *to, NOISE)
        assert same(held.residual, fresh.residual)


@CODED
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_journal_takes_it_back_bit_for_bit(form: str, name: str) -> None:
    """With hint 0 everything is kept; codes that were sent are added back first."""
    momentum, nesterov = FORMS[form]
    for n in (1, 257, 4097, 20_001):
        for broken in (False, True):
            g = draw("broken" if broken else "normal", n, 3) * 100
            held, before = (Held(name, n, momentum, 1e-3) for _ in "ab")
            held.fused(g, nesterov=nesterov)
            assert held.journal.elements == n
            held.take_back(g, nesterov=nesterov)
            assert same(held.residual, before.residual)
            assert same(held.velocity, before.velocity)


@CODED
@pytest.mark.parametrize("form", sorted(FORMS))
def test_with_a_hint_it_comes_back_to_rounding(form: str, name: str) -> None:
    momentum, nesterov = FORMS[form]
    n = 20_001
    g = draw("normal", n, 3)
    g[[5, 9000, 20_000]] = 1e7
    for scale, decay in ((1.0, 1.0), (0.5, 0.9)):
        held, before = (Held(name, n, momentum) for _ in "ab")
        held.fused(g, nesterov=nesterov, scale=scale, decay=decay, hint=3.0)
        held.take_back(g, nesterov=nesterov, scale=scale, decay=decay)
        off = float((held.residual - before.residual).abs().max())
        assert off < 2e-5
        if momentum is not None:
            assert torch.allclose(held.velocity, before.velocity, rtol=1e-5, atol=1e-5)


@CODED
def test_without_a_journal_it_is_the_same(name: str) -> None:
    for form in FORMS.values():
        momentum, nesterov = form
        one, other = (Held(name, 5003, momentum) for _ in "ab")
        g = draw("normal", 5003, 3) * 1e3
        one.fused(g, nesterov=nesterov, hint=0.1)
        other.fused(g, journal=False, nesterov=nesterov, hint=0.1)
        for a, b in zip(one.everything(), other.everything()):
            assert same(a, b)


@NATIVE
def test_ten_steps_in_a_row() -> None:
    for name in sorted(set(FORMATS) - {"ternary"}):
        for momentum, nesterov in FORMS.values():
            fused, wanted = (Held(name, 3003, momentum, 0.0) for _ in "ab")
            for step in range(10):
                g = draw("normal", 3003, step)
                fused.fused(g, nesterov=nesterov, hint=0.01)
                wanted.one_by_one(g, nesterov=nesterov, hint=0.01)
                for a, b in zip(fused.everything(), wanted.everything()):
                    assert same(a, b), f"step {step}"


def test_every_native_set_writes_the_same_bits() -> None:
    for name in sorted(set(FORMATS) - {"ternary"}):
        seen = []
        for one in available_sets()[1:]:
            with use(one):
                held = Held(name, 5003, 0.9)
                held.fused(draw("broken", 5003, 7), hint=0.3)
                seen.append([bits(x) for x in held.everything()])
        assert all(one == seen[0] for one in seen)


def test_with_one_scale_in_all_it_is_one_after_the_other() -> None:
    """A format with one scale for all gives the bits of separate calls; no member uses it."""
    (held, wanted), g = (Held("ternary", 1281, None) for _ in "ab"), draw("normal", 1281, 3)
    assert held.fused(g)
    assert wanted.one_by_one(g)
    assert all(map(same, held.everything(), wanted.everything()))


def test_buffers_that_do_not_fit_are_refused() -> None:
    held, g = Held("int8", 300, 0.9), draw("normal", 300, 3)
    for change in (
        {"residual": torch.zeros(299)}, {"codes": torch.zeros(1, dtype=torch.uint8)},
        {"scales": torch.zeros(1)}, {"velocity": None}, {"velocity": torch.zeros(299)},
    ):  # fmt: skip
        given = {
            "velocity": held.velocity, "residual": held.residual, "codes": held.codes,
            "scales": held.scales,
        }  # fmt: skip
        given |= change
        with pytest.raises(KernelError):
            told(
                update_codes, held.form, g, given["velocity"], given["residual"], given["codes"],
                given["scales"], NOISE, momentum=0.9,
            )  # fmt: skip

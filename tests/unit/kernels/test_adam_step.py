"""Adam's step on every instruction set: its twin's bits, its inverse, and its codes."""

import pytest
import torch
from coded import FORMATS, NOISE, SIZES, buffers
from in_torch import in_torch
from samples import DTYPES, NATIVE, finite, same, told
from single import adam_codes

from gradwire.errors import KernelError
from gradwire.kernels.adam import adam, undo_adam
from gradwire.kernels.formats import Format
from gradwire.kernels.torch import adam as adam_twin
from gradwire.kernels.torch import undo_adam as undo_adam_twin
from gradwire.kernels.values import AdamStep

pytestmark = pytest.mark.usefixtures("instruction_set")
State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
HOWS = [
    AdamStep.of(1, 0.9, 0.999, 1e-8),
    AdamStep.of(100, 0.9, 0.99, 1e-8, factor=1.7, scale=0.3),
    AdamStep.of(7, 0.0, 0.0, 1e-3),
]


def drawn(n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, State]:
    """A gradient and a state, at odd addresses."""
    dice = torch.Generator().manual_seed(n)
    g = torch.randn(n + 1, generator=dice).to(dtype)[1:]
    m, q, v = (torch.randn(n + 1, generator=dice)[1:] for _ in range(3))
    return g, (m * 0.1, q.square() * 0.1, v)


def copies(state: State) -> State:
    m, q, v = (x.clone() for x in state)
    return m, q, v


@NATIVE
@pytest.mark.parametrize("how", HOWS, ids=range(len(HOWS)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_as_twin(dtype: torch.dtype, how: AdamStep) -> None:
    for n in SIZES:
        g, (m, q, v) = drawn(n, dtype)
        wanted = copies((m, q, v))
        assert finite(adam, g, (m, q), v, how)
        assert finite(adam_twin, g, wanted[:2], wanted[2], how)
        assert all(map(same, (m, q, v), wanted)), n
        undo_adam(g, (m, q), v, how)
        undo_adam_twin(g, wanted[:2], wanted[2], how)
        assert all(map(same, (m, q, v), wanted)), n


def test_large_whole_numbers_count_as_real_ones() -> None:
    how = HOWS[0]._replace(rest2=2**70)
    g, (m, q, v) = drawn(100)
    wanted = copies((m, q, v))
    assert finite(adam, g, (m, q), v, how)
    assert finite(in_torch(adam), g, wanted[:2], wanted[2], how)
    assert all(map(same, (m, q, v), wanted))


@pytest.mark.parametrize("how", HOWS[:2], ids=range(2))
def test_a_step_is_taken_back(how: AdamStep) -> None:
    g, (m, q, v) = drawn(5003)
    before = copies((m, q, v))
    told(adam, g, (m, q), v, how)
    assert (v - before[2]).abs().max() > 0.1
    undo_adam(g, (m, q), v, how)
    for x, old in zip((m, q, v), before):
        assert torch.allclose(x, old, rtol=1e-4, atol=1e-5)
    assert (q >= 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("n", [1, 300, 1300])
def test_what_is_not_finite_keeps_its_state(value: float, n: int) -> None:
    for place in {0, n // 2, n - 1}:
        g, (m, q, v) = drawn(n)
        g[place] = value
        before, wanted = copies((m, q, v)), copies((m, q, v))
        assert not finite(adam, g, (m, q), v, HOWS[0])
        assert not finite(adam_twin, g, wanted[:2], wanted[2], HOWS[0])
        assert all(map(same, (m, q, v), wanted))
        for x, old in zip((m, q, v), before):
            assert x[place] == old[place]
        undo_adam(g, (m, q), v, HOWS[0])
        undo_adam_twin(g, wanted[:2], wanted[2], HOWS[0])
        assert all(map(same, (m, q, v), wanted))
        assert all(x[place] == old[place] for x, old in zip((m, q, v), before))


@NATIVE
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("n", [0, 1, 511, 1024, 5003])
def test_codes_as_twin(form: Format, n: int) -> None:
    if form.in_all:
        pytest.skip("one scale in all is not known while memory is passed over")
    for dtype in DTYPES:
        g, (m, q, v) = drawn(n, dtype)
        wanted, (codes, scales), theirs = copies((m, q, v)), buffers(form, n), buffers(form, n)
        assert finite(adam_codes, form, g, (m, q), v, HOWS[1], codes, scales, noise=NOISE)
        assert finite(
            in_torch(adam_codes), form, g, wanted[:2], wanted[2], HOWS[1], *theirs, noise=NOISE
        )
        assert torch.equal(codes, theirs[0])
        assert same(scales, theirs[1])
        assert all(map(same, (m, q, v), wanted))


def test_bad_arguments_are_refused() -> None:
    g, (m, q, v) = drawn(8)
    with pytest.raises(KernelError, match="second moment"):
        told(adam, g, (m, q[:7]), v, HOWS[0])
    with pytest.raises(KernelError, match="root"):
        undo_adam(g, (m, q), v, HOWS[0]._replace(root=float("nan")))
    with pytest.raises(KernelError, match="gradient"):
        told(adam, g.long(), (m, q), v, HOWS[0])

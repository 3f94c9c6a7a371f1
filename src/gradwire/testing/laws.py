"""The laws, as functions: each raises AssertionError if a member breaks it.

Gradwire's own tests check its members by them; `check` tries all that apply to one of yours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.kernels import NON_FINITE, is_raised, new_status
from gradwire.layout.pieces import Pieces
from gradwire.local import LATER_RESIDUALS, OF_OTHER_SHAPE, OWNERS_RESIDUAL
from gradwire.runtime.lockstep import lockstep
from gradwire.runtime.sums import Sum, sum_all
from gradwire.strategy import Compressor, Encoder, Feedback, Key, State, StepInfo, Strategy
from gradwire.testing.payloads import (
    KEY,
    bits,
    decoded,
    dtype_name,
    encoded,
    same,
    sections_for,
    through,
)

Steps = Sequence[Sequence[Tensor]]
"""Gradients by step, then by rank."""


# -- compressors -------------------------------------------------------------------------------


def used(compressor: Compressor, section: Tensor) -> slice:
    """Returns the used part of a section: all, unless a payload of variable size states less."""
    fixed = compressor.claims(1).fixed
    return slice(None) if fixed else slice(int(section[:8].view(torch.int64)))


def law_payload_is_what_is_claimed(compressor: Compressor, x: Tensor, payload_bytes: int) -> None:
    """The claimed bytes equal the expected ones, and every one of them is written."""
    claimed = sections_for(compressor, len(x), dtype_name(x))
    total = sum(s.numel() * s.element_size() for s in claimed)
    assert total == payload_bytes, f"claims {total} bytes; {payload_bytes} are expected"
    one, other = encoded(compressor, x, fill=0x00), encoded(compressor, x, fill=0xFF)
    for a, b in zip(one, other):
        written = used(compressor, a)
        assert len(a[written]) <= total, "a payload is longer than its claims allow"
        same(a[written], b[written], "encode left a byte of the payload unwritten")


def law_same_seed_same_bytes(compressor: Compressor, x: Tensor) -> None:
    """Randomness comes from the key alone, so every rank and every run agrees."""
    torch.manual_seed(1)
    one = encoded(compressor, x)
    torch.manual_seed(2)
    for a, b in zip(one, encoded(compressor, x.clone())):
        same(a, b, "the same key gave other bytes")


def law_input_is_not_changed(compressor: Compressor, x: Tensor) -> None:
    """Encoding leaves the gradient as it was."""
    before = x.clone()
    through(compressor, x)
    same(x, before, "encode changed its input")


def law_exact_on_its_own_class(compressor: Compressor, x: Tensor) -> None:
    """x of the compressor's own class (k-sparse, representable …) comes back unchanged."""
    back = through(compressor, x)
    assert torch.equal(back, x.float()), f"{x} came back as {back}"


def law_lossless_if_claimed(compressor: Compressor, x: Tensor) -> None:
    """If it claims to be lossless, what arrives equals what was sent, bit for bit."""
    if compressor.claims(len(x), dtype_name(x)).lossless:
        same(through(compressor, x), x.float(), "claimed lossless")


def law_contraction(compressor: Compressor, x: Tensor) -> None:
    """|x - C(x)|² <= (1 - c)·|x|², with a tolerance of 1e-9 for the sum itself."""
    c = compressor.claims(len(x), dtype_name(x)).contraction
    if c is None:
        return
    assert 0.0 <= c <= 1.0
    given = x.double()
    lost = float((given - through(compressor, x).double()).square().sum())
    allowed = (1 - c) * float(given.square().sum())
    assert lost <= allowed * (1 + 1e-9), f"lost {lost}, allowed {allowed}"


def law_unbiased_if_claimed(compressor: Compressor, x: Tensor, draws: int = 1000) -> None:
    """If it claims to be unbiased, the mean over keys is x in each element, within six standard
    errors of the draws plus a dozen events that were too rare to be drawn."""
    if not compressor.claims(len(x), dtype_name(x)).unbiased:
        return
    drawn = torch.stack([through(compressor, x, Key(0, i, "w")) for i in range(draws)])
    drawn = drawn.double()
    wanted = x.double()
    spread = drawn.std(0) / draws**0.5
    most = 6 * spread + 12 / draws * (wanted.abs().max() if len(x) else 0.0)
    off = (drawn.mean(0) - wanted).abs()
    assert bool((off <= most).all()), f"off by {off.max()}, allowed {most.max()}"


def law_encoding_again_changes_nothing(compressor: Compressor, x: Tensor) -> None:
    """A second pass changes nothing: decode(encode(y)) = y for y = decode(encode(x)).

    It holds to the rounding of a mean. Random rounding, or a clipped scale, is exempt.
    """
    claims = compressor.claims(len(x), dtype_name(x))
    if claims.unbiased or claims.contraction is None:
        return
    once = through(compressor, x)
    assert torch.allclose(through(compressor, once), once, rtol=1e-6, atol=0)


def law_tells_what_is_not_finite(compressor: Compressor, x: Tensor) -> None:
    """inf and NaN raise the status; nothing clears it or changes its other flags. x: finite, and
    not empty; it raises nothing."""
    for value, told in ((None, 0), (math.inf, NON_FINITE), (-math.inf, NON_FINITE),
                        (math.nan, NON_FINITE)):  # fmt: skip
        given, sections = x.clone(), sections_for(compressor, len(x), dtype_name(x), 0)
        if value is not None:
            given[len(x) // 2] = value
        for before in (0, 2, NON_FINITE, 2 | NON_FINITE):
            status = new_status().fill_(before)
            compressor.encode(given, sections, KEY, status)
            assert int(status) == before | told, f"{value}: {before} became {int(status)}"


def law_finite_elements_can_be_decoded(compressor: Compressor, n: int) -> None:
    """All finite elements decode to finite ones, even if they are out of range and raise the
    status: feedback goes on with decoded values until the step is undone."""
    most = torch.finfo(torch.float32).max
    for x in (
        torch.full((n,), most, dtype=torch.float32),
        torch.linspace(-1, 1, n, dtype=torch.float32) * most,
        torch.full((n,), -1e5, dtype=torch.float32),
    ):
        back = through(compressor, x)
        assert bool(back.isfinite().all()), f"{x} came back as {back}"


def law_accumulate_sums_in_rank_order(
    compressor: Compressor, xs: Sequence[Tensor], dtype: torch.dtype = torch.float32
) -> None:
    """accumulate equals decode, a plain sum in rank order in fp32, and one division, by whatever
    divisor; so does the sum for many parameters in one call."""
    n, payloads = len(xs[0]), [encoded(compressor, x) for x in xs]
    given = [[bits(section) for section in payload] for payload in payloads]
    total = torch.zeros(n, dtype=torch.float32)
    for payload in payloads:
        total = total + decoded(compressor, payload, n)
    wanted = (total / torch.tensor(float(len(xs)), dtype=torch.float32)).to(dtype)
    result = torch.full((n,), 99.0, dtype=dtype)
    compressor.accumulate(payloads, result, len(xs), KEY)
    assert torch.equal(result, wanted), f"{result} is not {wanted}"
    undivided = torch.full((n,), 99.0, dtype=dtype)
    compressor.accumulate(payloads, undivided, 1.0, KEY)
    assert torch.equal(undivided, total.to(dtype)), f"{undivided}, by 1, is not {total.to(dtype)}"
    beside = [torch.full_like(result, 99.0) for _ in range(2)]
    sum_all(compressor, [Sum(payloads, other, len(xs), KEY, "w") for other in beside])
    assert all(torch.equal(other, wanted) for other in beside), f"{beside} are not {wanted}"
    kept = [[bits(section) for section in payload] for payload in payloads]
    assert kept == given, "decode or accumulate changed a payload"


def law_add_adds_what_decode_writes(compressor: Compressor, x: Tensor) -> None:
    """`add` adds a multiple of what `decode` writes."""
    sections, v = encoded(compressor, x), torch.linspace(-1, 1, len(x), dtype=torch.float32)
    wanted = v - 0.5 * decoded(compressor, sections, len(x))
    compressor.add(sections, v, -0.5, KEY)
    assert torch.allclose(v, wanted, rtol=1e-6, atol=1e-6), f"add made {v}, not {wanted}"


def law_places_are_what_decode_writes(compressor: Compressor, x: Tensor) -> None:
    """`places` ascend, as many as claimed, and `decode` writes zeros elsewhere; if it claims
    entries, `read` returns these places, and the values there."""
    n, sections = len(x), encoded(compressor, x)
    claims, wanted = compressor.claims(n, dtype_name(x)), decoded(compressor, sections, n)
    if (places := compressor.places(sections, n, KEY)) is None:
        return
    values, k = wanted[places.long()], claims.elements
    if claims.entries:
        read, values = compressor.read(sections, n)
        same(read, places, "read and places differ")
    ascend = places.dtype == torch.int32 and bool((places.diff() > 0).all())
    assert ascend, f"places must be int32, and ascend; got {places}"
    assert k is None or k == len(places), f"claims {k} elements, and has {len(places)} places"
    found = torch.zeros(n, dtype=torch.float32).index_put_((places.long(),), values.float())
    assert torch.equal(found, wanted), f"by places and values {found}, decoded {wanted}"


def law_a_short_dtype_makes_no_difference(compressor: Compressor, x: Tensor) -> None:
    """Elements that 16 bits hold are sent alike in fp32, bf16 and fp16, but for the rounding of
    the arithmetic, if the claims are alike."""
    for short in filter(lambda y: bool(y.isfinite().all()), (x.bfloat16(), x.half())):
        law_lossless_if_claimed(compressor, short)
        law_contraction(compressor, short)
        if len({compressor.claims(len(x), dtype_name(y)).sections for y in (short, x)}) == 1:
            one, other = (through(compressor, y).double() for y in (short, short.float()))
            assert float((one - other).norm()) <= 0.1 * float(other.norm()), f"{one}, not {other}"


def law_sums_if_claimed(compressor: Compressor, xs: Sequence[Tensor]) -> None:
    """If claimed, adding payloads number by number adds the tensors (exactly: whole numbers)."""
    if not compressor.claims(len(xs[0])).sums:
        return
    payloads = [encoded(compressor, x) for x in xs]
    added = [torch.stack(list(parts)).sum(0).to(parts[0].dtype) for parts in zip(*payloads)]
    try:
        back = decoded(compressor, added, len(xs[0]))
    except PayloadError as error:
        raise AssertionError("the sum of payloads cannot be decoded") from error
    wanted = torch.stack([decoded(compressor, p, len(xs[0])) for p in payloads]).sum(0)
    assert torch.equal(back, wanted), f"the sum came back as {back}, not {wanted}"


# -- feedback and encoders ---------------------------------------------------------------------


def law_before_changes_no_input(feedback: Feedback, steps: Sequence[Tensor]) -> None:
    """before and after leave their arguments unchanged."""
    state: dict[str, Tensor] = {}
    for x in steps:
        copies = x.clone(), {key: v.clone() for key, v in state.items()}
        y, midway = feedback.before(x, state, StepInfo())
        sent = torch.where(torch.arange(len(x)) % 3 == 0, y, torch.zeros_like(y))
        kept = [t.clone() for t in (y, sent, *midway.values())]
        after = feedback.after(y, sent, midway)
        for now, then in zip((y, sent, *midway.values()), kept):
            same(now, then, "after changed an input")
        same(x, copies[0], "before changed the gradient")
        assert list(state) == list(copies[1])
        for key, value in state.items():
            same(value, copies[1][key], f"before changed the state '{key}'")
        state = dict(after)


def law_state_is_flat_and_fp32(feedback: Feedback, steps: Sequence[Tensor]) -> None:
    """State is named tensors in fp32 with the parameter's number of elements."""
    state: dict[str, Tensor] = {}
    for x in steps:
        y, midway = feedback.before(x, state, StepInfo())
        state = dict(feedback.after(y, y * 0.5, midway))
        state.update(feedback.received(y.clone(), state))
    for key, value in state.items():
        assert isinstance(key, str)
        assert key in OF_OTHER_SHAPE or value.shape == steps[0].shape, key
        assert value.dtype == torch.float32, key


def run_encoder(
    encoder: Encoder, compressor: Compressor, steps: Sequence[Tensor], clip_scale: float = 1.0
) -> tuple[list[list[Tensor]], dict[str, Tensor]]:
    """Returns the payloads of every step, and the state at the end."""
    state: dict[str, Tensor] = {}
    payloads = []
    for step, x in enumerate(steps):
        sections = sections_for(compressor, len(x), dtype_name(x))
        before = x.clone()
        status = new_status()
        encoder.encode(x, state, sections, StepInfo(step, clip_scale), KEY, status)
        assert not is_raised(status), "finite elements raised the status"
        same(x, before, "encode changed the gradient")
        encoder.release()
        payloads.append(sections)
    return payloads, state


def law_encoders_agree(
    one: Encoder, other: Encoder, compressor: Compressor, steps: Sequence[Tensor],
    clip_scale: float = 1.0,
) -> None:  # fmt: skip
    """Both encoders give the same payloads in every step and the same final state, to the bit."""
    (mine, state), (theirs, other_state) = (
        run_encoder(encoder, compressor, steps, clip_scale) for encoder in (one, other)
    )
    for step, (a, b) in enumerate(zip(mine, theirs)):
        for section in range(len(a)):
            same(a[section], b[section], f"step {step}, section {section}")
    assert sorted(state) == sorted(other_state)
    for key, value in state.items():
        same(value, other_state[key], f"state '{key}'")


def close(state: State, wanted: dict[str, Tensor], tolerance: float, what: str) -> None:
    """Raise unless a state is the wanted one, within the tolerance."""
    for key, value in state.items():
        expected = wanted.get(key, torch.zeros_like(value))
        assert torch.allclose(value, expected, rtol=tolerance, atol=tolerance), (
            f"{what}: '{key}' is {value}, not {expected}"
        )
    assert set(wanted) <= set(state), what


def law_undo_restores(
    make: Callable[[], Encoder], compressor: Compressor, steps: Sequence[Tensor],
    tolerance: float, clip_scale: float = 1.0,
) -> None:  # fmt: skip
    """After undo the state is what it was before this step; tolerance 0: bit for bit."""
    encoder, state = make(), dict[str, Tensor]()
    for step, x in enumerate(steps):
        sections = sections_for(compressor, len(x), dtype_name(x))
        info = StepInfo(step, clip_scale)
        before = {key: v.clone() for key, v in state.items()}
        encoder.encode(x, state, sections, info, KEY, new_status())
        encoder.undo(x, state, sections, info)
        close(state, before, tolerance, "undo")
        encoder.encode(x, state, sections, info, KEY, new_status())
        encoder.release()


def law_give_back_keeps_everything(
    make: Callable[[], Encoder], compressor: Compressor, steps: Sequence[Tensor],
    tolerance: float, clip_scale: float = 1.0,
) -> None:  # fmt: skip
    """After give_back, what was to be sent is in the residual; nothing else differs."""
    encoder, state = make(), dict[str, Tensor]()
    for step, x in enumerate(steps):
        sections = sections_for(compressor, len(x), dtype_name(x))
        info = StepInfo(step, clip_scale)
        encoder.encode(x, state, sections, info, KEY, new_status())
        kept = {key: v.clone() for key, v in state.items()}
        sent = decoded(compressor, sections, len(x))
        at = compressor.places(sections, len(x), KEY)
        masked = slice(None) if at is None else at.long()
        encoder.give_back(state, sections)
        close(
            {"residual": state["residual"]}, {"residual": kept["residual"] + sent}, tolerance,
            "give_back",
        )  # fmt: skip
        if "velocity" in state:
            kept["velocity"][masked] = state["velocity"][masked]
            assert torch.equal(state["velocity"], kept["velocity"])
        encoder.release()


def law_give_back_forgets_what_joined(
    make: Callable[[], Encoder], compressor: Compressor, steps: Sequence[Tensor], tolerance: float
) -> None:
    """After give_back, the estimate of what receivers know is what it was before the step."""
    encoder, state = make(), dict[str, Tensor]()
    for step, x in enumerate(steps):
        sections = sections_for(compressor, len(x), dtype_name(x))
        nothing = torch.zeros(len(x), dtype=torch.float32)
        before = state.get("estimate", nothing).clone()
        encoder.encode(x, state, sections, StepInfo(step), KEY, new_status())
        encoder.give_back(state, sections)
        close({"estimate": state["estimate"]}, {"estimate": before}, tolerance, "give_back")
        encoder.release()
        encoder.encode(x, state, sections, StepInfo(step), KEY, new_status())
        encoder.release()


# -- strategies, in lockstep -------------------------------------------------------------------


def law_ranks_end_equal(strategy: Strategy, tensors: Sequence[Tensor]) -> None:
    """All ranks get the same result, bit for bit, over three steps with state."""
    state = [dict[str, Tensor]() for _ in tensors]
    for step in range(3):
        results, _ = lockstep(strategy, [x * (step + 1) for x in tensors], step=step, state=state)
        for result in results:
            assert result.shape == tensors[0].shape
            same(result, results[0], "a rank differs from rank 0")


def law_is_the_mean(strategy: Strategy, tensors: Sequence[Tensor]) -> None:
    """The result is the sum, divided once, for tensors with an exact sum that are sent whole."""
    total = torch.stack([x.double() for x in tensors]).sum(0)
    wanted = total.float() / torch.tensor(float(len(tensors)), dtype=torch.float32)
    for result in lockstep(strategy, tensors)[0]:
        assert torch.equal(result, wanted), f"{result} is not {wanted}"


def law_bytes_follow_the_formula(
    strategy: Strategy, tensors: Sequence[Tensor], bytes_sent: Sequence[float]
) -> None:
    """The counted bytes equal those of the formula."""
    counted = lockstep(strategy, tensors)[1].bytes_sent
    assert counted == list(bytes_sent), f"counted {counted}, expected {bytes_sent}"


def law_moves_do_not_depend_on_the_data(
    strategy: Strategy, tensors: Sequence[Tensor], others: Sequence[Tensor]
) -> None:
    """All ranks make the same moves, of the same sizes, whatever the gradients hold."""
    one, other = (lockstep(strategy, xs)[1].spans for xs in (tensors, others))
    assert one == other
    by_rank = [[s.label for s in one if s.rank == r] for r in range(len(tensors))]
    assert all(moves == by_rank[0] for moves in by_rank)


def law_inputs_stay(strategy: Strategy, tensors: Sequence[Tensor]) -> None:
    """Every rank's tensor stays unchanged."""
    before = [x.clone() for x in tensors]
    lockstep(strategy, tensors)
    for x, was in zip(tensors, before):
        same(x, was, "lockstep changed a rank's tensor")


def law_nothing_is_lost(strategy: Strategy, steps: Steps, tolerance: float = 1e-5) -> None:
    """Conservation: Σ residuals + N · Σ results = Σ of what the feedback was given to send.

    It holds after every step, computed in fp64. What is given is the gradient for plain error
    feedback, and the actual (possibly masked) velocity for momentum correction:
    Σ_k v_k + Σ sent_k = Σ_τ Σ_k u_k,τ.
    """
    world = len(steps[0])
    state = [dict[str, Tensor]() for _ in range(world)]
    given = torch.zeros(steps[0][0].shape, dtype=torch.float64)
    arrived, scale = torch.zeros_like(given), torch.zeros_like(given)
    for step, xs in enumerate(steps):
        for x, memory in zip(xs, state):
            more = to_be_sent(strategy.feedback, x, memory)
            given += more
            scale += more.abs()
        results, _ = lockstep(strategy, xs, step=step, state=state)
        arrived += results[0].double() * world
        waiting = torch.stack([memory["residual"].double() for memory in state]).sum(0)
        waiting += world * at_owners(state, len(given))
        lost = (waiting + arrived - given).abs()
        assert bool((lost <= tolerance * (scale + 1e-30)).all()), (
            f"step {step}: lost up to {lost.max()}"
        )


def at_owners(state: Sequence[State], n: int) -> Tensor:
    """Returns the residuals of the mean that the owners of pieces keep."""
    total = torch.zeros(n, dtype=torch.float64)
    for rank, memory in enumerate(state):
        for name in {OWNERS_RESIDUAL, LATER_RESIDUALS[0]} & memory.keys():
            begin, end = Pieces.of("x", n, len(state)).of_owner(rank)
            total[begin:end] = memory[name].double()
    return total


def to_be_sent(feedback: Feedback | None, x: Tensor, memory: State) -> Tensor:
    """Returns what this step adds to the residual, by the equations, in fp64."""
    g = x.double()
    kept = feedback.moments() if feedback is not None else {}
    if "momentum" not in kept:
        return g
    momentum: float = kept["momentum"]
    u = memory["velocity"].double() if "velocity" in memory else torch.zeros_like(g)
    return g + momentum * (u + g) if kept["nesterov"] else g + momentum * u


def law_non_finite_spoils_the_step_and_nothing_else(
    strategy: Strategy, steps: Steps, bad: Steps
) -> None:
    """A step with inf or NaN spoils the results of all ranks, and leaves no trace in states."""
    state = [dict[str, Tensor]() for _ in steps[0]]
    undisturbed = [dict[str, Tensor]() for _ in steps[0]]
    for step, xs in enumerate(steps):
        for spoiled in bad:
            before = [{key: v.clone() for key, v in memory.items()} for memory in state]
            for result in lockstep(strategy, spoiled, step=step, state=state)[0]:
                assert not bool(result.isfinite().all()), (
                    "a rank's result is finite, though the step is spoiled"
                )
            for memory, was in zip(state, before):
                assert sorted(memory) == sorted(was), "state appeared"
                for key, value in memory.items():
                    assert torch.equal(value, was[key]), f"'{key}' changed"
        results, _ = lockstep(strategy, xs, step=step, state=state)
        expected, _ = lockstep(strategy, xs, step=step, state=undisturbed)
        for result, wanted in zip(results, expected):
            same(result, wanted, "the step after a bad one")

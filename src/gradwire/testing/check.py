"""Checks all laws that apply to a member, on inputs that have been hard for others."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import StrategyError
from gradwire.member import Member
from gradwire.runtime.encoder import ComposedEncoder, make_encoder
from gradwire.strategy import Collective, Compressor, Feedback, StepInfo, Strategy
from gradwire.testing import laws
from gradwire.testing.payloads import sections_for

SIZES = 0, 1, 2, 7, 100, 1001
WORLDS = 1, 2, 3, 5


def check(member: Member) -> list[str]:
    """Check a compressor, a feedback or a collective against every law that applies to it.

    Returns the names of the laws, all of which it obeys. Takes seconds. The laws are functions of
    `gradwire.testing.laws`, which you can call with your own inputs.

    Raises:
        AssertionError: it breaks a law; the text says which, and how.
        StrategyError: it belongs to none of these families, or works with no compressor.
    """
    if isinstance(member, Compressor):
        return _compressor(member)
    if isinstance(member, Feedback):
        return _feedback(member)
    if isinstance(member, Collective):
        return _collective(member)
    raise StrategyError(
        "only compressors, feedbacks and collectives have laws to check; got "
        f"{type(member).__name__}. Pass a member, such as MyCompressor()."
    )


def inputs(n: int) -> list[Tensor]:
    """Returns vectors of n elements: ordinary, zero, with one spike, tiny, of whole numbers."""
    x = torch.randn(
        n, generator=torch.Generator().manual_seed(n), dtype=torch.float32, device="cpu"
    )
    spike = torch.zeros(n, dtype=torch.float32)
    spike[n // 2 : n // 2 + 1] = 1e6
    return [x, torch.zeros(n, dtype=torch.float32), spike, x * 1e-20, x.mul(3).round()]


def _compressor(one: Compressor) -> list[str]:
    every = (
        laws.law_same_seed_same_bytes, laws.law_input_is_not_changed,
        laws.law_lossless_if_claimed, laws.law_contraction,
        laws.law_encoding_again_changes_nothing, laws.law_add_adds_what_decode_writes,
        laws.law_places_are_what_decode_writes, laws.law_a_short_dtype_makes_no_difference,
    )  # fmt: skip
    for n in SIZES:
        laws.law_finite_elements_can_be_decoded(one, n)
        if n:
            laws.law_tells_what_is_not_finite(one, inputs(n)[0])
        for x in inputs(n):
            for law in every:
                law(one, x)
            sections = sections_for(one, n, "float32")
            laws.law_payload_is_what_is_claimed(one, x, sum(s.nbytes for s in sections))
            laws.law_accumulate_sums_in_rank_order(one, [x, -x, x])
        whole = inputs(n)[-1]
        laws.law_sums_if_claimed(one, [whole, -whole, whole])
        laws.law_sums_if_claimed(one, [8 * whole] * 3)  # more than 127, less than 256
    laws.law_unbiased_if_claimed(one, inputs(1001)[0])
    more = (
        laws.law_payload_is_what_is_claimed, laws.law_accumulate_sums_in_rank_order,
        laws.law_sums_if_claimed, laws.law_unbiased_if_claimed,
        laws.law_tells_what_is_not_finite, laws.law_finite_elements_can_be_decoded,
    )  # fmt: skip
    return [law.__name__ for law in (*every, *more)]


def _feedback(one: Feedback) -> list[str]:
    found = [
        "law_before_changes_no_input", "law_state_is_flat_and_fp32", "law_encoders_agree",
        "law_ranks_end_equal", "law_inputs_stay",
        "law_non_finite_spoils_the_step_and_nothing_else",
    ]  # fmt: skip
    whole = Strategy.parse("topk(0.25)+ef | allgather")
    half, collective = whole.compressor, whole.collective
    for n in (2, 7, 100):
        steps = [x for x in inputs(n) if x.any()]
        laws.law_before_changes_no_input(one, steps)
        laws.law_state_is_flat_and_fp32(one, steps)
        encoders = make_encoder(half, one), ComposedEncoder(half, one)
        laws.law_encoders_agree(*encoders, half, steps)
        strategy, ranks = Strategy(half, collective, one), [steps[0], -2 * steps[0], steps[0] + 1]
        laws.law_ranks_end_equal(strategy, ranks)
        laws.law_inputs_stay(strategy, ranks)
        bad = [steps[0] * float("nan"), *ranks[1:]]
        laws.law_non_finite_spoils_the_step_and_nothing_else(strategy, [ranks] * 2, [bad])
        if one.makes_good and not one.moments() and _keeps_all(one, steps[0]):
            laws.law_nothing_is_lost(strategy, [ranks[:2]] * 3)
            found = [*found[:6], "law_nothing_is_lost"]
    return found


def _keeps_all(one: Feedback, residual: Tensor) -> bool:
    """Whether the whole residual is encoded, and nothing of it is forgotten on purpose."""
    return torch.equal(one.before(residual * 0, {"residual": residual}, StepInfo())[0], residual)


def _collective(one: Collective) -> list[str]:
    strategy = _fitting(one)
    found = ["law_ranks_end_equal", "law_inputs_stay"]
    if one.sizes == "known":
        found.append("law_moves_do_not_depend_on_the_data")
    found.append("law_non_finite_spoils_the_step_and_nothing_else")
    whole = () if one.selects else _lossless(one)
    keeps = strategy.feedback is not None and one.per_node is None and one.tasks is None
    found += ["law_is_the_mean"] * bool(whole) + ["law_nothing_is_lost"] * keeps
    for world in WORLDS:
        dice = torch.Generator().manual_seed(world)
        xs, others = (
            [
                torch.randn(203, generator=dice, dtype=torch.float32, device="cpu")
                for _ in range(world)
            ]
            for _ in range(2)
        )
        laws.law_ranks_end_equal(strategy, xs)
        laws.law_inputs_stay(strategy, xs)
        if one.sizes == "known":
            laws.law_moves_do_not_depend_on_the_data(strategy, xs, others)
        bad = [xs[0] * float("nan"), *xs[1:]]
        laws.law_non_finite_spoils_the_step_and_nothing_else(strategy, [xs, others], [bad])
        for sent_whole in whole:
            laws.law_is_the_mean(sent_whole, [x.mul(3).round() for x in xs])
        if keeps:
            laws.law_nothing_is_lost(strategy, [xs, others, xs])
    return found


def _lossless(one: Collective) -> list[Strategy]:
    """Returns the strategies with this collective that send gradients as they are."""
    found = []
    for left in ("none", "nonzero"):
        try:
            found.append(Strategy(Strategy.parse(f"{left} | allgather").compressor, one))
        except StrategyError:
            continue
    return found


def _fitting(one: Collective) -> Strategy:
    """Returns a strategy with this collective."""
    reasons = []
    for left in ("topk(0.1)+ef", one.partner, "int8", "sign", "nonzero"):
        other = Strategy.parse(f"{left} | allgather")
        try:
            return Strategy(other.compressor, one, other.feedback)
        except StrategyError as error:
            reasons.append(str(error))
    raise StrategyError(
        f"'{one}' must work with one of gradwire's compressors; none of five fits: {reasons[0]}"
    )

"""Every StrategyError states the rule, the value that broke it, and the next step."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import Strategy
from gradwire.collectives import AllReduceSum
from gradwire.compressors import QSGD, Float8, Sign, TernGrad, TopK
from gradwire.errors import GradwireError, StrategyError
from gradwire.feedback import ErrorFeedback, MomentumCorrection, ServerMomentum


def problem(text: Any) -> str:
    """The message with which `parse` refuses the text."""
    with pytest.raises(StrategyError) as raised:
        Strategy.parse(text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "rule", "next_step"),
    [
        # unknown names, with the nearest known one
        ("topkk(0.1) | allgather", "'topkk' is not a compressor", "Use 'topk'"),
        ("dcg(0.1) | allgather", "'dcg' is not a compressor", "Use 'dgc'"),
        ("fp61 | allreduce", "'fp61' is not a compressor", "Use 'fp16'"),
        ("none | allreduced", "'allreduced' is not a collective", "Use 'allreduce'"),
        ("none | all_gather", "'all_gather' is not a collective", "Use 'allgather'"),
        ("topk(0.1)+eff | allgather", "'eff' is not a feedback", "Use 'ef'"),
        ("none+momentums | allreduce", "'momentums' is not a feedback", "Use 'momentum'"),
        ("TopK(0.1) | allgather", "'TopK' is not a compressor", "Use 'topk'"),
        # what members are called elsewhere
        ("fp32 | allreduce", "'fp32' is not a compressor", "Use 'none'"),
        ("Half | allreduce", "'Half' is not a compressor", "Use 'fp16'"),
        ("none | ring", "'ring' is not a collective", "Use 'allreduce'"),
        ("none | carrier_pigeon", "'carrier_pigeon' is not a collective", "allreduce, allgather"),
        # members in the wrong place
        ("ef | allgather", "must be first, its feedback after '+'", "'topk(0.01)+ef | allgather'"),
        ("ef+topk(0.1) | zen", "'ef' is a feedback", "Use 'topk(0.1)+ef | zen'"),
        ("allgather | none", "'allgather' is a collective", "Use 'none | allgather'"),
        ("zen | topk(0.1)+ef", "'zen' is a collective", "Use 'topk(0.1)+ef | zen'"),
        ("allgather | dgc(0.1)", "'allgather' is a collective", "Use 'dgc(0.1) | allgather'"),
        ("allreduce | topk(0.1)", "'allreduce' is a coll", "Use 'topk(0.01)+ef | allgather'"),
        ("none | ef", "'ef' is a feedback", "Use 'none+ef | allgather'"),
        ("allgather | allreduce", "'allgather' is not a compressor", "none, fp16, bf16"),
        (
            "topk(0.1)+topk(0.1) | allgather",
            "'topk' is not a feedback",
            "(known: ef, dgc, adam, muon, ef21",
        ),
        # an alias beside a feedback
        (
            "dgc(0.1)+ef | allgather",
            "'dgc(0.1)' is an alias that has its own feedback: 'topk(0.1)+dgc'",
            "Use 'dgc(0.1) | allgather', or 'topk(0.1)+ef | allgather'",
        ),
        (
            "dgc(0.1, values='bf16')+ef(0.9) | gtopk",
            "has its own feedback: 'topk(0.1, values=\"bf16\")+dgc'",
            "or 'topk(0.1, values=\"bf16\")+ef(0.9) | gtopk'",
        ),
        ("dgc(0.1)+ef", "has its own feedback", "Use 'dgc(0.1) | allgather'"),
        ("signsgd+ef | vote", "'signsgd' is an alias of 'sign'", "Use 'sign+ef | vote'"),
        # a collective alone
        ("allreduce", "'allreduce' is a collective", "Use 'none | allreduce'"),
        ("vote", "'vote' is a collective", "Use 'sign | vote'"),
        ("zen", "needs a compressor before it", "Use 'topk(0.01)+ef | zen'"),
        ("gtopk(variant='tree')", "needs a compressor before", 'gtopk(variant="tree")\''),
        ("bf16+allreduce", "it needs a collective after '|'", "Use 'bf16 | allreduce'"),
        ("topkk(0.1)", "'topkk' is not a compressor", "Use 'topk'"),
        # what stands alone, in company
        (
            "powersgd(4)+ef | allreduce",
            "'powersgd' is a whole strategy",
            "Use 'powersgd(4)' alone",
        ),
        ("powersgd(4) | allreduce", "its own feedback and collective", "Use 'powersgd(4)' alone"),
        ("powersgd(4)+ef", "nothing can be added to it", "Use 'powersgd(4)' alone"),
        ("none+powersgd(4) | allreduce", "'powersgd' is a whole strategy", "Use 'powersgd(4)'"),
        ("powersgd | allreduce", "'powersgd' is a whole strategy", "Use 'powersgd(rank)' alone"),
        ("powersgd", "'powersgd' do not fit", "Use 'powersgd(rank)'"),
        # ranges
        ("topk(0) | allgather", "above 0 and at most 1; got 0", "topk(0.01)"),
        ("topk(-0.1) | allgather", "above 0 and at most 1; got -0.1", "topk(0.01)"),
        ("topk(1.5) | allgather", "above 0 and at most 1; got 1.5", "topk(0.01)"),
        ("nonzero(index='gap8') | zen", "auto, int32; got 'gap8'", "nonzero(index="),
        ("topk('x') | allgather", "above 0 and at most 1; got 'x'", "topk(0.01)"),
        ("topk(1e999) | allgather", "above 0 and at most 1; got inf", "topk(0.01)"),
        ("dgc(2) | allgather", "above 0 and at most 1; got 2", "topk(0.01)"),
        ("dgc(0.1, 1) | allgather", "at least 0 and below 1; got 1", "dgc(momentum=0.9)"),
        ("dgc(0.1, -0.1) | allgather", "at least 0 and below 1; got -0.1", "momentum=0.9"),
        (
            "none+server_momentum(1.0) | allreduce",
            "server_momentum's momentum must be at least 0 and below 1; got 1.0",
            "server_momentum(momentum=0.9)",
        ),
        ("none+ef(0) | allgather", "decay must be above 0 and at most 1; got 0", "ef(decay=0.9)"),
        ("none+ef(1.5) | allgather", "above 0 and at most 1; got 1.5", "ef(decay=0.9)"),
        ("none+ef('x') | allgather", "above 0 and at most 1; got 'x'", "ef(decay=0.9)"),
        ("none+momentum(1) | allgather", "momentum's momentum must be at least 0", "momentum=0.9"),
        ("signum(1) | allgather", "at least 0 and below 1; got 1", "momentum=0.9"),
        ("qsgd(3) | allgather", "bits must be 2, 4 or 8, for each element; got 3", "qsgd(4)"),
        (
            "qsgd(True) | allgather",
            "bits must be 2, 4 or 8, for each element; got True",
            "qsgd(4)",
        ),
        ("lloyd(1.0)+ef | allgather", "lloyd's bits must be 1 or 2; got 1.0", "lloyd(2)"),
        ("qsgd('4') | allgather", "bits must be 2, 4 or 8, for each element; got '4'", "qsgd(4)"),
        ("terngrad(0) | allgather", "terngrad's clip must be a number", "terngrad(clip=2.5)"),
        ("terngrad(-1) | allgather", "above 0, or None; got -1", "terngrad(clip=2.5)"),
        ("terngrad('x') | allgather", "above 0, or None; got 'x'", "terngrad(clip=2.5)"),
        ("terngrad(1e999) | allgather", "above 0, or None; got inf", "terngrad(clip=2.5)"),
        # choices
        (
            "topk(0.1, 'fp8') | allgather",
            "topk's values must be one of fp32, bf16, fp16; got 'fp8'",
            'topk(0.01, values="fp16")',
        ),
        (
            "topk(0.1, index='rice') | allgather",
            "topk's index must be one of auto, int32, gap16, gap8, elias_fano, bitmap; got 'rice'",
            'topk(0.01, index="bitmap")',
        ),
        ("topk(0.1, values=16) | allgather", "fp32, bf16, fp16; got 16", "values="),
        ("topk(0.1, values=None) | allgather", "fp32, bf16, fp16; got None", "values="),
        ("topk(0.1, values=['bf16']) | allgather", "got ['bf16']", "values="),
        ("topk(0.1, index=32) | allgather", "bitmap; got 32", "index="),
        ("topk(0.1, index='Auto') | allgather", "bitmap; got 'Auto'", "index="),
        ("dgc(0.1, values='half') | allgather", "fp32, bf16, fp16; got 'half'", "values="),
        ("dgc(0.1, index='gap32') | allgather", "bitmap; got 'gap32'", "index="),
        (
            "fp8('e3m4') | allgather",
            "variant must be one of e4m3, e5m2; got 'e3m4'",
            'variant="e5m2"',
        ),
        ("fp8(8) | allgather", "variant must be one of e4m3, e5m2; got 8", 'variant="e5m2"'),
        ("sign(1) | allgather", "sign's scaled must be True or False; got 1", "sign(scaled=True)"),
        ("sign(scaled='yes') | allgather", "True or False; got 'yes'", "sign(scaled=True)"),
        # impossible pairs
        ("topk(0.1) | allreduce", "needs a compressor that promises 'sums'", "| allgather'"),
        ("topk(0.1)+ef | allreduce", "'topk(0.1)' does not", "Use 'topk(0.1)+ef | allgather'"),
        ("dgc(0.1) | allreduce", "'topk(0.1)' does not", "Use 'dgc(0.1) | allgather'"),
        # parameters
        ("topk | allgather", "'topk' do not fit", "Use 'topk(density, values="),
        ("topk() | allgather", "missing 1 required positional argument", "'topk(density, values="),
        ("topk(densty=0.1) | allgather", "keyword argument 'densty'", "'topk(density, values="),
        (
            "topk(0.1, 'fp32', 'auto', 1) | allgather",
            "'topk' do not fit",
            "'topk(density, values=",
        ),
        ("topk(0.1, density=0.1) | allgather", "multiple values", "'topk(density, values="),
        ("ef(0.9) and 1 | allgather", "needs a collective", "| allgather"),
        ("dgc(moment=1) | allgather", "'dgc' do not fit", "momentum=0.9, nesterov=False"),
        ("none(1) | allreduce", "'none' do not fit", "'none()'"),
        ("topk(x) | allgather", "parameters in 'topk(x)' must be plain values", "0.01"),
        ("topk(open('f')) | allgather", "must be plain values", "0.01"),
        ("topk(*[0.1]) | allgather", "must be plain values", "0.01"),
        ("topk(**{'density': 0.1}) | allgather", "must be plain values", "0.01"),
        ("topk({[]: 1}) | allgather", "must be plain values", "0.01"),
        ("dgc(0.1, nesterov='yes') | allgather", "must be True or False; got 'yes'", "dgc("),
        ("dgc(0.1, mask=3) | allgather", "mask must be True or False; got 3", "dgc("),
        # shapes of text
        ("", "it must be a non-empty string", "topk(0.01)+ef | allgather"),
        ("   ", "it must be a non-empty string", "topk(0.01)+ef | allgather"),
        (None, "it must be a non-empty string", "topk(0.01)+ef | allgather"),
        (3, "it must be a non-empty string", "topk(0.01)+ef | allgather"),
        ("none", "needs a collective after '|'", "Use 'none | allreduce'"),
        ("topk(0.1)+ef", "needs a collective after '|'", "Use 'topk(0.1)+ef | allgather'"),
        ("topk(1%)+ef | allgather", "a number such as 0.01; got '1%'", "Use 'topk(0.01)+ef |"),
        ("topk(0,01) | allgather", "a number such as 0.01; got '0,01'", "Use 'topk(0.01)+ef |"),
        ("plan.json", "needs a collective after '|'", "Use 'topk(0.01)+ef | allgather'"),
        ("none & allgather", "needs a collective after '|'", "allgather"),
        ("none + allgather", "needs a collective after '|'", "allgather"),
        ("none | ", "it must have the form 'compressor[+feedback] | collective'", "allgather"),
        ("none || allreduce", "the form 'compressor[+feedback] | collective'", "allgather"),
        ("a | b | c", "'c' is not a collective", "allreduce"),
        (
            "none | allreduce | allgather",
            "'none | allreduce' is not a compressor; the form is",
            "allgather",
        ),
        ("none + ef + ef | allgather", "'none + ef' is not a compressor", "allgather"),
        ("0.1 | allgather", "'0.1' is not a compressor", "allgather"),
        ("gradwire.none | allgather", "'gradwire.none' is not a compressor", "allgather"),
        ("none & ef | allgather", "'none & ef' is not a compressor", "allgather"),
        ("none - ef | allgather", "'none - ef' is not a compressor", "allgather"),
        ("none\x00 | allreduce", "it must have the form", "allgather"),
        ("none | allreduce; import os", "it must have the form", "allgather"),
        ("-" * 50_000 + "1 | allreduce", "it must have the form", "allgather"),
        ("topk(" * 150 + ")" * 150 + " | allgather", "", "Use"),
    ],
)
def test_states_rule_value_and_next_step(text: Any, rule: str, next_step: str) -> None:
    said = problem(text)
    assert rule in said
    assert next_step in said
    assert " Use " in said


@pytest.mark.parametrize("text", ["topkk(0.1) | allgather", "topk | allgather", "none"])
def test_a_problem_of_reading_quotes_the_text(text: str) -> None:
    assert repr(text) in problem(text)


@pytest.mark.parametrize("text", ["nonsense", "topk(0) | allgather", "topk(0.1) | allreduce"])
def test_is_a_gradwire_error_and_a_value_error(text: str) -> None:
    with pytest.raises(GradwireError):
        Strategy.parse(text)
    with pytest.raises(ValueError, match="Use"):
        Strategy.parse(text)


def test_members_refuse_the_same_without_a_text() -> None:
    for make in (
        lambda: TopK(0.0),
        lambda: TopK(float("nan")),
        lambda: TopK("0.1"),  # type: ignore[arg-type]
        lambda: MomentumCorrection(1.0),
        lambda: MomentumCorrection(float("nan")),
        lambda: ServerMomentum(-1.0),
        lambda: ServerMomentum(None),  # type: ignore[arg-type]
        lambda: TopK(0.1, values="fp8"),
        lambda: TopK(0.1, index=""),
        lambda: TopK(0.1, index=None),  # type: ignore[arg-type]
        lambda: ErrorFeedback(0.0),
        lambda: ErrorFeedback(float("nan")),
        lambda: QSGD(16),
        lambda: Float8("e8m0"),
        lambda: TernGrad(float("nan")),
        lambda: Sign("yes"),  # type: ignore[arg-type]
        lambda: Strategy(TopK(0.1), AllReduceSum()),
    ):
        with pytest.raises(StrategyError, match="Use"):
            make()


@given(st.text(max_size=40) | st.text(alphabet="topkefdgcn+|(). 0123=,-*'\"[]{}", max_size=60))
@example("none | allreduce\n\n")
@example("none\ud800 | allreduce")
@example("'\\q' | allreduce")
@example("topk(1if 1else 2) | allgather")
def test_any_text_is_a_strategy_or_a_strategy_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(StrategyError):  # anything else is a crash
            strategy = Strategy.parse(text)
            assert Strategy.parse(str(strategy)) == strategy


def test_a_wrong_text_has_its_own_error_alone() -> None:
    """Python's parser warns of `1in` before it fails."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for text in ("1ing", "topk(1if 1else 2) | allgather", r"'\q' | allreduce"):
            with pytest.raises(StrategyError):
                Strategy.parse(text)
    assert told == []

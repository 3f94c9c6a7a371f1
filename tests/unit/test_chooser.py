"""Prices propose, a race decides, and the race corrects later prices."""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.collectives._chooser import Chooser

CLOSE = {"dense": 9.0, "allgather": 1.0, "zen": 1.5, "sparcml": 2.1}


def run(chooser: Chooser, seconds: Mapping[str, float]) -> list[str]:
    """Returns the members that ran until the race was over, given the seconds of each."""
    ran = []
    while not chooser.race_is_over and len(ran) < 100:
        ran.append(chooser.member)
        chooser.took(seconds[chooser.member])
    return ran


def raced(seconds: Mapping[str, float]) -> Chooser:
    """A chooser after the race, and after the final if there is one."""
    chooser = Chooser()
    chooser.price(CLOSE, network_is_known=True)
    while len(run(chooser, seconds)) < 100:
        chooser.learn([chooser.times()])
    return chooser


def test_an_unknown_network_is_no_reason_to_race() -> None:
    chooser = Chooser()
    chooser.price(CLOSE, network_is_known=False)
    assert run(chooser, CLOSE) == ["allgather"] * 100


def test_who_is_much_dearer_does_not_run() -> None:
    chooser = Chooser()
    chooser.price(CLOSE, network_is_known=True)
    assert run(chooser, CLOSE) == ["allgather", "zen"] * 5


def test_one_that_is_much_cheaper_needs_no_race() -> None:
    chooser = Chooser()
    chooser.price({"dense": 2.1, "allgather": 1.0}, network_is_known=True)
    assert run(chooser, CLOSE) == ["allgather"] * 100


def test_the_fastest_stays() -> None:
    assert raced({"allgather": 3.0, "zen": 2.0}).member == "zen"


def test_close_ones_run_again() -> None:
    """After a final, only the times of the final count."""
    chooser = Chooser()
    chooser.price({**CLOSE, "sparcml": 1.1}, network_is_known=True)
    run(chooser, {"allgather": 1.0, "zen": 1.25, "sparcml": 1.5})
    chooser.learn([chooser.times()])
    assert chooser.member == "allgather"
    assert run(chooser, {"allgather": 1.3, "zen": 1.2}) == ["allgather", "zen"] * 10
    chooser.learn([chooser.times()])
    assert chooser.member == "zen"
    assert run(chooser, {"zen": 1.0}) == ["zen"] * 100, "there is one final"


def test_the_slowest_rank_decides() -> None:
    chooser = Chooser()
    chooser.price(CLOSE, network_is_known=True)
    run(chooser, {"allgather": 1.0, "zen": 2.0})
    mine = chooser.times()
    assert mine == [1_000_000_000, 2_000_000_000]
    chooser.learn([mine, [5_000_000_000, 2_000_000_000]])
    assert chooser.member == "zen"


def test_one_slow_turn_is_forgiven() -> None:
    chooser = Chooser()
    chooser.price(CLOSE, network_is_known=True)
    for turn in range(10):
        chooser.took(60.0 if turn == 0 else {"allgather": 1.0, "zen": 2.0}[chooser.member])
    chooser.learn([chooser.times()])
    assert chooser.member == "allgather"


def test_nothing_changes_amid_a_race() -> None:
    chooser = Chooser()
    chooser.price(CLOSE, network_is_known=True)
    chooser.took(1.0)
    chooser.price({"dense": 0.1, "allgather": 9.0, "zen": 9.0}, network_is_known=True)
    assert run(chooser, CLOSE) == ["zen", *["allgather", "zen"] * 4]


def test_races_correct_prices() -> None:
    """zen took twice its price, allgather four times: at equal corrected prices zen stays."""
    chooser = raced({"allgather": 4.0, "zen": 3.0})
    assert chooser.member == "zen"
    chooser.price({"dense": 9.0, "allgather": 0.75, "zen": 1.5}, network_is_known=True)
    assert run(chooser, {"zen": 1.0}) == ["zen"] * 100, "equal now, and no reason to change"
    chooser.price({"dense": 9.0, "allgather": 0.6, "zen": 1.5}, network_is_known=True)
    assert chooser.member == "allgather"


def test_who_never_ran_gets_its_chance_where_prices_were_too_low() -> None:
    """All took six times their price, so dense, at its own price, is now likely the fastest."""
    chooser = raced({"allgather": 6.0, "zen": 9.0})
    prices = {"dense": 4.0, "allgather": 1.0, "zen": 1.5, "sparcml": 20.0}
    chooser.price(prices, network_is_known=True)
    assert run(chooser, prices) == ["dense", "allgather"] * 5


def test_a_newcomer_races_against_the_choice_however_cheap_it_is() -> None:
    """Otherwise its time would never be measured."""
    chooser = raced({"allgather": 6.0, "zen": 9.0})
    prices = {"dense": 9.0, "allgather": 1.0, "zen": 1.5, "sparcml": 0.1}
    chooser.price(prices, network_is_known=True)
    assert run(chooser, {"allgather": 6.0, "sparcml": 60.0}) == ["allgather", "sparcml"] * 5
    chooser.learn([chooser.times()])
    assert chooser.member == "allgather"


def test_who_never_ran_is_no_better_than_others_where_prices_were_too_high() -> None:
    """All took half their price, so a member at 2.1 times the price is as far off as before."""
    chooser = raced({"allgather": 0.5, "zen": 0.75})
    chooser.price(CLOSE, network_is_known=True)
    assert run(chooser, CLOSE) == ["allgather"] * 100


def test_who_becomes_likely_races() -> None:
    chooser = raced({"allgather": 1.0, "zen": 1.5})
    chooser.price({**CLOSE, "sparcml": 1.2}, network_is_known=True)
    seconds = {"allgather": 1.0, "zen": 1.5, "sparcml": 0.7}
    assert run(chooser, seconds) == ["allgather", "zen", "sparcml"] * 5
    chooser.learn([chooser.times()])
    assert chooser.member == "sparcml"

"""Links that are cut while a job runs, and restored, by `ip link set … down` and `up`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwire.errors import LabError
from gradwire.lab.wiring import Cable, Wiring

_LATEST_SECONDS = 1e6


class Outage(NamedTuple):
    """A link, "host3" or "leaf0-spine1", that is down from `seconds` after a job began to `until`,
    or to the job's end."""

    link: str
    seconds: float
    until: float | None = None


class Turn(NamedTuple):
    """One end of a cable that is set up or down, `seconds` after a job began."""

    seconds: float
    machine: str
    interface: str
    up: bool


def outage_of(text: str) -> Outage:
    """Read LINK@SECONDS, or LINK@SECONDS:UNTIL. Raises LabError for anything else."""
    link, _, times = text.partition("@")
    begin, mends, until = times.partition(":")
    try:
        return Outage(link, float(begin), float(until) if mends else None)
    except ValueError:
        raise LabError(
            f"an outage must be LINK@SECONDS or LINK@SECONDS:UNTIL; got {text!r}. Write for "
            "example host3@2:2.5."
        ) from None


def turns(outages: Sequence[Outage], wiring: Wiring) -> list[Turn]:
    """Return the turns in order of time; at equal times links come up first. The end of a cable at
    the upper switch goes down; the other has no carrier then, as with a cable that is cut. Raises
    LabError for unknown links, invalid times, and a link that is to go down while it is down."""
    found, back = [], dict[tuple[str, str], float]()
    wrong = [one for one in outages if not isinstance(one, Outage)]
    if wrong:
        raise LabError(
            f"outages must be a list of Outage; got {wrong[0]!r:.80} in it. Write for example "
            '[gradwire.lab.Outage("host3", 2.0, 2.5)].'
        )
    for outage in sorted(outages, key=lambda own: own.seconds):
        cable = _cable(outage.link, wiring)
        last = _LATEST_SECONDS if outage.until is None else outage.until
        if not 0 <= outage.seconds < last <= _LATEST_SECONDS:
            raise LabError(
                "a link must go down at second 0 or later, and come back after that; got "
                f"{outage.link} down at {outage.seconds:g}, up at {last:g}. Correct it."
            )
        end = cable.far.machine, cable.far.interface
        if outage.seconds < back.get(end, 0.0):
            raise LabError(
                f"a link cannot go down while it is down; got {outage.link} down at "
                f"{outage.seconds:g}, and down before until {back[end]:g}. Make one outage of the "
                "two."
            )
        back[end] = last
        found.append(Turn(outage.seconds, *end, up=False))
        if outage.until is not None:
            found.append(Turn(outage.until, *end, up=True))
    return sorted(found, key=lambda turn: (turn.seconds, not turn.up))


def _cable(name: str, wiring: Wiring) -> Cable:
    for cable in wiring.cables:
        ends = cable.near.machine, cable.far.machine
        if name in ("-".join(ends), "-".join(ends[::-1])):
            return cable
        if name == ends[0] and name.startswith("host"):
            return cable
    near, far = wiring.cables[-1].near.machine, wiring.cables[-1].far.machine
    raise LabError(
        f"an outage needs the link of a host, or one between switches; got {name!r}. Name an "
        f"existing one, such as host0 or {near}-{far}."
    )

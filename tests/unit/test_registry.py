"""The registry knows every exported member by its name, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import gradwire
from gradwire import collectives, compressors, families, feedback, registry
from gradwire.errors import StrategyError
from gradwire.strategy import Collective, Compressor, Feedback, Member

FAMILIES: dict[str, tuple[Any, dict[str, Any], type]] = {
    "compressors": (compressors, families.COMPRESSORS, Compressor),
    "feedback": (feedback, families.FEEDBACK, Feedback),
    "collectives": (collectives, families.COLLECTIVES, Collective),
}


_VALUES = {"int": 1, "str": "all_reduce"}
"""Values for parameters without a default, by type."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_exported_member_is_registered_under_its_name(family: str) -> None:
    module, registered, base = FAMILIES[family]
    assert [m.name for m in module.MEMBERS] == list(registered)
    assert list(registered.values()) == list(module.MEMBERS), "two members share a name"
    for name, member in registered.items():
        assert name.isidentifier()
        assert issubclass(member, base)
        assert getattr(module, member.__name__) is member
        assert member.__name__ in module.__all__


@pytest.mark.parametrize("family", FAMILIES)
def test_members_are_frozen_comparable_and_hashable(family: str) -> None:
    for member in FAMILIES[family][1].values():
        parameters = member.__dataclass_params__
        assert parameters.frozen
        assert parameters.eq
        required = [f for f in dataclasses.fields(member) if f.default is dataclasses.MISSING]
        values = [_VALUES.get(str(f.type), 0.5) for f in required]
        one, other = (member(*values) for _ in range(2))
        assert one == other
        assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("family", "text"),
    [(Compressor, "lloyd(2)"), (Feedback, "ef(decay=0.9)"), (Collective, "zen"),
     (collectives.AllGatherSum, "zen"), (Member, "zen")],
)  # fmt: skip
def test_a_member_is_read_alone(family: type[Member], text: str) -> None:
    """Any class of its family reads it, as a static method would."""
    assert str(family.parse(text)) == text
    with pytest.raises(StrategyError, match="'nothing' is not a "):
        family.parse("nothing")


def test_aliases_hide_no_compressor() -> None:
    assert not set(registry.ALIASES) & set(families.COMPRESSORS)


@pytest.mark.parametrize("text", ["topk(0.01)", "sign", "onebit", "lloyd(2)", "natural", "bf16"])
def test_available_says_who_wants_feedback(text: str) -> None:
    compressor = Compressor.parse(text)
    line = gradwire.available()["compressors"][compressor.name]
    assert line.endswith("Wants ef, dgc or ef21.") == compressor.claims(1 << 20).wants_feedback


def test_available_names_every_member_with_a_line() -> None:
    shown = gradwire.available()
    assert list(shown) == ["compressors", "feedback", "collectives", "aliases"]
    for family, (_, registered, _) in FAMILIES.items():
        assert list(shown[family]) == list(registered)
    assert list(shown["aliases"]) == [*registry.ALIASES, "powersgd", "thc", "recode"]
    assert "none | powersgd(rank)" in shown["aliases"]["powersgd"]
    for lines in shown.values():
        for name, line in lines.items():
            assert 10 < len(line) < 99, name
            assert "\n" not in line
            assert not line.startswith("Abstract")


def test_a_member_of_somebody_else_is_named_whatever_its_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Foreign(compressors.Identity):
        """Two parameters, both of them required."""

        level: int
        form: str

    monkeypatch.setitem(families.COMPRESSORS._others, "foreign", Foreign)
    line = gradwire.available()["compressors"]["foreign"]
    assert line == "Two parameters, both of them required."

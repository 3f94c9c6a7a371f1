"""Nothing escapes the contract: every exported member has an instance, every law a culprit."""

from __future__ import annotations

import instances
import laws
import pytest
import test_mutants

from gradwire import collectives, compressors, feedback


@pytest.mark.parametrize(
    ("exported", "table"),
    [
        (compressors.MEMBERS, instances.COMPRESSORS),
        (feedback.MEMBERS, instances.FEEDBACK),
        (collectives.MEMBERS, instances.COLLECTIVES),
    ],
)
def test_every_exported_member_has_an_instance(exported, table) -> None:  # type: ignore[no-untyped-def]
    assert {type(m) for m in table} == set(exported)


def test_every_member_has_its_numbers_by_hand() -> None:
    assert set(instances.SECTION_BYTES) == {m.name for m in compressors.MEMBERS}
    assert set(instances.OWN_CLASS) == {m.name for m in compressors.MEMBERS}
    by_data = {m.name for m in instances.ON_STREAMS}
    assert set(instances.BYTES_SENT) == {m.name for m in collectives.MEMBERS} - by_data


def test_every_law_catches_somebody() -> None:
    """A law that no wrong member breaks proves nothing."""
    known = {name for name in vars(laws) if name.startswith("law_")}
    assert known <= {mutant.law.__name__ for mutant in test_mutants.MUTANTS}

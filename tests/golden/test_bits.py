"""Every instruction set gives the bits that every other gave, also on other processors.

tests/golden/bits.txt is of all of them: `make test-aarch64` compares it with what NEON makes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import same_bits
from gradwire.extension import extension

CORE = extension()


@pytest.mark.skipif(CORE is None, reason="the extension is not built")
def test_all_instruction_sets_give_the_same_bits(golden: Callable[[str, str], None]) -> None:
    found = same_bits.digests(CORE)
    assert next(iter(found)) == "plain"
    for own in found.values():
        golden("bits.txt", same_bits.text_of(own))

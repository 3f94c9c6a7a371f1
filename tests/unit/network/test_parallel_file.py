"""A parallel job as TOML."""

from __future__ import annotations

import pytest

from gradwire.errors import NetworkError
from gradwire.network.parallelism import Parallelism, job_of

TEXT = """
dp = 32
pp = 4
tp = 8
gradient_bytes = 437_500_000
activation_bytes = 8_388_608
microbatches = 16
forward_seconds = 0.012
backward_seconds = 1
"""


def test_fields_are_read() -> None:
    assert job_of(TEXT) == Parallelism(32, 4, 8, 437_500_000, 8_388_608, 16, 0.012, 1)
    assert job_of(TEXT + "buckets = 4").buckets == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got no 'dp'"),
        (TEXT + "dpp = 4", "got 'dpp'"),
        (TEXT.replace("= 32", "= 0"), "dp must be a whole number, 1 to"),
        (TEXT.replace("= 32", "= 1.5"), "dp must be a whole number"),
        (TEXT.replace("0.012", "'long'"), "forward_seconds must be a finite number"),
        (TEXT.replace("0.012", "nan"), "forward_seconds must be a finite number"),
        ("dp = = 4", "TOML; .*line 1"),
        ("a = " + "[" * 9999, "TOML"),
    ],
)
def test_bad_files_are_told(text: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        job_of(text)

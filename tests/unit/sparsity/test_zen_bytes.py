"""zen's savings beside the paper's, on gradients like those of the published models."""

from __future__ import annotations

import pytest
from sparsity import synthetic

from gradwire import lockstep
from suites import first

SCALES = {
    "deepfm": 1 / 512, "topk": 1 / 16, "adversarial": 1 / 16, "bert": 1 / 32, "nmt": 1 / 128,
    "lstm": 1 / 512,
}  # fmt: skip


@pytest.mark.parametrize("preset", first(SCALES, 2))
def test_zen_sends_85_percent_of_what_the_paper_s_does_at_most(preset: str) -> None:
    xs = synthetic(preset, 16, scale=SCALES[preset])
    for world in (2, 4, 8, 16):
        ours, published = (
            sum(lockstep(f"nonzero | {name}", xs[:world])[1].bytes_sent)
            for name in ("zen", "zen(variant='paper')")
        )
        assert ours <= 0.85 * published, f"{ours / published:.3f} with {world} ranks"

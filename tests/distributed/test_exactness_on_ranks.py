"""The error of averages by each strategy, parameter by parameter, on real ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import Ranks

from gradwire.runtime.torch_dist import Performer
from gradwire.tuning.exactness import Exactness
from gradwire.tuning.probe import Probe

TEXTS = (
    "none | allreduce", "bf16 | allreduce", "topk(0.05)+ef | allgather", "sign+momentum | vote",
    "lloyd(2)+adam | allgather", "lloyd(2)+muon | alltoall",
)  # fmt: skip


def measured() -> dict[str, dict[str, float]]:
    """Four steps of three parameters: a matrix with few large elements, one whose elements are
    alike, and a kernel."""
    dice = torch.Generator().manual_seed(dist.get_rank())
    spiky = [torch.zeros(20, 30) for _ in range(4)]
    for x in spiky:
        x[3, :20] = torch.randn(20, generator=dice)
    equal = [torch.randn(20, 30, generator=dice) for _ in range(4)]
    kernel = [torch.randn(4, 2, 3, 3, generator=dice) for _ in range(4)]
    performer = Performer(dist.group.WORLD)
    exactness = Exactness(Probe(performer), {"spiky": spiky, "equal": equal, "kernel": kernel})
    found = {text: exactness.errors(text) for text in TEXTS}
    few = Exactness(Probe(performer), {"equal": equal})
    found["few"] = {d: few.errors(f"topk({d})+ef | allgather")[""] for d in ("0.003", "0.02")}
    found["nothing"] = Exactness(Probe(performer), {}).errors(TEXTS[1])
    return found


def test_errors_are_each_parameter_s_own(two: Ranks) -> None:
    one, other = two.run(measured)
    assert one == other, "of averages, which are the same everywhere"
    assert one["nothing"] == one["sign+momentum | vote"] == {}
    assert one["none | allreduce"] == dict.fromkeys(("", "spiky", "equal", "kernel"), 0.0)
    assert all(0 < error < 0.01 for error in one["bf16 | allreduce"].values())
    topk = one["topk(0.05)+ef | allgather"]
    assert topk["spiky"] < 1e-6 < 0.5 < topk["equal"], "30 of 600 are all there is, or are not"
    assert topk["spiky"] < topk[""] < 2 * topk["equal"]
    assert one["few"]["0.003"] > 1.5 * one["few"]["0.02"], "what is sent rarely waits for long"
    assert one["lloyd(2)+adam | allgather"].keys() == {"", "spiky", "equal", "kernel"}
    assert one["lloyd(2)+muon | alltoall"].keys() == {"", "spiky", "equal"}, "matrices"
    # It rises slowly as residuals grow; how many rounds are enough depends on the processor.
    assert 0.5 < one["lloyd(2)+muon | alltoall"]["equal"] < 1.5

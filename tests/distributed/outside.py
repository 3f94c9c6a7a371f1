"""All that gradwire does, on members of another package: two ranks, and a report of rank 0.

    torchrun --nproc-per-node 2 outside.py FOLDER

`test_outside_members.py` installs the package first, and looks at what is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small import fingerprint, loss_of, small

import gradwire
from gradwire import Strategy, lockstep
from gradwire.families import COMPRESSORS, FEEDBACK
from gradwire.planner.pricing import price
from gradwire.runtime.encoder import ComposedEncoder, make_encoder
from gradwire.strategy import Compressor, Feedback

STRATEGIES = (
    "levels(15)+ef | allgather", "levels(15)+fading | allgather", "levels(127) | alltoall",
    "counted | allgather", "counted | halves", "topk(0.1)+ef | halves",
    "levels(15)+fading | halves", "topk(0.1)+fading | gtopk", "counted | zen",
    "levels(31)+adam | allgather",
)  # fmt: skip


def parsed() -> list[str]:
    """As they print."""
    return [str(Strategy.parse(text)) for text in STRATEGIES]


def obey_the_laws() -> list[str]:
    """Laws that were tried."""
    import laws  # of the contract suite, whose folder only this program's path has

    tried = []
    compressors: list[Compressor] = [COMPRESSORS["levels"](15), COMPRESSORS["counted"]()]
    xs = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (0, 1, 7, 101, 1301)]
    for compressor in compressors:
        for law in (
            laws.law_same_seed_same_bytes, laws.law_input_is_not_changed,
            laws.law_lossless_if_claimed, laws.law_contraction,
            laws.law_encoding_again_changes_nothing,
        ):  # fmt: skip
            for x in xs:
                law(compressor, x)
            tried.append(law.__name__)
        laws.law_accumulate_sums_in_rank_order(compressor, [xs[3], -xs[3], 2 * xs[3]])
    fading: Feedback = FEEDBACK["fading"]()
    laws.law_before_changes_no_input(fading, [xs[3], -xs[3]])
    laws.law_state_is_flat_and_fp32(fading, [xs[3], -xs[3]])
    for compressor in compressors:
        encoders = make_encoder(compressor, fading), ComposedEncoder(compressor, fading)
        laws.law_encoders_agree(*encoders, compressor, [xs[3], -xs[3], xs[3]])
    return sorted({*tried})


def in_lockstep() -> dict[str, list[float]]:
    """Bytes each of three ranks sent, by strategy; all results are equal, and near the mean."""
    xs = [torch.randn(2000, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    sent = {}
    for text in STRATEGIES[:6]:
        results, trace = lockstep(text, xs)
        assert all(torch.equal(results[0], other) for other in results)
        if "topk" not in text:
            off = (results[0] - torch.stack(xs).mean(0)).norm() / torch.stack(xs).mean(0).norm()
            assert off < 0.2, f"{text} is off by {off}"
        sent[text] = trace.bytes_sent
    return sent


def priced() -> dict[str, tuple[float, float]]:
    """Bytes by price, and as counted."""
    found = {}
    xs = [torch.randn(2000, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for text in ("levels(15)+ef | allgather", "levels(15)+fading | halves"):
        steps = price(text, [2000], 3).moves
        found[text] = sum(move.sent for move in steps), lockstep(text, xs)[1].bytes_sent[0]
    return found


def trained(folder: Path) -> dict[str, bool]:
    """Whether ranks end alike, and a run that is saved and resumed ends with the same bits."""
    alike = {}
    for number, text in enumerate(STRATEGIES[:9]):
        whole = _run(text, range(4))
        place = folder / f"{number}-{dist.get_rank()}.pt"
        _run(text, range(2), save=place)
        resumed = _run(text, range(2, 4), load=place)
        everybodys: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybodys, (whole, resumed))
        alike[text] = len({mark for pair in everybodys for mark in pair}) == 1
    return alike


def _run(text: str, steps: range, save: Path | None = None, load: Path | None = None) -> str:
    model = small(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, text)
    if load is not None:
        states = torch.load(load, weights_only=True)
        model.load_state_dict(states["model"])
        handle.load_state_dict(states["handle"])
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    if save is not None:
        torch.save({"model": model.state_dict(), "handle": handle.state_dict()}, save)
    handle.detach()
    return fingerprint(model.parameters())


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    alone: tuple[Callable[[], Any], ...] = (parsed, obey_the_laws, in_lockstep, priced)
    for part in alone:
        report[part.__name__] = part()
    report["trained"] = trained(Path(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

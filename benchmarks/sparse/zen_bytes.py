"""Compares zen with zen(variant="paper"): bytes that a rank sends, counted in lockstep.

python benchmarks/sparse/zen_bytes.py             # the table of HASH.md
python benchmarks/sparse/zen_bytes.py presets     # the table of README.md, in a minute and 2 GB
"""

from __future__ import annotations

import sys

import torch
from sparsity import reference_bytes, synthetic
from torch import Tensor

from gradwire import lockstep

ROWS, COLUMNS, EXPONENT, DRAWS = 13_672, 128, 1.1, 895
ELEMENTS = 1 << 21
PRESETS = {
    "lstm": 1 / 128, "nmt": 1 / 32, "bert": 1 / 8, "deepfm": 1 / 128, "topk": 1 / 4,
    "adversarial": 1 / 4,
}  # fmt: skip
"""The presets' scales, for one to four million elements. Zipf's densities are higher than at scale
1."""
WORLDS = (2, 4, 8, 16)
MEMBERS = ("zen", 'zen(variant="paper")', "columns")


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:] == ["presets"]:
        presets()
    else:
        supports()


def presets() -> None:
    """Prints bytes relative to `paper`, and to `reference_bytes`."""
    print("| preset | ranks | zen, MB | paper | zen / paper | zen / reference | columns / it |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for preset, scale in PRESETS.items():
        tensors = synthetic(preset, max(WORLDS), scale=scale)
        for world in WORLDS:
            some = tensors[:world]
            ours, published, columns = (sent(member, some) for member in MEMBERS)
            least = reference_bytes(some)
            by_columns = f"{columns / least:.3f}" if some[0].dim() > 1 else ""
            print(
                f"| {preset} | {world} | {ours / 1e6:.3f} | {published / 1e6:.3f} "
                f"| {ours / published:.3f} | {ours / least:.3f} | {by_columns} |", flush=True,
            )  # fmt: skip


def supports() -> None:
    print("| tensor | ranks | d | D | zen | paper | formula | saved |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for world in (4, 16):
        print(row("Zipf rows", [zipf_rows(rank) for rank in range(world)]))
        for density in (0.01, 0.05):
            print(row("uniform", [uniform(rank, density) for rank in range(world)]))


def zipf_rows(rank: int) -> Tensor:
    """Draws rows by Zipf-Mandelbrot weights, frequent ones first."""
    dice = torch.Generator().manual_seed(rank + 1)
    weights = 1 / (torch.arange(ROWS).double() + 2.7) ** EXPONENT
    rows = torch.multinomial(weights, DRAWS, replacement=True, generator=dice).unique()
    table = torch.zeros(ROWS, COLUMNS)
    table[rows] = torch.randn(rows.numel(), COLUMNS, generator=dice)
    return table


def uniform(rank: int, density: float) -> Tensor:
    dice = torch.Generator().manual_seed(rank + 1)
    chosen = torch.rand(ELEMENTS, generator=dice) < density
    return torch.where(chosen, torch.randn(ELEMENTS, generator=dice), torch.zeros(ELEMENTS))


def row(name: str, tensors: list[Tensor]) -> str:
    world, size = len(tensors), 4 * tensors[0].numel()
    own = sum(float((x != 0).double().mean()) for x in tensors) / world
    union = float((torch.stack(tensors).sum(0) != 0).double().mean())
    formula = (world - 1) / world * (2 * own + union + 1 / 32) * size
    ours, published = (sent(member, tensors) for member in MEMBERS[:2])
    megabytes = " | ".join(f"{x / 1e6:.3f}" for x in (ours, published, formula))
    saved = f"{1 - ours / published:.0%}"
    return f"| {name} | {world} | {own:.1%} | {union:.1%} | {megabytes} | {saved} |"


def sent(member: str, tensors: list[Tensor]) -> float:
    """Returns the bytes that a rank sends on average."""
    return sum(lockstep(f"nonzero | {member}", tensors)[1].bytes_sent) / len(tensors)


if __name__ == "__main__":
    main()
